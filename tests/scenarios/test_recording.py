"""A kept run has everything that its readers need: they give the same from the file as from the run itself."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest

from kedge.api.wellknown import RESERVATION_KIND
from kedge.cli.kept_decisions import recheck_decisions
from kedge.controllers.replicaset.controller import ReplicaSetReconciler
from kedge.env import system_env
from kedge.kept import BadKeptFile
from kedge.observe.readers.recording import Recording, read_recording
from kedge.observe.records import PROCESS_ENDED, UNDER_WAY
from kedge.runtime.cache.kept_log import KeptLogs
from kedge.runtime.recheck import CutOff, ReceivedEvidence, recheck
from kedge.scheduler.report.recheck import recheck_attempt
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation, SimulationTarget, make_artefact, read_artefact, write_artefact
from kedge.sim.scenario import ScenarioRun, keep_run, load_scenario, run_scenario
from kedge.sim.scenario.runner import timeline_rows

NAME = "stale-policy-canary"


@cache
def kept_run() -> ScenarioRun:
    return run_scenario(load_scenario(NAME), keep=True)


@pytest.fixture
def kept_file(tmp_path: Path) -> Path:
    return keep_run(kept_run(), tmp_path)


def identities(recording: Recording) -> dict[str, list[object]]:
    return {
        "commits": [
            (each.revision, each.at, list(map(repr, each.written)), each.deleted) for each in recording.commits
        ],
        "decisions": [(each.id, each.result, each.scheduling, len(each.steps)) for each in recording.decisions],
        "received": [(each.process, each.cache, each.place, len(each.entries)) for each in recording.received],
        "outside": list(recording.outside),
    }


def test_a_run_that_is_kept_is_the_same_run() -> None:
    assert run_scenario(load_scenario(NAME)).outcome.hash == kept_run().outcome.hash


def test_the_file_reads_back_as_the_recording_it_was_written_from(kept_file: Path) -> None:
    found = read_recording(kept_file)
    assert not found.gaps
    assert not found.undecoded
    assert {each.name for each in found.others} == {"run", "tape", "trace", "scenario"}
    assert identities(found) == identities(kept_run().recording)
    assert found.decisions
    assert all(identities(found).values())


def test_the_timeline_from_the_file_is_that_of_the_run(kept_file: Path) -> None:
    rows = timeline_rows(read_recording(kept_file), begin_s=kept_run().begin_s)
    assert rows == kept_run().timeline
    assert any(kind == "pending" for _, kind, _ in rows)


def test_every_record_in_the_file_is_rechecked_from_the_file_alone(kept_file: Path) -> None:
    found, env = read_recording(kept_file), system_env()
    attempts = reconciles = 0
    for decision in found.decisions:
        logs = KeptLogs(found.received, decision.process, env.limits).at(decision.marks)
        if decision.scheduling is not None:
            attempts += recheck_attempt(decision, logs, env)
        elif decision.controller == "replicaset":
            with pytest.raises(CutOff) if decision.cut_off else nullcontext():
                asyncio.run(recheck(decision, ReplicaSetReconciler(env), ReceivedEvidence(logs), env))
            reconciles += 1
    assert attempts >= 2
    assert reconciles >= 1


def test_the_decision_of_a_crashed_leader_is_in_the_file_with_its_reads(tmp_path: Path) -> None:
    """Its write was committed and its reply was lost. No process has its record; the recording has it."""
    path = keep_run(run_scenario(load_scenario("duplicate-reservation"), keep=True), tmp_path)
    found, env = read_recording(path), system_env()
    writer = next(
        each.origin.decision
        for commit in found.commits
        for each in commit.written
        if each.key.name == "recovery-42" and each.key.kind == RESERVATION_KIND
    )
    (cut,) = (each for each in found.decisions if each.id == writer)
    assert (cut.result, cut.cut_off) == ("", PROCESS_ENDED)
    assert [(each.verb, each.outcome) for each in cut.calls] == [("reserve", UNDER_WAY)]
    assert {each.cache for each in cut.reads} >= {"Node", "Pod", RESERVATION_KIND}
    assert recheck_attempt(cut, KeptLogs(found.received, cut.process, env.limits).at(cut.marks), env)
    report = asyncio.run(recheck_decisions(found.decisions, found))
    assert not report.differences


def test_a_file_cut_short_gives_the_beginning_of_the_timeline_and_states_the_gap(kept_file: Path) -> None:
    data, whole = kept_file.read_bytes(), read_recording(kept_file)
    for part in (0.3, 0.6, 0.9):
        kept_file.write_bytes(data[: int(len(data) * part)])
        found = read_recording(kept_file)
        assert found.gaps
        assert found.gaps[-1].tail
        assert not found.undecoded
        assert [each.revision for each in found.commits] == [
            each.revision for each in whole.commits[: len(found.commits)]
        ]


def test_the_file_of_a_failed_target_has_the_objects_commits_and_admission_of_its_cluster(tmp_path: Path) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up("shop")
        cluster.admit_by(cluster.admission)
        sim.violate("never", "it did")

    target = SimulationTarget(program=program)
    path = write_artefact(make_artefact(target, target.run(3)), tmp_path)
    found = read_recording(path)
    assert "Namespace/shop" in [str(each.key) for commit in found.commits for each in commit.written]
    assert [(each.kind, each.data["policies"]) for each in found.outside if "policies" in each.data] == [
        ("start", []),
        ("admission", []),
    ]
    assert found.outside[0].data["limits"]["decisions_kept_max"] > 0
    assert read_artefact(path).violation is not None


def test_an_older_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "no-name-is-taken-twice-1a2b3c4d.json"
    old.write_text('{\n "format": "kedge simulation failure",\n "formatVersion": 1,\n')
    with pytest.raises(BadKeptFile, match="use the build that wrote it, or make the file again"):
        read_recording(old)
