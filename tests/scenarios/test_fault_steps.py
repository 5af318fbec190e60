"""Each step that places a fault has an effect: an expectation that holds without the step is broken with it.

Afterwards the cluster recovers: the same file passes if the expectation has more time.
"""

from __future__ import annotations

import pytest

from kedge.sim.scenario import ScenarioRun, parse_scenario, run_scenario
from kedge.sim.scenario.fault_steps import __name__ as fault_steps
from kedge.sim.scenario.machine_steps import __name__ as machine_steps
from kedge.sim.scenario.steps import VERBS

FILE = """\
scenario: one-fault
story: One replica is admitted, and one fault strikes.
world:
  servers: 2
  nodes:
    - {{name: node-a, resources: {{cpu: 2}}}}
  schedulers: {{default-scheduler: 2}}
  controllers: [replicaset, node-lifecycle]
steps:
  - at: 20s
    {before}
  - admit:
      apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {{name: web}}
      spec:
        replicas: 1
        selector: {{matchLabels: {{app: web}}}}
        template:
          metadata: {{labels: {{app: web}}}}
          spec:
            containers:
              - name: main
                image: "web:1"
                resources: {{requests: {{cpu: 500m}}}}
                readinessProbe: {{exec: {{command: ["true"]}}, periodSeconds: 1}}
  - {after}
expect:
  - {expect}
"""
NOTHING = "note: nothing happens"
READY = "{name: seen, count: Pod, labels: {app: web}, ready: true, is: 1, within: WITHIN}"
RUNNING = "when: {count: Pod, labels: {app: web}, ready: true, is: 1}\n    "
NEVER = "{name: seen, object: Pod/web-0, condition: PodScheduled, status: 'False', within: WITHIN}"

BEFORE = [
    "slow pull: {by: 40s}",
    "slow pull: {by: 40s, image: 'web:*', node: node-a}",
    "fail pull: {lasting: 40s}",
    "slow start: {of: Pod/web-*, by: 40s}",
    "fail probe: {of: Pod/web-*, lasting: 40s}",
    "delay status: {of: Pod, by: 40s, lasting: 30s, to: node-a}",
    "resize node: {node: node-a, cpu: 100m}",
    "pause: {component: default-scheduler, lasting: 40s}",
    "pause leader: {of: default-scheduler, lasting: 60s}",
    "partition: {component: default-scheduler, lasting: 40s}",
    "partition node: {node: node-a, lasting: 40s}",
    "pause node: {node: node-a, lasting: 40s}",
    "lose node: {node: node-a, lasting: 40s}",
    "slow down: {component: default-scheduler, step: 1s, lasting: 60s}",
    "slow disk: {by: 4s, lasting: 60s}",
    "delay watch: {of: Pod, by: 40s}",
    "delay requests: {by: 5s, lasting: 60s}",
    "stall watch: {of: Pod, to: node-a}",
    "restart: {component: default-scheduler, down: 40s}",
]
"""Placed before the replica is admitted: it takes longer than 10 s to become ready."""
AFTER = ["lose server: {server: all, lasting: 40s}", "lose server: {server: api-0, lasting: 60s}", "pause store: 40s"]
"""Placed just after: the same."""
STRIKES = [
    ("depose leader: replicaset", NOTHING, "manager loses"),
    ("stale lists: {of: Pod, lasting: 90s, to: default-scheduler}", "restart: default-scheduler", "revisions old"),
    ("conflict: {on: Pod/web-*, by: node-a, times: 2}", NOTHING, "another client, before node-a, changes Pod"),
    ("break watch: {of: Pod, to: default-scheduler}", NOTHING, "the watch of Pod to default-scheduler"),
    (NOTHING, f"{RUNNING}compact history: 5", "history is compacted, but 5 revisions"),
    ("lose reply: {to: bind, on: Pod/web-*, after: commit}", NOTHING, "the reply to bind"),
]
"""Their effect is hidden by the control plane: the fault is in the trace, and the replica becomes ready."""


def one_fault(before: str = NOTHING, after: str = NOTHING, expect: str = READY, *, within: str) -> ScenarioRun:
    content = FILE.format(before=before, after=after, expect=expect.replace("WITHIN", within))
    return run_scenario(parse_scenario(content))


def test_without_a_fault_the_replica_is_ready_soon() -> None:
    assert one_fault(within="10s").passed


@pytest.mark.parametrize(
    ("before", "after"), [(each, NOTHING) for each in BEFORE] + [(NOTHING, each) for each in AFTER]
)
def test_a_fault_delays_the_replica(before: str, after: str) -> None:
    late = one_fault(before, after, within="10s")
    assert late.violation is not None, "the fault has no effect"
    assert late.violation.invariant == "seen"
    # A resized node gets its size back only when faults stop.
    recovered = one_fault(before, after, within="5m", expect=NEVER if before.startswith("resize") else READY)
    assert recovered.passed, recovered.violation


@pytest.mark.parametrize("fault", ["ignore stop: Pod/web-*", "outlive kill: {of: Pod/web-*, by: 20s}"])
def test_a_process_that_does_not_stop_delays_the_next_one(fault: str) -> None:
    """The slot of a replica is free only when its pod has ended."""
    deleted = f"{RUNNING}delete: Pod/web-0\n  - after: 1s\n    {NOTHING}"
    assert one_fault(NOTHING, deleted, within="10s").passed
    late = one_fault(fault, deleted, within="10s")
    assert late.violation is not None, "the fault has no effect"
    assert late.violation.invariant == "seen"
    struck = one_fault(fault, f"{deleted}\n  - expect: {{struck: stop of process, within: 5s}}", within="5m")
    assert struck.passed, struck.violation


@pytest.mark.parametrize(("before", "after", "text"), STRIKES)
def test_a_fault_strikes_and_the_replica_becomes_ready(before: str, after: str, text: str) -> None:
    done = one_fault(before, after, within="3m")
    assert done.passed, done.violation
    assert any(text in str(each) for each in done.outcome.faults), [str(each) for each in done.outcome.faults]


def test_a_clock_is_ahead_behind_or_fast() -> None:
    done = one_fault("skew clock: {of: node-a, ahead: 1h, rate: 1.05}", within="1m")
    assert done.passed, done.violation
    assert "offset 3600.0s, rate 1.05" in [each.text for each in done.outcome.trace.events if each.host == "node-a"]
    behind = one_fault("skew clock: {of: default-scheduler, behind: 30s}", within="1m")
    assert behind.passed
    assert "offset -30.0s, rate 1.0" in [each.text for each in behind.outcome.trace.events]


def test_every_step_that_places_a_fault_is_tried_here() -> None:
    tried = {
        each.partition(":")[0] for each in [*BEFORE, *AFTER, *(a for a, _, _ in STRIKES), *(b for _, b, _ in STRIKES)]
    }
    tried |= {
        "ignore stop",
        "outlive kill",
        "skew clock",
        "compact history",
        "restart leader",
        "kill process",
        "end process",
    }
    declared = {name for name, verb in VERBS.items() if verb.act.__module__ in (fault_steps, machine_steps)}
    assert declared <= tried
