"""Which attempts leave a full record, and that the others are counted."""

from __future__ import annotations

from dataclasses import replace

from tests.kit.controllers import until
from tests.objects import node
from tests.unit.scheduler.desk import LIMITS, Desk, account_in, at_a_desk, attempt_of, choice_in

from kedge.api.kinds import KINDS
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepReason, KeepRules

POLICY = KINDS.of_key_kind("SchedulingPolicy.kedge.dev")


@at_a_desk(replace(LIMITS, decisions_sample_every=10**9))
async def test_failures_priorities_and_canaries_are_kept_in_full_and_the_rest_is_counted(desk: Desk) -> None:
    desk.recorder = Recorder(desk.env, rules=KeepRules(priority_min=10))
    canary = {"version": "v2", "scope": {"podSelector": {"matchLabels": {"track": "canary"}}}}
    body = {"metadata": {"name": "packing"}, "spec": {"version": "v1", "canary": canary}}
    await desk.cluster.authority.create(POLICY, body)
    await desk.open_for(node("node-a", cpu="2"), node("node-b", cpu="1", unschedulable=True))
    await desk.priority("urgent", 10)
    await desk.pod("usual")
    await desk.pod("urgent", priorityClassName="urgent")
    await desk.pod("canary", labels={"track": "canary"})
    await desk.pod("large", cpu="4")
    await until(lambda: all(map(desk.place, ("usual", "urgent", "canary"))) and desk.reason("large"))
    await until(lambda: not desk.scheduler.statistics().binding)
    kept = {each.key.name: each for each in desk.decisions()}
    assert {name: each.kept.split(":")[0] for name, each in kept.items()} == {
        "urgent": KeepReason.PRIORITY,
        "canary": KeepReason.POLICY,
        "large": KeepReason.FAILURE,
    }
    for each in kept.values():
        assert attempt_of(each).draw is not None
        assert len(account_in(each).first_failing) == 2
    assert choice_in(kept["canary"]).policy_version == "v2"
    assert desk.recorder.statistics().seen == desk.scheduler.statistics().attempts == 4


@at_a_desk()
async def test_a_sample_of_the_rest_is_kept_in_full(desk: Desk) -> None:
    """Here of every one there is one."""
    await desk.open_for(node("node-a", cpu="2"))
    await desk.pod("usual")
    await until(lambda: desk.place("usual") and desk.attempts("usual"))
    (only,) = desk.attempts("usual")
    assert only.kept.split(":")[0] == KeepReason.SAMPLE
    assert choice_in(only).node == "node-a"
    assert len(account_in(only).first_failing) == 1
