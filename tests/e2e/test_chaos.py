"""`kedge chaos` against `kedge up`: faults strike real processes, are undone, and the run is judged and kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.up_workload import UpProcess, processes, running_up, until

import kedge.examples
from kedge.agent.process import proc_table
from kedge.cli.live_faults.chaos_run import check_live
from kedge.observe.readers.recording import read_recording
from kedge.sim.scenario import ScenarioError, parse_scenario, run_scenario

EXAMPLE = Path(kedge.examples.__file__).with_name("chaos.yaml")
HEAD = """
scenario: small
story: A workload of two replicas.
world: {nodes: [{name: node-1}]}
"""
WEB = """
  - admit:
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: web}
      spec:
        replicas: 2
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec:
            terminationGracePeriodSeconds: 1
            containers: [{name: main, image: label-only, command: [sleep, "100000"]}]
  - expect: {object: Deployment/web, field: status.readyReplicas, is: 2, within: 2m}
"""


class ChaosCluster(UpProcess):
    """`kedge up`, and chaos on it."""

    def command(self, file: Path) -> list[str]:
        return [sys.executable, "-m", "kedge", "chaos", str(file), "--state", str(self.state)]

    def chaos(self, file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(file), capture_output=True, text=True, timeout=300, check=False)

    def scenario(self, steps: str) -> Path:
        path = self.state.with_name("scenario.yaml")
        path.write_text(f"{HEAD}steps:{steps}")
        return path

    def stopped(self) -> list[int]:
        """Processes of pods that stand still."""
        entries = [proc_table.read_entry(pid) for pid in processes(self).values()]
        return [each.pid for each in entries if each is not None and each.state == "T"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ChaosCluster]:
    with running_up(ChaosCluster(tmp_path / "state", "--nodes", "3")) as running:
        yield running


def test_the_example_passes_on_real_processes_and_its_records_are_kept(cluster: ChaosCluster, tmp_path: Path) -> None:
    done = subprocess.run(
        [*cluster.command(EXAMPLE), "--out", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed: chaos; 11 steps, 7 faults" in done.stdout
    (kept,) = (tmp_path / "kept").glob("chaos-*.kedge")
    recording = read_recording(kept)
    assert (recording.gaps, recording.undecoded) == ([], [])
    assert len(recording.commits) > 20
    assert [each.name for each in recording.others] == ["scenario"]
    kinds = [each.kind for each in recording.outside]
    assert (kinds.count("fault"), kinds.count("step")) == (7, 11)
    assert kinds.count("healed") == 5
    assert cluster.stopped() == []
    controllers = {each.controller for each in recording.decisions}
    assert {"deployment", "replicaset"} <= controllers, controllers
    assert min(each.began for each in recording.decisions) >= recording.states[0].at
    changes = [each.revision for each in recording.commits if any(one.key.name == "chaos-web" for one in each.written)]
    moment = str(changes[-2])  # the scenario deletes it at last
    asked = [sys.executable, "-m", "kedge", "why", "chaos-web", "--recording", str(kept), "--revision", moment]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    assert "deployment:" in told.stdout, told.stdout


def test_the_example_passes_in_a_simulation_too() -> None:
    done = run_scenario(parse_scenario(EXAMPLE.read_text()))
    assert done.passed, done.violation
    text = " ".join(each.text for each in done.recording.outside)
    assert "breaks" in text
    assert "is lost after the commit" in text


def test_the_cluster_is_killed_and_a_node_lost_and_what_does_not_hold_fails_the_run(cluster: ChaosCluster) -> None:
    lost = """
  - partition node: {node: node-3, lasting: 60s}
  - restart: {component: default-scheduler, down: 0s}
  - lose node: {of: Deployment/web, lasting: 1s}
  - expect: {object: Deployment/web, field: status.readyReplicas, is: 2, within: 2m}
  - expect: {object: Deployment/web, field: status.readyReplicas, is: 7, within: 1s}
"""
    done = cluster.chaos(cluster.scenario(WEB + lost))
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [line for line in done.stdout.splitlines() if line.startswith("broken: ")]
    assert len(broken) == 1, done.stdout + done.stderr
    assert "line 24: not within 1s" in broken[0]
    assert "is killed" in done.stderr
    assert "kedge up serves again" in done.stderr
    assert cluster.wait() == -signal.SIGKILL
    until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 3, "the cluster that chaos started goes on")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_faults_are_undone_when_chaos_is_interrupted_or_killed(number: int, cluster: ChaosCluster) -> None:
    held = "".join(f"  - pause node: node-{each}\n" for each in (1, 2, 3)) + "  - after: 10m\n    note: later\n"
    command = cluster.command(cluster.scenario(WEB + held))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as chaos:
        assert chaos.stderr is not None
        while "node-3 stands still" not in (line := chaos.stderr.readline()):
            assert line, "chaos ended early"
        until(lambda: sorted(cluster.stopped()) == sorted(processes(cluster).values()), "every process stands still")
        chaos.send_signal(number)
        assert chaos.wait(60) == (1 if number == signal.SIGINT else -number)
        said = chaos.stderr.read()
    kept = list((cluster.state / "chaos").glob("*.kedge"))
    if number == signal.SIGINT:
        assert "interrupted: every fault is undone, and the records so far are kept" in said
        recording = read_recording(kept.pop())
        assert len(recording.commits) > 5
        assert any("node-3 stands still" in each.text for each in recording.outside)
    assert kept == []
    until(lambda: cluster.stopped() == [], "every process goes on")
    cluster.kubectl("scale", "deployment", "web", "--replicas=0")
    until(lambda: processes(cluster) == {}, "the agents act again: their links are whole")


def test_chaos_refuses_a_folder_without_a_cluster_and_steps_of_simulations(tmp_path: Path) -> None:
    idle = ChaosCluster(tmp_path / "none")
    done = idle.chaos(EXAMPLE)
    assert done.returncode == 1
    assert "no cluster has run in" in done.stderr
    steps = "steps:\n  - load: {workload: Deployment/web, cpu: 1}\n"
    with pytest.raises(ScenarioError, match="line 6: `load` works in simulations only"):
        check_live(parse_scenario(HEAD + steps))
    with pytest.raises(ScenarioError, match="refusals are known in simulations only"):
        check_live(parse_scenario(f"{HEAD}steps: []\nexpect:\n  - {{refused: bind, within: 1s}}\n"))
    policy = json.dumps({"name": "p", "kinds": ["Pod"], "refuse": "no"})
    admitting = HEAD.replace("]}", f"], admission: [{policy}]}}")
    with pytest.raises(ScenarioError, match="`world` has `admission`"):
        check_live(parse_scenario(f"{admitting}steps: []\n"))
