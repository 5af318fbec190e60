"""The order of ready keys: priority, aging, and a fair share of time for every tenant."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.kit.runtime import QueueHarness
from tests.objects import asynchronous

from kedge.limits import Limits
from kedge.runtime.queue import Item

LIMITS = Limits()


def by_name(key: str) -> int:
    return {"high": 10, "low": -10}.get(key.partition("/")[2].partition("-")[0], 0)


# -- priority and age


def test_higher_priorities_go_first_and_equal_ones_in_order_of_arrival() -> None:
    harness = QueueHarness()
    for key, priority in (("a", 0), ("b", -3), ("c", 2_000_000_000), ("d", 0), ("e", 1)):
        harness.queue.add(key, "x", priority=priority)
    assert harness.taken(5) == ["c", "e", "a", "d", "b"]


def test_a_ready_key_rises_when_it_is_added_again_at_a_higher_priority() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    harness.queue.add("b", "x")
    harness.queue.add("b", "urgent", priority=5)
    harness.queue.add("b", "x", priority=1)
    assert harness.taken(2) == ["b", "a"]
    assert harness.queue.get_nowait() is None


def test_a_key_can_be_moved_to_another_tenant() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    harness.queue.add("a", "x", tenant="bank")
    assert harness.queue.statistics().ready_by_tenant == {"bank": 1}
    assert harness.take().tenant == "bank"


def flooded(harness: QueueHarness, key: str, *, until_s: float) -> list[Item[str]]:
    """Keep a higher priority ready all the time, and run one item a second."""
    items: list[Item[str]] = []
    while harness.now_s < until_s:
        harness.queue.add(f"{key}-{harness.now_s}", "x")
        harness.queue.add(f"{key}-{harness.now_s}-too", "x")
        item = harness.take()
        items.append(item)
        harness.now_s += 1
        harness.queue.done(item)
    return items


def test_strict_priority_holds_until_a_key_is_old_and_then_it_runs() -> None:
    harness = QueueHarness(priority_of=by_name)
    harness.queue.add("t/low", "x")
    items = flooded(harness, "t/high", until_s=1000.0 + LIMITS.queue_aging_s + 10)
    places = [n for n, item in enumerate(items) if item.key == "t/low"]
    assert len(places) == 1, "starved"
    assert items[places[0]].aged
    assert items[places[0]].waited_s >= LIMITS.queue_aging_s
    assert items[places[0]].waited_s <= LIMITS.queue_aging_s + LIMITS.queue_aged_every
    assert harness.queue.statistics().aged == 1
    assert harness.sample("kedge_queue_aged_total") == 1


def test_a_backlog_of_low_priority_cannot_take_over() -> None:
    harness = QueueHarness(priority_of=by_name)
    for n in range(1000):
        harness.queue.add(f"t/low-{n}", "x")
    harness.now_s += 10 * LIMITS.queue_aging_s
    items = flooded(harness, "t/high", until_s=harness.now_s + 200)
    shares = Counter(item.key.startswith("t/low") for item in items)
    assert shares[True] == 200 // LIMITS.queue_aged_every


def test_the_lowest_of_three_priorities_is_not_forgotten_behind_the_second() -> None:
    harness = QueueHarness(priority_of=lambda key: 10 if "high" in key else 5 if "middle" in key else 0)
    harness.queue.add("t/low", "x")
    harness.now_s += 1
    for n in range(1000):
        harness.queue.add(f"t/middle-{n}", "x")
    harness.now_s += LIMITS.queue_aging_s
    items = flooded(harness, "t/high", until_s=harness.now_s + 2 * LIMITS.queue_aged_every)
    assert "t/low" in [item.key for item in items]


# -- tenants


def test_tenants_alternate_whatever_the_length_of_their_queues() -> None:
    harness = QueueHarness()
    for n in range(100):
        harness.queue.add(f"noisy/{n}", "x")
    harness.queue.add("quiet/a", "x")
    harness.queue.add("quiet/b", "x")
    assert harness.taken(5)[1:4:2] == ["quiet/a", "quiet/b"]


def test_tenants_share_time_not_turns() -> None:
    harness = QueueHarness()
    service_s = {"slow": 0.9, "fast": 0.1}
    for n in range(500):
        harness.queue.add(f"slow/{n}", "x")
        harness.queue.add(f"fast/{n}", "x")
    used_s: Counter[str] = Counter()
    for _ in range(300):
        item = harness.take()
        harness.now_s += service_s[item.tenant]
        used_s[item.tenant] += service_s[item.tenant]  # type: ignore[assignment]
        harness.queue.done(item)
    assert used_s["slow"] / used_s["fast"] == pytest.approx(1.0, abs=0.1)


def test_several_workers_do_not_all_take_from_one_tenant_before_its_first_run_ends() -> None:
    harness = QueueHarness()
    for tenant in ("a", "b"):
        for n in range(10):
            harness.queue.add(f"{tenant}/{n}", "x")
    assert Counter(harness.take().tenant for _ in range(4)) == {"a": 2, "b": 2}


def test_a_run_is_charged_at_its_start_by_the_mean_of_its_tenant() -> None:
    harness = QueueHarness()
    for tenant, service_s in (("slow", 1.0), ("fast", 0.01)):
        for n in range(10):
            harness.queue.add(f"{tenant}/{n}", "x")
        harness.queue.order.tenants[tenant].mean_s = service_s
    assert Counter(harness.take().tenant for _ in range(6)) == {"slow": 1, "fast": 5}


def test_a_run_that_took_longer_than_the_mean_is_charged_for_it() -> None:
    harness = QueueHarness()
    for n in range(20):
        harness.queue.add(f"a/{n}", "x")
        harness.queue.add(f"b/{n}", "x")
    assert harness.taken(1, service_s=4.0) == ["a/0"]
    turns = [key[0] for key in harness.taken(9, service_s=0.5)]
    assert turns[:7] == ["b"] * 7


def test_an_advance_charge_that_was_not_used_is_credited() -> None:
    harness = QueueHarness()
    for n in range(500):
        harness.queue.add(f"uneven/{n}", "x")
        harness.queue.add(f"even/{n}", "x")
    used_s = {"uneven": 0.0, "even": 0.0}
    for _ in range(300):
        item = harness.take()
        service_s = 1.0 if item.tenant == "even" else 2.0 * (int(item.key.partition("/")[2]) % 2)
        harness.now_s += service_s
        used_s[item.tenant] += service_s
        harness.queue.done(item)
    assert used_s["uneven"] / used_s["even"] == pytest.approx(1.0, abs=0.1)


def test_keys_raised_again_and_again_do_not_grow_the_lane_they_leave() -> None:
    harness = QueueHarness()
    harness.queue.add("waits/0", "x")
    for _ in range(2000):
        harness.queue.add("a/0", "x", priority=0)
        harness.queue.add("a/0", "urgent", priority=5)
        assert harness.taken(1) == ["a/0"]
    assert len(harness.queue.order._bands[0].open) < 200


def test_idle_time_earns_no_credit() -> None:
    harness = QueueHarness()
    for n in range(300):
        harness.queue.add(f"busy/{n}", "x")
    harness.taken(100, service_s=1.0)
    for n in range(300):
        harness.queue.add(f"late/{n}", "x")
    shares = Counter(key.partition("/")[0] for key in harness.taken(100, service_s=1.0))
    assert abs(shares["busy"] - shares["late"]) <= 2


def test_a_single_run_in_flight_earns_no_credit() -> None:
    harness = QueueHarness()
    harness.queue.add("late/first", "x")
    harness.take()  # and never done
    for n in range(300):
        harness.queue.add(f"busy/{n}", "x")
    harness.taken(100, service_s=1.0)
    for n in range(300):
        harness.queue.add(f"late/{n}", "x")
    shares = Counter(key.partition("/")[0] for key in harness.taken(100, service_s=1.0))
    assert abs(shares["busy"] - shares["late"]) <= 2


def test_a_tenant_cannot_clear_its_debt_by_leaving_for_a_moment() -> None:
    harness = QueueHarness()
    for n in range(300):
        harness.queue.add(f"steady/{n}", "x")
    greedy = 0
    for _ in range(225):
        harness.queue.add("greedy/0", "x")  # one at a time: its lane is empty between
        item = harness.take()
        if item.tenant == "greedy":
            greedy += 1
        harness.now_s += 4.0 if item.tenant == "greedy" else 0.5
        harness.queue.done(item)
    assert greedy == pytest.approx(225 / 9, abs=4), "a run of 4 s is eight of half a second"


def test_one_endless_run_does_not_exclude_a_tenant() -> None:
    harness = QueueHarness()
    for n in range(500):
        harness.queue.add(f"steady/{n}", "x")
    harness.queue.add("unlucky/0", "x")
    harness.queue.add("unlucky/1", "x")
    items = {item.tenant: item for item in (harness.take(), harness.take())}
    harness.queue.done(items["steady"])
    harness.now_s += 3600
    harness.queue.done(items["unlucky"])
    waited = harness.taken(200, service_s=1.0)
    assert "unlucky/1" in waited[: int(LIMITS.queue_debt_s_max) + 2]


def test_tenants_without_keys_are_dropped() -> None:
    harness = QueueHarness()
    harness.queue.add("always/there", "x", delay_s=10_000)
    for n in range(1000):
        harness.queue.add(f"t{n}/a", "x")
        harness.queue.add(f"t{n + 1}/a", "x")
        harness.taken(1, service_s=0.01 * (n % 5))
    assert len(harness.queue.order.tenants) < 20
    assert len(list(harness.queue.order.lanes())) < 20


# -- workers kept free


def hold_all(harness: QueueHarness) -> list[Item[str]]:
    items = []
    while (item := harness.queue.get_nowait()) is not None:
        items.append(item)
    return items


def make_slow(harness: QueueHarness, tenant: str) -> None:
    """Show the queue once that this tenant's runs are long."""
    for n in range(50):
        harness.queue.add(f"{tenant}/{n}", "x")
    item = harness.take()
    harness.now_s += 5
    harness.queue.done(item)


def test_tenants_with_long_runs_leave_some_workers_to_the_others() -> None:
    harness = QueueHarness(workers=8)
    make_slow(harness, "slow")
    held = hold_all(harness)
    assert len(held) == 6, "three quarters of eight"
    assert harness.sample("kedge_queue_slow_running") == 6
    harness.queue.add("quick/a", "x")
    quick = harness.take()
    assert quick.key == "quick/a"
    assert harness.queue.get_nowait() is None
    harness.queue.done(quick)
    assert harness.queue.get_nowait() is None
    harness.queue.done(held[0])
    assert harness.take().tenant == "slow"


def test_two_slow_tenants_do_not_take_every_worker_together() -> None:
    harness = QueueHarness(workers=8)
    make_slow(harness, "slow")
    for n in range(50):
        harness.queue.add(f"sloth/{n}", "x")
    held = hold_all(harness)
    assert len(held) <= 7, "an unknown tenant may show itself once"
    harness.queue.add("quick/a", "x")
    assert harness.take().key == "quick/a"


def test_a_new_tenant_does_not_get_every_worker_either() -> None:
    harness = QueueHarness(workers=8)
    for n in range(50):
        harness.queue.add(f"new/{n}", "x")
    assert len(hold_all(harness)) == 6


def test_tenants_with_short_runs_may_take_every_worker() -> None:
    harness = QueueHarness(workers=8)
    for n in range(50):
        harness.queue.add(f"quick/{n}", "x")
    harness.taken(1, service_s=0.01)
    for _ in range(8):
        harness.take()


def test_a_tenant_that_becomes_quick_no_longer_counts_as_slow() -> None:
    harness = QueueHarness(workers=4)
    make_slow(harness, "slow")
    held = hold_all(harness)
    for n in range(5):
        harness.queue.add(f"mended/{n}", "x")
    first = harness.take()  # the one by which it shows itself
    assert first.tenant == "mended"
    assert harness.queue.get_nowait() is None
    harness.now_s += 0.01
    harness.queue.done(first)
    assert harness.take().tenant == "mended"
    assert len(held) == 3


def test_a_tenant_whose_runs_become_long_counts_as_slow() -> None:
    harness = QueueHarness(workers=4)
    make_slow(harness, "slow")
    assert len(hold_all(harness)) == 3
    for n in range(9):
        harness.queue.add(f"turning/{n}", "x")
    for service_s in (0.01, 60.0):
        item = harness.take()
        assert item.tenant == "turning"
        harness.now_s += service_s
        harness.queue.done(item)
    assert harness.queue.get_nowait() is None


@asynchronous
async def test_a_reserved_worker_is_woken_when_it_may_be_used_again() -> None:
    harness = QueueHarness(workers=2)
    make_slow(harness, "slow")
    (held,) = hold_all(harness)
    waiting = asyncio.create_task(harness.queue.get())
    await asyncio.sleep(0)
    harness.queue.done(held)
    assert (await asyncio.wait_for(waiting, 5)).tenant == "slow"


def test_without_a_number_of_workers_none_is_reserved() -> None:
    harness = QueueHarness()
    make_slow(harness, "slow")
    assert len(hold_all(harness)) == 49
