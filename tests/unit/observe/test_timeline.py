"""The timeline reader, and the records beside decisions that it reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.records import BEGAN, call, decision, pod

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.kept import HEADER, encode_end, encode_section, read_bytes
from kedge.keys import Key
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.observe.readers.timeline import timeline
from kedge.observe.records import (
    CODEC_VERSION,
    PROCESS_ENDED,
    RECORDING_ENDED,
    UNDER_WAY,
    AttemptChoice,
    CacheMark,
    CommitRecord,
    OutsideEvent,
    ReceivedChange,
    ReceivedEntry,
    ReceivedPart,
    RecordEncoder,
    SchedulingAttempt,
    StoreState,
    cut_off_record,
)

POD = Key("Pod", "default", "web-0")


def after(seconds: float) -> Any:
    return BEGAN + timedelta(seconds=seconds)


def made(kind: str, name: str, revision: int, spec: dict[str, Any]) -> Object:
    found = KINDS.of_key_kind(kind)
    body = {"apiVersion": found.api_version, "kind": found.kind, "metadata": {"name": name, "uid": "u-1"}, "spec": spec}
    return Object(found, Key(kind, "default", name), encode_object(body), revision=revision, created=1)


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


def test_a_read_after_a_lost_reply_is_a_line_of_its_own() -> None:
    """Both when the component reads, and when its client does so before it returns."""
    found = pod("web-0", 7)
    lost = call("bind", POD, outcome="OutcomeUnknown")
    read = call("get", POD, outcome="read", revision=7, reply=(found,))
    done = call("bind", POD, outcome="done", revision=7, reply=(found,))
    confirmed = msgspec.structs.replace(done, took_s=2.0, unanswered_s=1.5)
    for calls in ([lost, read], [confirmed]):
        lines = timeline(Recording(decisions=[decision("d-1", calls, controller="default-scheduler", began=BEGAN)]))
        assert [each.kind for each in lines] == ["unknown", "read"]
        assert lines[1].text == "default-scheduler: Pod/default/web-0 after the lost reply: not bound, at revision 7"
    assert lines[0].at == after(0.1 + 1.5)


def test_a_read_without_a_lost_reply_has_no_line() -> None:
    read = call("get", POD, outcome="read", revision=7, reply=(pod("web-0", 7),))
    assert timeline(Recording(decisions=[decision("d-1", [read], began=BEGAN)])) == []


def test_a_line_names_its_actor() -> None:
    """The controller behind a version; without a decision, the user."""
    written = pod("web-0", 5)
    anonymous = Object(written.kind, written.key, written.value, revision=5, created=5)
    for found, actor in ((written, "someone"), (anonymous, "user")):
        (line,) = timeline(Recording(states=[StoreState(1, BEGAN, ())], commits=[CommitRecord(5, after(1), (found,))]))
        assert line.actor == actor


@pytest.mark.parametrize(("node", "use"), [("node-b7", ": used by the bind of web-0"), ("node-c1", ""), ("", "")])
def test_a_reservation_that_goes_with_the_bind_of_its_pod_was_used(node: str, use: str) -> None:
    """One that goes alone, or with the bind to another node, was not."""
    spec = {"nodeName": "node-b7", "pod": {"name": "web-0", "uid": "u-1"}}
    reservation, before = made("Reservation.kedge.dev", "res-a", 3, spec), made("Pod", "web-0", 3, {"containers": []})
    bound = made("Pod", "web-0", 5, {"containers": [], "nodeName": node})
    recording = Recording(
        states=[StoreState(3, BEGAN, (reservation, before))],
        commits=[CommitRecord(5, after(1), (bound,), (reservation.key,))],
    )
    assert timeline(recording)[-1].text == f"Reservation res-a deleted{use}"


def test_a_write_without_an_answer_that_counts_as_failed_is_a_line_of_its_own() -> None:
    lost = call("bind", POD, outcome="Unavailable")
    (line,) = timeline(Recording(decisions=[decision("d-1", [lost], controller="default-scheduler", began=BEGAN)]))
    assert (line.kind, line.actor) == ("failed", "default-scheduler")


@pytest.mark.parametrize(("why", "detail"), [(PROCESS_ENDED, False), (RECORDING_ENDED, True)])
def test_a_request_that_a_crash_cut_off_is_a_line_when_it_was_sent(why: str, *, detail: bool) -> None:
    """One that only the end of the recording cut off is a detail."""
    cut = cut_off_record(decision("d-1", [call("create", POD, outcome=UNDER_WAY)], result=""), why)
    (line,) = timeline(Recording(decisions=[cut]))
    assert (line.kind, line.at, line.detail) == ("cut off", after(0.1), detail)
    assert line.text == f"deployments: create {POD} was sent; {why} before the reply"


def test_a_change_that_only_a_list_brought_is_a_line_before_the_decision_that_read_it() -> None:
    """A received log has no times: the first decision whose cache had the list has the time."""
    missed = ReceivedChange("modified", POD, pod("web-0", 7), 7, missed=True)
    entries = (
        ReceivedEntry(4, "event", 6, (missed._replace(missed=False),)),
        ReceivedEntry(5, "list", 8, (missed,)),
    )
    recording = Recording(
        decisions=[
            decision("d-1", began=after(1), marks=(CacheMark("Pod", 4, 6, 0.0),)),
            decision("d-2", began=after(2), marks=(CacheMark("Pod", 5, 8, 0.0),)),
            decision("d-3", began=after(3), marks=(CacheMark("Pod", 5, 8, 0.0),)),
            decision("d-4", began=after(0), process="p-9", marks=(CacheMark("Pod", 9, 9, 0.0),)),
        ],
        received=[ReceivedPart("manager#1", ("p-1",), "Pod", 3, 5, (), entries)],
    )
    (line,) = timeline(recording)
    assert (line.at, line.kind, line.revision, line.decision) == (after(2), "received", 8, "d-2")
    assert "Pod/default/web-0 by a list at revision 8" in line.text


def quota(revision: int, pods: str = "", hard: str = "4") -> Object:
    body = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "risk", "namespace": "default"},
        "spec": {"hard": {"pods": hard}},
        **({"status": {"used": {"pods": pods}}} if pods else {}),
    }
    kind = KINDS.of_key_kind("ResourceQuota")
    return Object(kind, Key("ResourceQuota", "default", "risk"), encode_object(body), revision=revision, created=1)


def running(revision: int, phase: str) -> Object:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "default"},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": phase},
    }
    return Object(KINDS.of_key_kind("Pod"), POD, encode_object(body), revision=revision, created=1)


def test_the_reserved_part_of_a_quota_is_a_line_after_the_pod_that_it_pays_for() -> None:
    """Its actor is that of the pod: a quota changes in the commit of what it pays for."""
    recording = Recording(
        states=[StoreState(1, BEGAN, (quota(1), running(1, "Running")))],
        commits=[
            CommitRecord(2, after(1), (quota(2, "0"),)),
            CommitRecord(3, after(2), (quota(3, "1"), running(3, "Failed"))),
            CommitRecord(4, after(3), (quota(4, "1", hard="2"),)),
        ],
    )
    lines = [(each.revision, each.actor, each.text, each.detail) for each in timeline(recording)]
    assert lines == [
        (2, "user", "ResourceQuota risk reserves pods=0 of 4", True),
        (3, "node-a", "Pod web-0 ended: Failed", False),
        (3, "node-a", "ResourceQuota risk reserves pods=1 of 4", False),
        (4, "user", "ResourceQuota risk changed: pods=2", False),
    ]


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
    assert f"codec version {CODEC_VERSION + 1}" in found.undecoded[0]
    assert "use a matching kedge" in found.undecoded[0]
