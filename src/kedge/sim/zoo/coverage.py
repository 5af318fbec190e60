"""Coverage-guided search in the worlds of the zoo: its arms, and its trial beside the strategies of an entry.

`comparison` runs the trial; `kedge hunt zoo --coverage` searches the unmodified worlds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from kedge.sim.kernel.coverage_search import CoverageSearch, SearchArm, search_coverage
from kedge.sim.zoo.entry import UnknownZooEntry, ZooEntry
from kedge.sim.zoo.find import entry_target, world_target
from kedge.sim.zoo.worlds import WORLDS

COVERAGE = "coverage"
"""The name of the search among the strategies that are compared."""


def world_arms(names: Sequence[str] = ()) -> tuple[SearchArm, ...]:
    """Every strategy of these worlds, or of all: the first of each world, then the second, for searches that end early.

    Raises:
        UnknownZooEntry: the zoo has no such world.
    """
    for name in names:
        if name not in WORLDS:
            raise UnknownZooEntry(f"the zoo has no world {name!r}: it has {', '.join(WORLDS)}")
    turns = zip_longest(*([(name, each.name) for each in WORLDS[name].strategies] for name in names or WORLDS))
    return tuple(
        SearchArm(world=each[0], strategy=each[1], target=world_target(*each))
        for turn in turns
        for each in turn
        if each is not None
    )


def entry_arms(entry: ZooEntry) -> tuple[SearchArm, ...]:
    """Every strategy of an entry's world, with its safeguard taken out."""
    return tuple(
        SearchArm(world=entry.world, strategy=each.name, target=entry_target(entry.name, each.name))
        for each in WORLDS[entry.world].strategies
    )


def first_find(entry: ZooEntry, *, seed: int, runs_max: int) -> CoverageSearch:
    """Search an entry until it is found. One run at a time, so that every run that is paid for is counted."""
    return search_coverage(
        entry_arms(entry),
        seed=seed,
        runs_max=runs_max,
        executor="inline",
        lookahead=1,
        until=lambda search: found_in(entry, search),
    )


def found_in(entry: ZooEntry, search: CoverageSearch) -> bool:
    """Whether a search has broken an invariant that the entry should break."""
    return any(entry.is_found_by(find.group.violation) for find in search.finds.values())
