"""`kedge up` as a person uses it: real processes, healed after a kill, found again by a new start, gone after down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.up_workload import MANIFEST, down_nodes, is_running, processes, until
from tests.kit.api_server import ServerProcess
from tests.kit.process_nodes import keeper_pids


class UpProcess(ServerProcess):
    """`kedge up` instead of `kedge server`."""

    verb = "up"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[UpProcess]:
    running = UpProcess(tmp_path / "state", "--nodes", "2")
    running.start()
    try:
        yield running
    finally:
        running.end()
        down_nodes(running)


def test_a_workload_runs_heals_survives_a_kill_and_is_gone_after_down(cluster: UpProcess) -> None:
    until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    first = processes(cluster)
    assert len(first) == 2

    killed = next(iter(first.values()))
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(processes(cluster)) == 2 and killed not in processes(cluster).values(), "the process is replaced")
    until(lambda: "1 (" in cluster.kubectl("get", "pods"), "the restart is counted")

    before = processes(cluster)
    cluster.kill()
    assert all(is_running(pid) for pid in before.values())
    cluster.start()
    until(lambda: cluster.kubectl("get", "pods").count("1/1") == 2, "both pods are ready again")
    assert processes(cluster) == before

    cluster.kubectl("scale", "deployment", "web", "--replicas=1")
    until(lambda: len(processes(cluster)) == 1, "one process is stopped")

    assert cluster.stop() == 0
    (last,) = processes(cluster).values()
    assert is_running(last)
    down_nodes(cluster)
    until(lambda: not is_running(last), "down stops the last one")


def test_a_container_without_a_command_waits_with_a_reason(cluster: UpProcess) -> None:
    cluster.kubectl("run", "bare", "--image=nginx")
    until(lambda: "CreateContainerConfigError" in cluster.kubectl("get", "pods"), "the reason is shown")
    assert "has no command" in cluster.kubectl("get", "pod", "bare", "-o", "yaml")


def test_the_demo_heals_and_stops_everything_it_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "up", "--demo", "--nodes", "3"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repaired" in done.stdout
    for line in done.stdout.splitlines():
        if line.startswith("killed process"):
            assert not is_running(int(line.split()[2]))


def test_rollouts_are_undone_nodes_drained_and_owned_objects_collected(cluster: UpProcess) -> None:
    until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    status = ("rollout", "status", "deployment/web", "--timeout=90s")
    assert "successfully rolled out" in cluster.kubectl(*status, timeout_s=100)
    cluster.kubectl("set", "env", "deployment/web", "COLOR=blue")
    assert "successfully rolled out" in cluster.kubectl(*status, timeout_s=100)
    history = cluster.kubectl("rollout", "history", "deployment/web").split()
    assert history[-4:] == ["1", "<none>", "2", "<none>"]
    assert "blue" in cluster.kubectl("rollout", "history", "deployment/web", "--revision=2")
    cluster.kubectl("rollout", "undo", "deployment/web")
    assert "successfully rolled out" in cluster.kubectl(*status, timeout_s=100)
    assert "blue" not in cluster.kubectl("get", "deployment", "web", "-o", "yaml")
    assert cluster.kubectl("rollout", "history", "deployment/web").split()[-4:] == ["2", "<none>", "3", "<none>"]

    nodes = cluster.kubectl("get", "nodes", "-o", "name").split()
    drained = nodes[0].removeprefix("node/")
    assert "drained" in cluster.kubectl("drain", drained, "--ignore-daemonsets", "--timeout=60s", timeout_s=70)
    on_node = ("get", "pods", f"--field-selector=spec.nodeName={drained},status.phase=Running", "-o", "name")
    assert cluster.kubectl(*on_node) == ""
    assert "successfully rolled out" in cluster.kubectl(*status, timeout_s=100)

    cluster.kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s", timeout_s=70)
    assert cluster.kubectl("get", "replicasets,pods", "-o", "name") == ""
    cluster.kubectl("create", "namespace", "gone")
    cluster.kubectl("create", "configmap", "inside", "-n", "gone")
    cluster.kubectl("delete", "namespace", "gone", "--timeout=60s", timeout_s=70)
    assert "NotFound" in cluster.kubectl("get", "configmap", "inside", "-n", "gone", check=False)


def test_down_stops_an_up_that_runs_and_leaves_nothing_running(cluster: UpProcess) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    until(lambda: len(processes(cluster)) == 2, "two processes run")
    pids = processes(cluster).values()
    down_nodes(cluster)
    assert cluster.wait() == 0
    assert processes(cluster) == {}
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_stops_everything_it_started(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kedge", "up", "--demo", "--nodes", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as demo:
        assert demo.stdout is not None
        while " at 127." not in (line := demo.stdout.readline()):
            assert line, "the demo ended early"
        demo.send_signal(number)
        demo.send_signal(number)
        assert demo.wait(60) == 1
    assert list(tmp_path.iterdir()) == []
    assert keeper_pids(tmp_path) == []
