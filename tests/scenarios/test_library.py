"""The library: real controllers pass every scenario; a weak variant breaks the rule that its file names."""

from __future__ import annotations

import pytest
from tests.kit.scenarios import finished

from kedge.sim.scenario import library_names, load_scenario, parse_scenario, run_scenario

WEAK = [(name, each.name, each.breaks) for name in library_names() for each in load_scenario(name).weak]


@pytest.mark.parametrize("name", library_names())
def test_the_real_controllers_pass(name: str) -> None:
    done = finished(name)
    assert done.passed, f"{done.violation}\n" + "\n".join("  ".join(row) for row in done.timeline[-40:])


@pytest.mark.parametrize(("name", "without", "breaks"), WEAK)
def test_a_weak_variant_breaks_the_rule_that_its_file_names(name: str, without: str, breaks: str) -> None:
    done = finished(name, without)
    assert done.violation is not None, f"{name} passes without {without}"
    assert done.violation.invariant == breaks


@pytest.mark.parametrize("name", library_names())
def test_every_scenario_has_the_name_of_its_file_a_lesson_and_a_weak_variant(name: str) -> None:
    found = load_scenario(name)
    assert found.name == name
    assert found.lesson
    assert found.story
    assert found.weak


def test_the_same_file_and_seed_give_the_same_run_and_another_seed_another() -> None:
    found = load_scenario("stale-policy-canary")
    first, second = run_scenario(found), run_scenario(found)
    assert first.outcome.hash == second.outcome.hash
    assert first.timeline == second.timeline
    assert run_scenario(found, seed=found.seed + 1).outcome.hash != first.outcome.hash


def test_a_safeguard_is_restored_after_a_weak_run() -> None:
    found = load_scenario("stale-policy-canary")
    assert not run_scenario(found, without="bind-from-cache").passed
    assert run_scenario(found).passed


def test_a_timeline_has_steps_faults_and_commits_in_order() -> None:
    done = finished("stale-policy-canary")
    kinds = {kind for _, kind, _ in done.timeline}
    assert {"step", "fault", "committed", "refused", "held"} <= kinds
    times = [at for at, _, _ in done.timeline]
    assert times == sorted(times)
    texts = [text for _, _, text in done.timeline]
    taken = texts.index("Pod training bound to node-b7")
    assert taken < texts.index("Pod risk-api-2 bound to node-c2")


def test_a_timeline_has_every_stage_of_a_lost_node() -> None:
    texts = [text for _, kind, text in finished("missing-replica").timeline if kind == "committed"]
    lost = next(text for text in texts if text.endswith("DisruptionTarget=True (NodeLost)")).split()[1]
    assert f"Pod {lost} bound to node-gpu-7" in texts
    stages = [
        "Node node-gpu-7 Suspect=True (HeartbeatLate)",
        "Node node-gpu-7 Ready=Unknown (NodeStatusUnknown)",
        "Node node-gpu-7 Lost=True (HeartbeatsLost)",
        f"Pod {lost} DisruptionTarget=True (NodeLost)",
        f"Pod {lost} ended: Failed, NodeLost",
    ]
    assert [each for each in texts if each in stages] == stages


HELD = """\
scenario: held
story: A user holds a Deployment off its controller, and a Job runs meanwhile.
world:
  nodes: [{name: node-a}]
  controllers: [deployment, replicaset, job]
steps:
  - admit:
      apiVersion: apps/v1
      kind: Deployment
      metadata:
        name: web
        annotations: {hold.kedge.dev/deployment: owner=ada until=2026-01-01T00:01:00Z reason=a look}
      spec:
        replicas: 1
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec: {containers: [{name: main, image: "web:1"}]}
  - {when: {object: Deployment/web, condition: Held}, note: no controller changes it}
  - expect: {count: Pod, is: 0, within: 1s}
expect:
  - {object: Deployment/web, condition: Held, status: "False", within: 3m}
  - {count: Pod, ready: true, is: 1, within: 1m}
"""


def test_a_timeline_has_the_begin_and_the_end_of_a_hold() -> None:
    done = run_scenario(parse_scenario(HELD))
    assert done.passed, done.violation
    texts = [text for _, _, text in done.timeline]
    held, free = texts.index("Deployment web Held=True (HeldByPerson)"), "Deployment web Held=False"
    assert any(each.startswith(free) for each in texts[held:])
