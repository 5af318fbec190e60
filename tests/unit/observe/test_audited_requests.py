"""Requests of the audit log in a timeline and in an answer: people's changes and refusals, each shown once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tests.kit.records import BEGAN, WEB, call, decision, made

from kedge.keys import Key
from kedge.observe.readers.audited_requests import AuditedRequest
from kedge.observe.readers.object_timeline import EntryMark, ObjectTimeline, object_timeline
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import ClusterEvidence, why_workload
from kedge.observe.records import CommitRecord, Decision

OTHER = Key("Deployment.apps", "default", "db")
SPEC = {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "image": "web:1"}]}}}
PERSON = {"user": "ada", "groups": ("team",)}


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def requested(seconds: float, verb: str = "patch", code: int = 200, **others: Any) -> AuditedRequest:
    return AuditedRequest(**{"at": at(seconds), "verb": verb, "key": WEB, "code": code, **PERSON, **others})


def refused(seconds: float, code: int = 403, reason: str = "Forbidden", **others: Any) -> AuditedRequest:
    return requested(seconds, code=code, reason=reason, message="ada may not patch it", **others)


def recording(*audited: AuditedRequest, decisions: list[Decision] | None = None) -> Recording:
    return Recording(
        commits=[CommitRecord(20, at(1), (made("Deployment.apps", "web", 20, spec=SPEC),))],
        decisions=decisions or [],
        audited=audited,
        audit_coverage="the audit log has requests since 2026-01-01 00:00:00",
    )


def shown(found: ObjectTimeline) -> list[tuple[str, str, str, int]]:
    """Mark, lane, text and revision of the lines from the audit log."""
    return [
        (each.mark.value, each.lane, each.text, each.revision)
        for each in found.entries
        if each.kind in ("requested", "refused")
    ]


def test_a_refused_request_and_a_change_that_no_version_shows_are_a_person_s_actions() -> None:
    found = object_timeline(
        WEB,
        recording(
            requested(0.9, revision=20),
            refused(2),
            requested(3, subresource="scale", revision_before=20, revision=30),
            refused(4, key=OTHER),
        ),
    )
    assert shown(found) == [
        ("person", "ada", f"patch {WEB} was refused: 403 Forbidden: ada may not patch it", 0),
        ("person", "ada", f"patch scale {WEB}", 30),
    ]
    assert any("the audit log has requests since" in each for each in found.coverage)


def test_a_request_that_wrote_nothing_or_that_the_server_could_not_take_is_not_shown() -> None:
    audited = (requested(2, revision_before=20, revision=20), requested(3, code=429, reason="TooManyRequests"))
    assert shown(object_timeline(WEB, recording(*audited))) == []


def test_a_refused_request_of_a_component_has_its_decision_and_no_mark() -> None:
    by = {"user": "system:controller:deployment", "by": "kedge-controllers", "groups": ()}
    entry = refused(2, 409, "Conflict", decision="deployment:p:7", **by)
    (line,) = (each for each in object_timeline(WEB, recording(entry)).entries if each.kind == "refused")
    assert (line.mark, line.lane, line.decision) == (EntryMark.NONE, "deployment", "deployment:p:7")


def test_a_refusal_that_a_record_shows_is_not_repeated() -> None:
    conflict = decision("deployment:p:7", [call("patch", WEB, outcome="Conflict")], key=WEB, began=at(2))
    entry = refused(2, 409, "Conflict", decision="deployment:p:7", user="system:controller:deployment")
    assert shown(object_timeline(WEB, recording(entry, decisions=[conflict]))) == []


def test_components_are_no_people() -> None:
    assert requested(0).is_by_person
    assert requested(0, by="kedge-admin").is_by_person
    assert not requested(0, user="kedge-scheduler", groups=("kedge:schedulers",)).is_by_person
    assert not requested(0, user="system:serviceaccount:default:default").is_by_person
    assert not requested(0, decision="deployment:p:7").is_by_person


def answer(*audited: AuditedRequest) -> list[tuple[str, str]]:
    workload = made("Deployment.apps", "web", 20, spec={"replicas": 0})
    evidence = ClusterEvidence({WEB: workload}, [], at(60), audited=audited, audit_coverage="no audit log: words")
    return [(each.label, each.text) for each in why_workload(workload, evidence).evidence]


def test_an_answer_names_the_user_and_the_time_of_the_last_change_by_a_person() -> None:
    lines = answer(
        requested(1, revision=20),
        requested(5, subresource="scale", by="kedge-admin", revision_before=20, revision=30),
        requested(6, user="system:node:a", revision=40),
        requested(7, key=OTHER, revision=50),
    )
    when = f"{at(5):%Y-%m-%d %H:%M:%S}"
    assert ("changed by", f"ada (by kedge-admin) at {when}: patch scale at revision 30") in lines
    assert not [each for each in lines if each[0] == "refused"]
    assert lines[-1][1].endswith("; no audit log: words")


def test_an_answer_has_a_refusal_that_no_later_change_answered() -> None:
    early, change, late = refused(1), requested(2, revision=20), refused(3, 422, "Invalid")
    assert [each for each in answer(early, change) if each[0] == "refused"] == []
    when = f"{at(3):%Y-%m-%d %H:%M:%S}"
    assert ("refused", f"ada at {when}: patch: 422 Invalid: ada may not patch it") in answer(early, change, late)
    assert replace(late, message="").text() == f"patch {WEB} was refused: 422 Invalid"
