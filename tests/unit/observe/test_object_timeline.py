"""The timeline of one object: order, lanes, causes, folded retries, windows, and its other forms."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.kit.records import BEGAN, WEB, call, decision

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.observe.readers.object_timeline import EntryMark, ObjectTimeline, object_timeline
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.trace_events import trace_document
from kedge.observe.records import (
    AttemptChoice,
    CacheMark,
    CommitRecord,
    CoverageRecord,
    Decision,
    OutsideEvent,
    SchedulingAttempt,
    StoreState,
    WakeCause,
)

POD, OTHER = Key("Pod", "default", "web-0"), Key("Pod", "default", "web-1")
QUOTA = Key("ZoneQuota.kedge.dev", "default", "risk")


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def version(key: Key, revision: int, origin: Origin = Origin("op"), generation: int = 1, **spec: Any) -> Object:  # noqa: B008  frozen
    kind = KINDS.of_key_kind(key.kind)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-web", "controller": True}
    metadata: dict[str, Any] = {"name": key.name, "namespace": key.namespace, "uid": f"uid-{key.name}"}
    metadata["generation"] = generation
    if key.kind == "Pod":
        metadata["ownerReferences"] = [owner]
    template = {"spec": {"containers": [{"name": "main", "image": f"web:{generation}"}]}}
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    body["spec"] = {"containers": [{"name": "main"}], "replicas": 1, "template": template, "zones": {}, **spec}
    return Object(kind, key, msgspec.json.encode(body), revision=revision, created=1, origin=origin)


def failed(number: int, began_s: float, key: Key = POD, cause: WakeCause | None = None) -> Decision:
    choice = AttemptChoice(None, 0, 0, 3, "", "", False, ())  # noqa: FBT003  a record
    return decision(
        f"default-scheduler:p:{number}",
        controller="default-scheduler",
        key=key,
        began=at(began_s),
        took_s=0.25,
        kept="failure: failed",
        reason="0/3 nodes: 3 zone quota risk/zone-c",
        scheduling=SchedulingAttempt(choice=choice, cause=cause),
    )


def recording() -> Recording:
    """Two pods are tried again and again; a quota is freed, the scheduler sees it late, and one pod is bound."""
    bound = decision(
        "default-scheduler:p:9",
        [call("bind", POD, revision=40, outcome="done")],
        controller="default-scheduler",
        key=POD,
        began=at(12),
        wakes=(("a quota changed", "quota"),),
        scheduling=SchedulingAttempt(cause=WakeCause(QUOTA, 30, "quota")),
    )
    made = decision(
        "replicaset:p:1",
        [call("create", POD, revision=21)],
        controller="replicaset",
        key=WEB,
        began=at(1.5),
        wakes=((str(WEB), ""),),
        marks=(CacheMark("Deployment.apps", 1, 20, 0.1),),
    )
    return Recording(
        states=[StoreState(10, at(0), (version(WEB, 10),))],
        commits=[
            CommitRecord(20, at(1), (version(WEB, 20, Origin("op", "", "ada"), 2),)),
            CommitRecord(21, at(1.6), (version(POD, 21, Origin("op", "replicaset:p:1")),)),
            CommitRecord(22, at(1.7), (version(OTHER, 22, Origin("op", "replicaset:p:1")),)),
            CommitRecord(30, at(3.1), (version(QUOTA, 30, Origin("op", "quota:p:1")),)),
            CommitRecord(40, at(12.1), (version(POD, 40, Origin("op", "default-scheduler:p:9"), nodeName="node-c"),)),
            CommitRecord(50, at(20), (version(WEB, 50, Origin("op", "", "ada"), 3),)),
        ],
        decisions=[
            made,
            *(failed(n, 2 + n, POD if n % 2 else OTHER) for n in range(6)),
            bound,
        ],
        outside=[
            OutsideEvent(at(3), "fault", "the watch of ZoneQuota is 9s late"),
            OutsideEvent(at(4), "held", "a verdict of the scenario"),
            OutsideEvent(at(5), "step", "expect nothing"),
            OutsideEvent(at(6), "step", "delete Pod risk-report"),
        ],
        coverages=[CoverageRecord("p", at(0), at(30), 100, {"failure": 6, "sample": 2}, 50)],
    )


def texts(found: ObjectTimeline, lane: str) -> list[str]:
    return [each.text for each in found.entries if each.lane == lane]


def test_a_lane_per_controller_in_order_of_revision_with_people_and_faults_marked() -> None:
    found = object_timeline(WEB, recording())
    revisions = [each.revision for each in found.entries if each.revision]
    assert revisions == sorted(revisions) == [20, 21, 22, 40, 50]
    assert set(found.lanes) == {"ada", "replicaset", "default-scheduler", "faults", "people"}
    marked = {each.text.partition(":")[0]: each.mark for each in found.entries if each.mark}
    assert marked == {
        "Deployment web changed": EntryMark.PERSON,
        "the watch of ZoneQuota is 9s late": EntryMark.FAULT,
        "delete Pod risk-report": EntryMark.PERSON,
    }


def test_a_decision_is_linked_to_the_write_that_woke_it_and_when_it_was_seen() -> None:
    found = object_timeline(WEB, recording())
    (bind,) = (each for each in found.entries if each.revision == 40)
    assert str(bind.cause) == "ZoneQuota risk by quota, written at rv 30, seen 8.9 s later"
    (created,) = (each for each in found.entries if each.revision == 21)
    assert str(created.cause) == "Deployment web by ada, written at rv 20, seen 0.5 s later"
    assert any("because of ZoneQuota risk by quota, written at rv 30" in line for line in found.lines())


def test_retries_with_one_outcome_are_one_line_although_others_stand_between_them() -> None:
    found = object_timeline(WEB, recording())
    pending = [each for each in found.entries if each.kind == "pending"]
    assert [(each.text.split(":")[0], each.count) for each in pending] == [
        ("no node for Pod/default/web-1", 3),
        ("no node for Pod/default/web-0", 3),
    ]


def test_a_generation_is_the_time_from_its_first_version_to_the_next() -> None:
    found = object_timeline(WEB, recording(), generation=2)
    assert [each.revision for each in found.entries if each.revision] == [20, 21, 22, 40]
    assert found.coverage[0] == "window: generation 2 from 2030-01-01 00:00:01 to 00:00:20"
    assert object_timeline(WEB, recording(), generation=7).entries == ()


def test_a_begin_leaves_out_what_was_before_it() -> None:
    found = object_timeline(WEB, recording(), since=at(10))
    assert [each.revision for each in found.entries] == [40, 50]
    assert [each.id for each in found.decisions] == ["default-scheduler:p:9"]


def test_every_form_states_the_window_and_what_was_not_kept() -> None:
    found = object_timeline(WEB, recording())
    expected = (
        "window: everything from the beginning of the records to their end",
        (
            "coverage: 8 decisions kept from 2030-01-01 00:00:01 to 00:00:12: 6 by failure, 2 by no rule recorded;"
            " of 100 that ended since 2030-01-01 00:00:00, 92 were counted and not kept;"
            " 1 in 50 of those that no other rule keeps is a sample"
        ),
    )
    assert found.coverage == expected
    assert tuple(found.lines())[-2:] == expected
    assert found.document()["coverage"] == list(expected)
    assert trace_document(found)["otherData"]["coverage"] == list(expected)


def test_the_document_has_its_kind_and_every_entry() -> None:
    document = json.loads(json.dumps(object_timeline(WEB, recording()).document()))
    assert (document["apiVersion"], document["kind"]) == ("kedge.dev/v1", "Timeline")
    bind = next(each for each in document["entries"] if each["revision"] == 40)
    assert bind["at"] == "2030-01-01T00:00:12.100000Z"
    assert bind["cause"] == {
        "object": "ZoneQuota.kedge.dev/default/risk",
        "revision": 30,
        "writer": "quota",
        "seenSeconds": 8.9,
    }


def test_a_trace_has_a_named_thread_per_lane_a_slice_per_decision_and_paired_flows() -> None:
    found = object_timeline(WEB, recording())
    events = json.loads(json.dumps(trace_document(found)))["traceEvents"]
    for each in events:
        assert {"ph", "pid", "tid", "name"} <= set(each)
        assert each["ph"] in "MXisf"
        assert each["ph"] == "M" or each["ts"] >= round(BEGAN.timestamp() * 1e6)
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert {each["tid"] for each in events if each["ph"] != "M"} <= set(names)
    assert {"default-scheduler", "replicaset", "quota", "ada", "faults"} <= set(names.values())
    slices = [each for each in events if each["ph"] == "X" and each["cat"] == "decision"]
    assert len(slices) == 8
    assert {each["dur"] for each in slices if each["args"]["reason"]} == {250_000}
    begun = {each["id"]: each["ts"] for each in events if each["ph"] == "s"}
    ended = {each["id"]: each["ts"] for each in events if each["ph"] == "f"}
    assert begun.keys() == ended.keys()
    assert sorted(ended[each] - begun[each] for each in begun) == [500_000, 8_900_000]


def test_an_object_that_no_record_has_has_no_entries() -> None:
    assert object_timeline(Key("Pod", "default", "stranger"), recording()).entries == ()


@pytest.mark.parametrize("zones", [None, {}, {"zone-a": None}, {"zone-a": {"hard": None}}])
def test_a_quota_of_zones_without_limits_is_in_the_timeline(zones: Any) -> None:
    bare = version(QUOTA, 30, zones=zones)
    commits = [CommitRecord(30, at(1), (bare,))]
    found = object_timeline(QUOTA, replace(recording(), commits=commits))
    assert any("ZoneQuota risk created" in line for line in found.lines())
