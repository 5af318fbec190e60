"""A leading controller: how it begins a term, ends it, loses it, and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from tests.kit.controllers import LEASE, POD, ControllerHarness, pod_of, until, with_harness

from kedge import Action, Context, Controller, WatchSpec
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, fence_key
from kedge.limits import Limits

LEASE_KIND = KINDS.of_key_kind("Lease.coordination.k8s.io")
WEB = Key("ReplicaSet.apps", "default", "web")


def pods(harness: ControllerHarness) -> list[str]:
    return [each.key.name for each in harness.cluster.store.entries() if each.key.kind == "Pod"]


def counting() -> tuple[list[str], Any]:
    """A reconciler that records the name of its process at each run, and takes a second."""
    ran: list[str] = []

    def named(name: str) -> Any:
        async def work(ctx: Context, key: Key) -> Action:
            found = ctx.get(key)
            if found is None:
                return Action.await_change()
            ran.append(name)
            await asyncio.sleep(1.0)
            await ctx.patch(found, {"metadata": {"annotations": {"by": name}}})
            return Action.await_change()

        return work

    return ran, named


class LeaderAndStandby(NamedTuple):
    """A leading controller, and a standby in another process."""

    first: Controller
    leading: asyncio.Task[None]
    other: ControllerHarness
    second: Controller
    standing_by: asyncio.Task[None]


async def leader_and_standby(
    harness: ControllerHarness, named: Any, watches: Sequence[WatchSpec] = ()
) -> LeaderAndStandby:
    """`watches` are those of the standby."""
    first = harness.controller(named("first"), lease=LEASE)
    leading = harness.start(first)
    await until(lambda: first.statistics().leading)
    other = harness.another("other")
    second = other.controller(named("second"), lease=LEASE, watches=watches)
    return LeaderAndStandby(first, leading, other, second, other.start(second))


def holder(harness: ControllerHarness) -> str:
    for entry in harness.cluster.store.entries():
        if entry.key == LEASE:
            held: str = Object(LEASE_KIND, entry.key, entry.value, revision=entry.modified).view.spec.holder_identity
            return held
    return ""


@with_harness()
async def test_a_stop_finishes_the_runs_in_progress_starts_no_more_and_releases_the_lease(
    harness: ControllerHarness,
) -> None:
    began: list[str] = []
    held: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        began.append(key.name)
        await asyncio.sleep(5)
        held.append(holder(harness))
        return Action.await_change()

    for name in ("a", "b", "c"):
        await harness.create(name)
    controller = harness.controller(work, workers=1, lease=LEASE)
    task = harness.start(controller)
    await until(lambda: began)
    left = await controller.stop()
    await task
    assert len(began) == 1
    assert {key.name for key in left} == {"a", "b", "c"} - set(began)
    assert held[0], "the lease was let go while a run went on"
    assert holder(harness) == ""
    assert [each.result for each in harness.decisions()] == ["await change"]


@with_harness()
async def test_a_stop_that_takes_too_long_cancels_the_runs_and_releases_the_lease(harness: ControllerHarness) -> None:
    began: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        began.append(key.name)
        await asyncio.sleep(1e6)
        return Action.await_change()

    await harness.create()
    controller = harness.controller(work, lease=LEASE)
    task = harness.start(controller)
    await until(lambda: began)
    before_s = harness.sim.now_s
    assert await controller.stop(within_s=3) == (WEB,)
    await task
    assert harness.sim.now_s - before_s < 5
    assert [each.result for each in harness.decisions()] == ["cancelled"]
    assert holder(harness) == ""


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.005, 1.01, 1.02, 1.03, 1.04, 1.05, 2.0, 2.01, 2.5, 9.0])
def test_a_controller_that_is_stopped_at_any_time_does_not_keep_its_lease(after_s: float) -> None:
    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        _, named = counting()
        await harness.create()
        controller = harness.controller(named("one"), lease=LEASE)
        task = harness.start(controller)
        await until(lambda: controller.statistics().leading)
        await asyncio.sleep(after_s)
        await controller.stop()
        await task
        assert holder(harness) == ""

    test()


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.003, 0.005, 0.008])
def test_a_stop_does_not_cancel_a_release_in_progress(after_s: float) -> None:
    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        _, named = counting()
        controller = harness.controller(named("one"), lease=LEASE)
        task = harness.start(controller)
        await until(lambda: controller.statistics().leading)
        controller.queue.close()  # its work is over, and the lease is on its way back
        await asyncio.sleep(after_s)
        await controller.stop()
        await task
        assert holder(harness) == ""

    test()


@with_harness()
async def test_a_standby_stops_at_once_and_a_cancelled_leader_releases_the_lease(harness: ControllerHarness) -> None:
    _, named = counting()
    first, leading, other, second, standing_by = await leader_and_standby(harness, named)
    await asyncio.sleep(5)
    assert not second.statistics().leading
    before_s = harness.sim.now_s
    await second.stop()
    await standing_by
    assert harness.sim.now_s - before_s < 1
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert holder(harness) == ""


@with_harness()
async def test_standbys_are_warm_and_take_over_all_remaining_keys(harness: ControllerHarness) -> None:
    ran, named = counting()
    first, leading, other, second, _ = await leader_and_standby(harness, named)
    await harness.create("web", 1)
    await until(lambda: ran == ["first"])
    await asyncio.sleep(10)
    assert set(ran) == {"first"}
    await first.stop()
    await leading
    await harness.scale("web", 2)
    await until(lambda: ran[-1] == "second")


@with_harness(Limits(decisions_sample_every=1, lease_retry_s=1e5, lease_renew_s=1e6, lease_s=3e6))
async def test_a_deposed_leader_is_fenced_ends_its_term_and_competes_again(harness: ControllerHarness) -> None:
    """kubernetes#23731 (bug 21): the store stops the old leader, although by its own clock it still leads.

    It never renews here, so that only its rejected write ends the term.
    """
    ran, named = counting()
    controller = harness.controller(named("one"), lease=LEASE, workers=2)
    task = harness.start(controller)
    await until(lambda: controller.statistics().leading)
    await harness.cluster.authority.patch(LEASE, {"spec": {"holderIdentity": "usurper"}})
    await harness.create()
    await until(lambda: ran)
    await until(lambda: not controller.statistics().leading)
    assert "by" not in (await harness.get()).metadata.annotations
    assert not task.done()
    assert [each.error.partition(":")[0] for each in harness.decisions()] == ["Fenced"]
    await harness.cluster.authority.patch(LEASE, {"spec": {"holderIdentity": ""}})
    await until(lambda: controller.statistics().leading, within_s=1e6)
    await until(lambda: len(ran) >= 2)
    await asyncio.sleep(5)
    assert (await harness.get()).metadata.annotations["by"] == "one"
    fences = [each.modified for each in harness.cluster.store.entries() if each.key == fence_key(LEASE)]
    assert harness.decisions()[-1].fence == fences[0]
    assert await harness.recheck(named("one")) >= 2


@with_harness()
async def test_a_request_that_outlives_its_lease_is_rejected(harness: ControllerHarness) -> None:
    """kubernetes#44887 (bug 21): a write sent in one term and arriving in the next is refused by the store."""
    ran, named = counting()
    controller = harness.controller(named("one"), lease=LEASE)
    harness.start(controller)
    await until(lambda: controller.statistics().leading)
    harness.sim.faults.script("request of api.patch", "delay")
    harness.sim.faults.pick = lambda label, options: options[-1]  # type: ignore[method-assign]  # noqa: ARG005
    await harness.create()
    await until(lambda: ran)
    await asyncio.sleep(1.5)  # the patch is under way
    await harness.cluster.authority.patch(LEASE, {"spec": {"holderIdentity": "usurper"}})
    await asyncio.sleep(12)
    assert "by" not in (await harness.get()).metadata.annotations


@with_harness()
async def test_a_new_leader_decides_nothing_before_its_caches_have_the_writes_of_its_predecessor(
    harness: ControllerHarness,
) -> None:
    """kubernetes#59848 (bug 1): a cache from before the change of leaders is too old to decide on."""
    ran, named = counting()
    first, leading, other, second, _ = await leader_and_standby(harness, named)
    await harness.create()
    await other.caches.wait_synced()
    await asyncio.sleep(0.2)
    other.transport.mute = True
    await asyncio.sleep(5)
    await first.stop()
    await leading
    await asyncio.sleep(20)
    assert holder(harness).startswith("replicaset-"), "no candidate took the lease"
    assert not second.statistics().leading
    assert "second" not in ran
    other.transport.mute = False
    await until(lambda: second.statistics().leading)
    second.wake(WEB)
    await until(other.decisions)
    decision = other.decisions()[0]
    assert decision.fence
    assert all(mark.revision >= decision.fence for mark in decision.marks)


@with_harness(Limits(watch_probe_s=3600.0, watch_silence_s=3600.0, cache_wait_s=10.0))
async def test_a_new_leader_waits_for_all_of_its_caches_at_once(harness: ControllerHarness) -> None:
    """Six streams are dead without an error. All caches are relisted at once, not one after another."""
    _, named = counting()
    quiet = [WatchSpec(kind=KINDS.of_key_kind(each)) for each in ("Pod", "Node", "ConfigMap", "Secret", "Service")]
    first, leading, other, second, _ = await leader_and_standby(harness, named, quiet)
    await until(lambda: other.transport.streams == 6)
    other.transport.dead = 6
    await first.stop()
    await leading
    await until(lambda: holder(harness).startswith("replicaset-"))
    await until(lambda: second.statistics().leading, within_s=2 * harness.limits.cache_wait_s)


@with_harness(Limits(decisions_sample_every=1, client_attempts_max=1, client_deadline_s=3.0))
async def test_one_object_although_the_leader_changed_after_a_write_that_timed_out_and_was_committed(
    harness: ControllerHarness,
) -> None:
    """k0smotron#1534 (bug 3): a created object is found by name and by reads, not by the memory of a process."""

    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        assert owner is not None
        for slot in range(len(ctx.owned(POD, owner)), owner.view.spec.replicas):
            await ctx.ensure(POD, pod_of(owner, slot))
        return Action.await_change()

    first = harness.controller(work, owns=(POD,), lease=LEASE)
    leading = harness.start(first)
    await until(lambda: first.statistics().leading)
    harness.transport.dark = harness.transport.mute = True
    await harness.create("web", 1)
    harness.transport.mute = False
    await until(lambda: pods(harness))
    other = harness.another("other")
    other.start(other.controller(work, owns=(POD,), lease=LEASE))
    await asyncio.sleep(60)  # the first cannot renew, and the other takes over
    assert other.decisions()
    harness.transport.dark = False
    await asyncio.sleep(60)
    assert any(call.outcome == "OutcomeUnknown" for each in harness.decisions() for call in each.calls)
    assert pods(harness) == ["web-0"]
    assert not leading.done()
