"""A cluster of real processes, timed: `python -m benchmarks.cluster [--quick]`.

From a clone to the first ready pod, an idle cluster's cost, pods started on one node beside the same processes started
by a bare loop and by supervisord, a killed pod's way back, and a thousand pods on fifty nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import median_of, print_json, print_table
from kedge.api.kinds import KINDS
from kedge.api.requests import ListOptions
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import system_env

ROOT = Path(__file__).parents[1]
POD = KINDS.of_key_kind("Pod")
DEPLOYMENT = KINDS.of_key_kind("Deployment.apps")
PROGRAM = ["sleep", "100000"]
WAIT_S = 900.0


class Size(NamedTuple):
    """How much of each is measured."""

    pods: int
    many_pods: int
    many_nodes: int
    idle_s: float
    rounds: int


FULL = Size(pods=100, many_pods=1_000, many_nodes=50, idle_s=20.0, rounds=5)
QUICK = Size(pods=4, many_pods=6, many_nodes=2, idle_s=1.0, rounds=1)


class UpCluster(NamedTuple):
    """A running `kedge up`."""

    state: Path
    client: Client
    pid: int

    async def deploy(self, name: str, replicas: int) -> float:
        """Create a Deployment; returns the seconds until every pod is ready."""
        container = {"name": "main", "image": "label-only", "command": PROGRAM}
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        began_s = time.perf_counter()
        await self.client.create(DEPLOYMENT, {"metadata": {"name": name}, "spec": spec}, namespace="default")
        await self.wait_ready(name, replicas)
        return time.perf_counter() - began_s

    async def wait_ready(self, name: str, replicas: int) -> None:
        options = ListOptions(namespace="default", label_selector=f"app={name}")
        async with asyncio.timeout(WAIT_S):
            while True:
                listed = (await self.client.list(POD, options)).objects
                if sum(_is_ready(each.edit()) for each in listed) == replicas:
                    return
                await asyncio.sleep(0.02 + 0.0005 * replicas)

    def processes(self) -> dict[str, int]:
        """Pids that run, by pod."""
        records = [json.loads(path.read_bytes()) for path in self.state.glob("nodes/*/processes/*.json")]
        return {each["pod"]: int(each["pid"]) for each in records if not each["ended"]}

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in (self.pid, *keepers_below(self.state)))

    def memory_mb(self) -> float:
        return sum(_memory_mb(pid) for pid in (self.pid, *keepers_below(self.state)))


def keepers_below(state: Path) -> list[int]:
    """The keepers of the nodes of a local cluster: processes beside `kedge up` that belong to its cost."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_text(errors="replace").split("\0")
            if any(word.endswith("/keeper.py") for word in words) and any(
                Path(word).is_relative_to(state / "nodes") for word in words
            ):
                found.append(int(entry.name))
    return sorted(found)


def _cpu_s(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    status = Path("/proc", str(pid), "status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@asynccontextmanager
async def up(folder: Path, nodes: int, python: str = sys.executable, path: str = "") -> AsyncIterator[UpCluster]:
    """`kedge up`, ended with all its processes."""
    environment = {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)
    base = [python, "-m", "kedge"]
    arguments = ["up", "--quiet", "--state", str(folder), "--listen", "127.0.0.1:0", "--nodes", str(nodes)]
    process = await asyncio.create_subprocess_exec(
        *base, *arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        kubeconfig = folder / "admin.kubeconfig"
        await _until(kubeconfig.exists)
        transport = HttpTransport(read_kubeconfig(kubeconfig))
        yield UpCluster(folder, Client(transport, system_env(), component="benchmark"), process.pid)
        await transport.close()
    finally:
        process.terminate()
        await process.wait()
        down = await asyncio.create_subprocess_exec(
            *base, "down", "--state", str(folder), "--grace", "0", env=environment, stdout=subprocess.DEVNULL
        )
        await down.wait()


async def measure_clone(folder: Path, *, install: bool) -> float:
    """Seconds from `git clone` to the first ready pod; with `install`, a new virtual environment on the way."""
    began_s = time.perf_counter()
    clone = folder / "clone"
    await _run("git", "clone", "-q", str(ROOT), str(clone))
    python = sys.executable
    if install:
        await _run(sys.executable, "-m", "venv", str(folder / "venv"))
        python = str(folder / "venv" / "bin" / "python")
        await _run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(clone))
    async with up(folder / "first", 1, python, "" if install else str(clone / "src")) as cluster:
        await cluster.deploy("first", 1)
        return time.perf_counter() - began_s


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110  # a file of another process
            await asyncio.sleep(0.01)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} failed")


def help_cpu_ms() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "kedge", "--help"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


async def measure_idle(cluster: UpCluster, idle_s: float) -> tuple[float, float]:
    """CPU in percent of one core, and resident memory in MB."""
    await asyncio.sleep(min(5.0, idle_s))
    before_s = cluster.cpu_s()
    await asyncio.sleep(idle_s)
    return 100 * (cluster.cpu_s() - before_s) / idle_s, cluster.memory_mb()


async def measure_kill(cluster: UpCluster) -> float:
    """Seconds from SIGKILL of a pod's process until its replacement is ready."""
    await cluster.deploy("victim", 1)
    ((pod, pid),) = [(pod, pid) for pod, pid in cluster.processes().items() if pod.startswith("victim")]
    began_s = time.perf_counter()
    os.kill(pid, 9)
    await _until(lambda: cluster.processes().get(pod) not in (None, pid))
    await cluster.wait_ready("victim", 1)
    return time.perf_counter() - began_s


def bare_loop_per_s(count: int) -> float:
    began_s = time.perf_counter()
    started = [subprocess.Popen(PROGRAM) for _ in range(count)]
    took_s = time.perf_counter() - began_s
    for each in started:
        each.kill()
        each.wait()
    return count / took_s


def supervisord_per_s(count: int, folder: Path) -> float | None:
    """Processes that supervisord starts a second, as far as it reports them running; None without supervisord."""
    program = shutil.which("supervisord", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None:
        return None
    config = folder / "supervisord.conf"
    config.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile={folder}/log\npidfile={folder}/pid\nchildlogdir={folder}\n"
        f"[program:p]\ncommand={' '.join(PROGRAM)}\nnumprocs={count}\nprocess_name=%(process_num)s\nstartsecs=0\n"
    )
    began_s = time.perf_counter()
    process = subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        log = folder / "log"
        while not log.exists() or log.read_text().count("entered RUNNING state") < count:
            if process.poll() is not None:
                return None
            time.sleep(0.005)
        return count / (time.perf_counter() - began_s)
    finally:
        process.terminate()
        process.wait()


async def measure(size: Size, folder: Path, *, install: bool) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        "clone_to_ready_s": await measure_clone(folder, install=install),
        "help_cpu_ms": median_of(size.rounds, help_cpu_ms),
    }
    async with up(folder / "idle", 3) as cluster:
        figures["idle_cpu_percent"], figures["idle_memory_mb"] = await measure_idle(cluster, size.idle_s)
        figures["kill_to_ready_s"] = await measure_kill(cluster)
    async with up(folder / "one", 1) as cluster:
        figures["pods_per_second"] = size.pods / await cluster.deploy("web", size.pods)
    figures["bare_loop_per_second"] = bare_loop_per_s(size.pods)
    figures["supervisord_per_second"] = supervisord_per_s(size.pods, folder)
    async with up(folder / "many", size.many_nodes) as cluster:
        figures["many_pods_ready_s"] = await cluster.deploy("many", size.many_pods)
    return figures


TITLES = {
    "clone_to_ready_s": "seconds from clone to first ready pod",
    "help_cpu_ms": "kedge --help, ms of CPU",
    "idle_cpu_percent": "kedge up with 3 nodes and their keepers, idle: percent of a core",
    "idle_memory_mb": "kedge up with 3 nodes and their keepers, idle: MB resident",
    "kill_to_ready_s": "seconds from SIGKILL of a pod to its replacement being ready",
    "pods_per_second": "pods started per second on one node",
    "bare_loop_per_second": "peer: the same processes by a bare loop",
    "supervisord_per_second": "peer: the same processes by supervisord",
    "many_pods_ready_s": "seconds until {pods} pods on {nodes} nodes are ready",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small, and without a new virtual environment")
    quick = parser.parse_args().quick
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="kedge-bench-") as folder:
        figures = asyncio.run(measure(size, Path(folder), install=not quick))
    rows = [
        (title.format(pods=size.many_pods, nodes=size.many_nodes), "-" if figures[name] is None else figures[name])
        for name, title in TITLES.items()
    ]
    print_table("A cluster of real processes", ["figure", "value"], rows)
    print_json(dict(figures))


if __name__ == "__main__":
    main()
