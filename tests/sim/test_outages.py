"""An outage is no reason for a storm: what is sent to those who cannot be reached is bounded, and that is judged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

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


class Asking:
    """Somebody who reads as fast as there are answers, many keys at once."""

    def __init__(self, read: Callable[[], Any], keys: int) -> None:
        self._read = read
        self._keys = keys

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._keys):
                group.create_task(self._ask())

    async def _ask(self) -> None:
        while True:
            with suppress(OperatingError):
                await self._read()
            await asyncio.sleep(0.05)


def storm(make: Callable[[Cluster, ProcessContext], Component], cut: str, *, lasting_s: float = 30.0) -> RunOutcome:
    """Run a component, and take its server from it: by a crash, by a cut of its link, or by one behind the server."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, servers=1, limits=Limits(), hostile=True)
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
def test_many_keys_that_go_on_asking_without_bounds_are_a_storm(cut: str) -> None:
    def blunt(_: Cluster, context: ProcessContext) -> Component:
        transport: Any = context.client._transport
        return Asking(lambda: transport.send(Get(KEY)), 100)

    violation = storm(blunt, cut).violation
    assert violation is not None
    assert violation.invariant == OUTAGES, violation


def test_a_server_that_goes_on_asking_its_store_for_them_is_one_too() -> None:
    def blunt(_: Cluster, context: ProcessContext) -> Component:
        transport: Any = context.client._transport
        return Asking(lambda: transport.send(Get(KEY)), 400)

    violation = storm(blunt, "store").violation
    assert violation is not None
    assert violation.invariant == OUTAGES, violation


@pytest.mark.parametrize("cut", CUTS)
def test_as_many_keys_behind_a_breaker_are_none(cut: str) -> None:
    def careful(_: Cluster, context: ProcessContext) -> Component:
        return Asking(lambda: context.client.get(KEY), 100)

    assert storm(careful, cut).violation is None


@pytest.mark.parametrize("cut", CUTS)
def test_a_controller_keeps_quiet_through_an_outage_and_is_found_out_if_its_breaker_never_opens(
    cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def controller(_: Cluster, context: ProcessContext) -> Component:
        return garbage_controller(context.runtime())

    assert storm(controller, cut, lasting_s=300.0).violation is None
    monkeypatch.setattr(Breaker, "admit", lambda _: False)
    violation = storm(controller, "crash", lasting_s=300.0).violation
    assert violation is not None
    assert violation.invariant == OUTAGES, violation


def test_a_new_life_may_begin_anew_and_people_may_be_impatient() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, servers=1, hostile=True)
        await cluster.set_up()
        Judge(cluster)
        cluster.servers[0].crash()
        people = sim.host("alice")
        raw = cluster.transport(people)
        impatient = people.spawn(Asking(lambda: raw.send(Get(KEY)), 20).run(), name="impatience")
        (host,) = cluster.boot("manager", [lambda context: Asking(lambda: context.client.get(KEY), 100)])
        for _ in range(4):
            await asyncio.sleep(4)
            host.crash()
            host.restart()
        impatient.cancel()

    assert run(program, 1, faults=NO_FAULTS).violation is None


def test_the_bound_grows_slowly_with_the_outage() -> None:
    limits = Limits()
    burst = requests_max(limits, 0.0)
    assert burst == limits.client_in_flight_max + limits.breaker_failures_max + 5
    assert requests_max(limits, 3600.0) - burst < 3600.0 / limits.breaker_open_s / 4
