"""The invariant that bounds the requests sent to unreachable hosts, and the breaker that keeps within it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.kit.cluster import run_without_faults

from kedge.api.requests import Get
from kedge.client.contract.breaker import Breaker
from kedge.controllers.garbage.controller import garbage_controller
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.sim.cluster import Cluster, Component, ProcessContext
from kedge.sim.judges.invariants import OUTAGES, Judge
from kedge.sim.judges.outages import requests_max
from kedge.sim.kernel import NO_FAULTS, RunOutcome, Simulation, run

KEY = Key("ConfigMap", "default", "settings")
SMALL = Limits(client_in_flight_max=32)
"""A bound that a few hundred readers exceed."""


class BusyReader:
    """Reads in a loop, many keys at once."""

    def __init__(self, read: Callable[[], Any], keys: int) -> None:
        self._read = read
        self._keys = keys

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._keys):
                group.create_task(self._read_forever())

    async def _read_forever(self) -> None:
        while True:
            with suppress(OperatingError):
                await self._read()
            await asyncio.sleep(0.05)


def outage(make: Callable[[Cluster, ProcessContext], Component], cut: str, *, lasting_s: float = 30.0) -> RunOutcome:
    """Run a component through an outage: its server crashes, or its link or the link behind the server is cut."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, servers=1, limits=SMALL, hostile=True)
        await cluster.set_up()
        Judge(cluster)
        (host,) = cluster.boot("manager", [lambda context: make(cluster, context)])
        await asyncio.sleep(5)
        (server,) = cluster.servers
        match cut:
            case "crash":
                server.crash()
            case "link":
                sim.network.partition([host], [server])
            case _:
                sim.network.partition([server], [cluster.store_host])
        await asyncio.sleep(lasting_s)

    return run(program, 1, faults=NO_FAULTS)


CUTS = ("crash", "link", "store")


@pytest.mark.parametrize("cut", ["crash", "link"])
def test_retries_without_a_breaker_break_the_invariant(cut: str) -> None:
    def blunt(_: Cluster, context: ProcessContext) -> Component:
        transport: Any = context.client._transport
        return BusyReader(lambda: transport.send(Get(KEY)), 100)

    violation = outage(blunt, cut).violation
    assert violation is not None
    assert violation.invariant == OUTAGES, violation


def test_a_server_that_passes_every_retry_to_its_store_breaks_the_invariant() -> None:
    def blunt(_: Cluster, context: ProcessContext) -> Component:
        transport: Any = context.client._transport
        return BusyReader(lambda: transport.send(Get(KEY)), 400)

    violation = outage(blunt, "store").violation
    assert violation is not None
    assert violation.invariant == OUTAGES, violation


@pytest.mark.parametrize("cut", CUTS)
def test_retries_behind_a_breaker_stay_within_the_bound(cut: str) -> None:
    def careful(_: Cluster, context: ProcessContext) -> Component:
        return BusyReader(lambda: context.client.get(KEY), 100)

    assert outage(careful, cut).violation is None


@pytest.mark.parametrize("cut", CUTS)
def test_a_controller_stays_within_the_bound_unless_its_breaker_never_opens(
    cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def controller(_: Cluster, context: ProcessContext) -> Component:
        return garbage_controller(context.runtime())

    assert outage(controller, cut, lasting_s=300.0).violation is None
    monkeypatch.setattr(Breaker, "admit", lambda _: False)
    violation = outage(controller, "crash", lasting_s=300.0).violation
    assert violation is not None
    assert violation.invariant == OUTAGES, violation


def test_a_restart_resets_the_count_and_users_are_not_bounded() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, servers=1, hostile=True)
        await cluster.set_up()
        Judge(cluster)
        cluster.servers[0].crash()
        people = sim.host("alice")
        raw = cluster.transport(people)
        impatient = people.spawn(BusyReader(lambda: raw.send(Get(KEY)), 20).run(), name="retries")
        (host,) = cluster.boot("manager", [lambda context: BusyReader(lambda: context.client.get(KEY), 100)])
        for _ in range(4):
            await asyncio.sleep(4)
            host.crash()
            host.restart()
        impatient.cancel()

    run_without_faults(program)


def test_the_bound_grows_slowly_with_the_outage() -> None:
    limits = Limits()
    burst = requests_max(limits, 0.0)
    assert burst == limits.client_in_flight_max + limits.breaker_failures_max + 5
    assert requests_max(limits, 3600.0) - burst < 3600.0 / limits.breaker_open_s / 4
