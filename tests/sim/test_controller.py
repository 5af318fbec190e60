"""Controllers under crashes, lost replies, late watches and two processes that both act as leader.

One program checks every invariant at once: a leader's writes are committed in its own term, no key runs twice at once,
no run begins below its floors, the desired state is reached when the faults stop, then all writes end, and every
decision can be rechecked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kit.controllers import (
    LEASE,
    REPLICA_SET,
    FaultHarness,
    ReplicaCeiling,
    is_complete,
    new_cluster,
    replica_set,
    settle,
)
from tests.kit.safeguards import replaced

from kedge.keys import Fence, Key
from kedge.limits import Limits
from kedge.runtime import Controller
from kedge.runtime.cache import WriteFloors
from kedge.runtime.queue import Item, WorkQueue
from kedge.sim.kernel import FaultPlan, FixedRates, RunOutcome, Simulation, Swarm, run
from kedge.store import Check, Write
from kedge.store.versions import Versions

EVERYTHING = Swarm(without=())
"""Also lost events and requests that are delivered twice."""
NAMES = ("web", "db")
NETS = Limits(
    relist_every_s=15.0, resync_every_s=10.0, queue_resync_spread_s=2.0, decisions_sample_every=1,
    lease_s=4.0, lease_renew_s=2.5, lease_retry_s=1.0,
)  # fmt: skip
"""Resyncs and changes of leader happen within a run."""
NO_NETS = replace(NETS, relist_every_s=1e6, resync_every_s=1e6)
"""A key that is not woken never runs."""


async def changes(sim: Simulation, harness: FaultHarness, count: int) -> dict[str, int]:
    """Change replica counts at random times, as a user would. Returns the final counts."""
    wanted: dict[str, int] = {}
    for name in NAMES:
        wanted[name] = sim.choose_int("replicas", 0, 3)
        await harness.cluster.authority.create(REPLICA_SET, replica_set(name, wanted[name]))
    for _ in range(count):
        await asyncio.sleep(sim.choose("pause", (4.0, 0.01, 0.3, 1.0, 11.0)))
        name = sim.choose("who", NAMES)
        wanted[name] = sim.choose_int("replicas", 0, 3)
        key = Key("ReplicaSet.apps", "default", name)
        await harness.cluster.authority.patch(key, {"spec": {"replicas": wanted[name]}})
        if sim.choose("compact", (False, False, False, True)):
            await harness.cluster.compact()
    return wanted


async def under_faults(
    sim: Simulation, limits: Limits = NETS, lease: Key | None = LEASE, hosts: int = 2, *, stale_lists: bool = True
) -> int:
    cluster = await new_cluster(sim, mortal=True)
    harness = FaultHarness(sim, cluster, limits=limits, lease=lease, stale_lists=stale_lists)
    sim.check_always(ReplicaCeiling(3), harness)
    for n in range(hosts):
        host = sim.host(f"controller-{n}")
        host.skew(rate=sim.choose("clock rate", (1.0, 0.7, 1.4)))
        host.boot(harness.start)
    wanted = await changes(sim, harness, 6)
    await settle(sim, cluster, lambda: all(is_complete(cluster, *each) for each in wanted.items()))
    harness.check_floors()
    return await harness.recheck()


def hunt(program: Any, seeds: range, faults: FaultPlan = EVERYTHING) -> tuple[dict[str, int], int]:
    """Every seed holds every invariant. Returns what was reached, and how many decisions were rechecked."""
    reached: dict[str, int] = {}
    rechecked = 0
    for seed in seeds:
        outcome = run(program, seed, faults=faults)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        rechecked += outcome.result or 0
        for mark, times in outcome.marks.items():
            reached[mark] = reached.get(mark, 0) + times
        for fault in outcome.faults:
            kind = fault.text.partition(":")[0]
            reached[kind] = reached.get(kind, 0) + 1
    return reached, rechecked


def first_violation(program: Any, seeds: range, faults: FaultPlan = EVERYTHING) -> RunOutcome | None:
    return next((found for seed in seeds if (found := run(program, seed, faults=faults)).violation is not None), None)


def test_every_invariant_holds_under_faults_and_every_decision_can_be_rechecked() -> None:
    reached, rechecked = hunt(under_faults, range(200))
    assert rechecked > 200 * 8
    for needed in (
        "two believe that they lead",
        "a deposed leader was fenced off",
        "a floor was met",
        "an outcome was unknown",
        "an unknown write had been made",
        "a stale list was served",
        "hide",
        "duplicate",
        "crash callee",
        "crash caller",
        "pause caller",
    ):
        assert reached.get(needed), f"no seed ever reached {needed!r}: {reached}"


@pytest.mark.soak
def test_every_invariant_holds_over_many_more_seeds() -> None:
    hunt(under_faults, range(10_000, 11_500))


# -- wake-ups --------------------------------------------------------------------------------------


def test_no_wake_up_is_lost() -> None:
    """Without resyncs and without lost events: every change is reconciled."""
    reached, _ = hunt(partial(under_faults, limits=NO_NETS, stale_lists=False), range(15), Swarm())
    assert reached.get("crash caller")


HIDDEN = FixedRates({"delivery of api.watch: hide": 0.3})


def test_a_missed_event_is_repaired() -> None:
    reached, _ = hunt(partial(under_faults, hosts=1), range(12), HIDDEN)
    assert reached["hide"] > 50


def test_without_resyncs_a_missed_event_is_never_repaired() -> None:
    program = partial(under_faults, limits=NO_NETS, hosts=1, stale_lists=False)
    found = first_violation(program, range(40), HIDDEN)
    assert found is not None, "the world is too polite"
    assert found.violation is not None
    assert "not within 300" in found.violation.message


def test_a_controller_without_a_lease_holds_its_invariants_too() -> None:
    hunt(partial(under_faults, lease=None, hosts=1), range(20))


# -- unknown outcomes -----------------------------------------------------------------------------


LOST_REPLIES = FixedRates({
    "reply of api.create: lose": 0.4, "reply of api.patch: lose": 0.4, "reply of api.delete: lose": 0.4,
    "reply of api.get: lose": 0.4, "delivery of api.watch: hide": 0.3,
})  # fmt: skip
HASTY = replace(NETS, client_attempts_max=1, breaker_failures_max=10_000)
"""The client does not retry: the reconcile itself gets the unknown outcome."""


def test_a_write_whose_reply_was_lost_is_read_before_its_key_runs_again() -> None:
    reached, _ = hunt(partial(under_faults, limits=HASTY, hosts=1), range(12), LOST_REPLIES)
    assert reached["an unknown write had been made"] > 5


# -- each safeguard taken away: the hunt must notice -----------------------------------------------


def no_floors(self: WriteFloors, key: Key) -> bool:  # noqa: ARG001
    return False


def nothing_unknown(self: WriteFloors, key: Key, wrote: Key) -> None:
    """A timeout that is treated as a failure."""


async def cold_caches(self: Controller, _: Fence | None) -> None:
    for cache in self._by_kind.values():
        await cache.wait_synced(within_s=1e6)


every_check = Versions.prove


def unfenced(self: Versions, checks: Sequence[Check], writes: Sequence[Write], _: Fence | None) -> None:
    every_check(self, checks, writes, None)


def forget_cancelled_runs(self: WorkQueue[Key], item: Item[Key], **_: Any) -> None:
    self.done(item)


@pytest.mark.parametrize(
    ("target", "name", "unsafe", "broken"),
    [
        (WriteFloors, "unmet", no_floors, "caches never serve below a floor"),
        (Controller, "_wait_caches", cold_caches, "a leader decides on nothing older than its term"),
        (Versions, "prove", unfenced, "two leaders"),
    ],
    ids=["floors", "a new leader's caches", "fence"],
)
def test_the_hunt_notices_when_a_safeguard_is_gone(target: type, name: str, unsafe: object, broken: str) -> None:
    with replaced(target, name, unsafe):
        found = first_violation(under_faults, range(300))
    assert found is not None, "the world is too polite"
    assert found.violation is not None
    assert broken in (found.violation.invariant, found.violation.cause)


def test_the_hunt_notices_when_a_timeout_is_treated_as_a_failure() -> None:
    with replaced(WriteFloors, "note_unknown", nothing_unknown):
        found = first_violation(partial(under_faults, limits=HASTY, hosts=1), range(100), LOST_REPLIES)
    assert found is not None, "the world is too polite"
    assert found.violation is not None
    assert found.violation.invariant == "caches never serve below a floor"


def test_the_hunt_notices_when_a_cancelled_run_is_forgotten() -> None:
    with replaced(WorkQueue, "put_back", forget_cancelled_runs):
        program = partial(under_faults, limits=NO_NETS, stale_lists=False)
        assert first_violation(program, range(100), Swarm()) is not None
