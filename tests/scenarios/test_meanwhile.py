"""Steps beside the others, expectations that must never hold, and processes that end by themselves."""

from __future__ import annotations

import pytest

from kedge.cli.live_faults.chaos_run import check_live
from kedge.sim.scenario import ScenarioRun, parse_scenario, run_scenario
from kedge.sim.scenario.document import ScenarioError

FILE = """\
scenario: beside
story: One replica is admitted.
world:
  nodes:
    - {{name: node-a, resources: {{cpu: 2}}}}
  controllers: [replicaset, node-lifecycle]
steps:
  - at: 1s
    admit:
      apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {{name: web}}
      spec:
        replicas: 1
        selector: {{matchLabels: {{app: web}}}}
        template:
          metadata: {{labels: {{app: web}}}}
          spec: {{containers: [{{name: main, image: "web:1"}}]}}
  - expect: {{object: ReplicaSet/web, field: status.readyReplicas, is: 1, within: 30s}}
  - after: 20s
    note: the end
{more}
settles within: 0s
"""


def run(more: str) -> ScenarioRun:
    return run_scenario(parse_scenario(FILE.format(more=more)))


def texts(done: ScenarioRun, kind: str) -> list[tuple[float, str]]:
    return [(round(each.at_s, 1), each.text) for each in done.outcome.trace.events if each.kind == kind]


def test_steps_beside_the_others_act_at_their_own_times() -> None:
    done = run(
        "meanwhile:\n"
        "  - {at: 6s, scale: {workload: ReplicaSet/web, to: 2}}\n"
        "  - {at: 3s, note: earlier}\n"
        "expect:\n  - {count: Pod, labels: {app: web}, is: 2, within: 5s}"
    )
    assert done.passed, done.violation
    steps = [text.partition(" ")[0] for _, text in texts(done, "step")]
    assert steps == ["admit", "expect", "note", "scale", "note"]


def test_a_step_beside_the_others_that_cannot_be_done_is_left_out() -> None:
    done = run("meanwhile:\n  - {at: 3s, restart: nothing}")
    assert done.passed, done.violation
    [(_, text)] = texts(done, "skipped")
    assert "no component nothing runs here" in text


def test_a_state_that_must_never_be_breaks_the_run() -> None:
    bad = "expect:\n  - {name: no replica, count: Pod, labels: {app: web}, at least: 1, never: true}"
    violation = run(bad).violation
    assert violation is not None
    assert violation.invariant == "no replica"
    assert run(bad.replace("at least: 1", "at least: 2")).passed


def test_a_process_ends_with_its_code_and_starts_again() -> None:
    done = run(
        "meanwhile:\n  - {at: 8s, end process: {of: Pod/web-0, code: 3}}\n"
        "  - {at: 9s, end process: {of: Pod/none, code: 3}}\n"
        "expect:\n  - {object: ReplicaSet/web, field: status.readyReplicas, is: 1, within: 30s}"
    )
    assert done.passed, done.violation
    process = [text for _, text in texts(done, "process")]
    assert process[1].startswith("node-a ended default/web-0 with 3")
    assert process[2] == "node-a starts default/web-0 main 1"
    assert "Pod/default/none runs nowhere" in texts(done, "skipped")[0][1]


@pytest.mark.parametrize("step", ["{note: no time}", "{at: 1s, expect: {object: Pod/web-0, within: 1s}}"])
def test_a_step_beside_the_others_needs_a_time_and_a_verb(step: str) -> None:
    with pytest.raises(ScenarioError, match="a step in `meanwhile` has `at` and a verb"):
        parse_scenario(FILE.format(more=f"meanwhile:\n  - {step}"))


def test_a_running_cluster_has_no_steps_beside_the_others() -> None:
    with pytest.raises(ScenarioError, match="`meanwhile` works in simulations only"):
        check_live(parse_scenario(FILE.format(more="meanwhile:\n  - {at: 3s, note: x}")))
