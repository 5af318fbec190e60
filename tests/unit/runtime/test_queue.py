"""The guarantees for one key: queued once, never run twice at once, never lost, with backoff, and explained."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.kit.runtime import QueueHarness, fails
from tests.objects import asynchronous

from kedge.env import system_env
from kedge.errors import InvariantBroken, TooManyRequests
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime.queue import (
    RESYNC,
    RESYNC_PRIORITY,
    RETRY,
    ItemOutcome,
    KeyState,
    QueueClosed,
    WaitReason,
    Wake,
    WorkQueue,
)

LIMITS = Limits()


# -- once, and never lost


def test_many_wake_ups_of_one_key_are_one_run_that_has_them_all() -> None:
    harness = QueueHarness()
    for why in ("pod", "node", "pod"):
        assert harness.queue.add("a", why)
        harness.now_s += 1
    item = harness.take()
    assert item.wakes == (Wake("pod"), Wake("node"))
    assert (item.added_s, item.waited_s, item.place, item.attempt) == (1000.0, 3.0, 1, 1)
    assert harness.queue.get_nowait() is None


def test_a_key_woken_while_it_runs_is_run_again_afterwards_and_not_concurrently() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "first")
    item = harness.take()
    harness.now_s += 1
    harness.queue.add("a", "second")
    assert harness.queue.get_nowait() is None, "it would run twice at once"
    report = harness.queue.explain("a")
    assert report is not None
    assert report.woken_again
    harness.now_s += 1
    harness.queue.done(item)
    again = harness.take()
    assert (again.key, again.wakes, again.added_s) == ("a", (Wake("second"),), 1001.0)
    harness.queue.done(again)
    assert len(harness.queue) == 0


@pytest.mark.parametrize("outcome", [fails(), ItemOutcome.terminal(ValueError("x")), ItemOutcome.requeue(delay_s=60)])
def test_a_wake_up_during_a_run_is_run_at_once_after_any_outcome(outcome: ItemOutcome) -> None:
    harness = QueueHarness()
    harness.queue.add("a", "first")
    item = harness.take()
    harness.queue.add("a", "second")
    harness.queue.done(item, outcome)
    assert harness.take().wakes == (Wake("second"),)


def test_an_item_is_done_once() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    item = harness.take()
    harness.queue.done(item)
    with pytest.raises(InvariantBroken, match="done once"):
        harness.queue.done(item)
    harness.queue.add("a", "x")
    newer = harness.take()
    with pytest.raises(InvariantBroken):
        harness.queue.done(item)
    harness.queue.done(newer)


def test_wake_ups_past_the_bound_are_counted_not_kept() -> None:
    harness = QueueHarness(limits=Limits(queue_wakes_max=2))
    for n in range(5):
        harness.queue.add("a", f"pod {n}")
    item = harness.take()
    assert (len(item.wakes), item.wakes_dropped) == (2, 3)
    assert harness.sample("kedge_queue_wakes_dropped_total") == 3


# -- delays


def test_a_delayed_key_is_not_ready_before_its_time() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "later", delay_s=5)
    assert harness.queue.get_nowait() is None
    harness.now_s += 4.9
    assert harness.queue.get_nowait() is None
    harness.now_s += 1.1
    item = harness.take()
    assert item.delayed_s == 5.0
    assert item.waited_s == pytest.approx(1.0)


def test_the_earlier_of_two_adds_counts_and_both_reasons_are_kept() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "in ten", delay_s=10)
    harness.queue.add("a", "in two", delay_s=2)
    harness.queue.add("a", "in twenty", delay_s=20)
    harness.now_s += 2
    assert harness.take().wakes == (Wake("in ten"), Wake("in two"), Wake("in twenty"))
    assert len(harness.queue.delays) == 0


def test_an_add_without_delay_overrides_a_delay() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "later", delay_s=100)
    harness.queue.add("a", "now")
    item = harness.take()
    assert item.wakes == (Wake("later"), Wake("now"))
    harness.queue.done(item)
    harness.now_s += 200
    assert harness.queue.get_nowait() is None, "the old delay must not ring again"


def test_a_delayed_add_during_a_run_counts_from_the_add() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    item = harness.take()
    harness.queue.add("a", "y", delay_s=10)
    harness.now_s += 4
    harness.queue.done(item)
    report = harness.queue.explain("a")
    assert report is not None
    assert (report.state, report.wait_reason, report.next_run_s) == (KeyState.WAITING, WaitReason.DELAYED, 1010.0)


def test_a_key_moved_forward_again_and_again_does_not_grow_the_queue() -> None:
    harness = QueueHarness()
    harness.queue.add("sooner", "x", delay_s=1800)  # void tickets behind it are not at the top of anything
    for _ in range(5000):
        harness.queue.add("a", "x", delay_s=3600)
        harness.queue.add("a", "x")
        harness.queue.done(harness.take())
    assert len(harness.queue.delays.heap) < 200


# -- failures


def test_each_failure_in_a_row_doubles_the_backoff_with_jitter_up_to_a_bound() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    pauses = []
    for attempt in range(1, 16):
        item = harness.take()
        assert item.attempt == attempt
        harness.queue.done(item, fails())
        report = harness.queue.explain("a")
        assert report is not None
        assert report.next_run_s is not None
        assert report.wait_reason is WaitReason.BACKOFF
        pauses.append(report.next_run_s - harness.now_s)
        harness.now_s = report.next_run_s
    for failures, pause_s in enumerate(pauses):
        whole_s = min(LIMITS.queue_backoff_s * 2**failures, LIMITS.queue_backoff_s_max)
        assert whole_s / 2 <= pause_s <= whole_s
    assert len({round(pause_s / LIMITS.queue_backoff_s_max, 6) for pause_s in pauses[10:]}) > 1, "no jitter"


def test_keys_that_fail_together_do_not_come_back_together() -> None:
    harness = QueueHarness()
    for n in range(50):
        harness.queue.add(f"k{n}", "x")
    for _ in range(50):
        harness.queue.done(harness.take(), fails())
    assert len({report.next_run_s for report in harness.queue.reports()}) == 50


def test_a_success_resets_the_backoff() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    for _ in range(5):
        harness.queue.done(harness.take(), fails())
        harness.now_s += LIMITS.queue_backoff_s_max
    item = harness.take()
    assert (item.attempt, item.wakes) == (6, (RETRY,))
    assert harness.queue.statistics().failing == 1
    harness.queue.done(item)
    assert harness.queue.statistics().failing == 0
    assert harness.queue.explain("a") is None
    harness.queue.add("a", "x")
    assert harness.take().attempt == 1


def test_a_change_is_run_at_once_although_the_key_backs_off() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    for _ in range(8):
        harness.queue.done(harness.take(), fails())
        harness.now_s += LIMITS.queue_backoff_s_max
    harness.queue.done(harness.take(), fails())
    harness.queue.add("a", "mended")
    item = harness.take()
    assert (item.attempt, item.wakes) == (10, (RETRY, Wake("mended")))


def test_the_retry_after_of_a_server_is_respected() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    harness.queue.done(harness.take(), ItemOutcome.failure(TooManyRequests("busy", retry_after_s=20)))
    report = harness.queue.explain("a")
    assert report is not None
    assert report.next_run_s == harness.now_s + 20


def test_a_requeue_runs_after_its_delay_and_resets_the_backoff() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    harness.queue.done(harness.take(), fails())
    harness.now_s += 1
    harness.queue.done(harness.take(), ItemOutcome.requeue(delay_s=30))
    report = harness.queue.explain("a")
    assert report is not None
    assert (report.failures, report.wait_reason, report.next_run_s) == (0, WaitReason.REQUEUE, harness.now_s + 30)
    harness.now_s += 30
    assert harness.take().attempt == 1


def test_a_terminal_outcome_is_not_retried_and_stays_visible_until_a_run_succeeds() -> None:
    harness = QueueHarness()
    error = ValueError("no such image")
    harness.queue.add("a", "x")
    harness.queue.done(harness.take(), ItemOutcome.terminal(error))
    harness.now_s += 3600
    assert harness.queue.get_nowait() is None
    report = harness.queue.explain("a")
    assert report is not None
    assert (report.state, report.terminal, report.last_error) == (KeyState.IDLE, True, error)
    harness.queue.add("a", "spec changed")
    harness.queue.done(harness.take())
    assert harness.queue.explain("a") is None


# -- resync


@asynchronous
async def test_a_resync_is_of_low_priority_and_spread_out() -> None:
    harness = QueueHarness()
    await harness.queue.resync([f"k{n}" for n in range(200)])
    assert harness.queue.statistics().ready < 10, "a storm"
    dues = sorted(report.next_run_s or 0.0 for report in harness.queue.reports())
    spread_s = LIMITS.queue_resync_spread_s
    for quarter in range(4):
        part = [due for due in dues if quarter <= (due - 1000.0) / spread_s * 4 < quarter + 1]
        assert 25 <= len(part) <= 75
    harness.now_s += spread_s
    harness.queue.add("new", "a change")
    assert harness.take().key == "new"
    item = harness.take()
    assert (item.priority, item.wakes) == (RESYNC_PRIORITY, (RESYNC,))


@asynchronous
async def test_a_resync_neither_delays_nor_demotes_a_key_that_is_due() -> None:
    harness = QueueHarness(priority_of=lambda _: 7)
    harness.queue.add("a", "x")
    await harness.queue.resync(["a"])
    assert harness.take().priority == 7


@asynchronous
async def test_a_change_raises_a_key_that_waits_for_its_resync() -> None:
    harness = QueueHarness(priority_of=lambda _: 7)
    await harness.queue.resync(["a"])
    harness.queue.add("a", "x")
    item = harness.take()
    assert (item.priority, item.wakes) == (7, (RESYNC, Wake("x")))


@asynchronous
async def test_a_resync_does_not_cut_a_backoff_short() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    for _ in range(12):
        harness.queue.done(harness.take(), fails())
        harness.now_s += LIMITS.queue_backoff_s_max
    harness.queue.done(harness.take(), fails())
    before = harness.queue.explain("a")
    await harness.queue.resync(["a"], spread_s=0.0)
    after = harness.queue.explain("a")
    assert before is not None
    assert after is not None
    assert before.next_run_s == after.next_run_s


def test_a_retry_of_a_resynced_key_has_the_priority_of_the_key() -> None:
    harness = QueueHarness(priority_of=lambda _: 7)
    asyncio.run(harness.queue.resync(["a"], spread_s=0.0))
    harness.queue.done(harness.take(), fails())
    harness.now_s += 1
    assert harness.take().priority == 7


# -- full


def test_a_full_queue_rejects_new_keys_visibly_and_still_accepts_queued_ones() -> None:
    harness = QueueHarness(limits=Limits(queue_keys_max=2))
    assert harness.queue.add("a", "x")
    assert harness.queue.add("b", "x")
    assert not harness.queue.resync_owed
    assert not harness.queue.add("c", "x")
    assert harness.queue.add("a", "y")
    assert harness.queue.resync_owed
    assert harness.queue.statistics().refused == 1
    assert harness.sample("kedge_queue_refused_total") == 1
    assert harness.sample("kedge_queue_resync_owed") == 1
    item = harness.take()
    harness.queue.done(item, fails())
    assert len(harness.queue) == 2, "a key that is kept for its retry holds its room"


@asynchronous
async def test_keys_that_a_full_queue_rejected_come_back_with_the_resync_that_it_owes() -> None:
    harness = QueueHarness(limits=Limits(queue_keys_max=10))
    everything = [f"k{n}" for n in range(57)]
    ran: list[str] = []

    async def own() -> None:
        while True:
            await harness.queue.wait_resync_owed()
            await harness.queue.resync(everything, spread_s=0.0)

    for key in everything:
        harness.queue.add(key, "x")
    owner = asyncio.create_task(own())
    await asyncio.sleep(0)
    assert not owner.done()
    while len(harness.queue):
        item = harness.take()
        ran.append(item.key)
        harness.queue.done(item)
        for _ in range(3):
            await asyncio.sleep(0)
    assert set(ran) == set(everything)
    assert not harness.queue.resync_owed
    harness.queue.close()
    with pytest.raises(QueueClosed):
        await owner


@asynchronous
async def test_a_resync_that_is_cut_short_is_still_owed() -> None:
    harness = QueueHarness(limits=Limits(queue_keys_max=2))
    task = asyncio.create_task(harness.queue.resync(["a", "b", "c"]))
    await asyncio.sleep(0)
    assert not harness.queue.resync_owed
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.queue.resync_owed


# -- closing


@asynchronous
async def test_close_ends_waits_and_accepts_nothing_more_and_drain_waits_for_running_items() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    harness.queue.add("b", "x")
    item = await harness.queue.get()
    other = await harness.queue.get()
    waiting = asyncio.create_task(harness.queue.get())
    await asyncio.sleep(0)
    draining = asyncio.create_task(harness.queue.drain())
    await asyncio.sleep(0)
    with pytest.raises(QueueClosed):
        await waiting
    with pytest.raises(QueueClosed):
        await harness.queue.get()
    assert not harness.queue.add("c", "x")
    harness.queue.done(item)
    await asyncio.sleep(0)
    assert not draining.done(), "one is still running"
    harness.queue.done(other, fails())
    assert await draining == ("b",)
    assert harness.queue.statistics().closed


@asynchronous
async def test_keys_left_in_a_closed_queue_stay_visible_and_are_not_handed_out() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    assert await harness.queue.drain() == ("a",)
    assert harness.queue.get_nowait() is None
    assert harness.queue.statistics().ready == 1


# -- waiting


@asynchronous
async def test_a_wake_up_handed_to_a_worker_that_is_cancelled_goes_to_another() -> None:
    harness = QueueHarness()
    first = asyncio.create_task(harness.queue.get())
    second = asyncio.create_task(harness.queue.get())
    await asyncio.sleep(0)
    harness.queue.add("a", "x")  # wakes the first, which is cancelled before it runs
    first.cancel()
    assert (await asyncio.wait_for(second, 5)).key == "a"


@asynchronous
async def test_waiting_works_on_the_production_loop_and_clock() -> None:
    queue: WorkQueue[Key] = WorkQueue(system_env(limits=replace(LIMITS, queue_backoff_s=0.001)), "real")
    key = Key("Pod", "shop", "web-0")
    queue.add(key, "x", delay_s=0.01)
    item = await queue.get()
    assert (item.key, item.tenant) == (key, "shop")
    queue.done(item, fails())
    assert (await queue.get()).attempt == 2


# -- looking


def test_statistics_and_metrics_have_depth_by_priority_and_tenant_and_the_oldest_age() -> None:
    harness = QueueHarness(priority_of=lambda key: 5 if "urgent" in key else 0)
    harness.queue.add("shop/a", "x")
    harness.now_s += 3
    harness.queue.add("shop/b", "x")
    harness.queue.add("bank/urgent", "x")
    harness.queue.add("bank/c", "x", delay_s=60)
    running = harness.take()
    assert running.key == "bank/urgent"
    found = harness.queue.statistics()
    assert (found.keys, found.ready, found.waiting, found.running) == (4, 2, 1, 1)
    assert found.ready_by_priority == {0: 2}
    assert found.ready_by_tenant == {"shop": 2}
    assert found.running_by_tenant == {"bank": 1}
    assert found.oldest_ready_s == 3.0
    assert (found.adds, found.gets) == (4, 1)
    assert harness.sample("kedge_queue_depth", priority="0") == 2
    assert harness.sample("kedge_queue_depth", priority="5") == 0
    assert harness.sample("kedge_queue_oldest_seconds") == 3.0
    assert harness.sample("kedge_queue_keys") == 4
    assert harness.sample("kedge_queue_waiting") == 1
    assert harness.sample("kedge_queue_running") == 1
    assert harness.sample("kedge_queue_adds_total") == 4
    harness.now_s += 2
    harness.queue.done(running, fails())
    assert harness.sample("kedge_queue_done_total", outcome="failure") == 1
    assert harness.sample("kedge_queue_service_seconds_total") == 2.0
    assert harness.sample("kedge_queue_wait_seconds_count") == 1
    assert harness.sample("kedge_queue_failing") == 1


def test_explain_follows_a_key_through_its_states() -> None:
    harness = QueueHarness()
    assert harness.queue.explain("shop/a") is None
    harness.queue.add("shop/a", "x", priority=3)
    report = harness.queue.explain("shop/a")
    assert report is not None
    assert (report.state, report.wait_reason) == (KeyState.READY, WaitReason.QUEUED)
    assert (report.tenant, report.priority, report.wakes) == ("shop", 3, (Wake("x"),))
    item = harness.take()
    harness.now_s += 2
    report = harness.queue.explain("shop/a")
    assert report is not None
    assert (report.state, report.age_s, report.next_run_s) == (KeyState.RUNNING, 2.0, None)
    error = RuntimeError("no")
    harness.queue.done(item, ItemOutcome.failure(error))
    report = harness.queue.explain("shop/a")
    assert report is not None
    assert (report.state, report.failures, report.last_error) == (KeyState.WAITING, 1, error)
    assert [each.key for each in harness.queue.reports()] == ["shop/a"]
