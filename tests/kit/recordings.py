"""A small recording, as a file: three revisions of a pod, another that is deleted, and two decisions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from tests.kit.records import BEGAN, call, decision, made, read

from kedge.kept import parse_section, write_kept
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CacheMark, CommitRecord, DecisionStep, OutsideEvent, RecordEncoder, StoreState

FIRST, LAST = made("Pod", "a", 3, status={"phase": "Pending"}), made("Pod", "a", 9, status={"phase": "Running"})
GONE = made("Pod", "b", 4, status={"phase": "Running"})


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def small_recording() -> Recording:
    """At 4 it begins, at 6 `b` is deleted, at 9 `a` runs; times are a second a revision after `BEGAN`."""
    steps: list[DecisionStep] = [read(FIRST), call("patch", FIRST.key, {}, revision=9, reply=(LAST,))]
    return Recording(
        states=[StoreState(4, BEGAN, (FIRST, GONE))],
        commits=[
            CommitRecord(6, BEGAN + seconds(2), (), (GONE.key,)),
            CommitRecord(9, BEGAN + seconds(5), (LAST,)),
        ],
        decisions=[
            decision("d-1", began=BEGAN + seconds(1), marks=(CacheMark("Pod", 1, 4, 0.5),)),
            decision("d-2", steps, began=BEGAN + seconds(4), marks=(CacheMark("Pod", 2, 6, 0.25),), took_s=1.0),
            decision("d-3", began=BEGAN + seconds(6)),
        ],
        outside=[OutsideEvent(BEGAN + seconds(8), "person", "looks")],
    )


def write_recording(path: Path, recording: Recording) -> Path:
    encoder = RecordEncoder()
    streams = (
        *(encoder.state(each) for each in recording.states),
        *(encoder.commit(each) for each in recording.commits),
        *(encoder.decision(each) or [] for each in recording.decisions),
        *(encoder.outside(each) for each in recording.outside),
    )
    write_kept(path, (parse_section(each) for stream in streams for each in stream))
    return path
