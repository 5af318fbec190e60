"""The parts as processes over HTTPS, each with the default role of its component: each is killed once, and the workload
comes back every time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.judged_runs import judged_beside
from tests.e2e.part_processes import Parts
from tests.e2e.up_workload import MANIFEST, down_nodes, processes, until
from tests.kit.api_server import running_server


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
