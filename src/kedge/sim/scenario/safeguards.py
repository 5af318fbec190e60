"""Safeguards that a weak variant of a scenario removes, by name: those of the zoo, and some that only a scenario needs.

Each is a small patch of a real component, never a copy of one. A patch may remove a safeguard together with the one
behind it: kedge seldom relies on one alone, and a weak variant shows what happens without any.
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
"""Removes a safeguard while it is entered."""


def swapping(place: Any, attribute: str, unsafe: Any) -> Patch:
    return partial(swap, place, attribute, unsafe)


def _all_at_once(available_min: int, new: SetFacts, old: Iterable[SetFacts], **_: Any) -> dict[str, int]:  # noqa: ARG001
    return {each.name: 0 for each in old}


@contextmanager
def _numbered_reservations() -> Iterator[None]:
    """Each attempt to reserve for a pod creates a reservation with a new name."""
    claim, numbers = reservations._claim, count(1)

    def numbered_key(namespace: str, name: str) -> Key:
        key = gangs.reservation_key(namespace, name)
        return key._replace(name=f"{name}-{next(numbers)}") if name.count("-") == 4 else key  # a uid, not a gang

    async def claim_for_any(core: Any, proof: Any, key: Key, spec: Any) -> None:
        await claim(core, proof, key._replace(name=spec.pod.uid), spec)

    with (
        swap(gang_chunks, "reservation_key", numbered_key),
        swap(gang_chunks, "check_object", lambda *_: SimpleNamespace(view=None)),
        swap(reservations, "_claim", claim_for_any),
    ):
        yield


@cache
def _scenario_patches() -> Mapping[str, Patch]:
    return {
        # A node and its pods are marked lost as soon as one heartbeat is late.
        "grace": entry_named("lost-on-suspicion").patch,
        # Reservations get unique names, so that a second one for the same pod does not collide.
        "reservation-named-by-its-pod": _numbered_reservations,
        # Pending or cold replicas count as missing replicas.
        "reasons-before-scaling": swapping(scaling, "_why_not", lambda *_: ("", "")),
        # The old replicas are removed at once, however few new ones are ready.
        "availability-floor": swapping(rolling, "_shrink_old", _all_at_once),
    }


@cache
def safeguards() -> Mapping[str, Patch]:
    """Every patch, by the name of the safeguard that it removes."""
    return {**{entry.name: entry.patch for entry in all_entries()}, **_scenario_patches()}


def find_safeguard(name: str) -> Patch | None:
    return safeguards().get(name)
