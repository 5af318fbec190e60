"""Safeguards that a weak variant goes without, by name: those of the zoo, and some that only a story needs.

Each is a small patch of real components, never a copy of one. A story's patch may take out a safeguard together with
the one behind it: kedge seldom relies on one alone, and a story is about what happens when there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from kedge.controllers.autoscaler import plan as scaling
from kedge.controllers.deployment import plan as rolling
from kedge.controllers.deployment.plan import SetFacts
from kedge.keys import Key
from kedge.server.service import gang_chunks, gangs, reservations
from kedge.sim.zoo.entry import all_entries, entry_named, swap

Patch = Callable[[], AbstractContextManager[None]]
"""Takes a safeguard away for as long as it is entered."""


def swapping(place: Any, attribute: str, unsafe: Any) -> Patch:
    return partial(swap, place, attribute, unsafe)


def _all_at_once(available_min: int, new: SetFacts, old: Iterable[SetFacts], **_: Any) -> dict[str, int]:  # noqa: ARG001
    return {each.name: 0 for each in old}


@contextmanager
def _named_anew() -> Iterator[None]:
    """Each attempt to reserve for a pod makes a reservation of another name."""
    claim, numbers = reservations._claim, count(1)

    def name_anew(namespace: str, name: str) -> Key:
        key = gangs.reservation_key(namespace, name)
        return key._replace(name=f"{name}-{next(numbers)}") if name.count("-") == 4 else key  # a uid, not a gang

    async def claim_for_any(core: Any, proof: Any, key: Key, spec: Any) -> None:
        await claim(core, proof, key._replace(name=spec.pod.uid), spec)

    with (
        swap(gang_chunks, "reservation_key", name_anew),
        swap(gang_chunks, "check_object", lambda *_: SimpleNamespace(view=None)),
        swap(reservations, "_claim", claim_for_any),
    ):
        yield


@cache
def _of_stories() -> Mapping[str, Patch]:
    return {
        # A node is given up, and its pods with it, as soon as its heartbeat is late.
        "grace": entry_named("lost-on-suspicion").patch,
        # A reservation has a name of its own, so that a second one for the same pod does not collide.
        "reservation-named-by-its-pod": _named_anew,
        # That replicas wait for a node, or for a cache, is taken for a lack of them.
        "reasons-before-scaling": swapping(scaling, "_why_not", lambda *_: ("", "")),
        # The old replicas go at once, however few of the new are there.
        "availability-floor": swapping(rolling, "_shrink_old", _all_at_once),
    }


@cache
def weaknesses() -> Mapping[str, Patch]:
    """Every patch by the name of what it takes away."""
    return {**{entry.name: entry.patch for entry in all_entries()}, **_of_stories()}


def find_weakness(name: str) -> Patch | None:
    return weaknesses().get(name)
