"""The search around a recorded run finds the fault that it only just missed, and what a bad run needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kedge.cli.hunt import hunt
from kedge.cli.incident import incident
from kedge.sim.incident.draft import ScenarioDraft
from kedge.sim.incident.nearby_faults import neighbours, search_order
from kedge.sim.incident.regression import NothingBroken, read_bad, with_bad, write_test
from kedge.sim.incident.rerun import load_program
from kedge.sim.kernel import ReplayVerdict, read_artefact
from kedge.sim.scenario import ScenarioError, parse_scenario, read_scenario, run_scenario
from kedge.sim.scenario.document import parse
from kedge.sim.scenario.kept_runs import keep_run, replay_kept
from kedge.sim.scenario.kept_scenarios import kept_scenario

TWO = """\
scenario: two-schedulers
story: Two schedulers place a pod each on a node with room for one; the second waits for a label.
seed: 5
world:
  nodes:
    - {name: node-a, resources: {cpu: 1}}
  schedulers: {default-scheduler: 1, batch-scheduler: 1}
steps:
  - admit:
      apiVersion: v1
      kind: Pod
      metadata: {name: second}
      spec:
        nodeSelector: {fast: "true"}
        containers: [{name: main, image: "web:1", resources: {requests: {cpu: 800m}}}]
  - at: 1s
    admit:
      apiVersion: v1
      kind: Pod
      metadata: {name: first}
      spec:
        schedulerName: batch-scheduler
        containers: [{name: main, image: "web:1", resources: {requests: {cpu: 800m}}}]
  - at: 4s
    change: {object: Node/node-a, patch: {metadata: {labels: {fast: "true"}}}}
  - at: 8s
    note: the end
weak:
  - without: bind-from-cache
    breaks: no commit adds to an overfull node
settles within: 0s
"""
RULE = "no commit adds to an overfull node"
LATE = [
    {"at": "900ms", "delay watch": {"of": "Pod", "by": "20s", "to": "default-scheduler"}},
    {"at": "900ms", "delay watch": {"of": "NodeAllocation", "by": "2s", "to": "default-scheduler"}},
    {"at": "2s", "lose reply": {"to": "bind", "on": "Pod/none"}},
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_scenario(parse_scenario(TWO), without="bind-from-cache", keep=True)
    assert run.passed, run.violation
    return keep_run(run, tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draft = ScenarioDraft(parse(TWO, "two.yaml").plain()).beside(*LATE)
    run = run_scenario(draft.scenario(), without="bind-from-cache", keep=True)
    assert run.violation is not None
    assert run.violation.invariant == RULE
    return keep_run(run, tmp_path_factory.mktemp("bad"))


def test_the_search_around_a_good_recording_finds_the_bad_neighbour(good: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(hunt, [str(good), "--runs", "60", "--directory", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 1
    assert f"failure at distance 0.3: {RULE}" in done.output
    assert "to default-scheduler at least 3." in done.output, "the label came 3 s after the first pod"
    assert "it needs change (object Node/node-a, patch {'metadata': {'labels': {'fast': 'true'}}}) at 4s" in done.output
    [kept] = tmp_path.glob("*.kedge")
    artefact = read_artefact(kept)
    scenario = kept_scenario(artefact)
    assert scenario is not None
    assert replay_kept(artefact, scenario).verdict is ReplayVerdict.SAME


def test_neighbours_come_by_growing_distance(good: Path) -> None:
    found = neighbours(load_program(good))
    distances = [each.distance for each in found]
    assert distances == sorted(distances)
    verbs = {name for each in found for step in each.steps for name in step if name != "at"}
    assert verbs == {"delay watch", "lose reply", "depose leader", "restart leader", "partition node", "lose node"}
    assert any(len(each.steps) > 1 for each in found)


def test_a_search_tries_every_neighbour_and_soon_one_of_each_sort(good: Path) -> None:
    program = load_program(good)
    order = search_order(program)
    assert {each.text for each in neighbours(program)} <= {each.text for each in order}
    assert len({each.text for each in order}) == len(order)
    soon = [name for each in order[:25] for step in each.steps for name in step if name != "at"]
    assert {"delay watch", "lose reply", "depose leader", "partition node"} <= set(soon)
    assert any(len(each.steps) > 1 for each in order[:3]), "all watches of a component, late together"


def test_a_bad_recording_has_its_necessary_conditions(bad: Path) -> None:
    done = CliRunner().invoke(hunt, [str(bad)], catch_exceptions=False)
    assert done.exit_code == 1
    assert f"the recorded run is bad: {RULE}" in done.output
    assert "it needs the watch of Pod to default-scheduler at least 3." in done.output
    assert "s late, from 900ms on" in done.output
    assert "it does not need delay watch (of NodeAllocation, by 2s, to default-scheduler) at 900ms" in done.output
    assert "it does not need lose reply (to bind, on Pod/none) at 2s" in done.output
    [label] = [line for line in done.output.splitlines() if "it needs change (object Node/node-a" in line]
    before = re.search(r"at 4s, before (2\d)\.", label)
    assert before is not None, "the watch catches up 20 s after the begin of its delay"
    assert ", after 1" in label, "the first pod is bound 1 s after the begin"


def test_a_bad_state_is_hunted_as_a_rule(good: Path, tmp_path: Path) -> None:
    sound = ["--without", "grace", "--runs", "2", "--directory", str(tmp_path)]
    done = CliRunner().invoke(hunt, [str(good), *sound, "--bad", "count: Pod, at least: 2"], catch_exceptions=False)
    assert "the recorded run is bad: never: number of pods at least 2" in done.output
    done = CliRunner().invoke(hunt, [str(good), *sound, "--bad", "count: Pod, at least: 3"], catch_exceptions=False)
    assert "no neighbour of the recorded run breaks a rule" in done.output
    assert done.exit_code == 0
    assert CliRunner().invoke(hunt, ["small", "--bad", "count: Pod, at least: 3"]).exit_code == 2


def test_the_test_of_an_incident_fails_until_it_is_mended(bad: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(incident, ["test", str(bad), "--out", str(tmp_path)], catch_exceptions=False)
    assert f"broken: {RULE}" in done.output
    scenario = read_scenario(tmp_path / "two_schedulers.yaml")
    broken = run_scenario(scenario, without="bind-from-cache").violation
    assert broken is not None
    assert broken.invariant == RULE
    namespace = {"__file__": str(tmp_path / "test_two_schedulers.py")}
    exec((tmp_path / "test_two_schedulers.py").read_text(), namespace)
    namespace["test_two_schedulers_does_not_happen_again"]()  # type: ignore[operator]


def test_an_incident_that_breaks_nothing_needs_a_bad_state(good: Path, tmp_path: Path) -> None:
    with pytest.raises(NothingBroken, match="--bad"):
        write_test(load_program(good), tmp_path)
    made = write_test(with_bad(load_program(good), "object: Pod/second"), tmp_path)
    assert made.rule == "never: Pod/default/second exists"


@pytest.mark.parametrize("text", ["nonsense", "count: Nothing, is: 1", "- 1"])
def test_a_bad_state_must_be_a_predicate(text: str) -> None:
    with pytest.raises(ScenarioError):
        read_bad(text)
