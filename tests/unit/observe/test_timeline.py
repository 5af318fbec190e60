"""The timeline reader, and the records beside decisions that it reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kit.records import BEGAN, call, decision, pod

from kedge.kept import HEADER, encode_end, encode_section, read_bytes
from kedge.keys import Key
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.observe.readers.timeline import timeline
from kedge.observe.records import (
    CODEC_VERSION,
    AttemptChoice,
    CommitRecord,
    OutsideEvent,
    ReceivedChange,
    ReceivedEntry,
    ReceivedPart,
    RecordEncoder,
    SchedulingAttempt,
    StoreState,
)

POD = Key("Pod", "default", "web-0")


def after(seconds: float) -> Any:
    return BEGAN + timedelta(seconds=seconds)


def unschedulable(name: str, at_s: float) -> Any:
    choice = AttemptChoice(
        node=None, score=0, feasible=0, nodes=3, policy="", policy_version="", canary=False, blocked_zones=()
    )
    return decision(
        name,
        controller="default-scheduler",
        key=POD,
        began=after(at_s),
        reason="0/3 nodes: 3 cpu",
        scheduling=SchedulingAttempt(draw=1, choice=choice),
    )


def test_commits_decisions_and_outside_events_are_in_order_of_time() -> None:
    recording = Recording(
        states=[StoreState(1, BEGAN, ())],
        commits=[CommitRecord(5, after(1), (pod("web-0", 5),)), CommitRecord(9, after(4), (), (POD,))],
        decisions=[
            decision("d-1", [call("bind", POD, outcome="Refused")], controller="default-scheduler", began=after(1.5))
        ],
        outside=[OutsideEvent(after(0), "step", "admit"), OutsideEvent(after(1), "held", "it is there")],
    )
    lines = timeline(recording)
    assert [each.kind for each in lines] == ["step", "committed", "held", "refused", "committed"]
    assert [lines[1].text, lines[4].text] == ["Pod web-0 created", "Pod web-0 deleted"]
    assert (lines[1].revision, lines[4].revision) == (5, 9)
    assert (lines[3].controller, lines[3].decision) == ("default-scheduler", "d-1")
    assert [each.kind for each in timeline(recording, since=after(1.2))] == ["refused", "committed"]


def test_retries_with_the_same_outcome_are_one_line() -> None:
    recording = Recording(decisions=[unschedulable(f"d-{n}", n) for n in range(5)])
    (line,) = timeline(recording)
    assert line.count == 5
    assert line.at == after(0)
    assert line.text == "default-scheduler: no node for Pod/default/web-0: 0/3 nodes: 3 cpu"


def test_an_object_of_the_first_state_is_not_reported_as_created() -> None:
    recording = Recording(
        states=[StoreState(5, BEGAN, (pod("web-0", 5),))], commits=[CommitRecord(6, after(1), (pod("web-0", 6),))]
    )
    assert timeline(recording) == []


@pytest.mark.parametrize("versions_max", [1, 1 << 20])
def test_records_beside_decisions_read_back_and_the_encoder_may_forget_versions(versions_max: int) -> None:
    encoder = RecordEncoder(versions_max)
    one, two = pod("web-0", 5), pod("web-1", 6)
    state = StoreState(5, BEGAN, (one,))
    commits = [CommitRecord(6, after(1), (two,)), CommitRecord(7, after(2), (), (one.key,))]
    entry = ReceivedEntry(4, "event", 6, (ReceivedChange("deleted", one.key, None, 7, missed=True),))
    part = ReceivedPart("manager#1", ("p-1", "p-2"), "Pod", 3, 5, (one, two), (entry,))
    outside = OutsideEvent(after(3), "admission", "changed", data={"policies": [{"name": "freeze"}]})
    made = [*encoder.state(state), *encoder.commit(commits[0]), *encoder.received(part), *encoder.commit(commits[1])]
    made += encoder.outside(outside)
    found = decode_recording(read_bytes(b"".join((HEADER, *made, encode_end(len(made)))), Path("file")))
    assert not found.gaps
    assert not found.undecoded
    assert [(each.revision, each.at, list(map(repr, each.objects))) for each in found.states] == [
        (5, BEGAN, [repr(one)])
    ]
    assert [(each.revision, list(map(repr, each.written)), each.deleted) for each in found.commits] == [
        (6, [repr(two)], ()),
        (7, [], (one.key,)),
    ]
    (received,) = found.received
    assert list(map(repr, received.base)) == [repr(one), repr(two)]
    assert received.entries == (entry,)
    assert (received.process, received.deciders, received.place) == ("manager#1", ("p-1", "p-2"), 3)
    assert found.outside == [outside]


def test_a_record_of_another_codec_version_is_stated_and_the_others_are_read() -> None:
    made = [
        encode_section("decision", b"whatever", version=CODEC_VERSION + 1),
        *RecordEncoder().outside(OutsideEvent(BEGAN, "step", "admit")),
    ]
    found = decode_recording(read_bytes(b"".join((HEADER, *made, encode_end(2))), Path("file")))
    assert len(found.outside) == 1
    assert "codec version 2" in found.undecoded[0]
    assert "use a matching kedge" in found.undecoded[0]
