"""Dry runs, drains by deletion and events of watches, on a cluster of real processes, compared with kubectl."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml
from tests.e2e.up_workload import MANIFEST, LocalUp, running_up, until

PODS = """
apiVersion: v1
kind: Pod
metadata: {name: bare, labels: {app: bare}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: x, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: crashes}
spec:
  nodeName: node-2
  containers: [{name: main, image: x, command: [sh, -c, "echo broken; exit 3"]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: bare}
spec: {minAvailable: 1, selector: {matchLabels: {app: bare}}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    with running_up(LocalUp(tmp_path_factory.mktemp("up") / "state", "--nodes", "2", "--quiet")) as running:
        until(lambda: running.kubectl("get", "nodes").count(" Ready") == 2, "two nodes are ready")
        running.kubectl("apply", "-f", "-", stdin=MANIFEST)
        running.kubectl("apply", "-f", "-", stdin=PODS)
        running.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
        running.kubectl("wait", "pod/bare", "--for=condition=Ready", "--timeout=90s", timeout_s=100)
        yield running


def uids(cluster: LocalUp) -> set[str]:
    items = json.loads(cluster.kubectl("get", "deploy,pods", "-o", "json"))["items"]
    assert not any("deletionTimestamp" in each["metadata"] for each in items)
    return {each["metadata"]["uid"] for each in items}


@pytest.mark.parametrize("run", ["client", "server"])
@pytest.mark.parametrize(
    "arguments", [("deploy/web",), ("pods", "-l", "app=web"), ("pods", "-l", "app=web", "--force"), ("pods", "--all")]
)
def test_a_dry_run_deletes_nothing_and_has_the_words_of_kubectl(
    cluster: LocalUp, run: str, arguments: tuple[str, ...]
) -> None:
    before = uids(cluster)
    words = ("delete", *arguments, f"--dry-run={run}")
    assert sorted(cluster.kedge(*words).splitlines()) == sorted(cluster.kubectl(*words).splitlines())
    assert uids(cluster) == before


def test_a_dry_run_without_its_object_fails_as_the_deletion_would(cluster: LocalUp) -> None:
    for run in ("client", "server"):
        assert "kedge get pods" in cluster.kedge("delete", "pod", "nothing", f"--dry-run={run}", code=1)
    assert cluster.kedge("delete", "pod", "nothing", "--dry-run=server", "--ignore-not-found") == ""


def test_a_dry_run_of_a_drain_evicts_nothing_and_has_the_words_of_kubectl(cluster: LocalUp) -> None:
    before = uids(cluster)
    words = ("drain", "node-1", "--force", "--dry-run=client")
    stdout, stderr = cluster.streams(*words)
    assert stdout == "node/node-1 drained (dry run)\n"
    assert sorted((stdout + stderr).splitlines()) == sorted(cluster.kubectl(*words).splitlines())
    assert "nothing was evicted: bare has no controller (--force)" in cluster.kedge(*words[:2], words[3], code=1)

    said = cluster.kedge("drain", "node-1", "--force", "--dry-run=server", code=1)
    assert "node/node-1 cordoned (server dry run)" in said
    assert "node node-1 would wait for bare (" in said, "the server refuses what a budget forbids"
    assert "kedge get pdb -A" in said

    stdout, stderr = cluster.streams("drain", "node-1", "--force", "--disable-eviction", "--dry-run=server")
    assert stdout == "node/node-1 drained (server dry run)\n"
    assert "deleting pod default/bare (server dry run)" in stderr.splitlines()
    assert uids(cluster) == before
    assert "SchedulingDisabled" not in cluster.kedge("get", "nodes")


def test_a_drain_without_evictions_deletes_what_a_budget_protects(cluster: LocalUp) -> None:
    arguments = ("drain", "node-1", "--force", "--pod-selector=app=bare")
    said = cluster.kedge(*arguments, "--timeout=3s", code=1)
    assert "bare" in said
    assert "kedge get pdb -A" in said
    stdout, stderr = cluster.streams(*arguments, "--disable-eviction", "--timeout=60s")
    assert stdout == "node/node-1 drained\n"
    assert stderr.splitlines() == ["node/node-1 already cordoned", "pod/bare deleted"]
    cluster.kedge("uncordon", "node-1")


def test_exec_into_a_crashed_container_names_its_state_and_the_next_step(cluster: LocalUp) -> None:
    until(lambda: "CrashLoopBackOff" in cluster.kubectl("get", "pod", "crashes"), "the container has crashed")
    said = cluster.kedge("exec", "crashes", "--", "true", code=1)
    assert said.startswith("Error: container main of pod crashes does not run ("), said
    assert "`kedge why crashes` has the reason, `kedge logs crashes -c main" in said


# -- events of a watch -----------------------------------------------------------------------------


def watched(cluster: LocalUp, program: str, *options: str) -> str:
    """The output of a watch over an object that is there, changes, and is deleted."""
    name = f"seen-{program.rpartition('/')[2]}"
    cluster.kubectl("create", "configmap", name)
    command = [program] if program == "kubectl" else [sys.executable, "-m", "kedge"]
    arguments = [*command, "get", "configmap", name, "--watch", "--output-watch-events", *options]
    with cluster.started(*arguments, stdout=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        shown = watching.stdout.readline()
        if not options:
            shown += watching.stdout.readline()
        cluster.kubectl("patch", "configmap", name, "--type=merge", "-p", '{"data": {"a": "b"}}')
        cluster.kubectl("delete", "configmap", name)
        while b"DELETED" not in shown:
            line = watching.stdout.readline()
            assert line, "the watch has ended"
            shown += line
        watching.stdout.close()
    return shown.decode().replace(name, "seen")


def test_the_events_of_a_watch_are_those_of_kubectl(cluster: LocalUp) -> None:
    ours, theirs = (watched(cluster, program) for program in ("kedge", "kubectl"))
    assert [line.split()[:3] for line in ours.splitlines()] == [
        ["EVENT", "NAME", "DATA"], ["ADDED", "seen", "0"], ["MODIFIED", "seen", "1"], ["DELETED", "seen", "1"],
    ]  # fmt: skip
    assert [line.split()[:3] for line in theirs.splitlines()] == [line.split()[:3] for line in ours.splitlines()]


def test_the_events_of_a_watch_can_be_read_by_programs(cluster: LocalUp) -> None:
    types = ["ADDED", "MODIFIED", "DELETED"]
    lines = [json.loads(line) for line in watched(cluster, "kedge", "-o", "json").splitlines()]
    assert [each["type"] for each in lines] == types
    assert {each["object"]["kind"] for each in lines} == {"ConfigMap"}
    text = watched(cluster, "kedge", "-o", "yaml")
    assert [each["type"] for each in yaml.safe_load_all(text)] == types
    assert text.count("\n---\n") == 2
