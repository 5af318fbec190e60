"""The parts as processes over HTTPS, each with the default role of its component: each is killed once, and the workload
comes back every time."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.e2e.judged_runs import judged_beside
from tests.e2e.up_workload import MANIFEST, down_nodes, processes, until
from tests.kit.api_server import ServerProcess, running_server

from kedge.api.access import CONTROLLERS, NODES, SCHEDULERS
from kedge.keys import NODE_USER_PREFIX
from kedge.server.http.certificates import Authority

IDENTITIES = {
    "controllers": ("kedge-controllers", CONTROLLERS),
    "scheduler": ("kedge-scheduler", SCHEDULERS),
    "agent": (NODE_USER_PREFIX, NODES),
}
"""User and group of each component; the user of an agent ends in its node."""


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
        command = [sys.executable, "-m", "kedge", verb, "--kubeconfig", str(self.identity(verb, node)), *more]
        command += ["--metrics-listen", "127.0.0.1:0"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def identity(self, verb: str, node: str) -> Path:
        """A kubeconfig with the user and the group of a component."""
        user, group = IDENTITIES[verb]
        path, now = self.folder / f"{verb}-{node}.kubeconfig", datetime.now(UTC)
        authority = Authority.ensure(self.server.state, now)
        authority.ensure_kubeconfig(path, self.server.url, f"{user}{node}", (group,), now)
        return path

    @property
    def nodes(self) -> Path:
        return self.folder / "state" / "nodes"

    def metrics(self, name: str) -> str:
        """The page of metrics of a process, at the address that it printed; empty before it serves one."""
        found = re.findall(r"serves (http://\S+)", (self.folder / f"{name}.log").read_text())
        if not found:
            return ""
        with urllib.request.urlopen(found[-1], timeout=60) as reply:
            return str(reply.read().decode())

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
            refused = re.findall(r"^kedge_access_refused_total\{.*", server.kubectl("get", "--raw", "/metrics"), re.M)
            assert not refused, "a component asked for more than its role allows"
        finally:
            found.stop()
            down_nodes(server)


@pytest.mark.slow
def test_each_part_serves_its_metrics(parts: Parts) -> None:
    expected = {
        "controllers": "kedge_generations_ahead",
        "scheduler": "kedge_scheduler_nodes",
        "agent-a": "kedge_agent_pods",
    }
    for name, metric in expected.items():
        until(lambda name=name, metric=metric: f"\n{metric}" in parts.metrics(name), f"{name} serves {metric}")  # type: ignore[misc]


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


@pytest.mark.slow
def test_the_records_of_agents_and_of_the_servers_admission_are_read_from_the_state_folder(parts: Parts) -> None:
    server = parts.server

    def kedge(*arguments: str) -> str:
        command = [sys.executable, "-m", "kedge", *arguments, "--state", str(server.state)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout

    until(lambda: server.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    server.kubectl("create", "quota", "small", "--hard=pods=2")
    server.kubectl("apply", "-f", "-", stdin=MANIFEST)
    server.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    server.kubectl("scale", "deployment/web", "--replicas=3")
    until(lambda: "ResourceQuota/default/small at revision" in kedge("why", "web"), "the refusal is in the records")
    refused = next(line for line in kedge("why", "web").splitlines() if "ResourceQuota/default/small" in line)
    assert "refused it: requested: pods=1, used: pods=2, limited: pods=2" in refused
    assert "decision admission:" in refused
    until(lambda: kedge("timeline", "web").count(": start main") == 2, "both starts are recorded")
    shown = kedge("timeline", "web")
    assert "* kedge-admin" in shown
    assert re.search(r" agent-[ab] +Pod/default/web-[^ ]+: start main", shown)
