"""Containers that fail, as real processes: reported as in Kubernetes, repaired, and nothing runs twice.

The simulator's invariants judge the history of the run.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.e2e.bare_pods import container, is_ready, key_of, make, node_key, restarts, waits
from tests.e2e.up_cluster import SHORT, condition, eventually, judged, up_cluster

from kedge.client.contract import Client

HEAP_BYTES = 256 << 20


def exec_probe(*command: str) -> dict[str, Any]:
    return {"exec": {"command": list(command)}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1}


async def check_crash_loop(client: Client, folder: Path) -> None:
    found = folder / "found"
    await make(client, "crash", f"test -e {found} || exit 7; exec sleep 100000")
    body = await eventually(client, key_of("crash"), lambda b: waits(b) == "CrashLoopBackOff", "it is in backoff")
    counted = restarts(body)
    assert counted >= 1
    assert container(body)["lastState"]["terminated"]["exitCode"] == 7
    found.touch()
    body = await eventually(client, key_of("crash"), is_ready, "it runs once the file is there")
    assert restarts(body) > counted


async def check_readiness(client: Client, folder: Path) -> None:
    probe = exec_probe("test", "-e", str(folder / "ready"))
    await make(client, "unready", "exec sleep 100000", readinessProbe=probe)
    body = await eventually(client, key_of("unready"), lambda b: "running" in container(b).get("state", {}), "it runs")
    assert not is_ready(body)
    (folder / "ready").touch()
    await eventually(client, key_of("unready"), is_ready, "it is ready")
    (folder / "ready").unlink()
    body = await eventually(client, key_of("unready"), lambda b: not is_ready(b), "it is not ready any more")
    assert restarts(body) == 0


async def check_liveness(client: Client, folder: Path) -> None:
    sick = folder / "sick"
    probe = exec_probe("test", "!", "-e", str(sick))
    await make(client, "sick", f"rm -f {sick}; exec sleep 100000", livenessProbe=probe)
    await eventually(client, key_of("sick"), is_ready, "it runs")
    sick.touch()
    body = await eventually(client, key_of("sick"), lambda b: restarts(b) == 1 and is_ready(b), "it is restarted")
    assert container(body)["lastState"]["terminated"]["exitCode"] in (137, 143)


async def check_memory(client: Client) -> None:
    """A process above its limit is killed; where no limit can be set, the node's condition shows that."""
    body = await eventually(client, node_key("node-1"), lambda b: bool(condition(b, "ResourceLimits")), "it reports")
    (limits,) = [each for each in body["status"]["conditions"] if each["type"] == "ResourceLimits"]
    if limits["status"] != "True":
        assert limits["reason"] == "CgroupsUnavailable"
        assert "not enforced" in limits["message"]
        return
    program = f"exec {sys.executable} -c 'b\"x\" * {HEAP_BYTES}'"
    await make(client, "heap", program, resources={"limits": {"memory": "48Mi"}})

    def is_killed(body: dict[str, Any]) -> bool:
        shown = container(body)
        ends = (shown.get("state", {}).get("terminated", {}), shown.get("lastState", {}).get("terminated", {}))
        return any(each.get("reason") == "OOMKilled" and each["exitCode"] == 137 for each in ends)

    await eventually(client, key_of("heap"), is_killed, "the kernel kills it at its limit")


def test_containers_that_crash_fail_probes_or_exceed_memory_are_reported_and_recover(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "state").mkdir(mode=0o700)
        async with up_cluster(tmp_path / "state", nodes=1, limits=SHORT) as cluster, judged(cluster.client, SHORT):
            async with asyncio.TaskGroup() as checks:
                checks.create_task(check_crash_loop(cluster.client, tmp_path))
                checks.create_task(check_readiness(cluster.client, tmp_path))
                checks.create_task(check_liveness(cluster.client, tmp_path))
                checks.create_task(check_memory(cluster.client))
            cluster.check_parts()

    asyncio.run(run())
