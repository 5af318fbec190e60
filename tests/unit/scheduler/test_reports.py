"""Reports of a scheduler: every condition, Event, nomination and eviction leads to a decision, and is recorded."""

from __future__ import annotations

from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, with_scheduler
from tests.objects import node

from kedge.api.kinds import KINDS
from kedge.keys import Key
from kedge.observe.records import SNAPSHOT

POLICY = KINDS.of_key_kind("SchedulingPolicy.kedge.dev")


def calls_of(harness: SchedulerHarness, name: str) -> list[tuple[str, str]]:
    return [(call.verb, str(call.key)) for each in harness.reports(name) for call in each.calls]


@with_scheduler()
async def test_the_condition_and_the_event_of_an_attempt_carry_its_id_and_are_recorded(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("large", cpu="4")
    await until(lambda: len(calls_of(harness, "large")) == 2)
    (attempt,) = harness.attempts("large")
    (report,) = harness.reports("large")
    found = harness.find("large")
    assert found is not None
    assert found.origin.decision == attempt.id == report.part_of
    patch, create = report.calls
    assert (patch.verb, patch.revision, patch.outcome) == ("patch", found.revision, "done")
    assert (create.verb, create.key is not None and create.key.kind) == ("create", "Event")
    assert harness.recorder.writer_of(found.key, found.revision) == attempt.id
    event = harness.cluster.find(create.key) if create.key is not None else None
    assert event is not None
    assert event.origin.decision == attempt.id


@with_scheduler()
async def test_reports_without_an_attempt_have_a_decision_of_their_own(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    body = {"metadata": {"name": "packing"}, "spec": {"version": "v1"}}
    await harness.cluster.authority.create(POLICY, body)
    await harness.pod("gated", schedulingGates=[{"name": "later"}])
    await until(lambda: harness.reports("gated") and harness.reports("packing"))
    for key in (Key("Pod", "default", "gated"), Key(POLICY.key_kind, "", "packing")):
        (report,) = harness.reports(key.name)
        found = harness.cluster.find(key)
        assert found is not None
        assert found.origin.decision == report.id == report.part_of
        assert report.id.startswith("default-scheduler:")


@with_scheduler()
async def test_a_preemption_is_recorded_with_its_nomination_and_its_evictions(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.pod("low", cpu="800m")
    await until(lambda: harness.place("low"))
    await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: ("evict", "Pod/default/low") in calls_of(harness, "high"))
    assert ("patch", "Pod/default/high") in calls_of(harness, "high")
    victim = harness.find("low")
    assert victim is not None
    assert victim.origin.decision in {each.id for each in harness.attempts("high")}


@with_scheduler()
async def test_reports_are_not_counted_as_decisions(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("large", cpu="4")
    await until(lambda: harness.reports("large"))
    coverage = harness.recorder.coverage()
    assert coverage.seen == sum(coverage.kept.values()) == harness.scheduler.statistics().attempts == 1


@with_scheduler()
async def test_the_reads_of_an_attempt_are_its_caches_and_are_counted(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("usual")
    await until(lambda: harness.place("usual") and harness.attempts("usual"))
    (attempt,) = harness.attempts("usual")
    assert {each.cache for each in attempt.reads} == {each.cache for each in attempt.marks} >= {"Node", "Pod"}
    counted = {each.kind: each.count for each in harness.recorder.counts() if each.verb == SNAPSHOT}
    assert counted == dict.fromkeys((each.cache for each in attempt.marks), 1)
