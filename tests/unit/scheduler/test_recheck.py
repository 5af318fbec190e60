"""An attempt is run again from its record; a missing or wrong input is detected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, attempt_of, choice_in, with_scheduler
from tests.objects import POD, ZONE_QUOTA, node, pod, zone_quota

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.errors import Compacted, ReplayDiverged
from kedge.keys import Key
from kedge.observe.records import SchedulingAttempt, decode_decision, encode_decision
from kedge.scheduler.report.recheck import recheck_attempt

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REPLICA_SET, POLICY = KINDS.of_key_kind("ReplicaSet.apps"), KINDS.of_key_kind("SchedulingPolicy.kedge.dev")


async def busy(harness: SchedulerHarness) -> dict[str, Any]:
    """Binds in flight, a quota, an unreleased claim, a nomination: every input of a decision."""
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1", zone="zone-b"))
    await harness.priority("urgent", 10)
    await harness.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "900m"}))
    await harness.pod("ghost", cpu="300m")
    await until(lambda: harness.place("ghost"))
    await harness.remove("ghost", confirm=False)
    harness.wire.binds_held = True
    for n in range(4):
        await harness.pod(f"web-{n}", cpu="400m")
    await until(lambda: len(harness.scheduler.cluster_state.assumed) >= 2)
    await harness.pod("urgent", cpu="800m", priorityClassName="urgent")
    await asyncio.sleep(1)
    harness.wire.binds_held = False
    await asyncio.sleep(10)
    return {cache.name: cache.received for cache in harness.caches}


@with_scheduler()
async def test_every_attempt_has_the_same_result_again_also_from_bytes(harness: SchedulerHarness) -> None:
    logs = await busy(harness)
    count = 0
    for record in harness.decisions():
        count += recheck_attempt(decode_decision(encode_decision(record)), logs, harness.env)
    assert count >= 5
    assert any(attempt_of(record).local.unreleased for record in harness.decisions())
    assert any(attempt_of(record).local.assumed for record in harness.decisions())


@with_scheduler()
async def test_a_record_without_one_of_its_inputs_has_another_result(harness: SchedulerHarness) -> None:
    """Each input is needed: without it the result of some attempt differs."""
    logs = await busy(harness)
    changes: dict[str, Callable[[SchedulingAttempt], SchedulingAttempt]] = {
        "assumed": lambda each: replace(each, local=replace(each.local, assumed={})),
        "unreleased": lambda each: replace(each, local=replace(each.local, unreleased={})),
        "draw": lambda each: replace(each, draw=1 << 30),
    }
    for name, change in changes.items():
        differs = False
        for record in harness.decisions():
            kept = attempt_of(record)
            if kept.draw is None:
                continue
            record.scheduling = change(kept)
            try:
                recheck_attempt(record, logs, harness.env)
            except ReplayDiverged:
                differs = True
            record.scheduling = kept
        assert differs or name == "draw", name


@with_scheduler()
async def test_a_changed_result_is_detected_and_a_missing_log_is_reported(harness: SchedulerHarness) -> None:
    logs = await busy(harness)
    record = next(
        each
        for each in harness.decisions()
        if each.scheduling and each.scheduling.choice and each.scheduling.choice.node
    )
    attempt, choice = attempt_of(record), choice_in(record)
    attempt.choice = replace(choice, score=choice.score + 1)
    with pytest.raises(ReplayDiverged, match="score is"):
        recheck_attempt(record, logs, harness.env)
    attempt.choice = choice
    with pytest.raises(Compacted, match="received log of Node is missing"):
        recheck_attempt(record, {}, harness.env)


@with_scheduler()
async def test_the_zone_that_a_bind_was_counted_in_is_part_of_the_record(harness: SchedulerHarness) -> None:
    """A node may be in another zone by the time the next attempt reads its tenant's quotas."""
    await harness.open_for(node("node-a", cpu="4", zone="zone-a"))
    await harness.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}, zone_b={"cpu": "1"}))
    await asyncio.sleep(2)
    harness.wire.binds_held = True
    await harness.pod("first", cpu="800m")
    await until(lambda: harness.scheduler.statistics().assumed)
    moved = {"metadata": {"labels": {ZONE: "zone-b"}}}
    await harness.cluster.authority.patch(Key("Node", "", "node-a"), moved)
    await asyncio.sleep(2)
    await harness.pod("second", cpu="800m")
    await until(lambda: harness.attempts("second") or harness.scheduler.statistics().assumed == 2)
    harness.wire.binds_held = False
    await until(lambda: harness.attempts("second"))
    (attempt, *_) = harness.attempts("second")
    assert choice_in(attempt).blocked_zones == ("zone-a",)
    assert recheck_attempt(attempt, {cache.name: cache.received for cache in harness.caches}, harness.env)


def apart_from_web(topology_key: str) -> dict[str, Any]:
    rule = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": topology_key}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}


@with_scheduler()
async def test_a_pod_relabelled_while_its_bind_is_in_flight_counts_with_its_new_labels(
    harness: SchedulerHarness,
) -> None:
    """Later attempts and their rechecks see the same pod, and a pod that waited for it to leave is woken."""
    await harness.open_for(node("node-a"))
    harness.wire.binds_held = True
    web = await harness.pod("web")
    await until(lambda: harness.scheduler.cluster_state.assumed)
    await harness.pod("early", labels={"app": "early"}, affinity=apart_from_web(HOST))
    await until(lambda: harness.reason("early") == f"0/1 nodes: 1 pod anti-affinity {HOST}")
    await harness.cluster.authority.patch(web.key, {"metadata": {"labels": {"app": "db"}}})
    await until(lambda: len(harness.scheduler.cluster_state.assumed) == 2)
    await harness.pod("late", labels={"app": "late"}, affinity=apart_from_web(HOST))
    await until(lambda: len(harness.scheduler.cluster_state.assumed) == 3)
    harness.wire.binds_held = False
    await until(harness.nothing_is_left)
    assert [harness.place(name) for name in ("web", "early", "late")] == ["node-a"] * 3
    assert harness.recheck_all() >= 4


async def making_room(harness: SchedulerHarness, **urgent: Any) -> Object:
    """`web` is nominated to `node-a`; other nodes, too small for it, are in the same zone and in another."""
    small = [node("node-b", cpu="200m"), node("node-c", cpu="200m", zone="zone-b")]
    await harness.open_for(node("node-a", cpu="1"), *small)
    await harness.priority("urgent", 10)
    await harness.pod("low", cpu="800m", labels={"app": "low"})
    await until(lambda: harness.place("low"))
    body = pod("web", cpu="800m", priorityClassName="urgent")
    body["metadata"].update(urgent)
    web = (await harness.cluster.authority.create(POD, body)).object
    await until(lambda: harness.nominated("web"))
    return web


@with_scheduler()
async def test_a_nominated_pod_that_is_relabelled_counts_with_its_new_labels(
    harness: SchedulerHarness,
) -> None:
    web = await making_room(harness)
    near = {"affinity": apart_from_web(ZONE), "nodeSelector": {HOST: "node-b"}}
    await harness.pod("early", cpu="100m", labels={"app": "early"}, **near)
    await until(lambda: harness.reason("early") == f"0/3 nodes: 2 node selector, 1 pod anti-affinity {ZONE}")
    await harness.cluster.authority.patch(web.key, {"metadata": {"labels": {"app": "db"}}})
    await until(lambda: harness.place("early"))
    await harness.pod("late", cpu="100m", labels={"app": "late"}, **near)
    await until(lambda: harness.place("late"))
    assert harness.scheduler.cluster_state.nominated.places[web.uid].request.labels == {"app": "db"}
    assert harness.recheck_all() >= 5
    await harness.remove("low")
    await until(lambda: harness.place("web") == "node-a")


@with_scheduler()
async def test_a_nominated_pod_counts_for_the_workload_that_policies_use(
    harness: SchedulerHarness,
) -> None:
    above = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "deployment", "controller": True}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod()["spec"]}
    body = {
        "metadata": {"name": "set", "namespace": "default", "ownerReferences": [above]},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    made = (await harness.cluster.authority.create(REPLICA_SET, body)).object
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": made.uid, "controller": True}
    web = await making_room(harness, ownerReferences=[owner])
    policy = {"metadata": {"name": "spread"}, "spec": {"version": "1", "active": True, "maxZoneSkew": 1}}
    await harness.cluster.authority.create(POLICY, policy)
    await until(lambda: harness.scheduler.cluster_state.policies.objects)
    late = pod("late", cpu="100m")
    late["metadata"]["ownerReferences"] = [owner]
    await harness.cluster.authority.create(POD, late)
    await until(lambda: harness.place("late"))
    assert harness.place("late") == "node-c", "its workload has a pod in the other zone already, or as good as"
    assert harness.scheduler.cluster_state.nominated.places[web.uid].request.workload == "deployment"
    assert harness.recheck_all() >= 3
