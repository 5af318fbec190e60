"""Twenty incidents of clusters of real processes: the six worked examples of the scenario library with real pods, and
kills, cuts, clock steps and full disks. `docs/observability.md` has the same list."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.e2e.incident_clusters import IncidentCluster, PartIncidents, full_disk
from tests.e2e.up_workload import processes, until

from kedge.cli.live_faults.own_processes import OwnProcesses


def workload(name: str, replicas: int, *, kind: str = "Deployment", pod: str = "", gang: str = "") -> str:
    """A workload of sleeping processes, in one line of YAML; each pod of it is a gang of one, if it has a name."""
    container = '{name: main, image: "label-only:1", command: [sleep, "100000"], resources: {requests: {cpu: 100m}}}'
    labels = f"app: {name}" + (f", kedge.dev/gang: {gang}" if gang else "")
    size = "annotations: {kedge.dev/gang-size: '1'}, " if gang else ""
    return (
        f"{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: {name}, namespace: default}},"
        f" spec: {{replicas: {replicas}, selector: {{matchLabels: {{app: {name}}}}}, template: {{metadata: {{{size}"
        f"labels: {{{labels}}}}}, spec: {{terminationGracePeriodSeconds: 1, {pod} containers: [{container}]}}}}}}}}"
    )


def apart(name: str) -> str:
    """Each pod of a workload on a node of its own."""
    term = f"{{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {{app: {name}}}}}}}"
    return f"affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}}},"


def ready(workload_name: str, count: int) -> str:
    return f"  - expect: {{object: {workload_name}, field: status.readyReplicas, is: {count}, within: 2m}}\n"


POLICY = "{apiVersion: kedge.dev/v1, kind: SchedulingPolicy, metadata: {name: NAME}, spec: {version: v4, active: true}}"
CHANGE_POLICY = "  - change: {object: SchedulingPolicy/NAME, patch: {spec: {version: VERSION, maxZoneSkew: 2}}}\n"


def policy(name: str) -> str:
    return f"  - admit: {POLICY.replace('NAME', name)}\n"


def change_policy(name: str, version: str) -> str:
    return CHANGE_POLICY.replace("NAME", name).replace("VERSION", version)


def quota(name: str, pods: int, version: str = "v1", kind: str = "ResourceQuota") -> str:
    return (
        f"  - admit: {{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, namespace: default}},"
        f' spec: {{hard: {{pods: "{pods}"}}}}}}\n'
    )


CHAOS: Mapping[str, str] = {
    "binding-during-node-failure": (
        "  - lose reply: {to: bind, on: Pod/bound-*, by: default-scheduler, after: commit, timeout: 2s}\n"
        "  - partition node: {node: node-2, lasting: 10s}\n"
        f"  - admit: {workload('bound', 3, pod=apart('bound'))}\n"
        "  - delay watch: {of: Pod, by: 3s, to: default-scheduler}\n"
        + ready("Deployment/bound", 3)
    ),
    "duplicate-reservation": (
        policy("reserved")
        + f"  - admit: {workload('reserved', 0, kind='ReplicaSet', gang='recovery')}\n"
        + change_policy("reserved", "v5")
        + "  - lose reply: {to: reserve, on: Reservation/recovery, by: default-scheduler, after: commit, timeout: 1s}\n"
        "  - scale: {workload: ReplicaSet/reserved, to: 1}\n"
        "  - restart leader: {of: default-scheduler, down: 1s}\n"
        "    after: 2s\n"
        + change_policy("reserved", "v4")
        + ready("ReplicaSet/reserved", 1)
        + "  - delete: SchedulingPolicy/reserved\n"
    ),
    "missing-replica": (
        f"  - admit: {workload('missing', 2, kind='ReplicaSet', pod=apart('missing'))}\n"
        + ready("ReplicaSet/missing", 2)
        + "  - lose node: {of: ReplicaSet/missing, lasting: 40s}\n"
        "  - expect: {object: ReplicaSet/missing, condition: RepairComplete, status: 'False', within: 90s}\n"
        "  - expect: {object: ReplicaSet/missing, condition: RepairComplete, status: 'True', within: 2m}\n"
        + ready("ReplicaSet/missing", 2)
    ),
    "pending-after-rollback": (
        policy("pending")
        + "  - admit: {apiVersion: kedge.dev/v1, kind: ZoneQuota, metadata: {name: pending, namespace: default},"
        " spec: {zones: {zone-c: {hard: {cpu: 150m}}}}}\n"
        + change_policy("pending", "v5")
        + f"  - admit: {workload('pending', 2, pod='nodeSelector: {topology.kubernetes.io/zone: zone-c},')}\n"
        + ready("Deployment/pending", 1)
        + change_policy("pending", "v4")
        + "  - delay watch: {of: ZoneQuota, by: 5s, to: default-scheduler}\n"
        "  - change: {object: ZoneQuota/pending, patch: {spec: {zones: {zone-c: {hard: {cpu: 500m}}}}}}\n"
        + ready("Deployment/pending", 2)
        + "  - delete: ZoneQuota/pending\n  - delete: SchedulingPolicy/pending\n"
    ),
    "rollback-races-repair": (
        quota("raced", 4)
        + f"  - admit: {workload('raced', 2, pod=apart('raced'))}\n"
        + ready("Deployment/raced", 2)
        + "  - roll out: {workload: Deployment/raced, image: 'label-only:2'}\n"
        "  - lose node: {of: Deployment/raced, lasting: 30s}\n"
        "    after: 3s\n"
        "  - change: {object: ResourceQuota/raced, patch: {spec: {hard: {pods: '1'}}}}\n"
        "  - roll back: Deployment/raced\n"
        "    after: 5s\n"
        "  - change: {object: ResourceQuota/raced, patch: {spec: {hard: {pods: '9'}}}}\n"
        "    after: 5s\n"
        + ready("Deployment/raced", 2)
        + "  - delete: ResourceQuota/raced\n"
    ),
    "stale-policy-canary": (
        policy("canary")
        + f"  - admit: {workload('canary', 2, kind='ReplicaSet', pod=apart('canary'))}\n"
        + ready("ReplicaSet/canary", 2)
        + "  - delay watch: {of: NodeAllocation, by: 6s, to: default-scheduler}\n"
        "  - delay watch: {of: Node, by: 8s, to: default-scheduler}\n"
        "  - admit: {apiVersion: kedge.dev/v1, kind: Rollout, metadata: {name: canary-v5, namespace: default}, spec:"
        " {target: {apiVersion: kedge.dev/v1, kind: SchedulingPolicy, name: canary}, policy: {version: v5-canary,"
        " maxZoneSkew: 2}, stages: [{name: canary, scope: {workloads: [canary]}, holdSeconds: 2}]}}\n"
        "  - scale: {workload: ReplicaSet/canary, to: 3}\n"
        + ready("ReplicaSet/canary", 3)
        + "  - delete: Rollout/canary-v5\n  - delete: SchedulingPolicy/canary\n"
    ),
    "pod-process-killed": (
        f"  - admit: {workload('killed', 2)}\n"
        + ready("Deployment/killed", 2)
        + "  - kill process: Deployment/killed\n"
        "  - kill process: Deployment/killed\n"
        "    after: 2s\n"
        "  - scale: {workload: Deployment/killed, to: 3}\n"
        + ready("Deployment/killed", 3)
    ),
    "watches-break-and-requests-are-slow": (
        f"  - admit: {workload('slowed', 2)}\n"
        "  - break watch: {of: Pod}\n"
        "  - delay requests: {by: 300ms, lasting: 6s}\n"
        "  - break watch: {}\n"
        "    after: 1s\n"
        "  - scale: {workload: Deployment/slowed, to: 4}\n"
        "  - lose reply: {to: patch, on: Pod/slowed-*, by: node-1, after: commit, timeout: 1s}\n"
        + ready("Deployment/slowed", 4)
    ),
    "node-stands-still": (
        f"  - admit: {workload('still', 3, pod=apart('still'))}\n"
        + ready("Deployment/still", 3)
        + "  - pause node: {node: node-3, lasting: 12s}\n"
        "  - scale: {workload: Deployment/still, to: 2}\n"
        "    after: 6s\n"
        "  - scale: {workload: Deployment/still, to: 3}\n"
        "    after: 8s\n"
        + ready("Deployment/still", 3)
    ),
    "whole-cluster-killed": (
        f"  - admit: {workload('whole', 2)}\n"
        "  - restart: {component: default-scheduler, down: 1s}\n"
        "    after: 500ms\n"
        "  - scale: {workload: Deployment/whole, to: 3}\n"
        + ready("Deployment/whole", 3)
    ),
}  # fmt: skip
"""Steps of `kedge chaos` on a cluster of `kedge up`, by the name of the incident. The first six are worked examples."""


def _begin(cluster: PartIncidents, name: str, replicas: int = 2) -> None:
    cluster.apply(workload(name, replicas))
    cluster.wait_ready(f"deployment/{name}", replicas)


def _scheduler_killed(cluster: PartIncidents) -> None:
    cluster.apply(workload("sk", 4))
    cluster.restart("scheduler")
    cluster.wait_ready("deployment/sk", 4)


def _controllers_killed(cluster: PartIncidents) -> None:
    cluster.apply(workload("ck", 2))
    cluster.restart("controllers")
    cluster.wait_ready("deployment/ck", 2)
    cluster.server.kubectl("set", "image", "deployment/ck", "main=label-only:2")
    cluster.restart("controllers")
    cluster.server.kubectl("rollout", "status", "deployment/ck", "--timeout=150s", timeout_s=160)


def _agent_killed(cluster: PartIncidents) -> None:
    _begin(cluster, "ak")
    cluster.parts.kill("agent-a")
    cluster.scale("deployment/ak", 4)
    time.sleep(6)  # the node is suspect
    cluster.parts.start("agent-a")
    cluster.wait_ready("deployment/ak", 4)


def _keeper_killed(cluster: PartIncidents) -> None:
    _begin(cluster, "kk")
    own = OwnProcesses(cluster.server.state)
    keepers = [each for each in own.of_node("a") if each.pid == own.keeper("a")]
    own.kill(keepers)
    cluster.scale("deployment/kk", 4)
    cluster.wait_ready("deployment/kk", 4)


def _server_killed(cluster: PartIncidents) -> None:
    _begin(cluster, "vk")
    cluster.scale("deployment/vk", 4)
    cluster.restart_server()
    cluster.scale("deployment/vk", 3)
    cluster.wait_ready("deployment/vk", 3)


def _links_cut(cluster: PartIncidents) -> None:
    _begin(cluster, "lc")
    cluster.parts.cut("scheduler")
    cluster.parts.cut("agent-b")
    cluster.scale("deployment/lc", 4)
    time.sleep(6)
    cluster.parts.join("scheduler")
    cluster.parts.join("agent-b")
    cluster.wait_ready("deployment/lc", 4)


def _clock_step(*steps: tuple[str, float], name: str) -> Callable[[PartIncidents], None]:
    def act(cluster: PartIncidents) -> None:
        _begin(cluster, name)
        for component, seconds in steps:
            cluster.parts.step_clock(component, seconds)
        cluster.scale(f"deployment/{name}", 4)
        cluster.wait_ready(f"deployment/{name}", 4)

    return act


def _records_disk_full(cluster: PartIncidents) -> None:
    _begin(cluster, "rf")
    with full_disk(cluster.parts.disk):
        cluster.scale("deployment/rf", 4)
        cluster.wait_ready("deployment/rf", 4)
    cluster.scale("deployment/rf", 5)
    cluster.wait_ready("deployment/rf", 5)


def _server_disk_full(cluster: PartIncidents) -> None:
    _begin(cluster, "sf")
    with full_disk(cluster.server.state):
        cluster.server.kubectl("scale", "deployment/sf", "--replicas=4", check=False)
        time.sleep(3)
    until(
        lambda: "scaled" in cluster.server.kubectl("scale", "deployment/sf", "--replicas=4", check=False), "it writes"
    )
    cluster.wait_ready("deployment/sf", 4)


ACTS: Mapping[str, Callable[[PartIncidents], None]] = {
    "scheduler-killed": _scheduler_killed,
    "controllers-killed": _controllers_killed,
    "agent-killed": _agent_killed,
    "keeper-killed": _keeper_killed,
    "server-killed": _server_killed,
    "links-cut": _links_cut,
    "clocks-step-forward": _clock_step(("scheduler", 400.0), ("agent-a", 400.0), name="cf"),
    "clocks-step-back": _clock_step(("controllers", -400.0), ("agent-b", -400.0), name="cb"),
    "disk-of-records-full": _records_disk_full,
    "disk-of-the-server-full": _server_disk_full,
}
"""The acts on a cluster of separate processes, by the name of the incident."""


class Story(NamedTuple):
    """One incident."""

    name: str
    steps: str = ""
    act: Callable[[PartIncidents], None] | None = None


STORIES = (
    *(Story(name, steps=steps) for name, steps in CHAOS.items()),
    *(Story(name, act=act) for name, act in ACTS.items()),
)


def end_workloads(cluster: IncidentCluster) -> None:
    """Remove everything that a story made, so that the next one begins alike."""
    cluster.server.kubectl("delete", "deployments,replicasets", "--all", "--wait=false", check=False)
    until(lambda: processes(cluster.server) == {}, "every process has ended")
