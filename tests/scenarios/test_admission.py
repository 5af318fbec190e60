"""Admission policies in scenario files: they mutate, refuse, and change in mid-run, on one server before the others."""

from __future__ import annotations

import json

import pytest

from kedge.sim.scenario import ScenarioError, ScenarioRun, parse_scenario, run_scenario
from kedge.sim.scenario.kept_runs import objects_at

HEAD = """\
scenario: small
story: Policies are added and removed.
world:
  servers: 2
  nodes:
    - {name: node-a}
    - {name: node-b}
  controllers: [deployment, replicaset, node-lifecycle]
"""
WEB = """\
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: web}
      spec:
        replicas: 2
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec: {containers: [{name: main, image: "web:1"}]}
"""


def run_with(rest: str) -> ScenarioRun:
    return run_scenario(parse_scenario(HEAD + rest))


def test_a_mutating_policy_sets_fields_and_is_recorded_in_the_object() -> None:
    done = run_with(
        """\
  admission:
    - {name: team, kinds: [Pod], on: [create], merge: {metadata: {labels: {example.com/team: risk}}}}
steps:
  - admit:
"""
        + WEB
        + """\
expect:
  - {count: Pod, labels: {example.com/team: risk}, ready: true, is: 2, within: 2m}
"""
    )
    assert done.passed, done.violation
    pods = [each for each in objects_at(done.recording) if each["kind"] == "Pod"]
    (mutation,) = json.loads(pods[0]["metadata"]["annotations"]["kedge.dev/mutations"])
    assert (mutation["policy"], mutation["paths"]) == ("team", ["/metadata/labels/example.com~1team"])


def test_changed_policies_apply_to_later_writes() -> None:
    done = run_with(
        """\
steps:
  - admit:
"""
        + WEB
        + """\
  - expect: {object: Deployment/web, field: status.readyReplicas, is: 2, within: 2m}
  - change admission:
      policies:
        - {name: season, kinds: [Pod], on: [create], merge: {metadata: {labels: {season: autumn}}}}
  - scale: {workload: Deployment/web, to: 3}
  - expect: {count: Pod, labels: {season: autumn}, ready: true, is: 1, within: 2m}
  - change admission: {policies: []}
  - scale: {workload: Deployment/web, to: 4}
  - expect: {object: Deployment/web, field: status.readyReplicas, is: 4, within: 2m}
  - expect: {count: Pod, labels: {season: autumn}, is: 1, within: 1s}
"""
    )
    assert done.passed, done.violation
    assert [text for _, kind, text in done.timeline if kind == "admission"] == ["policies changed on every server"] * 2


def test_a_refusal_is_reported_until_its_policy_is_removed() -> None:
    done = run_with(
        """\
steps:
  - change admission:
      policies:
        - {name: freeze, kinds: [Pod], on: [create], where: {metadata.labels.app: web}, refuse: it is a holiday}
  - admit:
"""
        + WEB
        + """\
  - expect: {object: Deployment/web, condition: ReplicaFailure, reason: Forbidden, within: 1m}
  - expect: {count: Pod, is: 0, within: 1s}
  - change admission: {policies: []}
expect:
  - {object: Deployment/web, field: status.readyReplicas, is: 2, within: 5m}
  - {object: Deployment/web, condition: ReplicaFailure, status: "False", within: 1m}
"""
    )
    assert done.passed, done.violation


def test_a_policy_on_one_server_is_not_on_the_others() -> None:
    done = run_with(
        """\
steps:
  - change admission:
      server: api-1
      policies:
        - {name: freeze, kinds: [Deployment], on: [create], refuse: not here}
  - admit:
"""
        + WEB  # the user is connected to api-0
        + """\
expect:
  - {object: Deployment/web, field: status.readyReplicas, is: 2, within: 5m}
"""
    )
    assert done.passed, done.violation


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{name: a, kinds: [Pod]}", "either `merge` or `refuse`"),
        ("{name: a, kinds: [Pod], merge: {a: b}, refuse: never}", "either `merge` or `refuse`"),
        ("{name: a, kinds: [Podd], refuse: never}", "did you mean `Pod`?"),
        ("{name: a, kinds: [Pod], on: [get], refuse: never}", "write create, update or delete"),
        ("{name: a, kind: [Pod], refuse: never}", "has no `kind`: did you mean `kinds`?"),
    ],
)
def test_an_invalid_policy_is_rejected(policy: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=r"scenario\.yaml:") as failed:
        parse_scenario(HEAD + f"steps:\n  - change admission: {{policies: [{policy}]}}\n")
    assert message in str(failed.value)


def test_an_unknown_server_is_an_error() -> None:
    done = run_with("steps:\n  - change admission: {policies: [], server: api-9}\n")
    assert done.violation is not None
    assert "the scenario has api-0, api-1" in done.violation.message
