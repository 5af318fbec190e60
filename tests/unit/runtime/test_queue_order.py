"""Who is next: priorities first, the old are not forgotten, and every tenant has its share of the time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.objects import asynchronous
from tests.unit.runtime.queue_desk import Desk

from kedge.limits import Limits
from kedge.runtime.queue import Item

LIMITS = Limits()


def by_name(key: str) -> int:
    return {"high": 10, "low": -10}.get(key.partition("/")[2].partition("-")[0], 0)


# -- priority and age


def test_higher_priorities_go_first_and_equals_in_order_of_coming() -> None:
    desk = Desk()
    for key, priority in (("a", 0), ("b", -3), ("c", 2_000_000_000), ("d", 0), ("e", 1)):
        desk.queue.add(key, "x", priority=priority)
    assert desk.taken(5) == ["c", "e", "a", "d", "b"]


def test_a_key_in_line_rises_when_it_is_added_again_at_a_higher_priority() -> None:
    desk = Desk()
    desk.queue.add("a", "x")
    desk.queue.add("b", "x")
    desk.queue.add("b", "urgent", priority=5)
    desk.queue.add("b", "x", priority=1)
    assert desk.taken(2) == ["b", "a"]
    assert desk.queue.get_nowait() is None


def test_a_key_can_be_moved_to_another_tenant() -> None:
    desk = Desk()
    desk.queue.add("a", "x")
    desk.queue.add("a", "x", tenant="bank")
    assert desk.queue.statistics().ready_by_tenant == {"bank": 1}
    assert desk.take().tenant == "bank"


def flooded(desk: Desk, key: str, *, until_s: float) -> list[Item[str]]:
    """Keep a higher priority ready all the time, and run one item a second."""
    items: list[Item[str]] = []
    while desk.now_s < until_s:
        desk.queue.add(f"{key}-{desk.now_s}", "x")
        desk.queue.add(f"{key}-{desk.now_s}-too", "x")
        item = desk.take()
        items.append(item)
        desk.now_s += 1
        desk.queue.done(item)
    return items


def test_strict_priority_holds_until_a_key_is_old_and_then_it_gets_its_turn() -> None:
    desk = Desk(priority_of=by_name)
    desk.queue.add("t/low", "x")
    items = flooded(desk, "t/high", until_s=1000.0 + LIMITS.queue_aging_s + 10)
    places = [n for n, item in enumerate(items) if item.key == "t/low"]
    assert len(places) == 1, "starved"
    assert items[places[0]].aged
    assert items[places[0]].waited_s >= LIMITS.queue_aging_s
    assert items[places[0]].waited_s <= LIMITS.queue_aging_s + LIMITS.queue_aged_every
    assert desk.queue.statistics().aged == 1
    assert desk.sample("kedge_queue_aged_total") == 1


def test_much_old_work_of_low_priority_cannot_take_over() -> None:
    desk = Desk(priority_of=by_name)
    for n in range(1000):
        desk.queue.add(f"t/low-{n}", "x")
    desk.now_s += 10 * LIMITS.queue_aging_s
    items = flooded(desk, "t/high", until_s=desk.now_s + 200)
    shares = Counter(item.key.startswith("t/low") for item in items)
    assert shares[True] == 200 // LIMITS.queue_aged_every


def test_the_lowest_of_three_priorities_is_not_forgotten_behind_the_second() -> None:
    desk = Desk(priority_of=lambda key: 10 if "high" in key else 5 if "middle" in key else 0)
    desk.queue.add("t/low", "x")
    desk.now_s += 1
    for n in range(1000):
        desk.queue.add(f"t/middle-{n}", "x")
    desk.now_s += LIMITS.queue_aging_s
    items = flooded(desk, "t/high", until_s=desk.now_s + 2 * LIMITS.queue_aged_every)
    assert "t/low" in [item.key for item in items]


# -- tenants


def test_tenants_take_turns_whatever_they_have_queued() -> None:
    desk = Desk()
    for n in range(100):
        desk.queue.add(f"noisy/{n}", "x")
    desk.queue.add("quiet/a", "x")
    desk.queue.add("quiet/b", "x")
    assert desk.taken(5)[1:4:2] == ["quiet/a", "quiet/b"]


def test_tenants_share_time_not_turns() -> None:
    desk = Desk()
    service_s = {"slow": 0.9, "fast": 0.1}
    for n in range(500):
        desk.queue.add(f"slow/{n}", "x")
        desk.queue.add(f"fast/{n}", "x")
    used_s: Counter[str] = Counter()
    for _ in range(300):
        item = desk.take()
        desk.now_s += service_s[item.tenant]
        used_s[item.tenant] += service_s[item.tenant]  # type: ignore[assignment]
        desk.queue.done(item)
    assert used_s["slow"] / used_s["fast"] == pytest.approx(1.0, abs=0.1)


def test_several_workers_do_not_all_take_from_one_tenant_before_its_first_run_ends() -> None:
    desk = Desk()
    for tenant in ("a", "b"):
        for n in range(10):
            desk.queue.add(f"{tenant}/{n}", "x")
    assert Counter(desk.take().tenant for _ in range(4)) == {"a": 2, "b": 2}


def test_a_run_is_charged_when_it_begins_by_what_its_tenant_usually_takes() -> None:
    desk = Desk()
    for tenant, service_s in (("slow", 1.0), ("fast", 0.01)):
        for n in range(10):
            desk.queue.add(f"{tenant}/{n}", "x")
        desk.queue.order.tenants[tenant].mean_s = service_s
    assert Counter(desk.take().tenant for _ in range(6)) == {"slow": 1, "fast": 5}


def test_a_run_that_took_longer_than_usual_is_charged_for_it() -> None:
    desk = Desk()
    for n in range(20):
        desk.queue.add(f"a/{n}", "x")
        desk.queue.add(f"b/{n}", "x")
    assert desk.taken(1, service_s=4.0) == ["a/0"]
    turns = [key[0] for key in desk.taken(9, service_s=0.5)]
    assert turns[:7] == ["b"] * 7


def test_what_was_charged_in_advance_and_not_used_is_given_back() -> None:
    desk = Desk()
    for n in range(500):
        desk.queue.add(f"uneven/{n}", "x")
        desk.queue.add(f"even/{n}", "x")
    used_s = {"uneven": 0.0, "even": 0.0}
    for _ in range(300):
        item = desk.take()
        service_s = 1.0 if item.tenant == "even" else 2.0 * (int(item.key.partition("/")[2]) % 2)
        desk.now_s += service_s
        used_s[item.tenant] += service_s
        desk.queue.done(item)
    assert used_s["uneven"] / used_s["even"] == pytest.approx(1.0, abs=0.1)


def test_keys_raised_for_ever_do_not_grow_the_lane_they_leave() -> None:
    desk = Desk()
    desk.queue.add("waits/0", "x")
    for _ in range(2000):
        desk.queue.add("a/0", "x", priority=0)
        desk.queue.add("a/0", "urgent", priority=5)
        assert desk.taken(1) == ["a/0"]
    assert len(desk.queue.order._bands[0].open) < 200


def test_nobody_saves_up_by_staying_away() -> None:
    desk = Desk()
    for n in range(300):
        desk.queue.add(f"busy/{n}", "x")
    desk.taken(100, service_s=1.0)
    for n in range(300):
        desk.queue.add(f"late/{n}", "x")
    shares = Counter(key.partition("/")[0] for key in desk.taken(100, service_s=1.0))
    assert abs(shares["busy"] - shares["late"]) <= 2


def test_nobody_saves_up_while_one_run_is_out() -> None:
    desk = Desk()
    desk.queue.add("late/first", "x")
    desk.take()  # and never done
    for n in range(300):
        desk.queue.add(f"busy/{n}", "x")
    desk.taken(100, service_s=1.0)
    for n in range(300):
        desk.queue.add(f"late/{n}", "x")
    shares = Counter(key.partition("/")[0] for key in desk.taken(100, service_s=1.0))
    assert abs(shares["busy"] - shares["late"]) <= 2


def test_a_tenant_cannot_shed_what_it_had_by_leaving_for_a_moment() -> None:
    desk = Desk()
    for n in range(300):
        desk.queue.add(f"steady/{n}", "x")
    greedy = 0
    for _ in range(225):
        desk.queue.add("greedy/0", "x")  # one at a time: its lane is empty between
        item = desk.take()
        if item.tenant == "greedy":
            greedy += 1
        desk.now_s += 4.0 if item.tenant == "greedy" else 0.5
        desk.queue.done(item)
    assert greedy == pytest.approx(225 / 9, abs=4), "a run of 4 s is eight of half a second"


def test_one_endless_run_does_not_banish_a_tenant() -> None:
    desk = Desk()
    for n in range(500):
        desk.queue.add(f"steady/{n}", "x")
    desk.queue.add("unlucky/0", "x")
    desk.queue.add("unlucky/1", "x")
    items = {item.tenant: item for item in (desk.take(), desk.take())}
    desk.queue.done(items["steady"])
    desk.now_s += 3600
    desk.queue.done(items["unlucky"])
    waited = desk.taken(200, service_s=1.0)
    assert "unlucky/1" in waited[: int(LIMITS.queue_debt_s_max) + 2]


def test_tenants_that_have_gone_are_forgotten() -> None:
    desk = Desk()
    desk.queue.add("always/there", "x", delay_s=10_000)
    for n in range(1000):
        desk.queue.add(f"t{n}/a", "x")
        desk.queue.add(f"t{n + 1}/a", "x")
        desk.taken(1, service_s=0.01 * (n % 5))
    assert len(desk.queue.order.tenants) < 20
    assert len(list(desk.queue.order.lanes())) < 20


# -- workers kept free


def hold_all(desk: Desk) -> list[Item[str]]:
    items = []
    while (item := desk.queue.get_nowait()) is not None:
        items.append(item)
    return items


def make_slow(desk: Desk, tenant: str) -> None:
    """Show the queue once that this tenant's runs are long."""
    for n in range(50):
        desk.queue.add(f"{tenant}/{n}", "x")
    item = desk.take()
    desk.now_s += 5
    desk.queue.done(item)


def test_tenants_with_long_runs_leave_some_workers_to_the_others() -> None:
    desk = Desk(workers=8)
    make_slow(desk, "slow")
    held = hold_all(desk)
    assert len(held) == 6, "three quarters of eight"
    assert desk.sample("kedge_queue_slow_running") == 6
    desk.queue.add("quick/a", "x")
    quick = desk.take()
    assert quick.key == "quick/a"
    assert desk.queue.get_nowait() is None
    desk.queue.done(quick)
    assert desk.queue.get_nowait() is None
    desk.queue.done(held[0])
    assert desk.take().tenant == "slow"


def test_two_slow_tenants_do_not_take_every_worker_together() -> None:
    desk = Desk(workers=8)
    make_slow(desk, "slow")
    for n in range(50):
        desk.queue.add(f"sloth/{n}", "x")
    held = hold_all(desk)
    assert len(held) <= 7, "an unknown tenant may show itself once"
    desk.queue.add("quick/a", "x")
    assert desk.take().key == "quick/a"


def test_an_unknown_tenant_is_not_given_every_worker_either() -> None:
    desk = Desk(workers=8)
    for n in range(50):
        desk.queue.add(f"new/{n}", "x")
    assert len(hold_all(desk)) == 6


def test_tenants_with_short_runs_may_take_every_worker() -> None:
    desk = Desk(workers=8)
    for n in range(50):
        desk.queue.add(f"quick/{n}", "x")
    desk.taken(1, service_s=0.01)
    for _ in range(8):
        desk.take()


def test_a_tenant_that_becomes_quick_is_not_left_among_the_slow() -> None:
    desk = Desk(workers=4)
    make_slow(desk, "slow")
    held = hold_all(desk)
    for n in range(5):
        desk.queue.add(f"mended/{n}", "x")
    first = desk.take()  # the one by which it shows itself
    assert first.tenant == "mended"
    assert desk.queue.get_nowait() is None
    desk.now_s += 0.01
    desk.queue.done(first)
    assert desk.take().tenant == "mended"
    assert len(held) == 3


def test_a_tenant_whose_runs_become_long_gives_way_too() -> None:
    desk = Desk(workers=4)
    make_slow(desk, "slow")
    assert len(hold_all(desk)) == 3
    for n in range(9):
        desk.queue.add(f"turning/{n}", "x")
    for service_s in (0.01, 60.0):
        item = desk.take()
        assert item.tenant == "turning"
        desk.now_s += service_s
        desk.queue.done(item)
    assert desk.queue.get_nowait() is None


@asynchronous
async def test_a_worker_that_was_kept_free_is_woken_when_it_may_work_again() -> None:
    desk = Desk(workers=2)
    make_slow(desk, "slow")
    (held,) = hold_all(desk)
    waiting = asyncio.create_task(desk.queue.get())
    await asyncio.sleep(0)
    desk.queue.done(held)
    assert (await asyncio.wait_for(waiting, 5)).tenant == "slow"


def test_without_a_number_of_workers_none_is_kept_free() -> None:
    desk = Desk()
    make_slow(desk, "slow")
    assert len(hold_all(desk)) == 49
