"""Hunts over scenarios: the steps stay, faults of a swarm are added, and a failure is found, kept and replayed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kedge.cli import main
from kedge.sim.kernel import ReplayVerdict, UnknownTarget, find_target, hunt, read_artefact
from kedge.sim.scenario import ScenarioError, ScenarioRun, parse_scenario, run_scenario
from kedge.sim.scenario.hunt_targets import hunt_target
from kedge.sim.scenario.kept_runs import replay_kept
from kedge.sim.scenario.kept_scenarios import kept_scenario

OWN = """\
from kedge import Action, Controller, ControllerSpec
from kedge.api.kinds import KINDS


class Marker:
    async def reconcile(self, ctx, key):
        pod = ctx.get(key)
        if pod is not None and "example.org/marked" not in pod.metadata.annotations:
            await ctx.patch(pod, {"metadata": {"annotations": {"example.org/marked": "yes"}}})
        return Action.await_change()


def marker(runtime):
    return Controller(ControllerSpec(name="marker", kind=KINDS.resolve("Pod")), Marker(), runtime)


def no_pod_is_marked(commit):
    for each in commit.of("Pod"):
        if each.new is not None and "example.org/marked" in each.new.metadata.annotations:
            yield each.key.name, f"{each.key} is marked"


def every_commit_is_seen(commit):
    assert commit.revision
"""
FILE = """\
scenario: marked
story: A controller of a user marks every pod.
world:
  nodes: [{name: node-a}]
  controllers: [replicaset, node-lifecycle, "own_parts.py:marker"]
invariants: ["own_parts.py:every_commit_is_seen"]
steps:
  - admit:
      apiVersion: apps/v1
      kind: ReplicaSet
      metadata: {name: web}
      spec:
        replicas: 1
        selector: {matchLabels: {app: web}}
        template:
          metadata: {labels: {app: web}}
          spec: {containers: [{name: main, image: "web:1"}]}
  - when: {count: Pod, ready: true, at least: 1}
    note: the replica is ready
  - after: 10s
    scale: {workload: ReplicaSet/web, to: 2}
expect:
  - {object: ReplicaSet/web, field: status.readyReplicas, is: 2, within: 1m}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_parts.py").write_text(OWN)
    (tmp_path / "marked.yaml").write_text(FILE)
    return tmp_path


def found_by(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["hunt", *arguments, "--jobs", "1", "-d", "kept"])
    return done.exit_code, done.output


# -- the hunt --------------------------------------------------------------------------------------


def test_the_hunt_over_the_weak_duplicate_reservation_finds_its_seed_which_can_be_hunted_and_replayed(
    folder: Path,
) -> None:
    code, output = found_by("duplicate-reservation", "--weak", "--seeds", "3", "--shrink-runs", "4")
    assert code == 1, output
    assert re.search(r"=== bug 1: \d of 3 seeds, first 82219\nbroken     an intent has one reservation", output)
    command = "kedge hunt duplicate-reservation --weak --start 82219 --seeds 1"
    assert f"seed 82219 recreates it: {command}" in output
    (kept,) = (folder / "kept").iterdir()
    again = CliRunner().invoke(main, ["replay", str(kept)])
    assert again.exit_code == 0, again.output
    assert "scenario duplicate-reservation without reservation-named-by-its-pod, seed 82219\n" in again.output
    assert "default-scheduler     committed  Reservation res-b created for replica-042 on node-b7" in again.output
    assert "violation  an intent has one reservation" in again.output
    assert "same: an intent has one reservation" in again.output


def test_the_same_seed_gives_the_same_run_and_the_swarm_adds_faults() -> None:
    target = hunt_target("stale-policy-canary")
    first, second = target.run(11), find_target(target.reference).run(11)
    assert first.hash == second.hash
    assert len({target.run(seed).hash for seed in (11, 12, 13)}) == 3
    drawn = [label for seed in range(11, 14) for label, _, _ in target.run(seed).tape.streams["faults"]]
    assert any(label.startswith("reply of api.") for label in drawn), "no fault point of the swarm was passed"


def test_an_own_invariant_is_broken_found_shrunk_kept_and_replayed(folder: Path) -> None:
    code, output = found_by(
        "marked.yaml", "--invariant", "own_parts.py:no_pod_is_marked", "--seeds", "3", "--executor", "inline",
        "--shrink-runs", "10",
    )  # fmt: skip
    assert code == 1, output
    assert "broken     no pod is marked" in output
    assert "kedge hunt marked.yaml --invariant own_parts.py:no_pod_is_marked --start 0 --seeds 1" in output
    (path,) = (folder / "kept").iterdir()
    artefact = read_artefact(path)
    kept = kept_scenario(artefact)
    assert kept is not None
    assert kept.hunted
    assert kept.invariants == ("own_parts.py:no_pod_is_marked",)
    (folder / "marked.yaml").unlink()  # the file of the run has its text
    assert replay_kept(artefact, kept).verdict is ReplayVerdict.SAME


def test_a_hunt_of_the_real_controllers_finds_nothing_in_workers_of_its_own(folder: Path) -> None:
    del folder
    code, output = found_by("marked.yaml", "--seeds", "8")
    assert code == 0, output
    assert "8 of 8 seeds, 0 failures" in output
    assert "mark       every step was done: " in output


def test_a_worker_refuses_a_file_that_changed(folder: Path) -> None:
    target = hunt_target("marked.yaml")
    (folder / "marked.yaml").write_text(FILE.replace("replicas: 1", "replicas: 3"))
    with pytest.raises(ScenarioError, match=r"marked\.yaml has changed since the hunt began"):
        find_target(target.reference)


def test_the_build_of_a_hunt_covers_own_modules(folder: Path) -> None:
    del folder
    assert [path.name for path in hunt_target("marked.yaml").sources] == ["own_parts.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "cannot be read"),
        (["duplicate-reservation", "--without", "luck"], "there is no safeguard 'luck' to remove"),
        (["marked.yaml", "--weak"], "marked has no weak variant: name a safeguard with --without"),
        (["marked.yaml", "--invariant", "own_parts.py:luck"], "has nothing called luck"),
        (["own_parts.py:marker", "--weak"], "are for scenarios"),
    ],
)
def test_wrong_arguments_are_explained(folder: Path, arguments: list[str], message: str) -> None:
    del folder
    code, output = found_by(*arguments)
    assert code != 0
    assert message in output


def test_in_a_hunt_a_step_that_cannot_be_taken_is_left_out_and_no_time_is_promised_before_faults_stop(
    folder: Path,
) -> None:
    steps = (
        "  - {when: {object: Pod/never}, waiting at most: 5s, note: never}\n"
        "  - {restart leader: missing}\n"
        "  - expect: {object: Pod/never, within: 1s}\n"
        "expect:\n"
    )
    (folder / "marked.yaml").write_text(FILE.replace("expect:\n", steps))
    assert not run_scenario(parse_scenario((folder / "marked.yaml").read_text())).passed
    found = hunt(hunt_target("marked.yaml"), range(2), executor="inline")
    assert found.failures == 0
    assert found.marks_missed() == ["every step was done"]


def test_in_a_hunt_an_expectation_must_hold_once_faults_have_stopped(folder: Path) -> None:
    (folder / "marked.yaml").write_text(FILE.replace("is: 2, within: 1m", "is: 7, within: 1s"))
    violation = hunt_target("marked.yaml").run(0).violation
    assert violation is not None
    assert "status.readyReplicas" in violation.invariant


def test_a_hunt_does_not_judge_an_expectation_that_only_the_faults_of_the_file_leave_intact(folder: Path) -> None:
    wrong = "  - {count: Pod, is: 0, always: true, hunt: false}\n  - {object: Pod/none, within: 1s, hunt: false}\n"
    (folder / "marked.yaml").write_text(f"{FILE}{wrong}")
    assert not run_scenario(parse_scenario((folder / "marked.yaml").read_text())).passed
    assert hunt_target("marked.yaml").run(0).violation is None
    weak = "weak:\n  - {without: grace, breaks: number of pods is 0}\n"
    (folder / "marked.yaml").write_text(f"{FILE}{wrong}{weak}")
    violation = hunt_target("marked.yaml", without="grace").run(0).violation
    assert violation is not None
    assert violation.invariant == "number of pods is 0"


# -- own parts of a plain run ----------------------------------------------------------------------


def test_an_own_controller_runs_in_a_scenario(folder: Path) -> None:
    run = run_scenario(parse_scenario((folder / "marked.yaml").read_text()))
    assert run.passed, run.violation
    marked = [each for commit in run.recording.commits for each in commit.written if each.key.kind == "Pod"]
    assert marked[-1].metadata.annotations["example.org/marked"] == "yes"
    assert "marker" in {each.controller for each in run.recording.decisions}


def test_an_own_invariant_of_the_file_is_checked(folder: Path) -> None:
    run = run_scenario(parse_scenario(FILE.replace("every_commit_is_seen", "no_pod_is_marked")))
    assert run.violation is not None
    assert run.violation.invariant == "no pod is marked"
    del folder


@pytest.mark.parametrize("part", ["own_parts.py:marker", "own_parts.py:every_commit_is_seen"])
def test_an_unknown_part_is_reported_with_its_location(folder: Path, part: str) -> None:
    del folder
    content = FILE.replace(part, "own_parts.py:missing")
    with pytest.raises(ScenarioError, match=r"scenario.yaml:[56]:\d+: own_parts.py has nothing called missing"):
        parse_scenario(content)
    with pytest.raises(UnknownTarget):
        find_target("own_parts.py:missing?x=1")


# -- from and until --------------------------------------------------------------------------------


ALL_GONE = """\
  - {delete: ReplicaSet/web}
  - {delete: {object: Pod/web-0, force: true}}
  - {delete: {object: Pod/web-1, force: true}}
"""


def always(extra: str, steps: str = "") -> ScenarioRun:
    line = f"  - {{name: seen, count: Pod, at least: 1, always: true{extra}}}\n"
    content = FILE.replace(', "own_parts.py:marker"', "").replace(
        'invariants: ["own_parts.py:every_commit_is_seen"]\n', ""
    )
    return run_scenario(parse_scenario(content.replace("expect:\n", f"{steps}expect:\n{line}")))


def test_a_check_holds_from_a_moment_on() -> None:
    early = always("")
    assert early.violation is not None
    assert early.violation.invariant == "seen"
    assert not always(", from: 0s").passed
    assert always(", from: 5s").passed
    assert always(", from: {object: Pod/web-0}").passed
    # A check that has begun goes on, whatever becomes of its beginning.
    late = always(", from: {object: Pod/web-0}", ALL_GONE)
    assert late.violation is not None
    assert late.violation.invariant == "seen"


def test_a_check_ends_with_its_end_and_stays_ended() -> None:
    """Without its end it would be broken, and so it is with one that does not come."""
    first_ready = "{object: ReplicaSet/web, field: status.readyReplicas, is: 1}"  # two are ready later, then none
    for until, broken in ((first_ready, "status.readyReplicas of "), ("{object: Pod/never}", "seen")):
        run = always(f", from: {{object: Pod/web-0}}, until: {until}", ALL_GONE)
        assert run.violation is not None
        assert run.violation.invariant.startswith(broken)


def test_an_expectation_between_steps_may_hold_from_there_on() -> None:
    ready = "  - expect: {name: seen, count: Pod, at most: 1, always: true}\n"
    content = FILE.replace(', "own_parts.py:marker"', "").replace(
        'invariants: ["own_parts.py:every_commit_is_seen"]\n', ""
    )
    late = run_scenario(parse_scenario(content.replace("  - after: 10s\n", f"{ready}  - after: 10s\n")))
    assert late.violation is not None
    assert late.violation.invariant == "seen"
    none = "  - expect: {name: seen, count: Pod, at least: 1, always: true}\n"
    assert run_scenario(parse_scenario(content.replace("  - after: 10s\n", f"{none}  - after: 10s\n"))).passed
    for word, value in (("from", "3s"), ("until", "{object: Pod/web-0}")):
        with pytest.raises(ScenarioError, match=f"`{word}` belongs to `always: true`"):
            parse_scenario(content.replace("within: 1m", f"within: 1m, {word}: {value}"))
