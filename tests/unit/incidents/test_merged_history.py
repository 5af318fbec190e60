"""Histories of several runs of servers become one; revisions that none of them has are stated, and not compared."""

from __future__ import annotations

from datetime import timedelta

from tests.kit.records import BEGAN, call, decision, pod, read

from kedge.cli.incidents.merged_history import merge_histories
from kedge.observe.readers.history_check import RevisionGap, check_history
from kedge.observe.readers.moments import objects_at
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CommitRecord, StoreState

A2, A5, A7, A9 = (pod("a", revision) for revision in (2, 5, 7, 9))
B3, C8 = pod("b", 3), pod("c", 8)


def history(revision: int, objects: tuple[object, ...], *commits: CommitRecord) -> Recording:
    return Recording(states=[StoreState(revision, BEGAN, objects)], commits=list(commits))  # type: ignore[arg-type]


def commit(revision: int, *written: object) -> CommitRecord:
    return CommitRecord(revision, BEGAN + timedelta(seconds=revision), written)  # type: ignore[arg-type]


FIRST = history(4, (A2, B3), commit(5, A5))


def test_two_servers_that_record_the_same_have_no_gap() -> None:
    merged = merge_histories([history(5, (A5, B3), commit(7, A7)), FIRST])
    assert [each.revision for each in merged.commits] == [5, 7]
    assert (merged.states[0].revision, merged.gaps) == (4, ())


def test_revisions_without_a_recorded_object_are_no_gap() -> None:
    """Events are committed, and are in no history."""
    assert merge_histories([FIRST, history(6, (A5, B3))]).gaps == ()


def test_a_server_that_was_down_leaves_a_gap_and_the_state_is_right_after_it() -> None:
    merged = merge_histories([FIRST, history(8, (A7, C8), commit(9, A9))])
    assert merged.gaps == (RevisionGap(5, 8),)
    recording = Recording(states=merged.states, commits=merged.commits)
    assert objects_at(recording, 8) == {A7.key: A7, C8.key: C8}
    assert objects_at(recording, 9) == {A9.key: A9, C8.key: C8}
    lost = pod("a", 6)
    recording.decisions = [decision("d", [read(lost, A9), call("patch", lost.key, {}, revision=6, reply=(lost,))])]
    assert len(check_history(recording).differences) == 3, "the read, the reply, the write"
    found = check_history(recording, merged.gaps)
    assert (found.differences, found.unknown, found.versions) == ([], 3, 1)


def test_nothing_recorded_is_no_history() -> None:
    assert merge_histories([]) == ([], [], ())
