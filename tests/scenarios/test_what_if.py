"""`kedge why NAME --what-if` over kept runs: one change of an input turns a pending pod into one that is placed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from kedge.api.views import PodView
from kedge.api.wellknown import NODE_KIND, POD_KIND, SCHEDULING_POLICY_KIND
from kedge.cli import main
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.sim.scenario import keep_run, parse_scenario, run_scenario

TAINTED = """
scenario: tainted
story: The only node with room has a taint that the pod does not tolerate.
world:
  nodes:
    - {name: node-a, zone: zone-a, resources: {cpu: 1}}
    - {name: node-b, zone: zone-b, resources: {cpu: 8}, taints: [{key: dedicated, value: batch, effect: NoSchedule}]}
  schedulers: {default-scheduler: 1}
  controllers: [node-lifecycle]
steps:
  - admit:
      apiVersion: v1
      kind: Pod
      metadata: {name: web, namespace: default}
      spec: {containers: [{name: main, image: "web:1", resources: {requests: {cpu: 2}}}]}
  - expect: {object: Pod/web, condition: PodScheduled, status: "False", within: 60s}
  - change: {object: Node/node-b, patch: {spec: {taints: null}}}
    after: 5s
"""

SKEWED = """
scenario: skewed
story: Version v5 of the policy has a maxZoneSkew, and the zone that would keep it is full.
world:
  nodes:
    - {name: node-a, zone: zone-a, resources: {cpu: 8}}
    - {name: node-b, zone: zone-b, resources: {cpu: 1}}
  schedulers: {default-scheduler: 1}
  controllers: [replicaset, node-lifecycle]
  objects:
    - apiVersion: kedge.dev/v1
      kind: SchedulingPolicy
      metadata: {name: spread}
      spec: {version: v4, active: true}
    - apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {name: web, namespace: default}
      spec:
        replicas: 0
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec: {containers: [{name: main, image: "web:1", resources: {requests: {cpu: 900m}}}]}
steps:
  - change: {object: SchedulingPolicy/spread, patch: {spec: {version: v5, maxZoneSkew: 1}}}
  - scale: {workload: ReplicaSet/default/web, to: 4}
    after: 5s
  - expect: {object: Pod/web-3, condition: PodScheduled, status: "False", within: 60s}
  - change: {object: SchedulingPolicy/spread, patch: {spec: {version: v4, maxZoneSkew: null}}}
    after: 5s
"""


@dataclass(frozen=True, slots=True)
class FlippedCase:
    """A pending pod, and the change that a person makes in the last step: the pod is then placed."""

    scenario: str
    pod: str
    blocker: str
    changed: Key
    change: str
    unrelated: str
    """A change that leaves the blocker in place."""


CASES = {
    "taint": FlippedCase(
        TAINTED, "web", "taint", Key(NODE_KIND, "", "node-b"), "taint/node-b/dedicated=-", "node/node-a=+cpu:500m"
    ),
    "policy version": FlippedCase(
        SKEWED, "web-3", "maxZoneSkew", Key(SCHEDULING_POLICY_KIND, "", "spread"), "policy/spread=v4",
        "policy/spread=v5",
    ),
}  # fmt: skip


def placed_on(recording: Recording, pod: str) -> str:
    versions = (each for commit in recording.commits for each in commit.written if each.key.name == pod)
    return next(
        found for each in versions if each.key.kind == POD_KIND and (found := each.as_view(PodView).spec.node_name)
    )


def changed_by_hand(recording: Recording, key: Key) -> int:
    """The revision of the last change of a spec without a controller."""
    versions = [each for commit in recording.commits for each in commit.written if each.key == key]
    return max(each.revision for each in versions if not each.origin.decision and not each.origin.caller)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pending_pod_is_placed_with_the_change_that_really_places_it_and_with_no_other(
    tmp_path: Path, case: FlippedCase
) -> None:
    run = run_scenario(parse_scenario(case.scenario), keep=True)
    assert run.passed, run.violation
    before = changed_by_hand(run.recording, case.changed) - 1
    words = ["why", case.pod, "--recording", str(keep_run(run, tmp_path)), "--revision", str(before), "--what-if"]
    done = CliRunner().invoke(main, [*words, case.change])
    assert done.exit_code == 0, done.output
    assert re.match(rf"{case.pod} is pending: none of 2 nodes fits: .*{case.blocker}", done.output), done.output
    placed = (
        rf"^  what if +{re.escape(case.change)}: {case.pod} would be placed on {placed_on(run.recording, case.pod)}\b"
    )
    assert re.search(placed, done.output, re.M), done.output
    assert "the same as" not in done.output
    same = CliRunner().invoke(main, [*words, case.unrelated]).output
    assert f"{case.unrelated}: the same as without it: {case.pod} would be pending" in same, same
