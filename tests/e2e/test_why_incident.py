"""The lesson's incident on a cluster of real processes: replicas stay pending, since the quota cache is old."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.incident_clusters import LIMITS
from tests.e2e.up_workload import LocalUp, running_up, until
from tests.kit.explanations import ADVICE, debug_view_fields, old_cache

SCALING = {"autoscaler_look_s": 2.0, "autoscaler_start_s": 2.0}
STORY = """
scenario: pending-after-rollback
story: Replicas are pending after a rollback, and the event that frees their quota is late.
world: {nodes: [{name: node-1}, {name: node-2}, {name: node-3}]}
steps:
  - admit: {apiVersion: v1, kind: Namespace, metadata: {name: risk}}
  - admit: {apiVersion: kedge.dev/v1, kind: SchedulingPolicy, metadata: {name: risk}, spec: {version: v4, active: true}}
  - admit:
      apiVersion: kedge.dev/v1
      kind: ZoneQuota
      metadata: {name: risk, namespace: risk}
      spec: {zones: {zone-c: {hard: {cpu: 500m}}}}
  - admit:
      apiVersion: v1
      kind: Pod
      metadata: {name: risk-report, namespace: risk}
      spec:
        terminationGracePeriodSeconds: 1
        nodeSelector: {topology.kubernetes.io/zone: zone-c}
        containers: [{name: main, image: "x:1", command: [sleep, "100000"], resources: {requests: {cpu: 500m}}}]
  - expect: {object: Pod/risk/risk-report, condition: Ready, within: 60s}
  - admit:
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: risk-api, namespace: risk}
      spec:
        replicas: 6
        selector: {matchLabels: {app: risk-api}}
        template:
          metadata: {labels: {app: risk-api}}
          spec:
            terminationGracePeriodSeconds: 1
            topologySpreadConstraints:
              - topologyKey: topology.kubernetes.io/zone
                maxSkew: 3
                whenUnsatisfiable: DoNotSchedule
                labelSelector: {matchLabels: {app: risk-api}}
            affinity: # so node-3 is the nearest node
              nodeAffinity:
                preferredDuringSchedulingIgnoredDuringExecution:
                  - weight: 100
                    preference:
                      matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [zone-c]}]
            containers:
              - name: main
                image: "x:1"
                command: [sh, -c, "while sleep 0.5; do :; done"] # more than its request, so the autoscaler wants more
                resources: {requests: {cpu: 1m}}
  - expect: {object: Deployment/risk/risk-api, field: status.readyReplicas, is: 6, within: 60s}
  - change: {object: SchedulingPolicy/risk, patch: {spec: {version: v5, maxZoneSkew: 1}}}
  - partition node: {node: node-2, lasting: 12s}
  - expect: {object: Deployment/risk/risk-api, condition: RepairComplete, status: "False", within: 60s}
  - change: {object: SchedulingPolicy/risk, patch: {spec: {version: v4, maxZoneSkew: null}}}
  - expect: {object: Deployment/risk/risk-api, condition: RepairComplete, within: 2m}
  - expect: {object: Deployment/risk/risk-api, field: status.readyReplicas, is: 6, within: 2m}
  - scale: {workload: Deployment/risk/risk-api, to: 8}
  - admit:
      apiVersion: autoscaling/v2
      kind: HorizontalPodAutoscaler
      metadata: {name: risk-api, namespace: risk}
      spec:
        scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: risk-api}
        minReplicas: 6
        maxReplicas: 12
        metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]
  - expect:
      object: HorizontalPodAutoscaler/risk/risk-api
      condition: ScalingHeldBack
      reason: ReplicasPending
      within: 90s
  - delay watch: {of: ZoneQuota, by: 60s, to: default-scheduler}
  - delete: Pod/risk/risk-report
  - note: the watch is late while the test asks why
    after: 50s
"""


@contextmanager
def played(cluster: LocalUp, file: Path) -> Iterator[subprocess.Popen[str]]:
    """The story beside the block; an interruption at its end undoes the fault."""
    command = [sys.executable, "-m", "kedge", "chaos", str(file), "--state", str(cluster.state)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield running
    finally:
        running.terminate()
        output, _ = running.communicate(timeout=120)
        print(output)


@pytest.mark.slow
def test_why_names_the_old_quota_cache_of_the_lesson_s_incident_on_real_processes(tmp_path: Path) -> None:
    config, story = tmp_path / "config.yaml", tmp_path / "story.yaml"
    config.write_text(json.dumps({"limits": {**LIMITS, **SCALING}}))
    story.write_text(STORY)
    cluster = LocalUp(tmp_path / "state", "--nodes", "3", "--quiet", "--config", str(config))
    with running_up(cluster):
        until(lambda: cluster.kubectl("get", "nodes", check=False).count(" Ready") == 3, "three nodes are ready")
        with played(cluster, story) as running:

            def is_freed() -> bool:
                assert running.poll() is None, "the story has ended early"
                listed = cluster.kubectl("get", "pods,horizontalpodautoscalers", "-n", "risk", "-o", "name")
                return "horizontalpodautoscaler" in listed and "risk-report" not in listed

            until(is_freed, "the quota is free", within_s=300)
            answers: list[str] = []

            def is_decided() -> bool:
                answers.append(cluster.kedge("why", "deployment/risk-api", "-n", "risk", "--state", str(cluster.state)))
                print(answers[-1])
                return re.search(old_cache("node-3"), answers[-1]) is not None

            until(is_decided, "the scheduler has decided on the old cache", within_s=40)
        answer = answers[-1]
        first = answer.splitlines()[0]
        assert re.search(r"6 of 8 replicas ready; risk-api-\w+-\d is pending: none of 3 nodes fits: ", first), first
        assert re.search(r"; ZoneQuota risk has changed since, |" + old_cache("node-3"), first), first
        assert first.endswith(ADVICE), first
        (generation,) = re.findall(r"(?m)^ +generation: (\d+)$", answer)
        for field in debug_view_fields("node-3", generation=int(generation), pending=(r"\d", r"\d")):
            assert re.search(field, answer, re.M), field
        assert re.search(
            r"ZoneQuota.kedge.dev at revision \d+, .* s old; risk was at \d+ then, written by agent", answer
        )
