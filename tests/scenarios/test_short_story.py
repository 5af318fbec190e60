"""The short story of a recording: lines that it leaves out, and lines that it keeps."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.kit.records import BEGAN, call, decision, pod

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.observe.records import AttemptChoice, CommitRecord, Decision, OutsideEvent, SchedulingAttempt, StoreState
from kedge.sim.scenario.story import story

NO_ROOM, NO_QUOTA = "0/3 nodes: 3 cpu", "0/3 nodes: 3 zone quota"


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def pending(at_s: float, reason: str, name: str = "web-0") -> Decision:
    choice = AttemptChoice(
        node=None, score=0, feasible=0, nodes=3, policy="", policy_version="", canary=False, blocked_zones=()
    )
    return attempt(at_s, name, SchedulingAttempt(draw=1, choice=choice), reason=reason)


def attempt(at_s: float, name: str, scheduling: SchedulingAttempt, *steps: Any, **fields: Any) -> Decision:
    key = Key("Pod", "default", name)
    return decision(f"s:{at_s}", steps, controller="s", key=key, began=after(at_s), scheduling=scheduling, **fields)


def event(number: int, message: str) -> Object:
    kind = KINDS.resolve("Event")
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": f"event-{number}", "namespace": "default", "uid": f"e-{number}"},
        "reason": "FailedScheduling",
        "note": message,
        "regarding": {"kind": "Pod", "name": f"web-{number}"},
    }
    return Object(kind, Key(kind.key_kind, "default", f"event-{number}"), encode_object(body), revision=9, created=9)


def story_lines(*, verbose: bool = False, names: dict[str, Key] | None = None, **records: Any) -> list[str]:
    """The texts of the story, without what decisions read."""
    recording = Recording(states=[StoreState(1, BEGAN, ())], **records)
    lines = story(recording, begin_s=0.0, names=names, verbose=verbose)
    return [line.text.partition("; read ")[0] for line in lines]


def test_a_pod_that_is_pending_for_the_same_reason_again_has_no_second_line() -> None:
    """Also if other lines come between. Another reason is news, and so is the first one after it."""
    reasons = [NO_ROOM, NO_ROOM, NO_QUOTA, NO_ROOM]
    decisions = [pending(number, reason) for number, reason in enumerate(reasons, 1)]
    decisions.append(pending(1.2, NO_ROOM, "web-1"))
    outside = [OutsideEvent(after(1.5), "step", "wait")]
    line = "no node for Pod web-{}: {}".format
    expected = [line(0, NO_ROOM), line(1, NO_ROOM), "wait", line(0, NO_QUOTA), line(0, NO_ROOM)]
    assert story_lines(decisions=decisions, outside=outside) == expected
    assert len(story_lines(decisions=decisions, outside=outside, verbose=True)) == len(decisions) + 1


def test_another_pod_of_the_same_name_has_a_line_of_its_own() -> None:
    commits = [CommitRecord(9, after(2), (pod("web-0", 9),))]
    lines = story_lines(decisions=[pending(1, NO_ROOM), pending(3, NO_ROOM)], commits=commits)
    assert lines == [f"no node for Pod web-0: {NO_ROOM}", "Pod web-0 created", f"no node for Pod web-0: {NO_ROOM}"]


def test_an_event_that_repeats_the_message_of_another_has_no_line() -> None:
    messages = [NO_ROOM, NO_ROOM, NO_QUOTA]
    commits = [CommitRecord(9 + at, after(at), (event(at, each),)) for at, each in enumerate(messages, 1)]
    about = "Event FailedScheduling about Pod web-{}: {}".format
    assert story_lines(commits=commits) == [about(1, NO_ROOM), about(3, NO_QUOTA)]
    assert len(story_lines(commits=commits, verbose=True)) == len(messages)


def test_the_use_of_a_reservation_is_shown_for_a_pod_with_a_name_in_the_file() -> None:
    bind = call("bind", Key("Pod", "default", "web-0"), revision=9)
    decisions = [attempt(1, "web-0", SchedulingAttempt(reserved_node="node-b7"), bind)]
    commits = [CommitRecord(9, after(2), (pod("web-0", 9),))]
    assert story_lines(decisions=decisions, commits=commits) == ["Pod web-0 created"]
    named = story_lines(decisions=decisions, commits=commits, names={"replica-042": Key("Pod", "default", "web-*")})
    assert named == ["node-b7 is reserved for Pod replica-042", "Pod replica-042 created"]


def test_the_return_to_normal_is_shown_only_if_a_rule_breaks() -> None:
    healed = OutsideEvent(after(1), "phase", "healed")
    commits = [CommitRecord(9, after(2), (pod("web-0", 9),))]
    assert story_lines(outside=[healed], commits=commits) == []
    broken = OutsideEvent(after(3), "violation", "it converges")
    assert story_lines(outside=[healed, broken], commits=commits) == ["Pod web-0 created", "it converges"]
