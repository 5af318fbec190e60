"""Cycles of coupling with their turn rate, and fights: two controllers that write one field by turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

from kedge.api.objects import Object
from kedge.keys import Key, Revision
from kedge.observe.readers.coupling.edges import CouplingEdge, Links
from kedge.observe.readers.coupling.fields import leaves_of
from kedge.observe.recording.rules import WROTE
from kedge.observe.records import Decision

CYCLE_LENGTH_MAX: Final = 4
"""Controllers in one cycle. Longer ones are many short ones."""
FIGHT_TURNS_MIN: Final = 3
"""Changes of hands that make a fight: A, B, A, B. Fewer are a correction."""


class CouplingCycle(NamedTuple):
    """Controllers each of which changes an input of the next, and the last one of the first."""

    edges: tuple[CouplingEdge, ...]
    turns: int
    """How often it turned: the fewest versions that passed along one of its edges."""
    per_minute: float

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(each.writer for each in self.edges)


class Fight(NamedTuple):
    """Two controllers that write one field of one object by turns."""

    controllers: tuple[str, str]
    object: str
    field: str
    turns: int
    """Changes of hands."""
    per_minute: float
    values: tuple[str, str]
    """The last value of each."""


def cycles_through(
    controller: str, into: Mapping[str, Sequence[CouplingEdge]], links: Links, window_s: float, *, complete: bool
) -> list[CouplingCycle]:
    """Cycles with this controller, each once, with the edges that turned most often."""
    best: dict[tuple[str, ...], CouplingCycle] = {}

    def walk(path: list[CouplingEdge]) -> Iterator[list[CouplingEdge]]:
        """Backwards, from a reader to its writers."""
        first = path[0]
        if first.writer == controller:
            if _is_linked(path[-1], first, links, complete=complete):
                yield path
            return
        if len(path) >= CYCLE_LENGTH_MAX or first.writer in (each.reader for each in path):
            return
        for edge in into.get(first.writer, ()):
            if edge.transfers and _is_linked(edge, first, links, complete=complete):
                yield from walk([edge, *path])

    for edge in into.get(controller, ()):
        if not edge.transfers:
            continue
        for path in walk([edge]):
            turns = min(each.transfers for each in path)
            made = CouplingCycle(tuple(path), turns, 60 * turns / window_s if window_s else 0.0)
            known = best.get(made.controllers)
            if known is None or turns > known.turns:
                best[made.controllers] = made
    return [best[each] for each in sorted(best)]


def _is_linked(into: CouplingEdge, out: CouplingEdge, links: Links, *, complete: bool) -> bool:
    return (into.id, out.id) in links or not complete


# -- fights ----------------------------------------------------------------------------------------


class _LeafWrite(NamedTuple):
    revision: Revision
    writer: str
    value: Any
    at: datetime


def fights_in(decisions: Sequence[Decision]) -> list[Fight]:
    """Every fight, by the versions that kept decisions wrote."""
    found: list[Fight] = []
    for key, writes in _leaf_writes(decisions).items():
        for field, sequence in writes.items():
            found += _fights_over(key, field, sequence)
    return sorted(found, key=lambda each: (-each.turns, each.object, each.field))


def _leaf_writes(decisions: Sequence[Decision]) -> dict[Key, dict[str, list[_LeafWrite]]]:
    versions: dict[Key, dict[Revision, tuple[Object, datetime, str]]] = {}
    for decision in decisions:
        for call in decision.calls:
            if call.outcome in WROTE and call.reply and call.outcome != "removed":
                at = decision.began + timedelta(seconds=call.began_s + call.took_s)
                found = call.reply[0]
                versions.setdefault(found.key, {})[call.revision] = (found, at, decision.controller)
    made: dict[Key, dict[str, list[_LeafWrite]]] = {}
    for key, known in versions.items():
        if len({writer for _, _, writer in known.values()}) > 1:
            made[key] = _changes_of_leaves(known)
    return made


def _changes_of_leaves(known: dict[Revision, tuple[Object, datetime, str]]) -> dict[str, list[_LeafWrite]]:
    found: dict[str, list[_LeafWrite]] = {}
    before: dict[str, Any] = {}
    for revision in sorted(known):
        version, at, writer = known[revision]
        after = dict(leaves_of(version.edit()))
        for path in after.keys() | before.keys():
            if after.get(path) != before.get(path):
                found.setdefault(path, []).append(_LeafWrite(revision, writer, after.get(path), at))
        before = after
    return found


def _fights_over(key: Key, field: str, sequence: Sequence[_LeafWrite]) -> Iterator[Fight]:
    """A fight needs turns in which each writer comes back to a value that it had written before."""
    writers = sorted({each.writer for each in sequence})
    for place, one in enumerate(writers):
        for other in writers[place + 1 :]:
            theirs = [each for each in sequence if each.writer in (one, other)]
            turns = [after for before, after in pairwise(theirs) if before.writer != after.writer]
            if len(turns) < FIGHT_TURNS_MIN or not all(_repeats(theirs, writer) for writer in (one, other)):
                continue
            took_s = (theirs[-1].at - theirs[0].at).total_seconds()
            rate = 60 * len(turns) / took_s if took_s else 0.0
            last = {each.writer: str(each.value) for each in theirs}
            yield Fight((one, other), str(key), field, len(turns), rate, (last[one], last[other]))


def _repeats(sequence: Sequence[_LeafWrite], writer: str) -> bool:
    values = [repr(each.value) for each in sequence if each.writer == writer]
    return len(set(values)) < len(values)
