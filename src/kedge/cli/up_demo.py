"""`kedge up --demo`: the example runs, one of its processes is killed, and the repair is shown as it happens.

It has a state folder and a port of its own, so that two can run at once, and it stops everything it started; with
`--keep` a detached `kedge up` takes over the folder, the port and the processes instead.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import yaml

from kedge.api.objects import Object
from kedge.api.requests import EventType, ListOptions, WatchOptions
from kedge.api.views import DeploymentView, PodView
from kedge.api.wellknown import DEPLOYMENT_KIND, POD_KIND
from kedge.cli.live import evidence_from
from kedge.cli.local import LocalCluster, local_cluster, stop_processes
from kedge.cli.state_folder import UP_LOCK, folder_lock
from kedge.cli.timeline import timeline_of
from kedge.cli.why import answer_about
from kedge.env import system_env
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.readers.object_changes import describe_change
from kedge.observe.readers.recording import Recording

EXAMPLE = "risk-api"
WAIT_S = 60.0


async def run_demo(
    nodes: int, state: Path | None, limits: Limits, *, hand_over: Callable[[Path, str], None] | None = None
) -> None:
    """Run the demo in `state`, or in a temporary folder.

    `hand_over` gets the folder and the address to listen at, and starts the cluster that stays up. Without it
    everything is stopped.
    """
    _cancel_once()
    with ExitStack() as stack:
        if state is None:
            state = Path(tempfile.mkdtemp(prefix="kedge-demo-"))
            if hand_over is None:
                stack.callback(shutil.rmtree, state, ignore_errors=True)
        kept = False
        try:
            with folder_lock(state / UP_LOCK, "kedge up"):
                async with local_cluster(state, "127.0.0.1", 0, nodes, system_env(limits=limits)) as cluster:
                    await _show_repair(cluster, nodes)
            if hand_over is not None:
                show("")
                hand_over(state, cluster.url.removeprefix("https://"))
                kept = True
        finally:
            if not kept:
                await stop_processes(state, grace_s=2.0)
        await _hunt()
        if kept:
            show(f"\nthe cluster keeps running: `kedge down --state {state}` stops it")


async def _hunt() -> None:
    """Hunt a similar failure in simulation, in a process of its own: a cluster that stays up keeps working."""
    show("\nthe same kind of failure, hunted in simulation (kedge demo):\n")
    hunting = await asyncio.create_subprocess_exec(sys.executable, "-m", "kedge", "demo")
    try:
        code = await hunting.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            hunting.send_signal(signal.SIGINT)  # it stops its workers
        await hunting.wait()
        raise
    if code:
        raise Unavailable(f"the hunt ended with {code}: run `kedge demo` to see why")


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
    following = asyncio.ensure_future(_follow(cluster))
    try:
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        show(f"killed process {pid} of {victim} with SIGKILL")
        await _until(lambda: _restarted(cluster, victim), f"{victim} was not restarted")
        await _until_ready(cluster, wanted)
    finally:
        following.cancel()
    show(f"repaired: {victim} runs again, {wanted} of {wanted} are ready")
    recorder = cluster.plane.recorder
    logged = Recording(decisions=[*recorder.decisions()][::-1], coverages=[recorder.coverage_record("demo")])
    evidence = await evidence_from(cluster.client, logged, "default")
    for name in (EXAMPLE, victim):
        show(f"\n$ kedge why {name}\n{answer_about(name, 'default', evidence).text()}")
    found = timeline_of(EXAMPLE, "default", logged)
    show("\n".join(["", f"$ kedge timeline {EXAMPLE}", *(found.lines() if found is not None else ())]))


async def _follow(cluster: LocalCluster) -> None:
    """Print the changes of the example's pods as they happen."""
    known = {each.key: each for each in await _listed(cluster)}
    kind = cluster.client.kinds.of_key_kind(POD_KIND)
    options = WatchOptions(namespace="default", label_selector=f"app={EXAMPLE}")
    async for event in await cluster.client.watch(kind, options):
        if event.object is None:
            continue
        key, new = event.object.key, None if event.type is EventType.DELETED else event.object
        before = known.get(key)
        lines = [*(each.text for each in describe_change(key, before, new)), *_restarts(before, new)]
        for line in lines:
            show(f"  {line}")
        known[key] = event.object


def _restarts(old: Object | None, new: Object | None) -> list[str]:
    before, after = (
        sum(each.restart_count for each in found.as_view(PodView).status.container_statuses) if found else 0
        for found in (old, new)
    )
    return [f"Pod {new.key.name} has a new process"] if new is not None and after > before else []


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
