"""Three etcd members are killed and paused under clients of three API servers; a checker judges what the clients saw.

Each server is a service on a store of its own, in this process. Some clients retry as components do, others never, so
that outcomes stay unknown. Three candidates compete for a lease and write with its fence.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.etcd_server import EtcdServer, etcd_cluster, is_leader, sound_etcd
from tests.kit.linearizability import Verb
from tests.tools import missing_tool
from tests.torture.counts import report, scaled
from tests.torture.recorded_clients import LEASE, History, RecordedClient, Worker, final_reads, lead

from kedge.api.kinds import KINDS
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.errors import AlreadyExists, OperatingError
from kedge.limits import Limits
from kedge.server.service import Service
from kedge.store.etcd import EtcdStore

ROUNDS = scaled("ETCD_ROUNDS", 8)
SEED = os.environ.get("KEDGE_TORTURE_SEED") or str(random.randrange(10**9))
PATIENT = replace(Limits(), store_request_s=1.0, lease_s=3.0, lease_renew_s=2.0, lease_retry_s=0.3)
HASTY = replace(PATIENT, client_attempts_max=1, breaker_failures_max=1_000_000)

pytestmark = pytest.mark.slow


class Trouble:
    """Kills and pauses, the leader's every other time, and now and then of two members at once."""

    def __init__(self, members: Sequence[EtcdServer], rng: random.Random) -> None:
        self._members, self._rng = members, rng
        self.kills = self.pauses = self.leaders = 0

    async def run(self) -> None:
        for number in range(ROUNDS):
            await asyncio.sleep(0.3 + self._rng.random())
            leading = [each for each in self._members if await asyncio.to_thread(is_leader, each)]
            victims = leading if number % 2 == 0 and leading else [self._rng.choice(self._members)]
            if number % 5 == 4:
                victims = self._rng.sample(self._members, 2)
            self.leaders += sum(each in leading for each in victims)
            await (self._kill(victims) if self._rng.random() < 0.5 else self._pause(victims))

    async def _kill(self, victims: Sequence[EtcdServer]) -> None:
        for each in victims:
            each.kill()
            self.kills += 1
        await asyncio.sleep(0.2 + self._rng.random())
        for each in victims:
            each.start()
        for each in victims:
            await asyncio.to_thread(each.wait_ready)

    async def _pause(self, victims: Sequence[EtcdServer]) -> None:
        for each in victims:
            os.kill(each.pid, signal.SIGSTOP)
            self.pauses += 1
        await asyncio.sleep(0.2 + 2 * self._rng.random())
        for each in victims:
            os.kill(each.pid, signal.SIGCONT)


async def served(store: EtcdStore, env: Env) -> Service:
    service = Service(store, env)
    namespace = KINDS.of_key_kind("Namespace")
    with suppress(AlreadyExists):
        await service.create(namespace, {"metadata": {"name": "default"}})
    return service


async def settled(client: RecordedClient, history: History) -> int:
    """How many acknowledged writes are lost, once the cluster answers again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return len(await final_reads(client, history))
            except OperatingError:
                await asyncio.sleep(0.2)


def test_histories_of_clients_are_linearizable_while_etcd_members_are_killed_and_paused() -> None:
    binary = sound_etcd() or missing_tool("a sound etcd", install="apt-get install etcd-server")

    async def run_test(members: list[EtcdServer]) -> None:
        print(f"KEDGE_TORTURE_SEED={SEED}")
        rng, history = random.Random(SEED), History()
        endpoints = [member.endpoint for member in members]
        patient, hasty = system_env(limits=PATIENT), system_env(limits=HASTY)
        stores = [await EtcdStore.open(endpoints, patient, prefix="/torture", compactor=False) for _ in range(3)]
        tasks: list[asyncio.Task[None]] = []
        try:
            services = [await served(store, patient) for store in stores]
            for number, service in enumerate(services):
                transport = DirectTransport(service)
                for env, kind in ((patient, "patient"), (hasty, "hasty"), (hasty, "hasty-too")):
                    name = f"{kind}-{number}"
                    client = RecordedClient(transport, env, history, name=name)
                    worker = Worker(client, history, random.Random(f"{SEED}/{name}"), name=name)
                    tasks.append(asyncio.ensure_future(worker.run(0.05)))
                candidate = RecordedClient(transport, patient, history, name=f"candidate-{number}")
                tasks.append(asyncio.ensure_future(lead(candidate, patient, f"candidate-{number}")))
            trouble = Trouble(members, rng)
            await trouble.run()
            for task in tasks:
                assert not task.done(), task
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            lost = await settled(RecordedClient(DirectTransport(services[0]), patient, history, name="last"), history)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for store in stores:
                await store.close()
        judge(history, trouble, lost)

    with etcd_cluster(binary) as members:
        asyncio.run(asyncio.wait_for(run_test(members), 120 + 6 * ROUNDS))


def judge(history: History, trouble: Trouble, lost: int) -> None:
    violations = history.violations()
    report(
        "etcd", etcd_kills=trouble.kills, pauses=trouble.pauses, operations=history.count,
        acknowledged=history.acknowledged, unknown=history.unknown, lost=lost, violations=len(violations),
    )  # fmt: skip
    assert not violations, violations[0].message
    assert not lost
    assert trouble.kills
    assert trouble.pauses
    assert trouble.leaders, "no leader was among the victims: the test is void"
    assert history.unknown, "no outcome was unknown: the test is void"
    leases = [each for each in history.operations[str(LEASE)] if each.verb is not Verb.GET]
    assert len({each.value for each in leases}) > 3, "the lease was hardly ever written: the test is void"
