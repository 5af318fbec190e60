"""`kedge up` as a person uses it: real processes, healed after a kill, found again by a new start, gone after down."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.up_workload import (
    MANIFEST,
    UpProcess,
    down_nodes,
    is_running,
    processes,
    processes_below,
    running_up,
    until,
)
from tests.etcd_server import free_port
from tests.kit.process_nodes import keeper_pids

from kedge.cli.state_folder import UP_LOCK, holder_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[UpProcess]:
    """Two nodes, with leases that a cluster which was killed does not hold for long."""
    file = tmp_path / "config.yaml"
    file.write_text("limits: {lease_s: 6, lease_renew_s: 4, lease_retry_s: 0.5}\n")
    with running_up(UpProcess(tmp_path / "state", "--nodes", "2", "--config", str(file))) as running:
        yield running


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


def test_top_shows_the_usage_that_agents_report(cluster: UpProcess) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    until(lambda: cluster.kubectl("top", "pods", check=False).count("Mi") == 2, "the usage of both pods is reported")
    assert cluster.kubectl("top", "pods", "-l", "app=web", "--no-headers").count("web-") == 2
    assert "no resources found" in cluster.kubectl("top", "pods", "-l", "app=other", check=False).lower()
    containers = cluster.kubectl("top", "pods", "--containers", "--sort-by=memory")
    assert containers.split()[:4] == ["POD", "NAME", "CPU(cores)", "MEMORY(bytes)"]
    assert containers.count("web-") == 2
    assert "%" in cluster.kubectl("top", "nodes", "--sort-by=cpu")
    assert "NodeMetrics" in cluster.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes")


def test_a_container_without_a_command_waits_with_a_reason(cluster: UpProcess) -> None:
    cluster.kubectl("run", "bare", "--image=nginx")
    until(lambda: "CreateContainerConfigError" in cluster.kubectl("get", "pods"), "the reason is shown")
    assert "has no command" in cluster.kubectl("get", "pod", "bare", "-o", "yaml")


def test_two_demos_at_once_heal_and_stop_everything_they_started() -> None:
    command = [sys.executable, "-m", "kedge", "up", "--demo", "--nodes", "3"]
    pipe = subprocess.PIPE
    demos = [subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    for each in demos:
        shown, _ = each.communicate(timeout=240)
        assert each.returncode == 0, shown
        assert "repaired" in shown
        for line in shown.splitlines():
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
    assert history[-5:] == ["CHANGE-CAUSE", "1", "<none>", "2", "<none>"]
    assert "blue" in cluster.kubectl("rollout", "history", "deployment/web", "--revision=2")
    cluster.kubectl("rollout", "undo", "deployment/web")
    assert "successfully rolled out" in cluster.kubectl(*status, timeout_s=100)
    assert "blue" not in cluster.kubectl("get", "deployment", "web", "-o", "yaml")
    history = cluster.kubectl("rollout", "history", "deployment/web").split()
    assert history[-5:] == ["CHANGE-CAUSE", "2", "<none>", "3", "<none>"], "the old ReplicaSet is used again"

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


def test_orphans_stay_when_their_owner_is_deleted(cluster: UpProcess) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    cluster.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=90s", timeout_s=100)
    owned = cluster.kubectl("get", "replicasets,pods", "-o", "name")
    before = processes(cluster)
    cluster.kubectl("delete", "deployment", "web", "--cascade=orphan", "--timeout=60s", timeout_s=70)
    assert "NotFound" in cluster.kubectl("get", "deployment", "web", check=False)
    assert cluster.kubectl("get", "replicasets,pods", "-o", "name") == owned
    owners = "jsonpath={.items[*].metadata.ownerReferences[*].kind}"
    assert cluster.kubectl("get", "replicasets", "-o", owners) == ""
    assert cluster.kubectl("get", "pods", "-o", owners) == "ReplicaSet ReplicaSet"

    replica_set = cluster.kubectl("get", "replicasets", "-o", "name").strip()
    cluster.kubectl("delete", replica_set, "--cascade=orphan", "--timeout=60s", timeout_s=70)
    assert cluster.kubectl("get", "replicasets", "-o", "name") == ""
    assert cluster.kubectl("get", "pods", "-o", owners) == ""
    assert len(cluster.kubectl("get", "pods", "-o", "name").split()) == 2
    assert processes(cluster) == before


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


@pytest.mark.parametrize("line", ["serving https://", ""])
def test_ctrl_c_during_the_start_leaves_nothing_behind(line: str, tmp_path: Path) -> None:
    """At the first sign of life, and as soon as the state folder is there."""
    state = tmp_path / "state"
    command = [sys.executable, "-m", "kedge", "up", "--state", str(state), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        if line:
            until(lambda: line in (starting.stderr.readline() if starting.stderr else ""), "it serves")
        else:
            until((state / "kedge.db").exists, "it has a store")
        starting.send_signal(signal.SIGINT)
        assert starting.wait(60) == 0
    assert keeper_pids(tmp_path) == []
    assert processes_below(state) == {}


def kedge(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def next_things(said: str) -> list[str]:
    """The commands below the line that announces them."""
    lines = said.partition("try in another terminal:\n")[2].splitlines()
    return [line.strip() for line in itertools.takewhile(lambda line: line.startswith("  "), lines)]


def test_detached_it_returns_once_it_serves_and_down_ends_it(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    said = kedge("up", "--detach", "--state", state, "--listen", "127.0.0.1:0", "--nodes", "1")
    try:
        assert "serving https://127.0.0.1:" in said
        assert f"export KUBECONFIG={state}/admin.kubeconfig" in said
        assert next_things(said) == ["kedge get nodes", "kedge up --demo", f"kedge down --state {state}"]
        done = subprocess.run(
            [sys.executable, "-m", "kedge", "up", "--detach", "--state", state],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "already runs" in done.stderr
    finally:
        assert "stopped kedge up" in kedge("down", "--state", state, "--grace", "0")
    assert keeper_pids(tmp_path) == []


def test_a_detached_start_that_fails_reports_the_reason(tmp_path: Path) -> None:
    (tmp_path / "kedge.db").write_text("not a database")
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "up", "--detach", "--state", str(tmp_path), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "kedge.db" in done.stderr


def test_without_a_terminal_each_change_of_stages_is_a_line_and_the_records_are_read(cluster: UpProcess) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=MANIFEST)
    until(lambda: "default/web: 2 ready of 2" in cluster.log, "the last stage is a line")
    assert "2 of 2 nodes are ready" in cluster.log
    state = str(cluster.state)
    assert "web is as declared: 2 of 2" in kedge("why", "web", "--state", state)
    until(lambda: kedge("timeline", "deploy/web", "--state", state).count(" Ready=True") == 2, "both are ready")
    assert re.search(r"^default-scheduler +yes +0 ", kedge("queue", "default-scheduler", "--state", state), re.M)
    assert re.search(r"^Pod +2 ", kedge("caches", "--state", state), re.M)
    lines = kedge("timeline", "web", "--state", state)
    assert "Deployment web created" in lines
    assert " bound to node-" in lines
    coupled = kedge("coupling", "deployment", "--state", state)
    assert re.search(r"^replicaset +ReplicaSet.apps +status.readyReplicas +watched +yes ", coupled, re.M), coupled


def test_a_demo_that_is_kept_ends_and_its_cluster_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "kedge", "up", "--demo", "--keep", "--nodes", "2", "--state", str(state)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "serving https://" in done.stdout
        assert done.stdout.rstrip().endswith(f"the cluster keeps running: `kedge down --state {state}` stops it")
        assert "risk-api is as declared" in kedge("why", "risk-api", "--state", str(state))
        running = processes_below(state)
        assert len(running) == 3
        assert all(map(is_running, running.values())), "the processes of the demo were adopted"
        url = yaml.safe_load((state / "admin.kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        assert f"API server at {url}," in done.stdout, "the address stays"
    finally:
        kedge("down", "--state", str(state))
    assert keeper_pids(tmp_path) == []
    assert (state / "kedge.db").exists()


SETTINGS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: sesame}
---
apiVersion: v1
kind: Pod
metadata: {name: task, labels: {team: risk}}
spec:
  restartPolicy: Never
  initContainers:
  - name: first
    image: none
    command: [sh, -c, "echo ready > $KEDGE_VOLUME_SHARED/flag"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  - name: side
    image: none
    restartPolicy: Always
    command: [sh, -c, "echo side > $KEDGE_VOLUME_MACHINE/side; exec sleep 100000"]
    startupProbe: {exec: {command: [test, -e, FOLDER/side]}, periodSeconds: 1}
    volumeMounts: [{name: machine, mountPath: /machine}]
  containers:
  - name: main
    image: none
    command: [sh, -c]
    args:
    - |
      cat $KEDGE_VOLUME_SHARED/flag $KEDGE_VOLUME_FILES/color $KEDGE_VOLUME_MACHINE/side
      pwd
      cat $KEDGE_VOLUME_KEYS/password
      cd $KEDGE_VOLUME_EVERY && cat mine/color password name labels
      stat -L -c ' %a %n' password name
      echo fast >$KEDGE_VOLUME_MEMORY/x && cat $KEDGE_VOLUME_MEMORY/x
      echo $COLOR > $KEDGE_TERMINATION_LOG
      exit 3
    workingDir: FOLDER
    env: [{name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}]
    volumeMounts:
    - {name: keys, mountPath: /keys, readOnly: true}
    - {name: every, mountPath: /every}
    - {name: memory, mountPath: /memory}
    - {name: shared, mountPath: /shared}
    - {name: files, mountPath: /files}
    - {name: machine, mountPath: /machine}
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: files, configMap: {name: settings}}
  - {name: machine, hostPath: {path: FOLDER, type: Directory}}
  - {name: keys, secret: {secretName: keys, defaultMode: 0400}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - name: every
    projected:
      defaultMode: 0440
      sources:
      - configMap: {name: settings, items: [{key: color, path: mine/color}]}
      - secret: {name: keys, items: [{key: password, path: password, mode: 0400}]}
      - downwardAPI:
          items:
          - {path: name, fieldRef: {fieldPath: metadata.name}}
          - {path: labels, fieldRef: {fieldPath: metadata.labels}}
"""


def test_a_pod_with_volumes_init_container_and_sidecar_ends_with_its_code_and_message(
    cluster: UpProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "machine"
    folder.mkdir()
    printed = cluster.kubectl("apply", "-f", "-", stdin=SETTINGS.replace("FOLDER", str(folder)))
    assert "pod/task created" in printed
    until(lambda: "Failed" in cluster.kubectl("get", "pod", "task", "-o", "jsonpath={.status.phase}"), "the pod ends")
    ended = "{.status.containerStatuses[0].state.terminated"
    path = f"jsonpath={ended}.exitCode}} {ended}.message}} {{.status.initContainerStatuses[0].ready}}"
    assert cluster.kubectl("get", "pod", "task", "-o", path).split() == ["3", "blue", "true"]
    (log,) = cluster.state.glob("nodes/*/pods/default_task_*/logs/main/0.log")
    assert log.read_text().splitlines() == [
        "ready",
        "blueside",
        str(folder),
        'sesamebluesesametaskteam="risk" 400 password',
        " 440 name",
        "fast",
    ]
    assert (folder / "side").read_text() == "side\n", "a hostPath is a folder of the machine"
    until(lambda: not processes(cluster), "the sidecar ends with the pod")
    conditions = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.conditions[*].type}")
    assert conditions.split().count("ResourceLimits") == conditions.split().count("VolumeMounts") == 2
    cluster.kubectl("delete", "pod", "task")
    until(lambda: not list(cluster.state.glob("nodes/*/pods/default_task_*")), "the pod's folder is removed")


# -- interruptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "after_s"), [(signal.SIGINT, 0.1), (signal.SIGTERM, 0.5), (signal.SIGINT, 1.0)])
def test_an_interrupted_start_leaves_nothing_running(number: int, after_s: float, tmp_path: Path) -> None:
    """However far the start has come by then; on a slow machine the moments are earlier ones."""
    state = tmp_path / "state"
    words = ("up", "--state", str(state), "--listen", "127.0.0.1:0", "--nodes", "2")
    started = subprocess.Popen([sys.executable, "-m", "kedge", *words], stderr=subprocess.PIPE, text=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(after_s)
    started.send_signal(number)
    _, said = started.communicate(timeout=60)
    assert started.returncode in (0, 1, -number), said
    assert keeper_pids(state) == []


def test_an_interrupted_detach_stops_the_cluster_that_it_has_started(tmp_path: Path) -> None:
    state = tmp_path / "state"
    words = ("up", "--detach", "--state", str(state), "--listen", "127.0.0.1:0", "--nodes", "1")
    started = subprocess.Popen([sys.executable, "-m", "kedge", *words], stderr=subprocess.PIPE, text=True)
    until(lambda: holder_of(state / UP_LOCK) != 0 or started.poll() is not None, "the cluster has begun")
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    if started.returncode == 0:  # it was faster than the signal
        down_nodes(UpProcess(state))
    assert holder_of(state / UP_LOCK) == 0
    assert keeper_pids(state) == []


# -- ports of the machine ------------------------------------------------------------------------------

LISTENS = """
import socket, time
one = socket.socket()
one.bind(("0.0.0.0", {port}))
one.listen()
print("listens", flush=True)
time.sleep(600)
"""


def test_nodes_of_one_machine_share_its_ports_and_the_second_pod_reports_it(cluster: UpProcess) -> None:
    """Each node may promise a hostPort once. Two nodes of one machine promise the same one: the kernel decides."""
    port = free_port()
    for name, zone in (("first", "zone-a"), ("second", "zone-b")):
        main = {
            "name": "main",
            "image": "x",
            "command": [sys.executable, "-c", LISTENS.format(port=port)],
            "ports": [{"containerPort": port, "hostPort": port}],
            "readinessProbe": {"tcpSocket": {"port": port, "host": "127.0.0.1"}},
        }
        spec = {
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"topology.kubernetes.io/zone": zone},
            "containers": [main],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
        if name == "first":
            until(lambda: "listens" in cluster.kubectl("logs", "first", check=False), "the first one listens")
    until(
        lambda: "Address already in use" in cluster.kubectl("logs", "second", "--previous", check=False),
        "the second one cannot listen, and its log has the reason",
    )
    assert "listens" in cluster.kubectl("logs", "first")
    path = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert cluster.kubectl("get", "pod", "first", "-o", path) == "0"
    assert int(cluster.kubectl("get", "pod", "second", "-o", path)) >= 1
