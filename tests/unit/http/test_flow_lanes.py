"""One lane of flow control: capacity, fair order, and which request is refused when too many wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.loops import on_loop

from kedge.errors import TooManyRequests
from kedge.server.http.flow.lane import FlowLane, WaitingTask


def lane(capacity: int = 1, waiting_max: int = 100, flow_waiting_max: int = 100) -> FlowLane:
    return FlowLane("test", capacity, waiting_max, flow_waiting_max)


def queued(to: FlowLane, *flows: str, units: int = 1, since_s: float = 0.0) -> list[WaitingTask]:
    found = [WaitingTask(flow, 1, units, since_s) for flow in flows]
    for each in found:
        to.add(each)
    return found


def served(by: FlowLane, count: int) -> str:
    """The flows whose requests begin, each after the one before has ended."""
    flows = []
    for _ in range(count):
        begun = by.next()
        assert begun is not None
        flows.append(begun.flow)
        by.release(begun.flow, begun.width)
    return "".join(flows)


@on_loop
async def test_flows_alternate_however_many_requests_each_has() -> None:
    tested = lane()
    queued(tested, *"aaaaaaaaab")
    assert served(tested, 3) == "aba"


@on_loop
async def test_a_flow_is_charged_for_the_work_of_its_requests() -> None:
    tested = lane()
    queued(tested, "a", "a", units=4)
    queued(tested, *"bbbbbb")
    assert served(tested, 8) == "abbbbabb"


@on_loop
async def test_a_new_flow_has_no_credit_for_the_time_before_it_came() -> None:
    tested = lane()
    queued(tested, *"aaaaaaaa")
    assert served(tested, 4) == "aaaa"
    queued(tested, *"bbbb")
    assert served(tested, 4) in ("abab", "baba")


@on_loop
async def test_no_more_begin_than_the_capacity_has_room_for() -> None:
    tested = lane(capacity=2)
    queued(tested, *"abc")
    assert tested.next() is not None
    assert tested.next() is not None
    assert tested.next() is None
    tested.release("a", 1)
    assert tested.next() is not None


def test_a_request_wider_than_the_lane_runs_alone() -> None:
    tested = lane(capacity=10)
    assert tested.fits(50)
    tested.take("a", 50, 1)
    assert not tested.fits(1)


@on_loop
async def test_one_flow_cannot_fill_the_queue() -> None:
    tested = lane(flow_waiting_max=3)
    queued(tested, *"aaa")
    with pytest.raises(TooManyRequests, match="of this client already wait"):
        queued(tested, "a")
    queued(tested, "b")


@on_loop
async def test_in_a_full_lane_the_flow_with_the_longest_queue_loses_its_newest_request() -> None:
    tested = lane(waiting_max=4)
    first = queued(tested, *"aaab")
    queued(tested, "c")
    assert [each.begins.done() for each in first] == [False, False, True, False]
    assert isinstance(first[2].begins.exception(), TooManyRequests)
    assert tested.waiting == 4


@on_loop
async def test_a_full_lane_of_equal_flows_refuses_the_next_request() -> None:
    tested = lane(waiting_max=2)
    queued(tested, *"ab")
    with pytest.raises(TooManyRequests, match="of clients like this one already wait"):
        queued(tested, "a")


@on_loop
async def test_requests_that_waited_too_long_are_refused_and_the_rest_stays_in_order() -> None:
    tested = lane()
    old = queued(tested, "a", "b", since_s=1.0)
    queued(tested, *"ac", since_s=5.0)
    tested.expire(3.0)
    assert all(isinstance(each.begins.exception(), TooManyRequests) for each in old)
    assert served(tested, 2) == "ac"
    assert tested.waiting == 0


@on_loop
async def test_a_request_that_began_before_is_never_refused() -> None:
    tested = lane(waiting_max=1, flow_waiting_max=1)
    queued(tested, "a")
    tested.add(WaitingTask("a", 1, 1, 0.0, patient=True))
    tested.expire(10.0)
    assert served(tested, 1) == "a"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "next", "end", "expire"])), max_size=60))
def test_the_counts_are_those_of_the_requests(steps: list[tuple[str, str]]) -> None:
    @on_loop
    async def run() -> None:
        tested = lane(capacity=3, waiting_max=5, flow_waiting_max=3)
        waiting: list[WaitingTask] = []
        under_way: list[WaitingTask] = []
        for at_s, (flow, step) in enumerate(steps):
            if step == "add":
                each = WaitingTask(flow, 1, 1, float(at_s))
                try:
                    tested.add(each)
                except TooManyRequests:
                    continue
                waiting.append(each)
            elif step == "next" and (begun := tested.next()) is not None:
                assert isinstance(begun, WaitingTask)
                under_way.append(begun)
            elif step == "end" and under_way:
                ended = under_way.pop()
                tested.release(ended.flow, ended.width)
            elif step == "expire":
                tested.expire(at_s - 10.0)
            live = [each for each in waiting if not each.begins.done()]
            for each in waiting:
                if each.begins.done():
                    each.begins.exception()
            assert tested.waiting == len(live)
            assert tested.used == len(under_way) <= 3

    run()
