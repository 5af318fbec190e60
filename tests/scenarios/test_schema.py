"""An error in a scenario file names its location and what to write instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.kit.dumps import real_dump

from kedge.sim.kernel import ReplayVerdict, read_artefact
from kedge.sim.scenario import (
    ScenarioError,
    keep_run,
    library_names,
    load_scenario,
    parse_scenario,
    read_scenario,
    run_scenario,
)
from kedge.sim.scenario.kept_runs import extract_run, load_kept_scenario, replay_kept
from kedge.sim.scenario.kept_scenarios import kept_scenario
from kedge.sim.scenario.steps import VERBS

HEAD = """\
scenario: small
story: Nothing happens.
world:
  nodes:
    - {name: node-a}
"""


def fails(content: str, *, at: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(content, "small.yaml")
    found = str(caught.value)
    assert found.startswith(f"small.yaml:{at}: "), found
    assert message in found


@pytest.mark.parametrize(
    ("content", "at", "message"),
    [
        ("", "1:1", "the file is empty: begin with `scenario: NAME`"),
        ("a: [1\nb: 2", "2:2", "this is not YAML"),
        ("scenario: x\nscenario: y\n", "2:1", "'scenario' is here twice: remove one (the first is on line 1)"),
        ("- a\n", "1:1", "a scenario must be a mapping"),
        ("scenario: x\n", "1:1", "a scenario lacks `story`: add it"),
        (HEAD + "steps: []\nexpcet: []\n", "7:1", "a scenario has no `expcet`: did you mean `expect`?"),
        (HEAD + "seed: seven\nsteps: []\n", "6:7", "expected a whole number from 0 up, got 'seven'"),
        (HEAD.replace("name:", "nme:") + "steps: []\n", "5:8", "a node has no `nme`: did you mean `name`?"),
        (HEAD.replace("world:", "wrld:") + "steps: []\n", "3:1", "a scenario has no `wrld`: did you mean `world`?"),
        (HEAD.replace("name: node-a", "zone: a") + "steps: []\n", "5:7", "a node lacks `name`: add it"),
        (HEAD + "  servers: 0\nsteps: []\n", "6:12", "expected at least 1, got 0"),
        (HEAD + "  controllers: [replicasett]\nsteps: []\n", "6:17", "did you mean `replicaset`?"),
        (HEAD + "  limits: {node_lost: 5}\nsteps: []\n", "6:12", "did you mean `node_lost_s`?"),
        (HEAD + "  limits: {node_lost_s: soon}\nsteps: []\n", "6:25", "`node_lost_s` must be a number"),
        (HEAD + "  objects:\n    - {kind: Pod}\nsteps: []\n", "7:7", "an object lacks `apiVersion`"),
        (HEAD + "  objects:\n    - {apiVersion: v1, kind: Pod}\nsteps: []\n", "7:7", "lacks `metadata.name`"),
        (
            HEAD + "  objects:\n    - {apiVersion: v2, kind: Pod, metadata: {name: a}}\nsteps: []\n",
            "7:30",
            "Pod is in v1: correct `apiVersion` or `kind`",
        ),
        (HEAD + "steps:\n  - cordonn: node-a\n", "7:5", "exactly one verb: did you mean `cordon`?"),
        (HEAD + "steps:\n  - {cordon: a, uncordon: b}\n", "7:5", "exactly one verb: it has 2 of them"),
        (HEAD + "steps:\n  - {cordon: a, at: 3}\n", "7:21", "expected a duration, such as 8s or 1m30s, got 3"),
        (
            HEAD + "steps:\n  - {cordon: a, at: 3s, after: 2s}\n",
            "7:5",
            "a step has either `at`, or `when` and `after`: remove one",
        ),
        (HEAD + "steps:\n  - {cordon: a, wen: {}}\n", "7:17", "did you mean `when`?"),
        (HEAD + "steps:\n  - delay watch: {of: Pod}\n", "7:18", "`delay watch` lacks `by`: add it"),
        (
            HEAD + "steps:\n  - delay watch: {of: Podd, by: 8s}\n",
            "7:23",
            "there is no kind `Podd`: did you mean `Pod`?",
        ),
        (
            HEAD + "steps:\n  - load: {workload: Deployment/a, cpu: much}\n",
            "7:41",
            "write an amount, such as 4 or 500m",
        ),
        (HEAD + "steps:\n  - roll back: risk-api\n", "7:16", "expected the name of an object, such as Pod/web"),
        (HEAD + "steps:\n  - delete: Node/default/node-a\n", "7:13", "a Node has no namespace: write Node/node-a"),
        (
            HEAD + "steps:\n  - lose reply: {to: bnd, on: Pod/a}\n",
            "7:22",
            "`bnd` is not a write: did you mean `bind`?",
        ),
        (HEAD + "steps:\n  - lose reply: {to: bind, on: Pod/a, after: lunch}\n", "7:46", "expected `commit`"),
        (
            HEAD + "steps: []\nexpect:\n  - {object: Pod/a}\n",
            "8:5",
            "one of `within: 60s`, `always: true` and `never: true`",
        ),
        (HEAD + "steps: []\nexpect:\n  - {within: 5s}\n", "8:5", "exactly one of `object`, `count`"),
        (HEAD + "steps: []\nexpect:\n  - {count: Pod, within: 5s}\n", "8:5", "add `is`, `at least` or `at most`"),
        (
            HEAD + "steps: []\nexpect:\n  - {count: Node, ready: true, is: 1, within: 5s}\n",
            "8:5",
            "`ready` applies to pods only",
        ),
        (
            HEAD + "steps: []\nweak:\n  - {without: bind-from-cash, breaks: x}\n",
            "8:15",
            "did you mean `bind-from-cache`?",
        ),
    ],
)
def test_an_error_names_its_location_and_what_to_write(content: str, at: str, message: str) -> None:
    fails(content, at=at, message=message)


def test_a_small_file_is_parsed() -> None:
    found = parse_scenario(
        HEAD
        + """\
seed: 7
steps:
  - at: 90s
    lose reply: {to: bind, on: Pod/web-*, by: default-scheduler}
  - when: {struck: reply to bind}
    after: 500ms
    restart leader: default-scheduler
expect:
  - {count: Pod, at most: 3, always: true}
  - {object: Deployment/shop/web, condition: Bound, within: 1m30s}
"""
    )
    lost, restarted = found.steps
    assert (found.seed, lost.at_s, restarted.at_s, restarted.after_s) == (7, 90.0, None, 0.5)
    assert lost.summary == "lose reply to bind on Pod/default/web-* by default-scheduler"
    assert restarted.when is not None
    always, bound = found.expect
    assert (always.name, always.within_s) == ("number of pods at most 3", None)
    assert (bound.name, bound.within_s) == ("Deployment.apps/shop/web has Bound=True", 90.0)


def test_an_expectation_that_does_not_hold_in_time_fails_the_run_by_its_name() -> None:
    expect = "expect:\n  - {name: a ghost appears, object: Pod/ghost, within: 5s}\n"
    done = run_scenario(parse_scenario(HEAD + "steps: []\n" + expect))
    assert done.violation is not None
    assert done.violation.invariant == "a ghost appears"
    assert "line 8: not within 5s: Pod/default/ghost exists, but it does not exist" in done.violation.message


def test_an_always_expectation_fails_the_run_at_the_commit_that_breaks_it() -> None:
    steps = "steps:\n  - admit: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n    at: 3s\n"
    expect = "expect:\n  - {name: no config, count: ConfigMap, at most: 0, always: true}\n"
    done = run_scenario(parse_scenario(HEAD + steps + expect))
    assert done.violation is not None
    assert done.violation.invariant == "no config"
    assert done.violation.message.startswith("line 10: ")


def test_a_when_that_never_holds_fails_the_run_and_names_the_step() -> None:
    steps = "steps:\n  - {when: {struck: anything}, waiting at most: 10s, note: never}\n"
    done = run_scenario(parse_scenario(HEAD + steps))
    assert done.violation is not None
    assert done.violation.invariant == "step 1 starts in time"
    assert done.violation.message.startswith("line 7: ")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("lose node: node-z", "there is no node node-z: the scenario has node-a"),
        ("restart leader: replicaset", "replicaset has no leader now"),
        ("restart: bakery", "no component bakery runs here"),
        ("lose node: {of: Deployment/web}", "name another workload"),
        ("roll back policy: {policy: p, to: v4}", "never had version v4"),
        ("scale: {workload: Deployment/web, to: 2}", "not found"),
        ("admit: {apiVersion: v1, kind: Pod, metadata: {name: web}}", "spec.containers"),
    ],
)
def test_the_message_of_a_failed_step_has_the_cause(step: str, message: str) -> None:
    done = run_scenario(parse_scenario(HEAD + f"steps:\n  - {step}\n"))
    assert done.violation is not None
    assert done.violation.invariant == "step 1 can be done"
    assert done.violation.message.startswith("line 7: ")
    assert message in done.violation.message


def test_the_message_of_a_failed_setup_has_the_cause() -> None:
    objects = "  objects:\n    - {apiVersion: v1, kind: Pod, metadata: {name: web}}\n"
    done = run_scenario(parse_scenario(HEAD + objects + "steps: []\n"))
    assert done.violation is not None
    assert done.violation.invariant == "the world can be set up"
    assert "spec.containers" in done.violation.message


def test_the_error_for_an_unknown_scenario_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="did you mean `missing-replica`"):
        load_scenario("mising-replica")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario(str(tmp_path / "none.yaml"))


def test_an_unknown_safeguard_is_refused() -> None:
    with pytest.raises(ScenarioError, match="there is no safeguard 'luck' to remove"):
        run_scenario(parse_scenario(HEAD + "steps: []\n"), without="luck")


def test_the_file_in_the_docs_passes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    (content,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    done = run_scenario(parse_scenario(content))
    assert done.passed, done.violation


def test_every_step_and_every_scenario_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    for name in VERBS:
        assert f"`{name}: " in page, name
    for name in library_names():
        assert f"| `{name}` |" in page, name


DUMPED = """\
scenario: small
story: A real cluster continues here.
world:
  dump: cluster.json
  controllers: [deployment, replicaset, garbage, node-lifecycle]
steps:
  - scale: {workload: Deployment/web, to: 4}
expect:
  - {object: Deployment/web, field: status.readyReplicas, is: 4, within: 3m}
  - {count: Pod, node: node-a, at least: 1, always: true}
"""


def test_a_kept_run_contains_its_dump(tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "d.json").write_text(json.dumps(real_dump()))
    file = tmp_path / "dumped.yaml"
    file.write_text(DUMPED.replace("cluster.json", "'clusters/d.json'"))
    done = run_scenario(read_scenario(file))
    artefact = read_artefact(keep_run(done, tmp_path / "runs"))
    kept = kept_scenario(artefact)
    assert kept is not None
    assert run_scenario(load_kept_scenario(kept)).outcome.hash == done.outcome.hash
    assert replay_kept(artefact, kept).verdict is ReplayVerdict.SAME
    extract_run(artefact, tmp_path / "parts")
    again = run_scenario(read_scenario(tmp_path / "parts" / "scenario.yaml"))
    assert again.outcome.hash == done.outcome.hash
    source = (tmp_path / "parts" / "scenario.yaml").read_text()
    assert source.rstrip() == DUMPED.replace("cluster.json", "'dump.json'").rstrip()


def test_a_scenario_may_start_from_the_dump_of_a_real_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(real_dump()))
    file = tmp_path / "dumped.yaml"
    file.write_text(DUMPED)
    done = run_scenario(read_scenario(file))
    assert done.passed, f"{done.violation}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the dump cannot be read"),
        ("not JSON", "is not JSON"),
        ("{}", "item 0 has no metadata.name"),
    ],
)
def test_the_error_for_a_bad_dump_has_the_location_of_its_name(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "cluster.json").write_text(content)
    file = tmp_path / "dumped.yaml"
    file.write_text(DUMPED)
    with pytest.raises(ScenarioError, match=r"dumped\.yaml:4:9") as failed:
        read_scenario(file)
    assert message in str(failed.value)
