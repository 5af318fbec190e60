"""Which attempts keep a full record; the others are counted."""

from __future__ import annotations

from dataclasses import replace

from tests.kit.controllers import until
from tests.kit.scheduler import LIMITS, SchedulerHarness, account_in, attempt_of, choice_in, with_scheduler
from tests.objects import node

from kedge.api.kinds import KINDS
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepReason, KeepRules

POLICY = KINDS.of_key_kind("SchedulingPolicy.kedge.dev")


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
