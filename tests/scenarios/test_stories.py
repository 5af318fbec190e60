"""The stories of the worked examples: the golden files, and what a reader of the lessons looks for in them.

`pytest tests/scenarios/test_stories.py --rewrite-stories` writes the golden files again. Times, revisions and ids are
the run's own, so the comparison ignores them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.kit.scenarios import finished, masked

from kedge.cli import main
from kedge.sim.scenario import library_names, load_scenario, parse_scenario, run_scenario

STORIES = Path(__file__).parent / "stories"
RUNS = [
    (name, without) for name in library_names() for without in ("", *(each.name for each in load_scenario(name).weak))
]


def story_of(name: str, without: str = "") -> str:
    return "".join(f"{line}\n" for line in finished(name, without).story())


@pytest.mark.parametrize(("name", "without"), RUNS)
def test_a_story_is_the_golden_one(name: str, without: str, request: pytest.FixtureRequest) -> None:
    file = STORIES / f"{name}{f'.without-{without}' if without else ''}.txt"
    found = story_of(name, without)
    if request.config.getoption("--rewrite-stories"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert masked(found) == masked(file.read_text(encoding="utf-8")), "see --rewrite-stories"


BLOCKERS = "0/3 nodes: 1 zone quota risk/zone-c, 2 topology spread topology.kubernetes.io/zone"
LESSONS = {
    ("missing-replica", ""): (
        "3 Pods fraud-batch-(0, 1, 2) created",
        "ResourceQuota fraud reserves pods=3 of 4",
        "Node node-gpu-7 Ready=Unknown",
        "RepairComplete=False (ReplicaUnknown)",
        "unknown=1 is recorded",
        "running=2, and nothing else changes",
        "crash",
        "Node node-gpu-7 Lost=True",
        "RepairComplete=False (ReleaseRequested)",
        "Pod fraud-batch-2 ended: Failed, NodeLost",
        "ResourceQuota fraud reserves pods=2 of 4",
        "created to replace",
        "ResourceQuota fraud reserves pods=3 of 4",
        "RepairComplete=True (Repaired)",
        "the quota is reserved for three replicas",
    ),
    ("missing-replica", "replaced-before-release"): (
        "Node node-gpu-7 Ready=Unknown",
        "unknown=1 is recorded",
        "Node node-gpu-7 Lost=True",
        "replicaset            committed  Pod fraud-batch-3 created",
        "ResourceQuota fraud reserves pods=4 of 4",
        "live copies are at most desired plus surge: ReplicaSet fraud-batch has 4 replicas",
    ),
    ("stale-policy-canary", ""): (
        "Pod training bound to node-b7",
        "version v4, maxZoneSkew 1; canary v5-canary, scope risk-api eu-central, maxZoneSkew 1",
        "chose node-b7 of 2 feasible nodes by policy v5-canary for Pod risk-api-2; read",
        "refused    bind Pod risk-api-2: node node-b7 has too little nvidia.com/gpu",
        "Progressing=True (CacheBehind)",
        "Pod risk-api-2 bound to node-c2; read",
        "the gate holds until every watch has reached the activation",
        "Progressing=True (StagePassed)",
    ),
    ("stale-policy-canary", "bind-from-cache"): (
        "Pod training bound to node-b7",
        "Pod risk-api-2 bound to node-b7",
        "no commit adds to an overfull node: node-b7: 2 of nvidia.com/gpu claimed, has 1",
    ),
    ("stale-policy-canary", "freshness-gate"): (
        "delay watch of Node by 40s to manager",
        "canary v5-canary, scope risk-api eu-central",
        "refused    bind Pod risk-api-2: node node-b7 has too little nvidia.com/gpu",
        "Progressing=True (GatesOpen)",
        "Progressing=True (StagePassed)",
        "Node@",
        "s old)",
        "SchedulingPolicy scheduler-policy changed: version v5-canary",
        "the gate holds until every watch has reached the activation",
    ),
    ("duplicate-reservation", ""): (
        "ReplicaSet risk-api changed: 1 replicas of risk-api:v4, generation 42",
        "delay watch of ResourceQuota by 8s",
        "decided    chose node-b7 of 1 feasible nodes by policy v5 for Pod risk/replica-042; read Node@",
        "cut off    reserve Reservation risk/recovery-42 was sent; its process ended before the reply",
        "Reservation res-a created for replica-042 on node-b7; read Node@",
        "the reply to reserve Reservation risk/recovery-42 by default-scheduler",
        "no answer to reserve Reservation risk/recovery-42 by default-scheduler",
        "restart leader default-scheduler",
        "acquired lease default-scheduler",
        "the new leader has a stale cache of reservations",
        "roll back policy policy scheduler-policy to v4",
        "repair scans reservation-repair",
        "decided    node-b7 is reserved for Pod risk/replica-042; read",
        "Reservation@",
        "Pod replica-042 bound to node-b7; read",
        "Reservation res-a deleted: used by the bind of replica-042",
        "the reply to bind Pod risk/replica-042",
        "unknown    bind Pod risk/replica-042: no answer",
        "read       Pod risk/replica-042 after the lost reply: bound to node-b7",
        "default-scheduler     committed  Reservation recovery-42 deleted",
    ),
    ("duplicate-reservation", "reservation-named-by-its-pod"): (
        "Reservation res-a created for replica-042",
        "the reply to reserve",
        "no answer to reserve",
        "restart leader default-scheduler",
        "acquired lease default-scheduler",
        "the new leader has a stale cache of reservations",
        "Reservation res-b created for replica-042",
        "an intent has one reservation: slot 0 of",
        "has res-a, res-b",
    ),
    ("binding-during-node-failure", ""): (
        "Deployment risk-api created: 4 replicas",
        "Pod replica-003 bound to node-b7",
        "the reply to bind Pod replica-003",
        "unknown    bind Pod replica-003: no answer",
        "read       Pod replica-003 after the lost reply: bound to node-b7",
        "Node node-b7 Suspect=True",
        "the fourth replica is bound, and not ready",
        "Pod replica-003 Ready=True",
    ),
    ("binding-during-node-failure", "read-after-timeout"): (
        "chose node-b7",
        "Pod replica-003 bound to node-b7",
        "the reply to bind Pod replica-003",
        "failed     bind Pod replica-003: no answer within 3.6s, taken for a failure",
        "Node node-b7 Suspect=True",
        "Pod replica-003 bound to node-b8",
        "a pod never has two nodes: Pod replica-003 was on node-b7 and is on node-b8",
    ),
    ("binding-during-node-failure", "grace"): (
        "Pod replica-003 bound to node-b7",
        "the reply to bind Pod replica-003",
        "unknown    bind Pod replica-003: no answer",
        "Node node-b7 Suspect=True (HeartbeatLate)",
        "Pod replica-003 DisruptionTarget=True (NodeLost)",
        "nothing is destroyed on suspicion alone: Pod replica-003 was marked lost",
    ),
    ("pending-after-rollback", ""): (
        "SchedulingPolicy scheduler-policy changed: version v4",
        "RepairComplete=True (Repaired)",
        "Deployment risk-api changed: 8 replicas of risk-api:v4, generation 42",
        "Pod replica-042 created",
        f"no node for Pod risk/replica-042: {BLOCKERS}",
        f"Event FailedScheduling about Pod replica-042: {BLOCKERS}",
        f"SchedulingRetrying=True (ZoneQuota), observedGeneration=42: {BLOCKERS}",
        "ScalingHeldBack=True (ReplicasPending)",
        "delay watch of ZoneQuota",
        "ZoneQuota risk reserves zone-c cpu=0 of 8",
        "workload: risk-api",
        "generation: 42",
        "ready replicas: 6 / 8",
        "rollback observed by scheduler: true",
        "pending replica: replica-042",
        f"last scheduling reason: zone quota risk/zone-c, without which node-c12 would fit; {BLOCKERS}",
        "scheduler cache revision: ZoneQuota@",
        "quota latest revision: ZoneQuota risk@",
        "autoscaler reason: low ready replicas, 6 / 8 at revision",
        "holds back: ScalingHeldBack=True (ReplicasPending)",
        "repair condition: RepairComplete=True (Repaired), observedGeneration=42",
        "received   ZoneQuota risk/risk by a list",
        "Pod replica-042 bound to node-c12",
    ),
    ("pending-after-rollback", "reasons-before-scaling"): (
        "RepairComplete=True (Repaired)",
        "Deployment risk-api changed: 8 replicas of risk-api:v4, generation 42",
        f"no node for Pod risk/replica-042: {BLOCKERS}",
        "Event FailedScheduling about Pod replica-042",
        "autoscaler            committed  Deployment risk-api changed: 12 replicas",
        "no replica is added while others are pending",
    ),
    ("rollback-races-repair", ""): (
        "RepairComplete=False (QuotaExceeded)",
        "roll back Deployment risk-api",
        "repair scans",
        "AvailabilityFloor=True",
        "the only healthy replica is still there",
        "ResourceQuota risk changed: pods=4",
        "both replicas are v4",
    ),
    ("rollback-races-repair", "availability-floor"): (
        "roll back Deployment risk-api",
        "the last healthy replica is not removed",
    ),
}
"""By scenario and weak variant, without exception: the events of the lesson, in its order."""


@pytest.mark.parametrize(("name", "without"), RUNS)
def test_a_story_has_the_events_of_the_lesson_in_its_order(name: str, without: str) -> None:
    text, place = story_of(name, without), 0
    for event in LESSONS[name, without]:
        found = text.find(event, place)
        assert found >= 0, f"{event!r} is missing, or not after the event before it:\n{text}"
        place = found + len(event)


def test_the_scheduler_decided_on_an_older_quota_than_the_store_had() -> None:
    """The point of the debug view: the cache's revision is below that of the quota."""
    text = story_of("pending-after-rollback")
    seen, latest = re.search(r"cache revision: ZoneQuota@(\d+)", text), re.search(r"latest revision: .*@(\d+)", text)
    assert seen is not None
    assert latest is not None
    assert int(seen[1]) < int(latest[1])


def test_why_shows_the_debug_view_of_the_lesson_at_that_moment_of_a_kept_run(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`kedge why risk-api --recording FILE --revision N`, while the scheduler's cache of quotas is old."""
    name = "pending-after-rollback"
    recording = finished(name).recording
    viewed = next(each.at for each in recording.outside if each.kind == "view")
    revision = max(each.revision for each in recording.commits if each.at <= viewed)
    run = CliRunner().invoke(main, ["scenario", "run", "-q", name, "--out", str(tmp_path)])
    assert run.exit_code == 0, run.output
    kept = tmp_path / f"{name}-seed-46.kedge"
    asked = ["why", "risk-api", "-n", "risk", "--recording", str(kept), "--revision", str(revision)]
    lines = CliRunner().invoke(main, asked).output.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  debug view "))
    rest = (number for number, line in enumerate(lines) if number > first and not line.startswith("     "))
    found = "".join(f"{line.removeprefix('  debug view').strip()}\n" for line in lines[first : next(rest)])
    golden = STORIES / f"{name}.why.txt"
    if request.config.getoption("--rewrite-stories"):
        golden.write_text(found, encoding="utf-8")
    assert masked(found) == masked(golden.read_text(encoding="utf-8")), "see --rewrite-stories"
    shown = "\n".join(line.text for line in finished(name).story() if line.kind == "view")
    for alias, pod in (("replica-042", "risk-api-HASH-6"), ("replica-043", "risk-api-HASH-7")):
        shown = shown.replace(alias, pod)
    assert masked(found) == masked(shown), "the step `view` and `kedge why` give the same lines"


@pytest.mark.parametrize("name", library_names())
def test_a_story_fits_80_lines_with_all_that_is_printed_and_verbose_has_the_rest(name: str) -> None:
    printed = CliRunner().invoke(main, ["scenario", "run", name]).stdout  # without the progress bar
    assert printed.splitlines()[-1].startswith("passed: ")
    assert len(printed.splitlines()) < 80
    assert len(finished(name).story(verbose=True)) > len(finished(name).story())


@pytest.mark.parametrize("name", library_names())
def test_every_condition_that_a_controller_wrote_has_the_caches_it_was_computed_from(name: str) -> None:
    written = [
        line
        for line in finished(name).story(verbose=True)
        if line.kind == "committed" and re.search(r" \w+=(True|False|Unknown)\b", line.text)
    ]
    deciders = {each.controller for each in finished(name).recording.decisions if each.pod_run is None}
    by_controllers = [line for line in written if line.actor in deciders]
    assert by_controllers
    assert [str(line) for line in by_controllers if "; read " not in line.text] == []


def test_verbose_prints_the_lines_that_a_story_leaves_out() -> None:
    arguments = ["scenario", "run", "duplicate-reservation"]
    short, long = (CliRunner().invoke(main, [*arguments, *more]).output for more in ((), ("--verbose",)))
    assert "PodScheduled=True" not in short
    assert "PodScheduled=True" in long
    assert "names:  replica-042 is risk-api-0, res-a is " in short


# -- kept runs -------------------------------------------------------------------------------------


def lines_of_story(output: str) -> list[str]:
    """The heading, the lines and the names of a printed story."""
    lines = output.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("TIME "))
    end = next(number for number, line in enumerate(lines) if line.startswith("names: "))
    return lines[begin : end + 1]


def test_a_replay_and_its_copies_show_the_story_of_the_run(tmp_path: Path) -> None:
    """The names of the file, the actors, the revisions, and the inputs of decisions: all are in the kept file."""
    name = "duplicate-reservation"
    run = CliRunner().invoke(main, ["scenario", "run", name, "--out", str(tmp_path)])
    kept = str(tmp_path / f"{name}-seed-82219.kedge")
    again = CliRunner().invoke(main, ["replay", kept])
    assert again.exit_code == 0, again.output
    assert lines_of_story(again.output) == lines_of_story(run.output)
    assert "decided    node-b7 is reserved for Pod risk/replica-042; read" in again.output
    whole = lines_of_story(CliRunner().invoke(main, ["replay", "--verbose", kept]).output)
    assert len(whole) > len(lines_of_story(again.output))
    copies = CliRunner().invoke(main, ["replay", kept, "--extract", str(tmp_path / "parts")])
    assert copies.exit_code == 0, copies.output
    assert (tmp_path / "parts" / "timeline.txt").read_text().splitlines() == whole


def test_res_a_must_not_be_given_up_before_the_bind() -> None:
    """A user deletes the pod, and res-a goes with it: a later bind of another pod would not make up for that."""
    source, begin = load_scenario("duplicate-reservation").source, "  - roll back policy:"
    assert source.count(begin) == 1
    lost = "  - delete: {object: Pod/risk/risk-api-0, force: true}\n"
    run = run_scenario(parse_scenario(source.replace(begin, lost + begin)))
    assert run.violation is not None
    assert run.violation.invariant == "res-a is kept until the bind of replica-042 uses it"
    assert "Reservation res-a deleted" in [line.text for line in run.story()]
