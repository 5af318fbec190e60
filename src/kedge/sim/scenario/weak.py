"""Safeguards that a weak variant goes without, by name: those of the zoo, and some that only a story needs.

Each is a small patch of real components, never a copy of one. A story's patch may take out a safeguard together with
the one behind it: kedge seldom relies on one alone, and a story is about what happens when there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from kedge.controllers import evacuation, rolling
from kedge.controllers.rolling import SetFacts
from kedge.sim.zoo.entries import Patch, swapping
from kedge.sim.zoo.hunting import all_entries, entry_named


def _both(*patches: Patch) -> Patch:
    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return patch


def _at_once(pod: Any, limits: Any) -> float:  # noqa: ARG001
    return 0.0


def _all_at_once(available_min: int, new: SetFacts, old: Iterable[SetFacts], **_: Any) -> dict[str, int]:  # noqa: ARG001
    return {each.name: 0 for each in old}


@cache
def _of_stories() -> Mapping[str, Patch]:
    return {
        # A node is given up, and its pods with it, as soon as its heartbeat is late.
        "grace": _both(entry_named("lost-on-suspicion").patch, swapping(evacuation, "release_after_s", _at_once)),
        # The old replicas go at once, however few of the new are there.
        "availability-floor": swapping(rolling, "_shrink_old", _all_at_once),
    }


@cache
def weaknesses() -> Mapping[str, Patch]:
    """Every patch by the name of what it takes away."""
    return {**{entry.name: entry.patch for entry in all_entries()}, **_of_stories()}


def find_weakness(name: str) -> Patch | None:
    return weaknesses().get(name)
