"""An exhaustive search runs every order of deliveries once, and none that looks like an earlier one to every host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import factorial
from typing import Any

import pytest

from kedge.errors import InvariantBroken, OutcomeUnknown
from kedge.sim.kernel import Simulation, SimulationTarget
from kedge.sim.kernel.delivery_orders import DeliveryOrders
from kedge.sim.kernel.exhaustive_search import SearchBounds, search

Program = Callable[[Simulation], Coroutine[Any, Any, None]]


class Register:
    """Keeps the order of the calls that it got."""

    def __init__(self) -> None:
        self.value = 0
        self.calls: list[str] = []

    def get(self, caller: str) -> int:
        self.calls.append(f"{caller} get")
        return self.value

    def put(self, caller: str, value: int) -> None:
        self.calls.append(f"{caller} put")
        self.value = value


def callers(count: int, calls: int, seen: list[tuple[str, ...]], *, servers: int = 1) -> Program:
    """Each caller makes calls one after the other; caller n uses server n modulo `servers`."""

    async def program(sim: Simulation) -> None:
        registers = [Register() for _ in range(servers)]
        homes = [sim.host(f"server-{number}") for number in range(servers)]
        for home, register in zip(homes, registers, strict=True):
            home.serve("register", register)

        async def call(name: str, remote: Any) -> None:
            for _ in range(calls):
                await remote.get(name)

        hosts = [sim.host(f"caller-{number}") for number in range(count)]
        sim.explore_orders()
        for number, host in enumerate(hosts):
            host.spawn(call(host.name, host.remote(homes[number % servers], "register")), name="calls")
        await asyncio.sleep(1)
        seen.append(tuple(each for register in registers for each in register.calls))

    return program


def searched(program: Program, **bounds: Any) -> Any:
    return search(SimulationTarget(program=program), SearchBounds(**bounds))


@pytest.mark.parametrize(("count", "calls"), [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2)])
def test_every_order_at_a_server_is_run_exactly_once(count: int, calls: int) -> None:
    seen: list[tuple[str, ...]] = []
    found = searched(callers(count, calls, seen), deliveries=100)
    orders = factorial(count * calls) // factorial(calls) ** count
    assert found.finished
    assert found.all_orders
    assert found.runs == orders
    assert len(set(seen)) == orders


def test_orders_that_look_alike_to_every_host_are_run_once() -> None:
    found = searched(callers(2, 2, [], servers=2), deliveries=100)
    assert (found.finished, found.runs) == (True, 1)


def test_a_bound_limits_the_deliveries_whose_order_is_chosen() -> None:
    seen: list[tuple[str, ...]] = []
    found = searched(callers(2, 3, seen), deliveries=2)
    assert found.finished
    assert not found.all_orders
    assert 1 < len(set(seen)) < 20
    assert {calls[0] for calls in seen} == {"caller-0 get", "caller-1 get"}


def test_a_search_that_is_stopped_does_not_claim_to_be_finished() -> None:
    found = searched(callers(3, 2, []), deliveries=100, runs=10)
    assert not found.finished
    assert found.runs + found.equal == 10


async def read_then_write(sim: Simulation) -> None:
    """Two hosts add one to a register, without a check: an update may be lost."""
    server, register = sim.host("server"), Register()
    server.serve("register", register)

    async def add(name: str, remote: Any) -> None:
        await remote.put(name, 1 + await remote.get(name))

    hosts = [sim.host("first"), sim.host("second")]
    work = [host.spawn(add(host.name, host.remote(server, "register")), name="add") for host in hosts]
    await asyncio.gather(*work)
    if register.value != 2:
        sim.violate("no update is lost", " ".join(register.calls))


def test_a_failing_order_is_found_from_the_start_of_a_program_and_replays() -> None:
    target = SimulationTarget(program=read_then_write)
    found = search(target, SearchBounds(deliveries=10))
    assert found.failure is not None
    assert found.failure.violation is not None
    assert found.failure.violation.invariant == "no update is lost"
    again = target.run(found.failure.tape)
    assert again.diverged is None
    assert again.hash == found.failure.hash


async def counts_a_call_twice(sim: Simulation) -> None:
    """One caller that repeats a call without a reply."""
    server, register = sim.host("server"), Register()
    server.serve("register", register)

    async def call(remote: Any) -> None:
        while True:
            try:
                await remote.get("caller")
                return
            except OutcomeUnknown:
                await asyncio.sleep(0.1)

    caller = sim.host("caller")
    await caller.spawn(call(caller.remote(server, "register")), name="call")
    if len(register.calls) > 1:
        sim.violate("a call is carried out once", " ".join(register.calls))


def test_a_fault_strikes_at_every_delivery_and_no_more_often_than_allowed() -> None:
    assert searched(counts_a_call_twice, faults=0).failure is None
    broken = searched(counts_a_call_twice, faults=1)
    assert broken.failure is not None
    assert [event.text for event in broken.failure.faults] == ["lose: reply of register.get caller>server"]
    replayed = broken.target.run(broken.failure.tape)
    assert (replayed.diverged, replayed.hash) == (None, broken.failure.hash)


def test_a_timer_before_a_late_reply_is_an_order_too() -> None:
    assert searched(counts_a_call_twice, overtakes=0).failure is None
    late = searched(counts_a_call_twice, overtakes=1)
    assert late.failure is not None
    assert not late.failure.faults


def test_the_name_of_a_policy_has_everything_that_a_replay_needs() -> None:
    policy = DeliveryOrders(deliveries=7, overtakes=2, faults=("crash callee", "lose"), from_start=True)
    assert DeliveryOrders.of_name(policy.name) == policy
    assert DeliveryOrders.of_name("uniform") is None


def test_a_fault_that_strikes_two_hosts_at_once_is_rejected() -> None:
    with pytest.raises(InvariantBroken, match="partition"):
        DeliveryOrders(deliveries=1, faults=("partition",))


def test_two_controllers_make_one_pod_in_every_order() -> None:
    """One key and two actors: both believe to lead, and the name of a pod keeps the second one out."""
    from kedge.sim.examples.two_actors import careful, careless

    found = searched(careful, deliveries=8)
    assert found.finished
    assert found.failure is None
    assert found.runs > 10
    assert searched(careless, deliveries=8).failure is not None
