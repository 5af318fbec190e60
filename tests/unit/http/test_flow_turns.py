"""The turns of flow control: how much work one begins and in which order, and seats that are given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.access import ADA, ADMIN, agent_of
from tests.kit.loops import on_loop

from kedge.api.access import Caller
from kedge.env import system_env
from kedge.errors import TooManyRequests
from kedge.limits import Limits
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.flow import FlowControl, Seat
from kedge.server.http.flow.lane import FlowLane, WaitingTask
from kedge.server.http.flow.levels import PriorityLevel
from kedge.server.http.flow.list_costs import ListCosts, ListShape
from kedge.server.http.routes import resource_path

MAPS = "/api/v1/namespaces/default/configmaps"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
AGENT = agent_of("n1")


class OpenExchange:
    """The parts of an exchange that flow control reads."""

    begun_s = 0.0
    closed = False


def request_of(method: str, query: str = "") -> HttpRequest:
    found = HttpRequest()
    found.method, found.query = method, query.encode()
    return found


async def enter(
    control: FlowControl, caller: Caller, method: str = "POST", path: str = MAPS, query: str = ""
) -> Seat | None:
    exchange: Any = OpenExchange()
    return await control.enter(caller, resource_path(path.encode()), request_of(method, query), exchange)


def begun(control: FlowControl, *callers: Caller, method: str = "POST", path: str = MAPS) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(enter(control, each, method, path)) for each in callers]


def control_with(**limits: Any) -> FlowControl:
    return FlowControl(system_env(limits=replace(Limits(), **limits)))


def done(tasks: list[asyncio.Task[Any]]) -> int:
    return sum(each.done() for each in tasks)


async def turns(count: int = 1) -> None:
    """Let the loop turn so often. The first turn begins the tasks themselves."""
    for _ in range(count):
        await asyncio.sleep(0)


async def leave(control: FlowControl, tasks: list[asyncio.Task[Any]]) -> None:
    """End every request, and check that each seat was given back."""
    for each in tasks:
        (await each).leave()
    assert all(lane.used == 0 and lane.waiting == 0 for lane in control._lanes)


@on_loop
async def test_a_turn_begins_as_many_writes_as_its_units_and_later_turns_the_rest() -> None:
    control = control_with(http_turn_units_max=6)
    tasks = begun(control, *[ADMIN] * 12)
    seen = []
    while done(tasks) < len(tasks):
        await turns()
        seen.append(done(tasks))
    steps = [now - before for before, now in zip([0, *seen], seen, strict=False)]
    assert max(steps) == 3, "a write is two units"
    await leave(control, tasks)


@on_loop
async def test_the_begin_of_a_list_is_four_units() -> None:
    control = control_with(http_turn_units_max=8)
    tasks = begun(control, *[ADMIN] * 6, method="GET")
    await turns()
    assert done(tasks) == 2
    await leave(control, tasks)


@on_loop
async def test_renewals_begin_although_the_work_of_the_turn_is_used_up() -> None:
    control = control_with(http_turn_units_max=1)
    others = begun(control, ADMIN, ADMIN, ADMIN)
    renewals = begun(control, *[AGENT] * 5, method="PUT", path=LEASE)
    await turns()
    assert done(others) == 1
    assert done(renewals) == 5
    await leave(control, [*others, *renewals])


@on_loop
async def test_renewals_that_waited_for_a_seat_all_begin_in_the_next_turn() -> None:
    control = control_with(http_turn_units_max=1, http_lease_turn_units_max=1, http_lease_seats_max=4)
    lane = control._requests[PriorityLevel.LEASES]
    lane.take("someone", 4, 1)
    control._left, control._turn_due = 0, True  # no turn but the one below
    renewals = begun(control, *[AGENT] * 4, method="PUT", path=LEASE)
    others = begun(control, ADMIN, ADMIN)
    await turns(2)
    assert (lane.waiting, done(others)) == (4, 0)
    lane.release("someone", 4)
    control._turn()
    assert lane.used == 4, "also after a write of another lane has used up the turn"
    await leave(control, [*renewals, *others])


@on_loop
async def test_the_turn_in_which_a_renewal_begins_is_shortened_too() -> None:
    control = control_with(http_turn_units_max=100, http_lease_turn_units_max=2)
    (renewal,) = begun(control, AGENT, method="PUT", path=LEASE)
    await turns()
    assert renewal.done()
    assert sum(control.start_nowait() for _ in range(10)) == 2
    await leave(control, [renewal])


@on_loop
async def test_a_turn_begins_one_request_of_each_lane_before_more_of_the_first() -> None:
    control = control_with(http_turn_units_max=4)
    control._left = 0
    control._turn_due = True  # no turn but the one below
    first, last = begun(control, *[ADMIN] * 8), begun(control, ADA)
    await turns(2)
    control._turn()
    lanes = [control._requests[each] for each in (PriorityLevel.ADMINISTRATORS, PriorityLevel.OTHERS)]
    assert [each.used for each in lanes] == [1, 1]
    await leave(control, [*first, *last])


@on_loop
async def test_a_request_that_comes_later_does_not_pass_those_that_wait() -> None:
    control = control_with(http_other_seats_max=3)
    lane = control._requests[PriorityLevel.OTHERS]
    waiting = WaitingTask("bea", 1, 2, 0.0)
    lane.add(waiting)
    (late,) = begun(control, ADA)
    await turns()
    assert not late.done(), "there is room, but another came first"
    await turns(2)
    assert waiting.begins.done()
    (await late).leave()
    control.release(lane, "bea", 1)


@pytest.mark.parametrize(("method", "query"), [("GET", ""), ("DELETE", ""), ("HEAD", "watch=1")])
def test_every_request_that_reads_a_collection_costs_bytes(method: str, query: str) -> None:
    @on_loop
    async def run() -> None:
        control = control_with(http_list_bytes_unknown=5_000)
        seat = await enter(control, ADMIN, method, query=query)
        assert seat is not None
        assert control._lists[PriorityLevel.ADMINISTRATORS].used == 5_000
        assert control._requests[PriorityLevel.ADMINISTRATORS].used == 0
        seat.leave()

    run()


@on_loop
async def test_a_short_list_costs_a_least_number_of_bytes_the_next_time() -> None:
    control = control_with()
    seat = await enter(control, ADMIN, "GET")
    assert seat is not None
    seat.leave(streamed_bytes=10)
    again = await enter(control, ADMIN, "GET")
    assert again is not None
    assert control._lists[PriorityLevel.ADMINISTRATORS].used == 16 * 1024
    again.leave()


def test_the_sizes_of_only_so_many_lists_are_remembered() -> None:
    costs = ListCosts(2, 7)
    shapes = [ListShape("", "pods", f"n{number}", "") for number in range(4)]
    for each in shapes:
        costs.observe(each, 100)
    assert len(costs) == 2
    assert [costs.estimate(each) for each in shapes] == [7, 7, 100, 100]


@on_loop
async def test_a_cancelled_request_leaves_the_queue() -> None:
    control = control_with(http_other_seats_max=1)
    lane = control._requests[PriorityLevel.OTHERS]
    lane.take("someone", 1, 1)
    (waiting,) = begun(control, ADA)
    await turns(2)
    assert lane.waiting == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert lane.waiting == 0
    control.release(lane, "someone", 1)
    assert lane.used == 0


@on_loop
async def test_a_request_that_is_cancelled_as_it_begins_gives_its_seat_back() -> None:
    """1. The turn gives it a seat. 2. It is cancelled before its task runs."""
    control = control_with(http_other_seats_max=1)
    lane = control._requests[PriorityLevel.OTHERS]
    lane.take("someone", 1, 1)
    (waiting,) = begun(control, ADA)
    await turns(2)
    lane.release("someone", 1)
    control._turn()
    assert lane.used == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert lane.used == 0


@on_loop
async def test_a_turn_after_the_cancellation_and_before_the_task_runs_costs_no_seat() -> None:
    """1. The task is cancelled. 2. The turn gives it a seat, or refuses it. 3. The task runs."""
    control = control_with(http_other_seats_max=1)
    lane = control._requests[PriorityLevel.OTHERS]
    for act in (control._turn, lambda: lane.expire(1.0)):
        lane.take("someone", 1, 1)
        (waiting,) = begun(control, ADA)
        await turns(2)
        lane.release("someone", 1)
        waiting.cancel()
        act()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (lane.used, lane.waiting) == (0, 0)


@on_loop
async def test_a_get_that_cannot_wait_is_refused_and_the_caller_goes_on() -> None:
    control = control_with(http_flow_waiting_max=1)
    refused: list[TooManyRequests] = []
    path = resource_path(f"{MAPS}/a".encode())
    assert path is not None
    exchange: Any = OpenExchange()
    for _ in range(3):
        control.defer(ADA, path, exchange, lambda: None, refused.append)
    assert len(refused) == 2
    assert refused[0].retry_after_s == 1.0
    await turns(2)
    assert control._requests[PriorityLevel.OTHERS].used == 0


def admitted(control: FlowControl, *addresses: str, units: int = 1) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(control.admit(each, units, 0.0)) for each in addresses]


@on_loop
async def test_work_for_unknown_callers_is_part_of_a_turn_and_holds_no_seat() -> None:
    control = control_with(http_turn_units_max=6)
    tasks = admitted(control, *["a"] * 12, units=3)
    seen = []
    while done(tasks) < len(tasks):
        await turns()
        seen.append(done(tasks))
        assert control._unknown.used == 0
    steps = [now - before for before, now in zip([0, *seen], seen, strict=False)]
    assert max(steps) == 2
    assert not control._unknown._flows


@on_loop
async def test_an_address_is_answered_soon_although_another_one_floods() -> None:
    control = control_with(http_turn_units_max=2, http_flow_waiting_max=100)
    flood = admitted(control, *["flood"] * 80)
    await turns()
    (probe,) = admitted(control, "probe")
    await turns(4)
    assert probe.done()
    assert done(flood) < 20
    await asyncio.gather(*flood)


@on_loop
async def test_renewals_begin_while_unknown_callers_flood() -> None:
    control = control_with(http_turn_units_max=4, http_lease_turn_units_max=1, http_flow_waiting_max=100)
    flood = admitted(control, *["flood"] * 80)
    renewals = begun(control, *[AGENT] * 5, method="PUT", path=LEASE)
    await turns()
    assert done(renewals) == 5
    before = done(flood)
    await turns(3)
    assert done(flood) - before <= 3, "a turn is short while a renewal is under way"
    for each in renewals:
        (await each).leave()
    await asyncio.gather(*flood)


@on_loop
async def test_an_address_with_too_many_requests_is_refused_and_others_are_not() -> None:
    control = control_with(http_flow_waiting_max=2)
    control._left, control._turn_due = 0, True  # no turn but the one below
    flood, probe = admitted(control, *["flood"] * 5), admitted(control, "probe")
    await turns(2)
    refused = [each.exception() for each in flood if each.done()]
    assert [getattr(each, "retry_after_s", None) for each in refused] == [1.0] * 3
    control._turn()
    await asyncio.gather(*probe)


@on_loop
async def test_a_cancelled_request_of_an_unknown_caller_leaves_the_queue() -> None:
    control = control_with()
    for turns_first in (False, True):
        control._left, control._turn_due = 0, True
        (waiting,) = admitted(control, "a")
        await turns(2)
        waiting.cancel()
        if turns_first:
            control._turn()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (control._unknown.used, control._unknown.waiting) == (0, 0)
        control._turn()


def lane_of(**limits: int) -> FlowLane:
    return FlowLane("test", 1, limits.get("waiting_max", 100), limits.get("flow_waiting_max", 100))


@on_loop
async def test_a_refusal_has_the_pause_before_the_next_attempt() -> None:
    """Also of a request that waited too long, and of one that gave way."""
    lane = lane_of(flow_waiting_max=2, waiting_max=3)
    tasks = [WaitingTask(flow, 1, 1, 0.0) for flow in "aab"]
    for each in tasks:
        lane.add(each)
    with pytest.raises(TooManyRequests) as full:
        lane.add(WaitingTask("a", 1, 1, 0.0))
    lane.add(WaitingTask("c", 1, 1, 5.0))
    lane.expire(1.0)
    errors = [full.value, *(each.begins.exception() for each in tasks)]
    assert [getattr(each, "retry_after_s", None) for each in errors] == [1.0] * 4


@on_loop
async def test_a_request_that_began_before_does_not_give_way_in_a_full_lane() -> None:
    lane = lane_of(waiting_max=3)
    resumed = [WaitingTask("a", 1, 1, 0.0, patient=True) for _ in range(3)]
    for each in resumed:
        lane.add(each)
    with pytest.raises(TooManyRequests):
        lane.add(WaitingTask("b", 1, 1, 0.0))
    assert not any(each.begins.done() for each in resumed)


@on_loop
async def test_flows_without_requests_are_forgotten() -> None:
    """A client that changes its name with each request must not fill the memory."""
    lane = lane_of(waiting_max=1)
    for number in range(50):
        lane.take(f"user-{number}", 1, 1)
        lane.release(f"user-{number}", 1)
    lane.add(WaitingTask("first", 1, 1, 0.0, patient=True))
    for number in range(50):
        with pytest.raises(TooManyRequests):
            lane.add(WaitingTask(f"late-{number}", 1, 1, 0.0))
    assert set(lane._flows) == {"first"}
