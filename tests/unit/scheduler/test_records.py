"""Which attempts keep a full record; the others are counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.controllers import until
from tests.kit.records import decision, read
from tests.kit.scheduler import LIMITS, SchedulerHarness, account_in, attempt_of, choice_in, with_scheduler
from tests.objects import node

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Bind, Request
from kedge.errors import Compacted
from kedge.keys import Key
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepReason, KeepRules
from kedge.observe.records import UNDER_WAY
from kedge.scheduler.report.recheck import recheck_attempts
from kedge.scheduler.state.assumptions import Assumption, Assumptions
from kedge.scheduler.state.shapes import bare_request

POLICY = KINDS.of_key_kind("SchedulingPolicy.kedge.dev")


def found(harness: SchedulerHarness, name: str) -> Object:
    """The pod as it is in the store."""
    pod = harness.find(name)
    assert pod is not None
    return pod


@with_scheduler(replace(LIMITS, decisions_sample_every=10**9))
async def test_failures_priorities_and_canaries_are_kept_in_full_and_the_rest_is_counted(
    harness: SchedulerHarness,
) -> None:
    harness.recorder = Recorder(harness.env, rules=KeepRules(priority_min=10))
    canary = {"version": "v2", "scope": {"podSelector": {"matchLabels": {"track": "canary"}}}}
    body = {"metadata": {"name": "packing"}, "spec": {"version": "v1", "canary": canary}}
    await harness.cluster.authority.create(POLICY, body)
    await harness.open_for(node("node-a", cpu="2"), node("node-b", cpu="1", unschedulable=True))
    await harness.priority("urgent", 10)
    await harness.pod("usual")
    await harness.pod("urgent", priorityClassName="urgent")
    await harness.pod("canary", labels={"track": "canary"})
    await harness.pod("large", cpu="4")
    await until(lambda: all(map(harness.place, ("usual", "urgent", "canary"))) and harness.reason("large"))
    await until(lambda: not harness.scheduler.statistics().binding)
    kept = {each.key.name: each for each in harness.decisions()}
    assert {name: each.kept.split(":")[0] for name, each in kept.items()} == {
        "urgent": KeepReason.PRIORITY,
        "canary": KeepReason.POLICY,
        "large": KeepReason.FAILURE,
    }
    for each in kept.values():
        assert attempt_of(each).draw is not None
        assert len(account_in(each).first_failing) == 2
    assert choice_in(kept["canary"]).policy_version == "v2"
    assert harness.recorder.statistics().seen == harness.scheduler.statistics().attempts == 4


@with_scheduler()
async def test_a_sample_of_the_rest_is_kept_in_full(harness: SchedulerHarness) -> None:
    """Here the sample is every attempt."""
    await harness.open_for(node("node-a", cpu="2"))
    await harness.pod("usual")
    await until(lambda: harness.place("usual") and harness.attempts("usual"))
    (only,) = harness.attempts("usual")
    assert only.kept.split(":")[0] == KeepReason.SAMPLE
    assert choice_in(only).node == "node-a"
    assert len(account_in(only).first_failing) == 1


@with_scheduler(replace(LIMITS, decisions_sample_every=10**9))
async def test_a_bind_that_no_rule_keeps_is_kept_with_all_its_inputs_once_a_kept_attempt_depends_on_it(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for(node("node-a", cpu="2"), node("node-b", cpu="1"))
    for name in ("web-0", "web-1", "web-2"):
        await harness.pod(name)
    await until(lambda: all(map(harness.place, ("web-0", "web-1", "web-2"))))
    await until(lambda: not harness.scheduler.statistics().binding)
    assert not harness.decisions()
    recorder = harness.recorder
    revision = found(harness, "web-1").revision
    assert recorder.writer_of(Key("Pod", "default", "web-1"), revision), "it is known which attempt bound the pod"
    recorder.take(decision("reader", [read(found(harness, "web-1"))], result="failed"))
    writer = next(each for each in harness.decisions() if each.id != "reader")
    assert (writer.key.name, writer.kept) == ("web-1", "input: of reader")
    assert [each.verb for each in writer.calls] == ["bind"]
    assert recheck_attempts([writer], harness.caches, harness.env) == 1


@with_scheduler(replace(LIMITS, decisions_sample_every=10**9))
async def test_a_window_that_reaches_back_gets_binds_that_no_rule_kept_with_all_their_inputs(
    harness: SchedulerHarness,
) -> None:
    begin, sent, send = harness.env.now(), {}, harness.wire.send

    async def note_bind(request: Request[Any]) -> Any:
        if isinstance(request, Bind):
            bind = request.binding
            sent[bind.pod] = {"node": bind.node, "nodeUid": bind.node_uid, "decidedOn": bind.decided_on}
        return await send(request)

    harness.wire.send = note_bind  # type: ignore[method-assign]
    await harness.open_for(node("node-a", cpu="2"), node("node-b", cpu="1"))
    names = [f"web-{n}" for n in range(6)]
    for name in names:
        await harness.pod(name, cpu="100m")
    await until(lambda: all(map(harness.place, names)))
    await until(lambda: not harness.scheduler.statistics().binding)
    assert not harness.decisions()
    for _ in harness.recorder.reach_back("incident", begin):
        await asyncio.sleep(0)
    assert sorted(each.key.name for each in harness.decisions()) == names
    assert not any(attempt_of(each).local_lost for each in harness.decisions())
    assert {each.key: each.calls[0].intent for each in harness.decisions()} == sent
    assert harness.recheck_all() == len(names)


@pytest.mark.parametrize("sample_every", [1, 10**9])
def test_attempts_without_a_record_are_counted_like_those_with_one(sample_every: int) -> None:
    counted: list[object] = []

    @with_scheduler(replace(LIMITS, decisions_sample_every=sample_every))
    async def place(harness: SchedulerHarness) -> None:
        await harness.open_for(node("node-a", cpu="2"))
        for name in ("web-0", "web-1"):
            await harness.pod(name)
        await until(lambda: all(map(harness.place, ("web-0", "web-1"))))
        await until(lambda: not harness.scheduler.statistics().binding)
        counted.extend((row.controller, row.verb, row.kind, row.field, row.count) for row in harness.recorder.counts())

    place()
    scheduler = {row for row in counted if row[0] == "default-scheduler"}  # type: ignore[index]
    assert {
        ("default-scheduler", "bind", "Pod", "spec.nodeName", 2),
        ("default-scheduler", "snapshot", "Pod", "*", 2),
        ("default-scheduler", "snapshot", "Node", "*", 2),
    } <= scheduler


@with_scheduler(replace(LIMITS, decisions_sample_every=10**9, scheduler_assumption_changes_max=1))
async def test_a_record_made_after_too_many_changes_cannot_be_run_again(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="2"))
    for name in ("web-0", "web-1"):
        await harness.pod(name)
    await until(lambda: all(map(harness.place, ("web-0", "web-1"))))
    await until(lambda: not harness.scheduler.statistics().binding)
    harness.recorder.take(decision("reader", [read(found(harness, "web-0"))], result="failed"))
    writer = next(each for each in harness.decisions() if each.id != "reader")
    assert attempt_of(writer).local_lost
    with pytest.raises(Compacted, match="scheduler_assumption_changes_max"):
        recheck_attempts([writer], harness.caches, harness.env)
    harness.recorder.close()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30), st.integers(1, 12))
def test_assumptions_are_restored_as_they_were_before_any_of_the_last_changes(
    steps: list[tuple[str, int]], changes_max: int
) -> None:
    assumptions, request = Assumptions(changes_max=changes_max), bare_request("default", {}, ())
    states = {assumptions.changes: assumptions.recorded()}
    for uid, revision in steps:
        if revision:
            key = Key("Pod", "default", uid)
            assumptions.put(Assumption(key, uid, f"node-{revision}", "", request, 0.0, revision))
        else:
            assumptions.pop(uid)
        states[assumptions.changes] = assumptions.recorded()
    for changes, state in states.items():
        too_old = assumptions.changes - changes > changes_max
        assert assumptions.recorded_at(changes) == (None if too_old else state)
    past = assumptions.past()
    for changes in sorted(states, reverse=True):
        too_old = assumptions.changes - changes > changes_max
        assert past.at(changes) == (None if too_old else states[changes])


# -- attempts that are cut off ---------------------------------------------------------------------


@with_scheduler()
async def test_a_crash_leaves_the_record_of_a_bind_whose_reply_did_not_come(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="2"))
    harness.wire.replies_held = True
    await harness.pod("web")
    await until(lambda: harness.place("web"))
    harness.host.crash()
    assert not harness.attempts("web")
    (found,) = harness.recorder.unfinished()
    bound = harness.find("web")
    assert bound is not None
    assert bound.origin.decision == found.id
    assert choice_in(found).node == "node-a"
    assert [(each.verb, each.outcome, each.intent["node"]) for each in found.calls] == [("bind", UNDER_WAY, "node-a")]
    assert not found.result


@with_scheduler()
async def test_a_crash_leaves_the_records_of_a_gang_that_was_reserving(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="2"))
    harness.wire.reserves_held = True
    await harness.gang("a", "b", size=2, cpu="400m")
    await until(lambda: harness.scheduler.statistics().binding)
    harness.host.crash()
    found = harness.recorder.unfinished()
    assert {each.key.name for each in found} == {"a", "b"}
    assert [(each.verb, each.outcome) for record in found for each in record.calls] == [("reserve", UNDER_WAY)]


@with_scheduler()
async def test_the_end_of_a_term_ends_the_attempts_that_it_cancels(harness: SchedulerHarness) -> None:
    """The bind may have been committed, as here: its version names an attempt that has a record."""
    await harness.open_for(node("node-a", cpu="2"))
    harness.wire.replies_held = True
    await harness.pod("web")
    await until(lambda: harness.place("web"))
    harness.running.cancel()
    await asyncio.wait([harness.running])
    assert not harness.recorder.unfinished()
    (found,) = harness.attempts("web")
    bound = harness.find("web")
    assert bound is not None
    assert bound.origin.decision == found.id
    assert (found.result, found.kept) == ("cancelled", "failure: cancelled")
    assert [(each.verb, each.outcome) for each in found.calls] == [("bind", "cancelled")]
    assert harness.recheck_all() == 1


@with_scheduler()
async def test_a_deposed_leader_keeps_the_record_of_the_bind_that_was_fenced_off(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="2"))
    harness.wire.fenced_pod = "web"
    await harness.pod("web")
    await until(lambda: harness.attempts("web"))
    found = harness.attempts("web")[0]
    assert (found.result, found.error.partition(":")[0]) == ("failed", "Fenced")
    assert [(each.verb, each.outcome) for each in found.calls] == [("bind", "Fenced")]
    harness.running.cancel()
    await asyncio.wait([harness.running])
    assert not harness.recorder.unfinished()
