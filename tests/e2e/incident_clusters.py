"""Clusters of real processes whose incidents are recorded and replayed: `kedge up`, and each component alone.

The components of the second are behind links that a test can cut, have wall clocks that a test can step, and keep
their records on a disk that a test can fill.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.part_processes import Parts
from tests.e2e.tcp_proxy import Proxy
from tests.e2e.up_workload import UpProcess, down_nodes, until
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.full_disk import small_disk
from tests.tools import need_tool

LIMITS: dict[str, float] = {
    "node_renew_s": 1.0,
    "node_suspect_s": 4.0,
    "node_unknown_s": 8.0,
    "node_blind_s": 9.0,
    "agent_contact_s": 10.0,
    "node_lost_s": 16.0,
    "node_lease_s": 8.0,
    "node_loss_every_s": 1.0,
    "agent_restart_s": 1.0,
    "orphan_s": 5.0,
    "repair_every_s": 5.0,
}
"""Limits with which an incident of failing nodes takes seconds."""
COMPONENTS = ("controllers", "scheduler", "agent-a", "agent-b")
SCHEDULER_DISK, SERVER_DISK = "4m", "48m"
_Result = TypeVar("_Result")


def run_kedge(*arguments: str, code: int = 0) -> str:
    """Run a command in a fresh process; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def write_limits(folder: Path) -> tuple[str, str]:
    """The options that give a component these limits."""
    file = folder / "config.yaml"
    file.write_text(json.dumps({"limits": LIMITS}))
    return "--config", str(file)


class IncidentCluster:
    """A cluster whose incidents are recorded."""

    server: ServerProcess

    @contextmanager
    def recorded(self, name: str, file: Path, *, within: str = "20s") -> Iterator[None]:
        """Record the block as an incident, into `file`."""
        at = ("--state", str(self.server.state))
        run_kedge("incident", "start", "--name", name, *at)
        yield
        run_kedge("incident", "stop", name, "--out", str(file), "--within", within, *at)
        run_kedge("incident", "delete", name, *at)

    def ready_nodes(self) -> int:
        return self.server.kubectl("get", "nodes", check=False).count(" Ready")

    def apply(self, manifest: str) -> None:
        # kubectl takes text that begins with a brace for JSON.
        self.server.kubectl("apply", "-f", "-", stdin=f"---\n{manifest}")

    def wait_ready(self, workload: str, replicas: int) -> None:
        field = f"--for=jsonpath={{.status.readyReplicas}}={replicas}"
        self.server.kubectl("wait", workload, field, "--timeout=150s", timeout_s=160)

    def scale(self, workload: str, replicas: int) -> None:
        self.server.kubectl("scale", workload, f"--replicas={replicas}")


class UpIncidents(IncidentCluster):
    """`kedge up`: a server, the control plane and three nodes in one process."""

    def __init__(self, server: UpProcess) -> None:
        self.server = server

    def chaos(self, name: str, steps: str, folder: Path) -> None:
        file = folder / f"{name}.yaml"
        file.write_text(f"scenario: {name}\nstory: An incident.\nworld: {{nodes: [{{name: node-1}}]}}\nsteps:\n{steps}")
        run_kedge("chaos", str(file), "--state", str(self.server.state), "--out", str(folder))


@contextmanager
def running_up_incidents(folder: Path) -> Iterator[UpIncidents]:
    up = UpProcess(folder / "state", "--nodes", "3", "--quiet", *write_limits(folder))
    up.start()
    try:
        cluster = UpIncidents(up)
        until(lambda: cluster.ready_nodes() == 3, "three nodes are ready")
        yield cluster
    finally:
        up.end()
        down_nodes(up)


class _LinkThread:
    """A loop of its own for the links."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


class FaultyParts(Parts):
    """Components behind links, with clocks and disks of their own."""

    def __init__(self, server: ServerProcess, folder: Path, disk: Path, shim: Path, *options: str) -> None:
        self.disk = disk
        self._shim = shim
        self._thread = _LinkThread()
        self._links = {name: Proxy(server.url.removeprefix("https://")) for name in COMPONENTS}
        for each in self._links.values():
            self._thread.run(each.listen())
        super().__init__(server, folder, *options)

    def more_options(self, name: str) -> Sequence[str]:
        return "--server", f"https://{self._links[name].endpoint}"

    def state_of(self, name: str) -> Path:
        return self.disk if name == "scheduler" else super().state_of(name)

    def environment_of(self, name: str) -> dict[str, str]:
        file = self._clock_file(name)
        if not file.exists():
            file.write_bytes(bytes(8))
        return {**self.environment, "LD_PRELOAD": str(self._shim), "KEDGE_CLOCK_STEP": str(file)}

    def _clock_file(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    def step_clock(self, name: str, seconds: float) -> None:
        """Step the wall clock of a component, which goes on. 0 is the right time."""
        with self._clock_file(name).open("r+b") as file:
            file.write(int(seconds * 1e9).to_bytes(8, sys.byteorder, signed=True))

    def cut(self, name: str) -> None:
        self._thread.run(self._links[name].refuse())

    def join(self, name: str) -> None:
        self._thread.run(self._links[name].listen())

    def stop(self) -> None:
        super().stop()
        for each in self._links.values():
            self._thread.run(each.close())
        self._thread.close()


class PartIncidents(IncidentCluster):
    """A server, controllers, a scheduler and two agents, each in a process of its own."""

    def __init__(self, parts: FaultyParts) -> None:
        self.parts = parts
        self.server = parts.server

    def restart_server(self) -> None:
        self.server.kill()
        self.server.start(self.server.url.removeprefix("https://"))

    def restart(self, name: str) -> None:
        self.parts.kill(name)
        self.parts.start(name)

    def whole(self) -> None:
        """Undo every fault."""
        for name in COMPONENTS:
            self.parts.step_clock(name, 0.0)
        until(lambda: self.ready_nodes() == len(COMPONENTS) - 2, "the nodes are ready again")


@contextmanager
def running_part_incidents(folder: Path) -> Iterator[PartIncidents]:
    limits = write_limits(folder)
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", SCHEDULER_DISK))
        state = stack.enter_context(small_disk(folder / "state", SERVER_DISK))
        server = stack.enter_context(running_server(state, *limits))
        parts = FaultyParts(server, folder, disk, build_clock_shim(folder), *limits)
        stack.callback(down_nodes, server)
        stack.callback(parts.stop)
        cluster = PartIncidents(parts)
        until(lambda: cluster.ready_nodes() == 2, "two nodes are ready")
        yield cluster


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Leave no byte free on the disk of a folder."""
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    try:
        yield
    finally:
        filler.unlink()


def build_clock_shim(folder: Path) -> Path:
    made = folder / "clock_shim.so"
    compiler = need_tool("cc", install="apt-get install gcc libc6-dev")
    source = Path(__file__).with_name("clock_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", made, source, "-ldl"], check=True)
    return made


def replay_alone(file: Path, folder: Path) -> str:
    """Replay a file in a fresh process, in an empty folder and without a cluster; what it printed."""
    alone = folder / "alone"
    alone.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    environment |= {"HOME": str(alone), "XDG_STATE_HOME": str(alone), "XDG_CONFIG_HOME": str(alone)}
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "replay", str(file)],
        env=environment, cwd=alone, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr
