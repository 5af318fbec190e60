"""`kedge up --demo`: the example runs, one of its processes is killed, and the repair is shown as it happens.

It has a state folder and a port of its own, so that two can run at once, and it stops everything it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import yaml

from kedge.api.objects import Object
from kedge.api.requests import ListOptions
from kedge.api.views import DeploymentView, PodView
from kedge.api.wellknown import DEPLOYMENT_KIND, POD_KIND
from kedge.cli.local import LocalCluster, local_cluster, stop_processes
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.observe.readers.why import why_pod, why_workload

EXAMPLE = "risk-api"
WAIT_S = 60.0


async def run_demo(nodes: int) -> None:
    _cancel_once()
    with tempfile.TemporaryDirectory(prefix="kedge-demo-") as folder:
        state = Path(folder)
        try:
            async with local_cluster(state, "127.0.0.1", 0, nodes) as cluster:
                await _show_repair(cluster, nodes)
        finally:
            await stop_processes(state, grace_s=2.0)


def _cancel_once() -> None:
    """The first signal cancels the demo; later ones do not interrupt the clean-up."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    received: list[int] = []

    def cancel(number: int) -> None:
        if task is not None and not received:
            received.append(number)
            task.cancel()

    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(each, cancel, each)


async def _show_repair(cluster: LocalCluster, nodes: int) -> None:
    show(f"API server at {cluster.url}, scheduler, controllers and {nodes} nodes run in this process")
    manifest = example()
    kind = cluster.client.kinds.of_key_kind(DEPLOYMENT_KIND)
    await cluster.client.create(kind, manifest, namespace="default")
    wanted = manifest["spec"]["replicas"]
    show(f"applied {EXAMPLE}: {wanted} replicas, one process each")
    await _until_ready(cluster, wanted)
    for pod in await pods(cluster):
        show(f"  {pod.name} on {pod.spec.node_name} at {pod.status.pod_ip}")
    victim, pid = await _victim(cluster)
    if pid <= 0:  # which would signal the group of this program
        raise Unavailable(f"{victim} has no process to kill: see the logs of its node, and run the demo again")
    os.kill(pid, signal.SIGKILL)
    show(f"killed process {pid} of {victim} with SIGKILL")
    await _until(lambda: _restarted(cluster, victim), f"{victim} was not restarted")
    await _until_ready(cluster, wanted)
    show(f"repaired: {victim} runs again, {wanted} of {wanted} are ready")
    deployment = await cluster.client.get(Key(DEPLOYMENT_KIND, "default", EXAMPLE))
    found = await _listed(cluster)
    decisions = list(cluster.plane.recorder.decisions())
    show(f"\nwhy {EXAMPLE}:\n{why_workload(deployment, found, decisions).text()}")
    show(f"\nwhy {victim}:\n{why_pod(next(each for each in found if each.key.name == victim), decisions).text()}")


def example() -> dict[str, Any]:
    """The example's manifest, with the interpreter that runs this command and the program's place on this machine."""
    text = (files("kedge.examples") / f"{EXAMPLE}.yaml").read_text(encoding="utf-8")
    manifest: dict[str, Any] = yaml.safe_load(text)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["command"] = [sys.executable, str(files("kedge.examples") / "risk_api.py")]
    return manifest


async def pods(cluster: LocalCluster) -> list[PodView]:
    return [each.as_view(PodView) for each in await _listed(cluster)]


async def _listed(cluster: LocalCluster) -> Sequence[Object]:
    kind = cluster.client.kinds.of_key_kind(POD_KIND)
    return (await cluster.client.list(kind, ListOptions(namespace="default", label_selector=f"app={EXAMPLE}"))).objects


async def _victim(cluster: LocalCluster) -> tuple[str, int]:
    pod = (await pods(cluster))[0]
    driver = cluster.drivers[pod.spec.node_name]
    return pod.name, await driver.pid_of(pod.uid)


async def _restarted(cluster: LocalCluster, name: str) -> bool:
    return any(
        pod.name == name and any(status.restart_count > 0 for status in pod.status.container_statuses)
        for pod in await pods(cluster)
    )


async def _until_ready(cluster: LocalCluster, wanted: int) -> None:
    async def ready() -> bool:
        found = await cluster.client.get(Key(DEPLOYMENT_KIND, "default", EXAMPLE))
        return found.as_view(DeploymentView).status.ready_replicas == wanted

    await _until(ready, f"{EXAMPLE} did not become ready")


async def _until(holds: Any, otherwise: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not await holds():  # noqa: ASYNC110  # there is no event: the API is polled
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise Unavailable(f"{otherwise} in {WAIT_S:.0f} s: is the machine busy?") from error


def show(text: str) -> None:
    click.echo(text)
