"""A change of any part of an incident's file is noticed: by its digest, and by the replay if the digest was forged."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path

import msgspec
import pytest
from tests.kit.recorded_runs import small_run

from kedge.api.objects import Object
from kedge.cli.incidents.incident_file import DIGEST, IncidentSummary, changes_of, write_sections
from kedge.cli.incidents.replay import replay_incident
from kedge.kept import Section, write_kept
from kedge.observe.readers.recording import Recording, read_recording
from kedge.observe.records import CacheRead, Call, Decision, PodAct, PodSync

EACH_NAME = 12
"""Sections of one name that are changed: a recording has thousands that are alike."""


@cache
def sections() -> tuple[Section, ...]:
    recording = small_run().recording
    at = recording.states[0].at
    summary = IncidentSummary("tampered", at, at + timedelta(hours=1), "0", (), ())
    return tuple(write_sections(summary, recording))


def written(folder: Path, made: list[Section]) -> Path:
    path = folder / "changed.kedge"
    write_kept(path, made)
    return path


def places() -> Iterator[int]:
    """Places of sections, some of each name."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for place, each in enumerate(sections()):
        by_name[each.name].append(place)
    assert set(by_name) >= {"incident", "version", "state", "commit", "received", "decision", "outside", DIGEST}
    drawn = random.Random(5)
    for found in by_name.values():
        yield from drawn.sample(found, min(EACH_NAME, len(found)))


def test_an_unchanged_file_is_the_one_that_was_written(tmp_path: Path) -> None:
    assert changes_of(written(tmp_path, list(sections()))) == []


def test_a_changed_byte_in_any_section_is_noticed(tmp_path: Path) -> None:
    drawn = random.Random(7)
    for place in places():
        made = list(sections())
        body = bytearray(made[place].body)
        body[drawn.randrange(len(body))] ^= 1 << drawn.randrange(8)
        made[place] = made[place]._replace(body=bytes(body))
        assert changes_of(written(tmp_path, made)), made[place].name


def test_a_section_that_is_removed_repeated_moved_or_added_is_noticed(tmp_path: Path) -> None:
    for place in places():
        one = sections()[place]
        removed = [*sections()[:place], *sections()[place + 1 :]]
        assert changes_of(written(tmp_path, removed)), f"{one.name} removed"
        assert changes_of(written(tmp_path, [*sections()[:place], one, *sections()[place:]])), f"{one.name} repeated"
        if place:
            assert changes_of(written(tmp_path, [one, *removed])), f"{one.name} moved to the front"
        assert changes_of(written(tmp_path, [*sections(), one])), f"{one.name} added"


def test_a_file_that_is_cut_anywhere_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, list(sections()))
    data = path.read_bytes()
    drawn = random.Random(3)
    for size in sorted(drawn.sample(range(64, len(data)), 20)):
        path.write_bytes(data[:size])
        assert changes_of(path), size


# -- a forged digest: the replay itself must notice ------------------------------------------------


@cache
def kept_file(folder: Path) -> Path:
    path = folder / "whole.kedge"
    write_kept(path, sections())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def fresh(folder: Path) -> Recording:
    return read_recording(kept_file(folder))


def other(found: Object) -> Object:
    """The version with another content."""
    value = found.value.replace(b'"metadata":{', b'"metadata":{"zz":1,', 1)
    return Object(found.kind, found.key, value, revision=found.revision, created=found.created, origin=found.origin)


def changed_read(step: CacheRead) -> Iterator[CacheRead]:
    replaced = msgspec.structs.replace
    yield replaced(step, about=(*step.about[:-1], f"{step.about[-1]}x"))
    yield replaced(step, verb="index" if step.verb != "index" else "list")
    if step.objects and not step.objects[0].kind.latest_only:
        yield replaced(step, objects=(other(step.objects[0]), *step.objects[1:]))
        yield replaced(step, objects=step.objects[1:])


def changed_call(step: Call) -> Iterator[Call]:
    replaced = msgspec.structs.replace
    yield replaced(step, verb="create" if step.verb != "create" else "delete")
    yield replaced(step, intent_json=b'{"zz":1}')
    yield replaced(step, check=f"{step.check}x")
    if step.reply and step.outcome == "done":
        yield replaced(step, reply=(other(step.reply[0]), *step.reply[1:]))
        yield replaced(step, revision=step.revision + 1)


def changed_sight(step: PodSync) -> Iterator[PodSync]:
    replaced = msgspec.structs.replace
    if step.objects:
        yield replaced(step, objects=(other(step.objects[0]),))
    if step.what == "plan":
        yield replaced(step, outcome={**step.outcome, "failed": "Tampered"})
        for number, each in enumerate(step.inputs["processes"]):
            ended = {**each, "running": not each["running"], "exit_code": 9}
            listed = [*step.inputs["processes"][:number], ended, *step.inputs["processes"][number + 1 :]]
            yield replaced(step, inputs={**step.inputs, "processes": listed})
    else:
        yield replaced(step, outcome=not step.outcome)
        if step.outcome:
            yield replaced(step, inputs={**step.inputs, "address": "10.9.9.9"})


def changed_act(step: PodAct) -> Iterator[PodAct]:
    if step.verb not in ("probe", "hook", "refuse"):
        yield msgspec.structs.replace(step, container=f"{step.container}x")


CHANGES: dict[type, Callable[..., Iterator[object]]] = {
    CacheRead: changed_read,
    Call: changed_call,
    PodSync: changed_sight,
    PodAct: changed_act,
}


def is_run_again(decision: Decision) -> bool:
    return decision.scheduling is None and not decision.part_of and decision.result not in ("cancelled", "")


def replays_as_recorded(recording: Recording) -> bool:
    return asyncio.run(replay_incident(recording)).same


def test_the_recording_itself_replays_as_recorded(folder: Path) -> None:
    assert replays_as_recorded(fresh(folder))


@pytest.mark.parametrize("kind", list(CHANGES))
def test_a_changed_step_of_a_decision_is_noticed_without_the_digest(kind: type, folder: Path) -> None:
    whole = fresh(folder)
    drawn = random.Random(11)
    steps = [
        (decision, number)
        for decision in whole.decisions
        if is_run_again(decision)
        for number, step in enumerate(decision.steps)
        if type(step) is kind
    ]
    assert steps
    tried = 0
    for decision, number in drawn.sample(steps, min(25, len(steps))):
        for change in CHANGES[kind](decision.steps[number]):
            changed = copy.copy(decision)
            changed.steps = [*decision.steps[:number], change, *decision.steps[number + 1 :]]  # type: ignore[list-item]
            alone = copy.copy(whole)
            alone.decisions = [changed]
            assert not replays_as_recorded(alone), f"{decision.id}: {change}"
            tried += 1
    assert tried >= 5


def test_a_changed_version_in_the_history_is_noticed_without_the_digest(folder: Path) -> None:
    whole = fresh(folder)
    for number, commit in enumerate(whole.commits):
        if not commit.written or commit.written[0].kind.latest_only or not commit.written[0].origin.decision:
            continue
        changed = copy.copy(whole)
        changed.commits = list(whole.commits)
        changed.commits[number] = commit._replace(written=(other(commit.written[0]), *commit.written[1:]))
        assert not replays_as_recorded(changed), commit.revision
        break


def test_a_changed_result_of_a_decision_is_noticed_without_the_digest(folder: Path) -> None:
    whole = fresh(folder)
    for decision in (each for each in whole.decisions if is_run_again(each) and each.pod_run is None):
        changed = copy.copy(decision)
        changed.result = "terminal" if decision.result != "terminal" else "requeue"
        alone = copy.copy(whole)
        alone.decisions = [changed]
        assert not replays_as_recorded(alone), decision.id
