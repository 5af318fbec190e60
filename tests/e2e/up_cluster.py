"""`kedge up` as one process that a test kills and starts again, and the judgement of what was committed meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.e2e.judged_runs import check_history, limits_with
from tests.e2e.torture_cluster import Part, TortureCluster, wait_for
from tests.etcd_server import free_port

from kedge.cli.live_history import HistoryRecorder
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import system_env
from kedge.errors import OperatingError
from kedge.keys import Key

WITHIN_S = 300.0
"""Backoffs of half a minute add up on a busy machine; a test that passes waits much less."""


SHORT: dict[str, float] = {
    "node_renew_s": 2.0,
    "node_suspect_s": 5.0,
    "node_unknown_s": 10.0,
    "node_blind_s": 11.0,
    "node_lease_s": 10.0,
    "agent_restart_s": 1.0,
}
"""Limits with which a test of failing nodes and containers takes seconds. A node is declared lost as late as usual."""


def config_of(folder: Path) -> tuple[str, ...]:
    """The options that give a component the limits of the cluster in `folder`."""
    file = folder / "config.yaml"
    return ("--config", str(file)) if file.exists() else ()


@asynccontextmanager
async def up_cluster(
    folder: Path, *, nodes: int, limits: Mapping[str, float] | None = None
) -> AsyncIterator[TortureCluster]:
    """Server, control plane and agents in one process, which is killed whole. Its processes end with the test."""
    listen = f"127.0.0.1:{free_port()}"
    if limits:
        (folder / "config.yaml").write_text(json.dumps({"limits": dict(limits)}))
    arguments = ("up", "--state", str(folder), "--listen", listen, "--nodes", str(nodes), *config_of(folder))
    up = Part("up", arguments, folder.with_suffix(".log"))
    up.start()
    try:
        await wait_for(folder / "admin.kubeconfig", up)
        transport = HttpTransport(read_kubeconfig(folder / "admin.kubeconfig"))
        client = Client(transport, system_env(), component="test")
        yield TortureCluster(folder, [], client, {"up": [up]}, {})
        await transport.close()
    finally:
        up.kill()
        down = [sys.executable, "-m", "kedge", "down", "--state", str(folder), "--grace", "0"]
        done = await asyncio.create_subprocess_exec(*down)
        assert await done.wait() == 0


@asynccontextmanager
async def judged(client: Client, limits: Mapping[str, float] | None = None) -> AsyncIterator[None]:
    """Record every commit of the body; afterwards none of them may break an invariant of the simulator."""
    recorder = HistoryRecorder(client, system_env())
    start = await recorder.start()
    yield
    check_history(start, await recorder.stop(), limits_with(limits or {}))


async def shown(client: Client, key: Key) -> dict[str, Any]:
    """An object as the API shows it; empty if there is none."""
    found = await client.find(key)
    return {} if found is None else found.edit()


async def eventually(
    client: Client, key: Key, holds: Callable[[dict[str, Any]], bool], what: str, within_s: float = WITHIN_S
) -> dict[str, Any]:
    """Wait until an object is as wanted, and return it."""
    last: dict[str, Any] = {}
    deadline_s = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < deadline_s:
        with suppress(OperatingError):
            last = await shown(client, key)
            if holds(last):
                return last
        await asyncio.sleep(0.1)
    raise AssertionError(f"{key}: not in {within_s} s: {what}; its status is {last.get('status')}")


async def holds(what: Callable[[], bool] | Callable[[], Awaitable[bool]], words: str) -> None:
    """Wait until something holds."""
    deadline_s = asyncio.get_running_loop().time() + WITHIN_S
    while asyncio.get_running_loop().time() < deadline_s:
        with suppress(OperatingError):
            found = what()
            if found if isinstance(found, bool) else await found:
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not in {WITHIN_S} s: {words}")


def condition(body: dict[str, Any], name: str) -> str:
    """The status of a condition; empty without one."""
    found = (each for each in body.get("status", {}).get("conditions", ()) if each["type"] == name)
    return str(next((each["status"] for each in found), ""))
