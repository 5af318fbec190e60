"""Resizes in place with kubectl, on a cluster of real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.up_workload import UpProcess, processes, running_up, until

POD = """apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: sleep
    command: [sleep, "600"]
    resources:
      requests: {cpu: 100m, memory: 32Mi}
      limits: {cpu: 200m, memory: 64Mi}
"""


def patch(cluster: UpProcess, *, check: bool = True, **resources: dict[str, str]) -> str:
    body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    return cluster.kubectl("patch", "pod", "web", "--subresource", "resize", "-p", json.dumps(body), check=check)


def status(cluster: UpProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "pod", "web", "-o", "json"))["status"]
    return found


def applied(cluster: UpProcess) -> dict[str, Any]:
    statuses = status(cluster).get("containerStatuses") or [{}]
    found: dict[str, Any] = statuses[0].get("resources") or {}
    return found


def memory_limit_of(pid: int) -> int | None:
    """The memory limit of a process's control group; None where this machine has no writable one."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        name = Path(path).parent.name
        if not name.startswith("kedge-"):
            continue
        for file in ("memory.limit_in_bytes", "memory.max"):
            for found in Path("/sys/fs/cgroup").glob(f"**/{name}/{Path(path).name}/{file}"):
                if controllers in ("", "memory"):
                    text = found.read_text().strip()
                    return int(text) if text.isdigit() else None
    return None


def test_kubectl_resizes_a_running_process_and_gets_the_reason_if_it_cannot(tmp_path: Path) -> None:
    with running_up(UpProcess(tmp_path / "state", "--nodes", "1")) as cluster:
        until(lambda: cluster.kubectl("get", "nodes").count(" Ready") == 1, "the node is ready")
        cluster.kubectl("apply", "-f", "-", stdin=POD)
        until(lambda: applied(cluster).get("limits") == {"cpu": "200m", "memory": "64Mi"}, "the pod reports its size")
        (pid,) = processes(cluster).values()
        limited = memory_limit_of(pid)

        assert "pod/web patched" in patch(
            cluster, requests={"cpu": "150m", "memory": "48Mi"}, limits={"cpu": "300m", "memory": "96Mi"}
        )
        until(lambda: applied(cluster).get("limits") == {"cpu": "300m", "memory": "96Mi"}, "the new size is applied")
        assert list(processes(cluster).values()) == [pid], "the process was not restarted"
        if limited is not None:
            assert (limited, memory_limit_of(pid)) == (64 << 20, 96 << 20)
        until(
            lambda: not [c for c in status(cluster)["conditions"] if c["type"].startswith("PodResize")],
            "the resize is over",
        )
        ledger = json.loads(cluster.kubectl("get", "nodeallocations", "-o", "json"))["items"][0]["status"]
        (entry,) = (each for each in ledger["entries"].values() if each["name"] == "web")
        assert entry["requests"]["cpu"] == "150m"
        assert "granted" not in entry

        assert "node didn't have enough allocatable resources: cpu" in patch(
            cluster, requests={"cpu": "5000"}, limits={"cpu": "5000"}, check=False
        )
        assert "Pod QOS Class may not change" in patch(cluster, requests={"cpu": "300m", "memory": "96Mi"}, check=False)
        plain = cluster.kubectl(
            "patch", "pod", "web", "-p",
            '{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"170m"}}}]}}', check=False,
        )  # fmt: skip
        assert "pod updates may not change fields other than" in plain
        found = json.loads(cluster.kubectl("get", "pod", "web", "--subresource", "resize", "-o", "json"))
        found["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "160m"
        replaced = cluster.kubectl("replace", "--subresource", "resize", "-f", "-", stdin=json.dumps(found))
        assert "pod/web replaced" in replaced
        until(lambda: applied(cluster).get("requests", {}).get("cpu") == "160m", "the replaced size is applied")
