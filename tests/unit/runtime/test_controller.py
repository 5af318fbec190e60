"""The controller: results of runs, wake-ups and floors, one at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.kit.controllers import LEASE, POD, ControllerHarness, pod_of, until, with_harness
from tests.objects import CONFIG_MAP, config_map

from kedge import Action, Context, WatchSpec
from kedge.errors import InvariantBroken, Terminal, Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import wake_itself
from kedge.runtime.queue import KeyState, WaitReason

WEB = Key("ReplicaSet.apps", "default", "web")
DB = Key("ReplicaSet.apps", "default", "db")


def pods(harness: ControllerHarness) -> list[str]:
    return [each.key.name for each in harness.cluster.store.entries() if each.key.kind == "Pod"]


# -- how runs end ----------------------------------------------------------------------------------


@with_harness()
async def test_a_bug_of_the_reconciler_is_reported_and_retried_and_stops_no_other_key(
    harness: ControllerHarness,
) -> None:
    runs: dict[str, int] = {}

    async def work(_: Context, key: Key) -> Action:
        runs[key.name] = runs.get(key.name, 0) + 1
        if key == WEB and runs["web"] <= 3:
            raise ValueError("a bug")
        return Action.await_change()

    await harness.create("web")
    controller = harness.open(work, workers=1)
    await until(lambda: runs.get("web") == 4)
    await harness.create("db")
    await until(lambda: runs.get("db") == 1)
    assert [str(error) for error in harness.reported] == ["a bug"] * 3
    failed = [each for each in harness.decisions() if each.result == "failed"]
    assert [(each.attempt, each.error) for each in failed] == [(n, "ValueError: a bug") for n in (1, 2, 3)]
    assert controller.statistics().failures == 3


@with_harness()
async def test_a_failing_key_is_explained(harness: ControllerHarness) -> None:
    async def work(_: Context, __: Key) -> Action:
        raise Unavailable("the disk is on fire")

    await harness.create()
    controller = harness.open(work)
    await until(lambda: (found := controller.explain(WEB)) is not None and found.failures >= 2)
    report = controller.explain(WEB)
    assert report is not None
    assert str(report.last_error) == "the disk is on fire"
    assert report.wait_reason in (WaitReason.BACKOFF, WaitReason.NONE)
    assert not harness.reported, "an operating error is part of life"


@with_harness()
async def test_a_cancellation_that_escapes_a_reconciler_ends_neither_worker_nor_controller(
    harness: ControllerHarness,
) -> None:
    """kopf#996 (bug 20) in small: the operator must neither run without working nor end without an error."""
    seen: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        seen.append(key.name)
        if key == WEB and seen.count("web") == 1:
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        return Action.await_change()

    await harness.create("web")
    task = harness.start(harness.controller(work, workers=1, lease=LEASE))
    await until(lambda: seen.count("web") == 2)
    await harness.create("db")
    await until(lambda: "db" in seen)
    assert not task.done()
    assert len(harness.reported) == 1
    seen.clear()
    assert await harness.recheck(work) == 3


@with_harness()
async def test_a_result_that_is_not_an_action_is_rejected(harness: ControllerHarness) -> None:
    async def work(_: Context, __: Key) -> Any:
        return None

    await harness.create()
    harness.open(work)
    await until(lambda: harness.reported)
    assert isinstance(harness.reported[0], InvariantBroken)
    assert "return an Action" in str(harness.reported[0])
    assert await harness.recheck(work) >= 1


@pytest.mark.parametrize("raised", [True, False])
def test_a_terminal_result_is_not_retried_until_something_changes(raised: bool) -> None:
    @with_harness(Limits(decisions_sample_every=1, resync_every_s=100_000, relist_every_s=100_000))
    async def test(harness: ControllerHarness) -> None:
        runs: list[int] = []

        async def work(ctx: Context, key: Key) -> Action:
            found = ctx.get(key)
            assert found is not None
            runs.append(found.revision)
            if len(runs) > 1:
                return Action.await_change()
            if raised:
                raise Terminal("it can never fit")
            return Action.terminal(reason="it can never fit", condition="Fits")

        await harness.create()
        controller = harness.open(work)
        await until(lambda: runs)
        await asyncio.sleep(3600)
        assert len(runs) == 1
        report = controller.explain(WEB)
        assert report is not None
        assert report.terminal
        assert report.state is KeyState.IDLE
        assert str(report.last_error) == "it can never fit"
        assert harness.decisions()[0].result == "terminal"
        await harness.scale("web", 7)
        await until(lambda: len(runs) == 2)
        assert controller.explain(WEB) is None
        runs.clear()
        assert await harness.recheck(work) == 2

    test()


@with_harness(Limits(resync_every_s=100_000, relist_every_s=100_000))
async def test_a_requeue_runs_after_its_delay_and_await_change_waits_for_a_change(harness: ControllerHarness) -> None:
    at: list[float] = []

    async def work(_: Context, __: Key) -> Action:
        at.append(harness.sim.now_s)
        return Action.requeue(delay_s=30) if len(at) == 1 else Action.await_change()

    await harness.create()
    harness.open(work)
    await asyncio.sleep(3600)
    assert len(at) == 2
    assert 30 <= at[1] - at[0] < 31


# -- waking ----------------------------------------------------------------------------------------


@with_harness()
async def test_a_priority_function_that_raises_costs_no_wake_up(harness: ControllerHarness) -> None:
    seen: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        seen.append(key.name)
        return Action.await_change()

    def priority_of(*_: object) -> int:
        raise KeyError("no such annotation")

    await harness.create()
    harness.open(work, priority_of=priority_of)
    await until(lambda: seen == ["web"])
    assert all(isinstance(error, KeyError) for error in harness.reported)
    assert harness.reported


@with_harness()
async def test_higher_priorities_go_first(harness: ControllerHarness) -> None:
    order: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        order.append(key.name)
        return Action.await_change()

    for n in (1, 3, 2):
        await harness.create(f"s{n}", n)
    harness.open(work, workers=1, priority_of=lambda found, _: found.view.spec.replicas)
    await until(lambda: len(order) == 3)
    assert order == ["s3", "s2", "s1"]


@with_harness(Limits(resync_every_s=30.0, queue_resync_spread_s=1.0, relist_every_s=100_000))
async def test_every_key_is_resynced_periodically_without_a_change(
    harness: ControllerHarness,
) -> None:
    seen: list[float] = []

    async def work(_: Context, __: Key) -> Action:
        seen.append(harness.sim.now_s)
        return Action.await_change()

    await harness.create()
    harness.open(work)
    await asyncio.sleep(200)
    assert 4 <= len(seen) <= 10
    assert all(after - before < 30 * 1.25 + 2 for before, after in pairwise(seen))


@with_harness(Limits(queue_keys_max=3, queue_resync_spread_s=0.5, resync_every_s=100_000, relist_every_s=100_000))
async def test_keys_that_a_full_queue_rejected_are_reconciled_later(harness: ControllerHarness) -> None:
    """kube-rs#1322 (bug 13): a bound may delay a reconcile, it never drops one."""
    seen: set[str] = set()

    async def work(_: Context, key: Key) -> Action:
        await asyncio.sleep(0.5)
        seen.add(key.name)
        return Action.await_change()

    for n in range(12):
        await harness.create(f"s{n}")
    controller = harness.open(work, workers=2)
    await until(lambda: len(seen) == 12)
    assert controller.statistics().queue.refused > 0, "the queue was never full"


@with_harness(Limits(resync_every_s=100_000, relist_every_s=100_000))
async def test_changes_during_a_run_with_every_worker_busy_are_all_reconciled(harness: ControllerHarness) -> None:
    """kube-rs#1322 (bug 13): a change that comes while its key runs and no worker is free is run afterwards."""
    seen: dict[str, int] = {}

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        await asyncio.sleep(1.0)
        seen[key.name] = found.view.spec.replicas
        return Action.await_change()

    for n in range(6):
        await harness.create(f"s{n}", 0)
    harness.open(work, workers=1)
    for change in range(1, 4):
        await asyncio.sleep(0.7)
        for n in range(6):
            await harness.scale(f"s{n}", change)
    await until(lambda: seen == {f"s{n}": 3 for n in range(6)}, within_s=120)


# -- read your writes ------------------------------------------------------------------------------


@with_harness()
async def test_a_key_waits_for_its_own_writes_and_its_worker_does_not(harness: ControllerHarness) -> None:
    """cluster-api#13649 (bug 2): a cache that is late must not make a second object for one intent."""
    counts: list[int] = []

    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        assert owner is not None
        if key == DB:
            return Action.await_change()
        pods = ctx.owned(POD, owner)
        counts.append(len(pods))
        if not pods:
            body = pod_of(owner, 0)
            body["metadata"].pop("name")
            await ctx.create(POD, {**body, "metadata": {**body["metadata"], "generateName": "web-"}})
        return Action.await_change()

    await harness.create("web", 1)
    await harness.create("db")
    controller = harness.controller(work, owns=(POD,), workers=1)
    harness.start(controller)
    await until(lambda: counts)
    harness.transport.mute = True
    await until(lambda: pods(harness))
    for _ in range(4):
        controller.wake(WEB)
        await asyncio.sleep(1)
        report = controller.explain(WEB)
        assert report is not None
        assert report.wait_reason is WaitReason.FLOOR
        controller.wake(DB)
        await asyncio.sleep(0.1)
        assert harness.decisions()[-1].key == DB, "the worker waits instead of the key"
    harness.transport.mute = False
    await until(lambda: counts[-1] == 1, within_s=120)
    assert len(pods(harness)) == 1, counts
    assert 0 not in counts[1:]


@with_harness(Limits(decisions_sample_every=1, floor_relist_s=1.0, floor_wait_s=3.0))
async def test_a_floor_that_is_not_met_in_time_fails_the_key_without_a_reconcile(
    harness: ControllerHarness,
) -> None:
    runs: list[int] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        runs.append(found.revision)
        await ctx.write_status(found, {"replicas": found.view.spec.replicas})
        return Action.await_change()

    controller = harness.open(work)
    await harness.create("web", 1)
    await harness.caches.wait_synced()
    await until(lambda: runs)
    harness.transport.mute = True
    controller.wake(WEB)
    await asyncio.sleep(30)
    assert len(runs) == 1
    held = [each for each in harness.decisions() if each.result == "failed"]
    assert len(held) >= 2
    assert all(each.error.startswith("Behind: ") and not each.calls and not each.reads for each in held)
    report = controller.explain(WEB)
    assert report is not None
    assert report.failures
    harness.transport.mute = False
    await until(lambda: len(runs) > 1)
    assert runs[1] > runs[0]
    assert await harness.recheck(work) > len(held)


# -- declarations ----------------------------------------------------------------------------------


@with_harness()
async def test_a_kind_is_declared_once_and_read_only_if_declared(harness: ControllerHarness) -> None:
    async def work(ctx: Context, _: Key) -> Action:
        ctx.list(CONFIG_MAP)
        return Action.await_change()

    with pytest.raises(InvariantBroken, match="declares Pod twice"):
        harness.controller(work, owns=(POD,), watches=(WatchSpec(kind=POD, keys_of=wake_itself),))
    with pytest.raises(InvariantBroken, match="must not contain"):
        harness.controller(work, name="apps:web")
    await harness.create()
    controller = harness.open(work)
    await until(lambda: harness.reported)
    assert "ConfigMap without declaring it" in str(harness.reported[0])
    assert await harness.recheck(work) >= 1
    with pytest.raises(InvariantBroken, match="was run already"):
        await controller.run()


@with_harness()
async def test_a_kind_that_is_only_read_wakes_no_key_and_a_mapped_kind_wakes_the_keys_it_names(
    harness: ControllerHarness,
) -> None:
    woken: list[str] = []

    async def work(ctx: Context, key: Key) -> Action:
        woken.append(key.name)
        ctx.list(CONFIG_MAP)
        return Action.await_change()

    await harness.create("web")
    quiet = harness.open(work, watches=(WatchSpec(kind=CONFIG_MAP),), name="quiet")
    await until(lambda: woken == ["web"])
    await harness.cluster.authority.create(CONFIG_MAP, config_map("settings"))
    await asyncio.sleep(5)
    assert woken == ["web"]
    await quiet.stop()
    harness.open(work, watches=(WatchSpec(kind=CONFIG_MAP, keys_of=lambda _, __: (WEB,)),), name="mapped")
    await until(lambda: len(woken) == 2)
    await harness.cluster.authority.create(CONFIG_MAP, config_map("more"))
    await until(lambda: len(woken) == 3)
    assert harness.decisions()[-1].wakes[0][0] == "ConfigMap/default/more"
