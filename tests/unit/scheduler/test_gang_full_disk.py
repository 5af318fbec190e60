"""Gangs on a store whose disk fills up while they reserve in chunks, and has space again: whole or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.full_disk import LEDGER, LIMITS, NAMESPACE, eventually
from tests.objects import NODE, POD, RESERVATION, ZONE_QUOTA, node, pod, zone_quota
from tests.unit.store.sqlite_faults import Probe, sqlite_error

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import ListOptions, Reply, Request
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.controllers.repair.controller import reservation_repair_controller
from kedge.env import system_env
from kedge.keys import Key
from kedge.placement.ledger import ClaimState, ledger_of
from kedge.placement.resources import add, to_units
from kedge.runtime import ControllerRuntime
from kedge.scheduler import Scheduler
from kedge.server.service import Service

CREW = tuple(f"crew-{n}" for n in range(7))
NODES = ("node-a", "node-b", "node-c")
CHUNKS = replace(
    LIMITS,
    gang_chunk_max=2,
    gang_wait_s=2.0,
    orphan_s=0.2,
    lease_s=1.2,
    lease_renew_s=0.8,
    lease_retry_s=0.1,
    queue_backoff_s=0.01,
    queue_backoff_s_max=0.1,
)
"""Four chunks; and terms so short that one ends while the disk is full."""


class Disk:
    """A disk that is full from a given write on, until `make_room`."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.refused = 0

    def fill(self) -> None:
        def refuse() -> None:
            self.refused += 1
            raise sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full")

        self._probe.before["INSERT"] = refuse

    def make_room(self) -> None:
        self._probe.end_partition()


class DiskFillingTransport(DirectTransport):
    """A transport to a service whose disk is full just before the n-th request of a verb."""

    def __init__(self, service: Service, disk: Disk, verb: str, number: int) -> None:
        super().__init__(service)
        self._disk = disk
        self._verb, self._left = verb, number

    async def send(self, request: Request[Reply]) -> Reply:
        if request.label == self._verb:
            self._left -= 1
            if not self._left:
                self._disk.fill()
        return await super().send(request)


class GangHarness:
    """A service on a file, three nodes, a zone quota, a gang, a scheduler, and repair."""

    async def open(self, path: Path, verb: str, number: int) -> None:
        probe, self.env = Probe(), system_env(limits=CHUNKS)
        self.store = await probe.open(path, self.env)
        self.service = Service(self.store, self.env)
        self.disk = Disk(probe)
        for name in ("default", "kube-system"):
            await self.service.create(NAMESPACE, {"metadata": {"name": name}})
        for name in NODES:
            await self.service.create(NODE, node(name, cpu="500m"))
        await self.service.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "2", "pods": "20"}))
        client = Client(DiskFillingTransport(self.service, self.disk, verb, number), self.env, component="scheduler")
        self.scheduler = Scheduler(client, self.env)
        repair = reservation_repair_controller(
            ControllerRuntime(Client(DirectTransport(self.service), self.env, component="repair"), self.env)
        )
        self.running = [asyncio.create_task(each.run()) for each in (self.scheduler, repair)]
        await eventually(lambda: self.scheduler.leading)
        for name in CREW:
            body = pod(name, cpu="150m")
            body["metadata"]["labels"]["kedge.dev/gang"] = "crew"
            body["metadata"]["annotations"] = {"kedge.dev/gang-size": str(len(CREW))}
            await self.service.create(POD, body)

    async def close(self) -> None:
        for each in self.running:
            each.cancel()
        await asyncio.wait(self.running)
        await self.store.close()

    async def all(self, kind: Kind) -> tuple[Object, ...]:
        return tuple((await self.service.list(kind, ListOptions())).objects)

    async def bound(self) -> dict[str, str]:
        found = await self.all(POD)
        return {each.uid: each.view.spec.node_name for each in found if each.view.spec.node_name}

    async def check_accounts(self) -> dict[ClaimState, set[str]]:
        """Check that ledgers hold what is bound and reserved, and that the quota is their sum. Returns the claims."""
        held: dict[ClaimState, dict[str, str]] = {ClaimState.BOUND: {}, ClaimState.RESERVED: {}}
        claims = []
        for each in await self.all(LEDGER):
            for uid, claim in ledger_of(each.view).claims.items():
                held[claim.state][uid] = each.key.name
                claims.append(claim.requests)
        reserved = {
            each.view.spec.pod.uid: each.view.spec.node_name
            for each in await self.all(RESERVATION)
            if each.view.spec.pod.uid
        }
        assert held == {ClaimState.BOUND: await self.bound(), ClaimState.RESERVED: reserved}
        (quota,) = await self.all(ZONE_QUOTA)
        zone = quota.view.status.zones.get("zone-a")
        used = {} if zone is None else {name: amount for name, amount in to_units(zone.used).items() if amount}
        assert used == add(*claims)
        return {state: set(pods) for state, pods in held.items()}

    async def wait_settled(self, *, bound: int) -> None:
        """Wait until this many are bound, and no reservation is left."""
        async with asyncio.timeout(60):
            while await self.all(RESERVATION) or len(await self.bound()) < bound:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def wait_whole(self) -> None:
        await self.wait_settled(bound=len(CREW))
        held = await self.check_accounts()
        assert len(held[ClaimState.BOUND]) == len(CREW)
        await eventually(lambda: not self.scheduler.statistics().assumed)

    async def cordon(self, *, closed: bool) -> None:
        patch = {"spec": {"unschedulable": closed}}
        await asyncio.gather(*(self.service.patch(Key("Node", "", name), patch) for name in NODES))


POINTS = (("reserve", 1), ("reserve", 2), ("reserve", 4), ("bind", 1), ("bind", 5), ("delete", 1))


@pytest.mark.parametrize("term_ends", [False, True], ids=["in one term", "in the next term"])
@pytest.mark.parametrize(("verb", "number"), POINTS, ids=[f"{verb} {number}" for verb, number in POINTS])
def test_a_gang_is_bound_whole_when_a_full_disk_has_space_again(
    verb: str, number: int, term_ends: bool, tmp_path: Path
) -> None:
    async def program() -> None:
        harness = GangHarness()
        await harness.open(tmp_path / "kedge.db", verb, number)
        await eventually(lambda: harness.disk.refused >= 3)
        if term_ends:
            await eventually(lambda: not harness.scheduler.leading)
        held = await harness.check_accounts()
        if verb == "reserve":
            assert not held[ClaimState.BOUND]
            assert len(held[ClaimState.RESERVED]) == 2 * (number - 1)
        else:
            assert len(held[ClaimState.BOUND] | held[ClaimState.RESERVED]) == len(CREW)
        harness.disk.make_room()
        await harness.wait_whole()
        await harness.close()

    asyncio.run(program())


@pytest.mark.parametrize("number", [2, 4])
def test_a_gang_that_no_longer_fits_when_the_disk_has_space_holds_nothing(number: int, tmp_path: Path) -> None:
    async def program() -> None:
        harness = GangHarness()
        await harness.open(tmp_path / "kedge.db", "reserve", number)
        await eventually(lambda: harness.disk.refused >= 3)
        assert (await harness.check_accounts())[ClaimState.RESERVED]
        harness.disk.make_room()
        await harness.cordon(closed=True)
        await harness.wait_settled(bound=0)
        held = await harness.check_accounts()
        assert held == {ClaimState.BOUND: set(), ClaimState.RESERVED: set()}
        await eventually(lambda: not harness.scheduler.statistics().assumed)
        await harness.cordon(closed=False)
        await harness.wait_whole()
        await harness.close()

    asyncio.run(program())
