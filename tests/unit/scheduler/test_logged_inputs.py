"""The durable log has what its scheduling attempts were decided on, so they can be run again without their process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.controllers import until
from tests.kit.scheduler import LIMITS, SchedulerHarness, with_scheduler
from tests.objects import ZONE_QUOTA, node, zone_quota

from kedge.cli.kept_decisions import NO_LOGS, env_of, recheck_decisions
from kedge.errors import Compacted
from kedge.limits import Limits
from kedge.observe import DecisionLog
from kedge.observe.readers.recording import Recording
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.segments import read_log, segments
from kedge.observe.records import Decision
from kedge.runtime.cache import kept_inputs
from kedge.runtime.cache.kept_inputs import KeptInputs
from kedge.runtime.cache.kept_log import KeptLogs
from kedge.scheduler.report.recheck import recheck_attempt


def recording_of(folder: Path) -> Recording:
    found = Recording()
    for each in read_log(folder, report=lambda part: pytest.fail(str(part))):
        found.add(each)
    return found


def logged(folder: Path, limits: Limits, *, window: bool = True) -> Recording:
    """Schedule on a small cluster with a log. Returns what the log has."""

    @with_scheduler(limits)
    async def program(harness: SchedulerHarness) -> None:
        log = DecisionLog(folder, harness.env)
        harness.recorder = Recorder(harness.env, log=log)
        if window:
            harness.recorder.open_window("test", until_s=harness.env.monotonic() + 3600)
        await harness.open_for(node("node-a", cpu="2"), node("node-b", cpu="2", zone="zone-b"))
        deciders = [harness.scheduler.process]
        inputs = KeptInputs(harness.env, process="plane", deciders=deciders, caches=lambda: harness.caches)
        log.keep_inputs(inputs.pieces)
        await harness.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_b={"cpu": "1"}))
        for number in range(6):
            await harness.pod(f"web-{number}", cpu="600m")
            await until(lambda number=number: harness.attempts(f"web-{number}"))  # type: ignore[misc]
            if number % 2:
                await asyncio.sleep(1)
                log.flush()
        await until(harness.nothing_is_left)
        log.close()

    program()
    return recording_of(folder)


def attempts_in(found: Recording) -> list[Decision]:
    return [each for each in found.decisions if each.scheduling is not None]


def test_every_attempt_in_the_log_is_run_again_from_the_log_alone(tmp_path: Path) -> None:
    found = logged(tmp_path, LIMITS)
    attempts = attempts_in(found)
    choices = [each.scheduling.choice for each in attempts if each.scheduling is not None]
    assert len(attempts) >= 6
    assert any(each is not None and each.node is None for each in choices)
    report = asyncio.run(recheck_decisions(attempts, found))
    assert (report.agreed, report.differences, dict(report.skipped)) == (len(attempts), (), {})
    parts = [each for each in found.received if each.cache == "Pod"]
    assert [each.continues for each in parts] == [False, *[True] * (len(parts) - 1)]
    assert len(parts) > 1


def test_each_segment_stands_alone_so_that_old_ones_can_be_removed(tmp_path: Path) -> None:
    logged(tmp_path, replace(LIMITS, decision_log_segment_bytes_max=12_000))
    paths = list(segments(tmp_path).values())
    assert len(paths) >= 2
    for path in paths:
        kept = path.read_bytes()
        alone = tmp_path / path.stem
        alone.mkdir()
        (alone / path.name).write_bytes(kept)
        found = recording_of(alone)
        report = asyncio.run(recheck_decisions(attempts_in(found), found))
        assert (report.agreed, report.differences) == (len(attempts_in(found)), ())


def test_past_the_bound_records_are_logged_without_inputs_and_a_recheck_reports_it(tmp_path: Path) -> None:
    limits = replace(LIMITS, decision_log_inputs_bytes_max=1_500)
    found = logged(tmp_path, limits)
    last = attempts_in(found)[-1]
    with pytest.raises(Compacted):
        recheck_attempt(last, KeptLogs(found.received, last.process, limits).at(last.marks), env_of(found))
    kept = sum(len(each.value) for part in found.received for each in part.base)
    assert kept <= limits.decision_log_inputs_bytes_max


def test_records_that_only_the_sample_keeps_get_no_inputs_but_a_failure_among_them_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_inputs, "_BEFORE_FIRST_MAX", 0)
    found = logged(tmp_path, LIMITS, window=False)
    failed = [each for each in attempts_in(found) if each.kept != "sample"]
    usual = [each for each in attempts_in(found) if each.kept == "sample"]
    assert failed
    report = asyncio.run(recheck_decisions(failed, found))
    assert (report.agreed, report.differences) == (len(failed), ())
    first = asyncio.run(recheck_decisions(usual[:1], found))
    assert first.skipped == {NO_LOGS: 1}


def test_the_first_piece_of_a_cache_begins_before_its_first_record_and_its_entries_have_times(tmp_path: Path) -> None:
    """The page shows with it what a new leader held before its first decision."""
    found = logged(tmp_path, LIMITS)
    first = attempts_in(found)[0]
    marks = {each.cache: each.place for each in first.marks}
    pods = [each for each in found.received if each.cache == "Pod"]
    assert pods[0].place == 0 < marks["Pod"]
    times = [entry.at for each in pods for entry in each.entries if entry.at is not None]
    assert len(times) == sum(len(each.entries) for each in pods)
    assert times == sorted(times)
    came = next(entry.at for each in pods for entry in each.entries if entry.place == marks["Pod"])
    assert came is not None
    assert 0 <= (first.began - came).total_seconds() < 5


def test_the_log_has_the_limits_that_differ_from_the_defaults(tmp_path: Path) -> None:
    assert env_of(logged(tmp_path, LIMITS)).limits == LIMITS


def test_a_piece_whose_beginning_is_lost_is_not_used(tmp_path: Path) -> None:
    found = logged(tmp_path, LIMITS)
    first = next(place for place, each in enumerate(found.received) if each.cache == "Pod")
    rest = [each for place, each in enumerate(found.received) if place != first]
    last = attempts_in(found)[-1]
    assert "Pod" in KeptLogs(found.received, last.process, LIMITS).at(last.marks)
    assert "Pod" not in KeptLogs(rest, last.process, LIMITS).at(last.marks)
