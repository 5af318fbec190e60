"""Safeguards that a weak variant of a scenario removes, by name: those of the zoo, and some that only a scenario needs.

Each is a small patch of a real component, never a copy of one. A patch may remove a safeguard together with the one
behind it: kedge seldom relies on one alone, and a weak variant shows what happens without any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from kedge.api.conditions import TRUE
from kedge.client.contract import Client
from kedge.controllers.autoscaler import plan as scaling
from kedge.controllers.rollout import gates
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.keys import NO_REVISION, Key, Revision
from kedge.placement import predicates
from kedge.placement.reasons import Misfit, Reason
from kedge.scheduler import Scheduler
from kedge.server.service import binding, claims, gang_chunks, gangs, reservations
from kedge.sim.zoo.entry import all_entries, entry_named, swap

Patch = Callable[[], AbstractContextManager[None]]
"""Removes a safeguard while it is entered."""


def swapping(place: Any, attribute: str, unsafe: Any) -> Patch:
    return partial(swap, place, attribute, unsafe)


def _not_checked(*_: Any) -> gates.GateStatus:
    return gates.GateStatus(gates.FRESHNESS, TRUE, "NotChecked")


_wait_caches = Scheduler._wait_caches


async def _wait_listed(scheduler: Scheduler, _: Revision) -> None:
    """A new leader decides on its caches as they are, once each has listed."""
    await _wait_caches(scheduler, NO_REVISION)


@contextmanager
def _numbered_reservations() -> Iterator[None]:
    """Each attempt to reserve for a pod creates a reservation with a new name, and a new leader does not wait.

    A bind uses the newest reservation of its pod, so that a run without faults ends well.
    """
    claim, plain_key, numbers = reservations._claim, gangs.reservation_key, count(1)
    newest: dict[str, str] = {}

    def numbered_key(namespace: str, name: str) -> Key:
        if name.count("-") == 4:  # a uid, not a gang
            newest[name] = f"{name}-{next(numbers)}"
        return newest_key(namespace, name)

    def newest_key(namespace: str, name: str) -> Key:
        return plain_key(namespace, newest.get(name, name))

    async def claim_for_any(core: Any, proof: Any, key: Key, spec: Any) -> None:
        await claim(core, proof, key._replace(name=spec.pod.uid), spec)

    with (
        swap(gang_chunks, "reservation_key", numbered_key),
        swap(gangs, "reservation_key", newest_key),
        swap(binding, "reservation_key", newest_key),
        swap(gang_chunks, "check_object", lambda *_: SimpleNamespace(view=None)),
        swap(reservations, "_claim", claim_for_any),
        swap(Scheduler, "_wait_caches", _wait_listed),
    ):
        yield


async def _write_or_fail(self: Client, request: Any) -> Any:
    """Send a write once. Without an answer it counts as failed."""
    began_s = self._env.monotonic()
    try:
        return await self._write_once(request)
    except OutcomeUnknown as error:
        waited_s = self._env.monotonic() - began_s
        raise Unavailable(f"no answer within {waited_s:.1f}s, taken for a failure") from error


@contextmanager
def _timeout_is_failure() -> Iterator[None]:
    """A request without an answer counts as not carried out, and a bind applies to a pod that is bound already."""
    first_misfit = predicates.first_misfit

    def anywhere(*args: Any) -> Misfit | None:
        found = first_misfit(*args)
        return None if found is not None and found.reason is Reason.NODE_NAME else found

    with (
        swap(Client, "_write", _write_or_fail),
        swap(claims, "check_pod_claimable", lambda *_: None),
        swap(claims, "first_misfit", anywhere),
    ):
        yield


@cache
def _scenario_patches() -> Mapping[str, Patch]:
    return {
        # A node and its pods are marked lost as soon as one heartbeat is late.
        "grace": entry_named("lost-on-suspicion").patch,
        # The client takes a timeout for a failure, and the server binds a bound pod again.
        "read-after-timeout": _timeout_is_failure,
        # Reservations get unique names, so that a second one for the same pod does not collide.
        "reservation-named-by-its-pod": _numbered_reservations,
        # Pending or cold replicas count as missing replicas.
        "reasons-before-scaling": swapping(scaling, "_why_not", lambda *_: ("", "")),
        # A stage is left on signals of caches that have not reached its activation.
        "freshness-gate": swapping(gates, "_freshness", _not_checked),
        # A rollback removes the last healthy replica if its strategy allows that.
        "availability-floor": entry_named("rollback-without-floor").patch,
    }


@cache
def safeguards() -> Mapping[str, Patch]:
    """Every patch, by the name of the safeguard that it removes."""
    return {**{entry.name: entry.patch for entry in all_entries()}, **_scenario_patches()}


def find_safeguard(name: str) -> Patch | None:
    return safeguards().get(name)
