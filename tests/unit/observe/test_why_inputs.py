"""The inputs of an attempt on a running cluster: it has no commits, so revisions and the audit log date versions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.records import BEGAN, WEB, call, decision, made, make_env

from kedge.api.objects import Object
from kedge.cli.live import with_logged
from kedge.keys import Key, Origin
from kedge.observe import DecisionLog
from kedge.observe.readers.audited_requests import AuditedRequest
from kedge.observe.readers.logged_part import answer_part
from kedge.observe.readers.why import Answer, ClusterEvidence, why_pod
from kedge.observe.recording.log_search import LogSearch
from kedge.observe.records import AttemptChoice, CacheMark, Decision, NodeAccount, SchedulingAttempt

POD = Key("Pod", "default", "web-0")
QUOTA = "ZoneQuota.kedge.dev"
OLD, NEW = 320, 341
BEFORE, AFTER = timedelta(seconds=-2), timedelta(seconds=2)


def attempt(*marks: CacheMark, label: str = "zone quota risk/zone-c", code: str = "ZoneQuota") -> Decision:
    account = NodeAccount(b"", (label,), {label: 3}, (), None, (code,))
    choice = AttemptChoice(None, 0, 0, 3, "", "", False, ())  # noqa: FBT003  a record
    return decision(
        "default-scheduler:p:7",
        controller="default-scheduler",
        key=POD,
        marks=marks,
        reason=f"0/3 nodes: 3 {label}",
        scheduling=SchedulingAttempt(choice=choice, account=account),
    )


def mark(kind: str, revision: int, age_s: float = 0.0) -> CacheMark:
    return CacheMark(kind, 7, revision, age_s)


def quota_by(caller: str, revision: int = NEW) -> Object:
    """A quota as a list has it: the newest version, and its writer."""
    return by(caller, made(QUOTA, "risk", revision))


def by(caller: str, found: Object) -> Object:
    return msgspec.structs.replace(found, origin=Origin("", "", caller))


def patched(revision: int, after: timedelta, **fields: Any) -> AuditedRequest:
    """A person's change of the quota in the audit log."""
    key = Key(QUOTA, "default", "risk")
    return AuditedRequest(at=BEGAN + after, user="ada", verb="patch", key=key, code=200, revision=revision, **fields)


def live(folder: Path, decisions: list[Decision], *objects: Object, audited: tuple[AuditedRequest, ...] = ()) -> Answer:
    """The answer about the pod as a running cluster gives it, from a log of these decisions."""
    log = DecisionLog(folder, make_env())
    for each in decisions:
        log.append(each)
    log.close()
    pod = made("Pod", "web-0", 5, spec={"containers": [{"name": "main"}]})
    listed = ClusterEvidence({each.key: each for each in (pod, *objects)}, [], BEGAN + timedelta(seconds=60))
    search = LogSearch([folder])
    logged = answer_part(search, [POD], [POD])
    logged.audited = audited
    return why_pod(pod, with_logged(listed, logged, search))


def inputs(answer: Answer) -> list[str]:
    return [each.text for each in answer.evidence if each.label == "inputs"]


WAS_THERE = (
    "this was decided on an old cache: ZoneQuota risk was already at revision 341, by {}, and the cache was at 320"
)
CAME_LATER = "ZoneQuota risk has changed since, at revision 341, by {}, and the scheduler, whose cache was at 320"


def test_a_version_up_to_the_newest_mark_of_the_decision_existed_then(tmp_path: Path) -> None:
    """The status of a quota changes in the commit that removes a pod: no decision has a reply with it."""
    made_by_agent = quota_by("system:node:node-c12")
    answer = live(tmp_path, [attempt(mark("Pod", NEW), mark(QUOTA, OLD, 4.6))], made_by_agent)
    assert WAS_THERE.format("agent-node-c12") in answer.sentence
    assert inputs(answer)[1] == (
        "ZoneQuota.kedge.dev at revision 320, 4.6 s old; risk was at 341 then, written by agent-node-c12"
    )


def test_a_version_past_every_mark_came_later(tmp_path: Path) -> None:
    answer = live(tmp_path, [attempt(mark("Pod", NEW - 1), mark(QUOTA, OLD))], quota_by("ada"))
    assert CAME_LATER.format("ada") in answer.sentence
    assert inputs(answer)[1].endswith("risk has changed since, at 341, by ada")


@pytest.mark.parametrize(("after", "sentence"), [(BEFORE, WAS_THERE), (AFTER, CAME_LATER)], ids=["before", "after"])
def test_a_person_s_change_has_the_time_of_the_audit_log(tmp_path: Path, after: timedelta, sentence: str) -> None:
    asked = [attempt(mark("Pod", OLD), mark(QUOTA, OLD))]
    answer = live(tmp_path, asked, quota_by("ada"), audited=(patched(NEW, after),))
    assert sentence.format("ada") in answer.sentence


def test_an_older_change_of_a_person_existed_although_the_newest_came_later(tmp_path: Path) -> None:
    asked = [attempt(mark("Pod", OLD), mark(QUOTA, OLD))]
    changes = (patched(NEW, BEFORE), patched(360, AFTER))
    answer = live(tmp_path, asked, quota_by("ada", 360), audited=changes)
    assert WAS_THERE.format("ada") in answer.sentence


def test_a_request_that_changed_nothing_is_no_newer_version(tmp_path: Path) -> None:
    asked = [attempt(mark("Pod", OLD), mark(QUOTA, OLD))]
    answer = live(tmp_path, asked, audited=(patched(NEW, BEFORE, revision_before=NEW),))
    assert "ZoneQuota" not in answer.sentence


def test_a_write_of_another_kind_before_the_decision_dates_a_version(tmp_path: Path) -> None:
    """The deployment was written at a later revision than the quota, and before the attempt."""
    written = call(key=WEB, revision=NEW + 1, reply=(made("Deployment.apps", "web", NEW + 1),))
    earlier = decision("deployment:p:3", [written], began=BEGAN + BEFORE)
    answer = live(tmp_path, [earlier, attempt(mark("Pod", OLD), mark(QUOTA, OLD))], quota_by("ada"))
    assert WAS_THERE.format("ada") in answer.sentence


def test_an_earlier_attempt_with_fresher_caches_dates_a_version(tmp_path: Path) -> None:
    """A scheduler that took over begins with caches that are older than those of the former leader."""
    former = msgspec.structs.replace(attempt(mark("Pod", NEW), mark(QUOTA, NEW)), id="s:o:6", began=BEGAN + BEFORE)
    answer = live(tmp_path, [former, attempt(mark("Pod", OLD), mark(QUOTA, OLD))], quota_by("ada"))
    assert WAS_THERE.format("ada") in answer.sentence


def test_an_allocation_that_is_listed_is_named_as_in_a_recording(tmp_path: Path) -> None:
    found = by("system:node:node-1", made("NodeAllocation.kedge.dev", "node-1", NEW))
    answer = live(tmp_path, [attempt(mark("Pod", OLD), mark("NodeAllocation.kedge.dev", OLD))], found)
    assert inputs(answer)[1].endswith("node-1 has changed since, at 341, by agent-node-1")
