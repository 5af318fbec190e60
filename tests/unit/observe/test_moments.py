"""Moments of a recording: by revision, by time, and the part of the recording that there was then."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.kit.recordings import FIRST, GONE, LAST, seconds, small_recording
from tests.kit.records import BEGAN

from kedge.errors import BadRequest, NotFound
from kedge.observe.readers.moments import Moment, chosen_decisions, find_moment, last_moment, objects_at, recording_at
from kedge.observe.readers.recording import Recording


@pytest.mark.parametrize(
    ("text", "revision", "after_s"),
    [
        ("4", 4, 0),
        ("5", 5, 0),
        ("6", 6, 2),
        ("8", 8, 2),
        ("9", 9, 8),
        ("99999", 9, 8),
        ("00:00:00", 4, 0),
        ("00:00:03.5", 6, 3.5),
        ("00:00:05", 9, 5),
        ("2030-01-01T00:00:02", 6, 2),
        ("2030-01-01T01:00:02.500+01:00", 6, 2.5),
        ("2031-01-01", 9, 8),
    ],
)
def test_a_revision_or_a_time_names_a_moment(text: str, revision: int, after_s: float) -> None:
    assert find_moment(small_recording(), text) == Moment(revision, BEGAN + seconds(after_s))


@pytest.mark.parametrize("text", ["3", "2029-12-31T23:59:59Z"])
def test_a_moment_before_the_begin_is_refused_with_the_begin(text: str) -> None:
    with pytest.raises(NotFound, match="the recording begins at"):
        find_moment(small_recording(), text)


@pytest.mark.parametrize("text", ["", "x", "-3", "25:00", "2030-13-01", "٣"])
def test_other_texts_are_no_moments(text: str) -> None:
    with pytest.raises(BadRequest, match="neither a revision nor a time"):
        find_moment(small_recording(), text)


def test_a_time_of_day_may_be_on_the_next_day() -> None:
    recording = small_recording()
    late = recording.states[0]._replace(at=BEGAN - timedelta(minutes=1))
    recording.states[0] = late
    assert find_moment(recording, "23:59:30").at == BEGAN - timedelta(seconds=30)
    assert find_moment(recording, "00:00:05") == Moment(9, BEGAN + seconds(5))


def test_a_recording_without_a_history_has_no_moments() -> None:
    with pytest.raises(NotFound, match="has no history"):
        find_moment(Recording(), "3")


def test_objects_and_records_end_at_the_moment() -> None:
    recording = small_recording()
    assert set(objects_at(recording, 5).values()) == {FIRST, GONE}
    assert set(objects_at(recording, 6).values()) == {FIRST}
    assert set(objects_at(recording).values()) == {LAST}
    then = recording_at(recording, find_moment(recording, "00:00:04"))
    assert [each.revision for each in then.commits] == [6]
    assert [each.id for each in then.decisions] == ["d-1", "d-2"]
    assert then.outside == []
    assert last_moment(recording) == Moment(9, BEGAN + seconds(8))


@pytest.mark.parametrize(
    ("first", "until", "found"),
    [
        (None, None, ["d-1", "d-2", "d-3"]),
        ("5", None, ["d-2", "d-3"]),
        (None, "4", ["d-1"]),
        ("7", None, ["d-3"]),  # it has no cache: the store was at 9 when it began
        ("00:00:02", "00:00:05", ["d-2"]),
        ("00:00:02", "9", ["d-2", "d-3"]),
        ("2030-01-02", None, []),
    ],
)
def test_decisions_are_chosen_by_revision_and_by_time(first: str | None, until: str | None, found: list[str]) -> None:
    assert [each.id for each in chosen_decisions(small_recording(), first, until)] == found
