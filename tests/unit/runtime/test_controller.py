"""The controller: what a run's end means for its key, and how it starts, leads and stops. One thing at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.objects import CONFIG_MAP, config_map
from tests.sim.controllers import LEASE, POD, Shop, in_a_shop, pod_of, until

from kedge import Action, Context, Watch
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.errors import InvariantBroken, Terminal, Unavailable
from kedge.keys import Key, fence_key
from kedge.limits import Limits
from kedge.runtime import wake_itself
from kedge.runtime.queue import KeyState, WaitReason

LEASE_KIND = KINDS.of_key_kind("Lease.coordination.k8s.io")
WEB = Key("ReplicaSet.apps", "default", "web")
DB = Key("ReplicaSet.apps", "default", "db")


# -- how runs end ----------------------------------------------------------------------------------


@in_a_shop()
async def test_a_bug_of_the_reconciler_is_reported_and_retried_and_stops_no_other_key(shop: Shop) -> None:
    runs: dict[str, int] = {}

    async def work(_: Context, key: Key) -> Action:
        runs[key.name] = runs.get(key.name, 0) + 1
        if key == WEB and runs["web"] <= 3:
            raise ValueError("a bug")
        return Action.await_change()

    await shop.create("web")
    controller = shop.open(work, workers=1)
    await until(lambda: runs.get("web") == 4)
    await shop.create("db")
    await until(lambda: runs.get("db") == 1)
    assert [str(error) for error in shop.reported] == ["a bug"] * 3
    failed = [each for each in shop.decisions() if each.result == "failed"]
    assert [(each.attempt, each.error) for each in failed] == [(n, "ValueError: a bug") for n in (1, 2, 3)]
    assert controller.statistics().failures == 3


@in_a_shop()
async def test_a_failing_key_is_explained(shop: Shop) -> None:
    async def work(_: Context, __: Key) -> Action:
        raise Unavailable("the disk is on fire")

    await shop.create()
    controller = shop.open(work)
    await until(lambda: (found := controller.explain(WEB)) is not None and found.failures >= 2)
    report = controller.explain(WEB)
    assert report is not None
    assert str(report.last_error) == "the disk is on fire"
    assert report.wait_reason in (WaitReason.BACKOFF, WaitReason.NONE)
    assert not shop.reported, "an operating error is part of life"


@in_a_shop()
async def test_a_cancellation_that_a_reconciler_lets_out_ends_neither_worker_nor_controller(shop: Shop) -> None:
    """kopf#996 (bug 20) in small: the operator must not live on without working, nor end without a word."""
    seen: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        seen.append(key.name)
        if key == WEB and seen.count("web") == 1:
            inner = asyncio.get_running_loop().create_future()
            inner.cancel()
            await inner
        return Action.await_change()

    await shop.create("web")
    task = shop.start(shop.controller(work, workers=1, lease=LEASE))
    await until(lambda: seen.count("web") == 2)
    await shop.create("db")
    await until(lambda: "db" in seen)
    assert not task.done()
    assert len(shop.reported) == 1
    seen.clear()
    assert await shop.recheck(work) == 3


@in_a_shop()
async def test_what_is_returned_must_be_an_action(shop: Shop) -> None:
    async def work(_: Context, __: Key) -> Any:
        return None

    await shop.create()
    shop.open(work)
    await until(lambda: shop.reported)
    assert isinstance(shop.reported[0], InvariantBroken)
    assert "return an Action" in str(shop.reported[0])
    assert await shop.recheck(work) >= 1


@pytest.mark.parametrize("raised", [True, False])
def test_a_terminal_end_is_not_tried_again_until_something_changes(raised: bool) -> None:
    @in_a_shop(Limits(decisions_sample_every=1, resync_every_s=100_000, relist_every_s=100_000))
    async def test(shop: Shop) -> None:
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

        await shop.create()
        controller = shop.open(work)
        await until(lambda: runs)
        await asyncio.sleep(3600)
        assert len(runs) == 1
        report = controller.explain(WEB)
        assert report is not None
        assert report.terminal
        assert report.state is KeyState.IDLE
        assert str(report.last_error) == "it can never fit"
        assert shop.decisions()[0].result == "terminal"
        await shop.scale("web", 7)
        await until(lambda: len(runs) == 2)
        assert controller.explain(WEB) is None
        runs.clear()
        assert await shop.recheck(work) == 2

    test()


@in_a_shop(Limits(resync_every_s=100_000, relist_every_s=100_000))
async def test_a_requeue_comes_after_its_pause_and_awaiting_a_change_waits_for_one(shop: Shop) -> None:
    at: list[float] = []

    async def work(_: Context, __: Key) -> Action:
        at.append(shop.sim.now_s)
        return Action.requeue(delay_s=30) if len(at) == 1 else Action.await_change()

    await shop.create()
    shop.open(work)
    await asyncio.sleep(3600)
    assert len(at) == 2
    assert 30 <= at[1] - at[0] < 31


# -- waking ----------------------------------------------------------------------------------------


@in_a_shop()
async def test_a_priority_that_cannot_be_told_costs_no_wake_up(shop: Shop) -> None:
    seen: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        seen.append(key.name)
        return Action.await_change()

    def priority_of(_: object) -> int:
        raise KeyError("no such annotation")

    await shop.create()
    shop.open(work, priority_of=priority_of)
    await until(lambda: seen == ["web"])
    assert all(isinstance(error, KeyError) for error in shop.reported)
    assert shop.reported


@in_a_shop()
async def test_higher_priorities_go_first(shop: Shop) -> None:
    order: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        order.append(key.name)
        return Action.await_change()

    for n in (1, 3, 2):
        await shop.create(f"s{n}", n)
    shop.open(work, workers=1, priority_of=lambda found: found.view.spec.replicas)
    await until(lambda: len(order) == 3)
    assert order == ["s3", "s2", "s1"]


@in_a_shop(Limits(resync_every_s=30.0, queue_resync_spread_s=1.0, relist_every_s=100_000))
async def test_every_key_is_looked_at_now_and_then_though_nothing_is_known_to_have_changed(shop: Shop) -> None:
    seen: list[float] = []

    async def work(_: Context, __: Key) -> Action:
        seen.append(shop.sim.now_s)
        return Action.await_change()

    await shop.create()
    shop.open(work)
    await asyncio.sleep(200)
    assert 4 <= len(seen) <= 10
    assert all(after - before < 30 * 1.25 + 2 for before, after in pairwise(seen))


@in_a_shop(Limits(queue_keys_max=3, queue_resync_spread_s=0.5, resync_every_s=100_000, relist_every_s=100_000))
async def test_what_a_full_queue_refused_is_made_good(shop: Shop) -> None:
    """kube-rs#1322 (bug 13): a bound may delay a reconcile, it never drops one."""
    seen: set[str] = set()

    async def work(_: Context, key: Key) -> Action:
        await asyncio.sleep(0.5)
        seen.add(key.name)
        return Action.await_change()

    for n in range(12):
        await shop.create(f"s{n}")
    controller = shop.open(work, workers=2)
    await until(lambda: len(seen) == 12)
    assert controller.statistics().queue.refused > 0, "the queue was never full"


@in_a_shop(Limits(resync_every_s=100_000, relist_every_s=100_000))
async def test_changes_during_a_run_with_every_worker_busy_are_all_looked_at(shop: Shop) -> None:
    """kube-rs#1322 (bug 13): a change that comes while its key runs and no worker is free is run afterwards."""
    seen: dict[str, int] = {}

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        await asyncio.sleep(1.0)
        seen[key.name] = found.view.spec.replicas
        return Action.await_change()

    for n in range(6):
        await shop.create(f"s{n}", 0)
    shop.open(work, workers=1)
    for change in range(1, 4):
        await asyncio.sleep(0.7)
        for n in range(6):
            await shop.scale(f"s{n}", change)
    await until(lambda: seen == {f"s{n}": 3 for n in range(6)}, within_s=120)


# -- read your writes ------------------------------------------------------------------------------


@in_a_shop()
async def test_a_key_waits_for_its_own_writes_and_its_worker_does_not(shop: Shop) -> None:
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

    await shop.create("web", 1)
    await shop.create("db")
    controller = shop.controller(work, owns=(POD,), workers=1)
    shop.start(controller)
    await until(lambda: counts)
    shop.veil.mute = True
    await until(lambda: pods(shop))
    for _ in range(4):
        controller.wake(WEB)
        await asyncio.sleep(1)
        report = controller.explain(WEB)
        assert report is not None
        assert report.wait_reason is WaitReason.FLOOR
        controller.wake(DB)
        await asyncio.sleep(0.1)
        assert shop.decisions()[-1].key == DB, "the worker waits instead of the key"
    shop.veil.mute = False
    await until(lambda: counts[-1] == 1, within_s=120)
    assert len(pods(shop)) == 1, counts
    assert 0 not in counts[1:]


@in_a_shop(Limits(decisions_sample_every=1, floor_relist_s=1.0, floor_wait_s=3.0))
async def test_a_floor_that_is_not_met_in_time_fails_the_key_and_the_reconciler_is_not_asked(shop: Shop) -> None:
    runs: list[int] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        runs.append(found.revision)
        await ctx.write_status(found, {"replicas": found.view.spec.replicas})
        return Action.await_change()

    controller = shop.open(work)
    await shop.create("web", 1)
    await shop.caches.wait_synced()
    await until(lambda: runs)
    shop.veil.mute = True
    controller.wake(WEB)
    await asyncio.sleep(30)
    assert len(runs) == 1
    held = [each for each in shop.decisions() if each.result == "failed"]
    assert len(held) >= 2
    assert all(each.error.startswith("Behind: ") and not each.calls and not each.reads for each in held)
    report = controller.explain(WEB)
    assert report is not None
    assert report.failures
    shop.veil.mute = False
    await until(lambda: len(runs) > 1)
    assert runs[1] > runs[0]
    assert await shop.recheck(work) > len(held)


# -- leading and stopping --------------------------------------------------------------------------


def counting() -> tuple[list[str], Any]:
    """A reconciler that writes down the name of its process for each run, and takes a second."""
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


def holder(shop: Shop) -> str:
    for entry in shop.cluster.store.entries():
        if entry.key == LEASE:
            held: str = Object(LEASE_KIND, entry.key, entry.value, revision=entry.modified).view.spec.holder_identity
            return held
    return ""


@in_a_shop()
async def test_a_stop_finishes_what_runs_starts_nothing_more_and_then_lets_go(shop: Shop) -> None:
    began: list[str] = []
    held: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        began.append(key.name)
        await asyncio.sleep(5)
        held.append(holder(shop))
        return Action.await_change()

    for name in ("a", "b", "c"):
        await shop.create(name)
    controller = shop.controller(work, workers=1, lease=LEASE)
    task = shop.start(controller)
    await until(lambda: began)
    left = await controller.stop()
    await task
    assert len(began) == 1
    assert {key.name for key in left} == {"a", "b", "c"} - set(began)
    assert held[0], "the lease was let go while a run went on"
    assert holder(shop) == ""
    assert [each.result for each in shop.decisions()] == ["await change"]


@in_a_shop()
async def test_a_stop_that_takes_too_long_cancels_and_lets_go_all_the_same(shop: Shop) -> None:
    began: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        began.append(key.name)
        await asyncio.sleep(1e6)
        return Action.await_change()

    await shop.create()
    controller = shop.controller(work, lease=LEASE)
    task = shop.start(controller)
    await until(lambda: began)
    before_s = shop.sim.now_s
    assert await controller.stop(within_s=3) == (WEB,)
    await task
    assert shop.sim.now_s - before_s < 5
    assert [each.result for each in shop.decisions()] == ["cancelled"]
    assert holder(shop) == ""


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.005, 1.01, 1.02, 1.03, 1.04, 1.05, 2.0, 2.01, 2.5, 9.0])
def test_whenever_it_is_stopped_a_controller_does_not_keep_its_lease(after_s: float) -> None:
    @in_a_shop()
    async def test(shop: Shop) -> None:
        _, named = counting()
        await shop.create()
        controller = shop.controller(named("one"), lease=LEASE)
        task = shop.start(controller)
        await until(lambda: controller.statistics().leading)
        await asyncio.sleep(after_s)
        await controller.stop()
        await task
        assert holder(shop) == ""

    test()


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.003, 0.005, 0.008])
def test_a_stop_does_not_cut_short_the_letting_go_that_is_under_way(after_s: float) -> None:
    @in_a_shop()
    async def test(shop: Shop) -> None:
        _, named = counting()
        controller = shop.controller(named("one"), lease=LEASE)
        task = shop.start(controller)
        await until(lambda: controller.statistics().leading)
        controller.queue.close()  # its work is over, and the lease is on its way back
        await asyncio.sleep(after_s)
        await controller.stop()
        await task
        assert holder(shop) == ""

    test()


@in_a_shop()
async def test_a_standby_stops_at_once_and_a_cancelled_leader_lets_go(shop: Shop) -> None:
    _, named = counting()
    first = shop.controller(named("first"), lease=LEASE)
    leading = shop.start(first)
    await until(lambda: first.statistics().leading)
    other = shop.another("other")
    second = other.controller(named("second"), lease=LEASE)
    standing_by = other.start(second)
    await asyncio.sleep(5)
    assert not second.statistics().leading
    before_s = shop.sim.now_s
    await second.stop()
    await standing_by
    assert shop.sim.now_s - before_s < 1
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert holder(shop) == ""


@in_a_shop()
async def test_standbys_are_warm_and_take_over_with_everything_that_was_left(shop: Shop) -> None:
    ran, named = counting()
    first = shop.controller(named("first"), lease=LEASE)
    leading = shop.start(first)
    await until(lambda: first.statistics().leading)
    other = shop.another("other")
    second = other.controller(named("second"), lease=LEASE)
    other.start(second)
    await shop.create("web", 1)
    await until(lambda: ran == ["first"])
    await asyncio.sleep(10)
    assert set(ran) == {"first"}
    await first.stop()
    await leading
    await shop.scale("web", 2)
    await until(lambda: ran[-1] == "second")


@in_a_shop(Limits(decisions_sample_every=1, lease_retry_s=1e5, lease_renew_s=1e6, lease_s=3e6))
async def test_a_deposed_leader_is_fenced_ends_its_term_and_competes_again(shop: Shop) -> None:
    """kubernetes#23731 (bug 21): the old leader is stopped by the store, though its own clock says that it leads.

    It never renews here, so that nothing but its write can tell it.
    """
    ran, named = counting()
    controller = shop.controller(named("one"), lease=LEASE, workers=2)
    task = shop.start(controller)
    await until(lambda: controller.statistics().leading)
    await shop.cluster.authority.patch(LEASE, {"spec": {"holderIdentity": "usurper"}})
    await shop.create()
    await until(lambda: ran)
    await until(lambda: not controller.statistics().leading)
    assert "by" not in (await shop.get()).metadata.annotations
    assert not task.done()
    assert [each.error.partition(":")[0] for each in shop.decisions()] == ["Fenced"]
    await shop.cluster.authority.patch(LEASE, {"spec": {"holderIdentity": ""}})
    await until(lambda: controller.statistics().leading, within_s=1e6)
    await until(lambda: len(ran) >= 2)
    await asyncio.sleep(5)
    assert (await shop.get()).metadata.annotations["by"] == "one"
    fences = [each.modified for each in shop.cluster.store.entries() if each.key == fence_key(LEASE)]
    assert shop.decisions()[-1].fence == fences[0]
    assert await shop.recheck(named("one")) >= 2


@in_a_shop()
async def test_a_request_that_outlives_its_lease_does_not_land(shop: Shop) -> None:
    """kubernetes#44887 (bug 21): a write sent in one term and arriving in the next is refused by the store."""
    ran, named = counting()
    controller = shop.controller(named("one"), lease=LEASE)
    shop.start(controller)
    await until(lambda: controller.statistics().leading)
    shop.sim.faults.script("request of api.patch", "delay")
    shop.sim.faults.pick = lambda label, options: options[-1]  # type: ignore[method-assign]  # noqa: ARG005
    await shop.create()
    await until(lambda: ran)
    await asyncio.sleep(1.5)  # the patch is under way
    await shop.cluster.authority.patch(LEASE, {"spec": {"holderIdentity": "usurper"}})
    await asyncio.sleep(12)
    assert "by" not in (await shop.get()).metadata.annotations


@in_a_shop()
async def test_a_new_leader_decides_nothing_before_its_caches_have_what_its_predecessor_wrote(shop: Shop) -> None:
    """kubernetes#59848 (bug 1): a cache from before the change of leaders is no ground to decide on."""
    ran, named = counting()
    first = shop.controller(named("first"), lease=LEASE)
    leading = shop.start(first)
    await until(lambda: first.statistics().leading)
    other = shop.another("other")
    second = other.controller(named("second"), lease=LEASE)
    other.start(second)
    await shop.create()
    await other.caches.wait_synced()
    await asyncio.sleep(0.2)
    other.veil.mute = True
    await asyncio.sleep(5)
    await first.stop()
    await leading
    await asyncio.sleep(20)
    assert holder(shop).startswith("replicaset-"), "nobody took the lease"
    assert not second.statistics().leading
    assert "second" not in ran
    other.veil.mute = False
    await until(lambda: second.statistics().leading)
    second.wake(WEB)
    await until(other.decisions)
    decision = other.decisions()[0]
    assert decision.fence
    assert all(mark.revision >= decision.fence for mark in decision.marks)


@in_a_shop(Limits(watch_probe_s=3600.0, watch_silence_s=3600.0, cache_wait_s=10.0))
async def test_a_new_leader_waits_for_all_of_its_caches_at_once(shop: Shop) -> None:
    """Six streams died without a word. Each cache is asked to list, and none after another."""
    _, named = counting()
    quiet = [Watch(kind=KINDS.of_key_kind(each)) for each in ("Pod", "Node", "ConfigMap", "Secret", "Service")]
    first = shop.controller(named("first"), lease=LEASE)
    leading = shop.start(first)
    await until(lambda: first.statistics().leading)
    other = shop.another("other")
    second = other.controller(named("second"), lease=LEASE, watches=quiet)
    other.start(second)
    await until(lambda: other.veil.streams == 6)
    other.veil.dead = 6
    await first.stop()
    await leading
    await until(lambda: holder(shop).startswith("replicaset-"))
    await until(lambda: second.statistics().leading, within_s=2 * shop.limits.cache_wait_s)


@in_a_shop(Limits(decisions_sample_every=1, client_attempts_max=1, client_deadline_s=3.0))
async def test_one_machine_though_the_leader_changed_after_a_write_that_timed_out_and_was_made(shop: Shop) -> None:
    """k0smotron#1534 (bug 3): what has been made is known by name and by reading, not by the memory of a process."""

    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        assert owner is not None
        for slot in range(len(ctx.owned(POD, owner)), owner.view.spec.replicas):
            await ctx.ensure(POD, pod_of(owner, slot))
        return Action.await_change()

    first = shop.controller(work, owns=(POD,), lease=LEASE)
    leading = shop.start(first)
    await until(lambda: first.statistics().leading)
    shop.veil.dark = shop.veil.mute = True
    await shop.create("web", 1)
    shop.veil.mute = False
    await until(lambda: pods(shop))
    other = shop.another("other")
    other.start(other.controller(work, owns=(POD,), lease=LEASE))
    await asyncio.sleep(60)  # the first cannot renew, and the other takes over
    assert other.decisions()
    shop.veil.dark = False
    await asyncio.sleep(60)
    assert any(call.outcome == "OutcomeUnknown" for each in shop.decisions() for call in each.calls)
    assert pods(shop) == ["web-0"]
    assert not leading.done()


def pods(shop: Shop) -> list[str]:
    return [each.key.name for each in shop.cluster.store.entries() if each.key.kind == "Pod"]


# -- declarations ----------------------------------------------------------------------------------


@in_a_shop()
async def test_a_kind_is_declared_once_and_read_only_if_declared(shop: Shop) -> None:
    async def work(ctx: Context, _: Key) -> Action:
        ctx.list(CONFIG_MAP)
        return Action.await_change()

    with pytest.raises(InvariantBroken, match="declared twice: Pod"):
        shop.controller(work, owns=(POD,), watches=(Watch(kind=POD, keys_of=wake_itself),))
    with pytest.raises(InvariantBroken, match="before the colon"):
        shop.controller(work, name="apps:web")
    await shop.create()
    controller = shop.open(work)
    await until(lambda: shop.reported)
    assert "ConfigMap without declaring it" in str(shop.reported[0])
    assert await shop.recheck(work) >= 1
    with pytest.raises(InvariantBroken, match="was run already"):
        await controller.run()


@in_a_shop()
async def test_a_kind_that_is_only_read_wakes_nobody_and_one_that_is_mapped_wakes_whom_it_names(shop: Shop) -> None:
    woken: list[str] = []

    async def work(ctx: Context, key: Key) -> Action:
        woken.append(key.name)
        ctx.list(CONFIG_MAP)
        return Action.await_change()

    await shop.create("web")
    quiet = shop.open(work, watches=(Watch(kind=CONFIG_MAP),), name="quiet")
    await until(lambda: woken == ["web"])
    await shop.cluster.authority.create(CONFIG_MAP, config_map("settings"))
    await asyncio.sleep(5)
    assert woken == ["web"]
    await quiet.stop()
    shop.open(work, watches=(Watch(kind=CONFIG_MAP, keys_of=lambda _, __: (WEB,)),), name="mapped")
    await until(lambda: len(woken) == 2)
    await shop.cluster.authority.create(CONFIG_MAP, config_map("more"))
    await until(lambda: len(woken) == 3)
    assert shop.decisions()[-1].wakes[0][0] == "ConfigMap/default/more"
