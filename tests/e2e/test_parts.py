"""The parts as processes of their own, over HTTPS: each is killed once, and the workload comes back every time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.judged_runs import judged_beside
from tests.e2e.up_workload import MANIFEST, down_nodes, processes, until
from tests.kit.api_server import ServerProcess, running_server


class Parts:
    """A server, controllers, a scheduler and two agents."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("controllers", "scheduler", "agent-a", "agent-b"):
            self.start(name)

    def start(self, name: str) -> None:
        verb, _, node = name.partition("-")
        more = ["--state", str(self.nodes / node), "--name", node] if node else ["--state", str(self.server.state)]
        command = [sys.executable, "-m", "kedge", verb, "--kubeconfig", str(self.server.kubeconfig), *more]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def nodes(self) -> Path:
        return self.folder / "state" / "nodes"

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait(30)

    def stop(self) -> None:
        for each in self.running.values():
            each.kill()
            each.wait(30)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with running_server(tmp_path / "state") as server, judged_beside(server):
        found = Parts(server, tmp_path)
        try:
            yield found
        finally:
            found.stop()
            down_nodes(server)


@pytest.mark.slow
def test_each_part_is_killed_in_turn_and_the_workload_comes_back(parts: Parts) -> None:
    server = parts.server
    until(lambda: server.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    server.kubectl("apply", "-f", "-", stdin=MANIFEST)
    server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    replicas = 2
    for name in ("controllers", "scheduler", "agent-a", "server", "agent-b"):
        replicas += 1
        before = processes(server)
        if name == "server":
            port = server.url.rpartition(":")[2]
            server.kill()
            server.start(f"127.0.0.1:{port}")
        else:
            parts.kill(name)
            parts.start(name)
        server.kubectl("scale", "deployment/web", f"--replicas={replicas}")
        until(lambda: len(processes(server)) == replicas, f"{replicas} processes after {name} was killed")  # noqa: B023
        assert before.items() <= processes(server).items(), "a process that ran was replaced"
    until(lambda: server.kubectl("get", "pods").count("1/1") == replicas, "every pod is ready")
