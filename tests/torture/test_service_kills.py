"""`kedge server` on SQLite is SIGKILLed under clients, again and again; a checker judges what the clients saw."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.etcd_server import free_port
from tests.kit.api_server import ServerProcess
from tests.torture.counts import report, scaled
from tests.torture.recorded_clients import History, RecordedClient, Worker, final_reads, lead

from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import system_env
from kedge.errors import OperatingError
from kedge.limits import Limits

KILLS = scaled("SERVICE_KILLS", 6)
SEED = os.environ.get("KEDGE_TORTURE_SEED") or str(random.randrange(10**9))
WORKERS = 6
PATIENT = replace(Limits(), lease_s=8.0, lease_renew_s=6.0, lease_retry_s=0.3)
HASTY = replace(PATIENT, client_attempts_max=1, breaker_failures_max=1_000_000)

pytestmark = pytest.mark.slow


async def kill_again_and_again(server: ServerProcess, listen: str, rng: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.2 + 0.5 * rng.random())
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start, listen)


async def settled(client: RecordedClient, history: History) -> int:
    async with asyncio.timeout(60):
        while True:
            try:
                return len(await final_reads(client, history))
            except OperatingError:
                await asyncio.sleep(0.2)


def test_histories_of_clients_are_linearizable_while_the_server_is_killed(tmp_path: Path) -> None:
    async def run_test() -> None:
        print(f"KEDGE_TORTURE_SEED={SEED}")
        history, listen = History(), f"127.0.0.1:{free_port()}"
        server = ServerProcess(tmp_path / "state")
        await asyncio.to_thread(server.start, listen)
        transport = HttpTransport(read_kubeconfig(server.kubeconfig))
        tasks: list[asyncio.Task[None]] = []
        try:
            envs = [system_env(limits=PATIENT), system_env(limits=HASTY)]
            for number in range(WORKERS):
                name, env = f"worker-{number}", envs[number % 2]
                client = RecordedClient(transport, env, history, name=name)
                worker = Worker(client, history, random.Random(f"{SEED}/{name}"), name=name)
                tasks.append(asyncio.ensure_future(worker.run(0.02)))
            for name in ("candidate-a", "candidate-b"):
                candidate = RecordedClient(transport, envs[0], history, name=name)
                tasks.append(asyncio.ensure_future(lead(candidate, envs[0], name)))
            await kill_again_and_again(server, listen, random.Random(SEED))
            for task in tasks:
                assert not task.done(), task
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            lost = await settled(RecordedClient(transport, envs[0], history, name="last"), history)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await transport.close()
            server.end()
        violations = history.violations()
        report(
            "service", kills=KILLS, operations=history.count, acknowledged=history.acknowledged,
            unknown=history.unknown, lost=lost, violations=len(violations),
        )  # fmt: skip
        assert not violations, violations[0].message
        assert not lost
        assert history.acknowledged > 5 * KILLS, "too little load to prove anything"
        assert history.unknown, "no outcome was unknown: the test is void"

    asyncio.run(run_test())
