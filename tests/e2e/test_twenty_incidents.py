"""Twenty incidents of clusters of real processes: each is recorded into one file, and a fresh process replays the file
without the cluster: every decision comes out as recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.incident_clusters import (
    PartIncidents,
    UpIncidents,
    replay_alone,
    running_part_incidents,
    running_up_incidents,
)
from tests.e2e.incident_stories import ACTS, CHAOS, STORIES, end_workloads

from kedge.observe.readers.recording import read_recording

IN_CI = ("missing-replica", "server-killed", "clocks-step-back")
"""CI runs these; `make soak` runs all."""


def marked(name: str) -> object:
    marks = [pytest.mark.soak, pytest.mark.slow] if name in IN_CI else [pytest.mark.soak]
    return pytest.param(name, marks=marks, id=name)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpIncidents]:
    with running_up_incidents(tmp_path_factory.mktemp("up")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartIncidents]:
    with running_part_incidents(tmp_path_factory.mktemp("parts")) as cluster:
        yield cluster


@pytest.mark.soak
def test_there_are_twenty_and_each_has_a_name_of_its_own() -> None:
    assert len({each.name for each in STORIES}) == len(STORIES) == 20


@pytest.mark.parametrize("name", list(map(marked, CHAOS)))
def test_an_incident_made_by_chaos_replays_as_recorded(up: UpIncidents, name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.kedge"
    try:
        with up.recorded(name, file):
            up.chaos(name, CHAOS[name], tmp_path)
        check_same(file, tmp_path)
    finally:
        end_workloads(up)


@pytest.mark.parametrize("name", list(map(marked, ACTS)))
def test_an_incident_of_separate_processes_replays_as_recorded(parts: PartIncidents, name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.kedge"
    try:
        with parts.recorded(name, file):
            ACTS[name](parts)
        check_same(file, tmp_path)
    finally:
        parts.whole()
        end_workloads(parts)


def check_same(file: Path, folder: Path) -> None:
    printed = replay_alone(file, folder)
    assert "\nsame\n" in f"\n{printed}", printed
    print(printed)
    found = read_recording(file)
    assert len(found.decisions) > 10
    assert found.commits
    assert {each.controller for each in found.decisions} >= {"default-scheduler", "replicaset"}
