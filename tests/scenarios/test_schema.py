"""What is wrong in a scenario file is told with its place, and with what to write instead."""

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
from kedge.sim.scenario.kept_runs import extract_run, kept_scenario, load_kept_scenario, replay_kept
from kedge.sim.scenario.steps import VERBS

HEAD = """\
scenario: small
story: Nothing happens.
world:
  nodes:
    - {name: node-a}
"""


def fails(content: str, *, at: str, saying: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(content, "small.yaml")
    message = str(caught.value)
    assert message.startswith(f"small.yaml:{at}: "), message
    assert saying in message


@pytest.mark.parametrize(
    ("content", "at", "saying"),
    [
        ("", "1:1", "the file is empty: begin with `scenario: NAME`"),
        ("a: [1\nb: 2", "2:2", "this is no YAML"),
        ("scenario: x\nscenario: y\n", "2:1", "'scenario' is here twice: keep one (the first is on line 1)"),
        ("- a\n", "1:1", "a scenario is a mapping"),
        ("scenario: x\n", "1:1", "a scenario lacks `story`: add it"),
        (HEAD + "steps: []\nexpcet: []\n", "7:1", "a scenario has no `expcet`: did you mean `expect`?"),
        (HEAD + "seed: seven\nsteps: []\n", "6:7", "this is a whole number from 0 up, and 'seven' is none"),
        (HEAD.replace("name:", "nme:") + "steps: []\n", "5:8", "a node has no `nme`: did you mean `name`?"),
        (HEAD.replace("world:", "wrld:") + "steps: []\n", "3:1", "a scenario has no `wrld`: did you mean `world`?"),
        (HEAD.replace("name: node-a", "zone: a") + "steps: []\n", "5:7", "a node lacks `name`: add it"),
        (HEAD + "  servers: 0\nsteps: []\n", "6:12", "there must be at least 1"),
        (HEAD + "  controllers: [replicasett]\nsteps: []\n", "6:17", "did you mean `replicaset`?"),
        (HEAD + "  limits: {node_lost: 5}\nsteps: []\n", "6:12", "did you mean `node_lost_s`?"),
        (HEAD + "  limits: {node_lost_s: soon}\nsteps: []\n", "6:25", "`node_lost_s` is a number"),
        (HEAD + "  objects:\n    - {kind: Pod}\nsteps: []\n", "7:7", "an object lacks `apiVersion`"),
        (HEAD + "  objects:\n    - {apiVersion: v1, kind: Pod}\nsteps: []\n", "7:7", "lacks `metadata.name`"),
        (
            HEAD + "  objects:\n    - {apiVersion: v2, kind: Pod, metadata: {name: a}}\nsteps: []\n",
            "7:30",
            "Pod is in v1: correct `apiVersion` or `kind`",
        ),
        (HEAD + "steps:\n  - cordonn: node-a\n", "7:5", "exactly one thing: did you mean `cordon`?"),
        (HEAD + "steps:\n  - {cordon: a, uncordon: b}\n", "7:5", "exactly one thing: it has 2 of them"),
        (HEAD + "steps:\n  - {cordon: a, at: 3}\n", "7:21", "this is a duration, such as 8s or 1m30s, and 3 is none"),
        (
            HEAD + "steps:\n  - {cordon: a, at: 3s, after: 2s}\n",
            "7:5",
            "a step has `at`, or `when` and `after`: keep one",
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
        (HEAD + "steps:\n  - roll back: risk-api\n", "7:16", "this names an object, as in Pod/web"),
        (HEAD + "steps:\n  - delete: Node/default/node-a\n", "7:13", "a Node is in no namespace: write Node/node-a"),
        (
            HEAD + "steps:\n  - lose reply: {to: bnd, on: Pod/a}\n",
            "7:22",
            "`bnd` is no write: did you mean `bind`?",
        ),
        (HEAD + "steps:\n  - lose reply: {to: bind, on: Pod/a, after: lunch}\n", "7:46", "after `commit`"),
        (HEAD + "steps: []\nexpect:\n  - {object: Pod/a}\n", "8:5", "give it `within: 60s`, or `always: true`"),
        (HEAD + "steps: []\nexpect:\n  - {within: 5s}\n", "8:5", "exactly one of `object`, `count`"),
        (HEAD + "steps: []\nexpect:\n  - {count: Pod, within: 5s}\n", "8:5", "add `is`, `at least` or `at most`"),
        (
            HEAD + "steps: []\nexpect:\n  - {count: Node, ready: true, is: 1, within: 5s}\n",
            "8:5",
            "only pods are counted by `ready`",
        ),
        (
            HEAD + "steps: []\nweak:\n  - {without: bind-from-cash, breaks: x}\n",
            "8:15",
            "did you mean `bind-from-cache`?",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_to_write(content: str, at: str, saying: str) -> None:
    fails(content, at=at, saying=saying)


def test_a_small_file_is_read_as_it_says() -> None:
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
    assert (bound.name, bound.within_s) == ("Deployment.apps/shop/web says Bound=True", 90.0)


def test_an_expectation_that_does_not_come_true_fails_the_run_by_its_name() -> None:
    expect = "expect:\n  - {name: a ghost appears, object: Pod/ghost, within: 5s}\n"
    played = run_scenario(parse_scenario(HEAD + "steps: []\n" + expect))
    assert played.violation is not None
    assert played.violation.invariant == "a ghost appears"
    assert "line 8: not within 5s: Pod/default/ghost is there, but it is not there" in played.violation.message


def test_what_must_hold_always_fails_the_run_at_the_commit_that_breaks_it() -> None:
    steps = "steps:\n  - admit: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n    at: 3s\n"
    expect = "expect:\n  - {name: no config, count: ConfigMap, at most: 0, always: true}\n"
    played = run_scenario(parse_scenario(HEAD + steps + expect))
    assert played.violation is not None
    assert played.violation.invariant == "no config"
    assert played.violation.message.startswith("line 10: ")


def test_a_moment_that_never_comes_fails_the_run_and_names_the_step() -> None:
    steps = "steps:\n  - {when: {struck: anything}, waiting at most: 10s, note: never}\n"
    played = run_scenario(parse_scenario(HEAD + steps))
    assert played.violation is not None
    assert played.violation.invariant == "step 1 has its moment"
    assert played.violation.message.startswith("line 7: ")


@pytest.mark.parametrize(
    ("step", "saying"),
    [
        ("lose node: node-z", "there is no node node-z: the world has node-a"),
        ("restart leader: replicaset", "nobody leads as replicaset now"),
        ("restart: bakery", "nothing of the name bakery runs here"),
        ("lose node: {of: Deployment/web}", "name a workload that is there"),
        ("roll back policy: {policy: p, to: v4}", "never was at v4"),
        ("scale: {workload: Deployment/web, to: 2}", "not found"),
        ("admit: {apiVersion: v1, kind: Pod, metadata: {name: web}}", "spec.containers"),
    ],
)
def test_a_step_that_cannot_be_done_says_why(step: str, saying: str) -> None:
    played = run_scenario(parse_scenario(HEAD + f"steps:\n  - {step}\n"))
    assert played.violation is not None
    assert played.violation.invariant == "step 1 can be done"
    assert played.violation.message.startswith("line 7: ")
    assert saying in played.violation.message


def test_a_world_that_cannot_be_set_up_says_why() -> None:
    objects = "  objects:\n    - {apiVersion: v1, kind: Pod, metadata: {name: web}}\n"
    played = run_scenario(parse_scenario(HEAD + objects + "steps: []\n"))
    assert played.violation is not None
    assert played.violation.invariant == "the world can be set up"
    assert "spec.containers" in played.violation.message


def test_a_name_that_nothing_has_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="did you mean `missing-replica`"):
        load_scenario("mising-replica")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_scenario(str(tmp_path / "none.yaml"))


def test_a_safeguard_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScenarioError, match="there is no safeguard 'luck' to remove"):
        run_scenario(parse_scenario(HEAD + "steps: []\n"), without="luck")


def test_the_file_in_the_docs_is_played_as_it_stands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    (content,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    played = run_scenario(parse_scenario(content))
    assert played.passed, played.violation


def test_every_step_and_every_scenario_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    for name in VERBS:
        assert f"`{name}: " in page, name
    for name in library_names():
        assert f"| `{name}` |" in page, name


DUMPED = """\
scenario: small
story: A real cluster goes on here.
world:
  dump: cluster.json
  controllers: [deployment, replicaset, garbage, node-lifecycle]
steps:
  - scale: {workload: Deployment/web, to: 4}
expect:
  - {object: Deployment/web, field: status.readyReplicas, is: 4, within: 3m}
  - {count: Pod, node: node-a, at least: 1, always: true}
"""


def test_a_kept_run_brings_the_dump_that_it_began_with(tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "d.json").write_text(json.dumps(real_dump()))
    file = tmp_path / "dumped.yaml"
    file.write_text(DUMPED.replace("cluster.json", "'clusters/d.json'"))
    played = run_scenario(read_scenario(file))
    artefact = read_artefact(keep_run(played, tmp_path / "runs"))
    kept = kept_scenario(artefact)
    assert kept is not None
    assert run_scenario(load_kept_scenario(kept)).outcome.hash == played.outcome.hash
    assert replay_kept(artefact, kept).verdict is ReplayVerdict.SAME
    extract_run(artefact, tmp_path / "parts")
    again = run_scenario(read_scenario(tmp_path / "parts" / "scenario.yaml"))
    assert again.outcome.hash == played.outcome.hash
    source = (tmp_path / "parts" / "scenario.yaml").read_text()
    assert source.rstrip() == DUMPED.replace("cluster.json", "'dump.json'").rstrip()


def test_a_world_may_begin_with_the_dump_of_a_real_cluster(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(real_dump()))
    file = tmp_path / "dumped.yaml"
    file.write_text(DUMPED)
    played = run_scenario(read_scenario(file))
    assert played.passed, f"{played.violation}"


@pytest.mark.parametrize(
    ("content", "saying"),
    [
        (None, "the dump cannot be read"),
        ("not JSON", "is not JSON"),
        ("{}", "item 0 has no metadata.name"),
    ],
)
def test_a_dump_that_is_none_is_told_with_the_place_that_names_it(
    tmp_path: Path, content: str | None, saying: str
) -> None:
    if content is not None:
        (tmp_path / "cluster.json").write_text(content)
    file = tmp_path / "dumped.yaml"
    file.write_text(DUMPED)
    with pytest.raises(ScenarioError, match=r"dumped\.yaml:4:9") as failed:
        read_scenario(file)
    assert saying in str(failed.value)
