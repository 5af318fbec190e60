"""Events that wake an unschedulable pod, however indirectly. The flush does not happen here."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.controllers import until
from tests.kit.scheduler import LIMITS, SchedulerHarness, attempt_of, choice_in, with_scheduler
from tests.objects import POD, ZONE_QUOTA, deployment, node, pod, zone_quota

from kedge.api.holds import Hold
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def spread(key: str = ZONE, app: str = "web") -> list[dict[str, Any]]:
    selector = {"matchLabels": {"app": app}}
    return [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]


def between_pods(side: str, app: str, key: str = HOST) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {side: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


# -- nodes that are deleted or moved ---------------------------------------------------------------


@with_scheduler()
async def test_deleting_the_node_of_the_emptiest_domain_makes_others_feasible(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", zone="zone-a"), node("node-b", zone="zone-b", cpu="100m"))
    await harness.pod("first", nodeSelector={HOST: "node-a"})
    await until(lambda: harness.place("first"))
    await harness.pod("second", cpu="500m", topologySpreadConstraints=spread())
    await until(lambda: harness.reason("second") == "0/2 nodes: 1 cpu, 1 topology spread topology.kubernetes.io/zone")
    await harness.cluster.authority.delete(Key("Node", "", "node-b"))
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_a_node_too_small_for_a_pod_makes_others_feasible_by_its_labels(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", zone="zone-a"), node("node-b", zone="zone-b", cpu="100m"))
    await harness.pod("first", nodeSelector={HOST: "node-a"})
    await until(lambda: harness.place("first"))
    await harness.pod("second", cpu="500m", topologySpreadConstraints=spread())
    await until(lambda: harness.reason("second"))
    await harness.cluster.authority.patch(Key("Node", "", "node-b"), {"metadata": {"labels": {ZONE: "zone-a"}}})
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_pods_that_block_others_are_gone_with_their_node(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", zone="zone-a"), node("node-b", zone="zone-a", cpu="200m"))
    await harness.pod("foe", labels={"app": "foe"}, nodeSelector={HOST: "node-b"})
    await until(lambda: harness.place("foe"))
    await harness.pod("shy", cpu="500m", affinity=between_pods("podAntiAffinity", "foe", ZONE))
    await until(lambda: harness.reason("shy"))
    await harness.cluster.authority.delete(Key("Node", "", "node-b"))
    await until(lambda: harness.place("shy"))


# -- pods that change or are gone ------------------------------------------------------------------


@with_scheduler()
async def test_a_relabelled_pod_no_longer_blocks_others(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a"))
    await harness.pod("foe", labels={"app": "foe"})
    await until(lambda: harness.place("foe"))
    await harness.pod("shy", affinity=between_pods("podAntiAffinity", "foe"))
    await until(lambda: harness.reason("shy"))
    await harness.cluster.authority.patch(Key("Pod", "default", "foe"), {"metadata": {"labels": {"app": "friend"}}})
    await until(lambda: harness.place("shy"))


@with_scheduler()
async def test_after_the_last_matching_pod_is_gone_the_next_may_go_anywhere(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="4"))
    together = between_pods("podAffinity", "web")
    await harness.pod("first", cpu="800m", nodeSelector={HOST: "node-a"})
    await until(lambda: harness.place("first"))
    await harness.pod("second", cpu="2", affinity=together)
    await until(lambda: harness.reason("second") == "0/2 nodes: 1 cpu, 1 pod affinity")
    await harness.remove("first")
    await until(lambda: harness.place("second"))


@with_scheduler(replace(LIMITS, watch_probe_s=3600.0, watch_silence_s=3600.0))
async def test_pods_are_counted_together_as_soon_as_their_workload_is_known(harness: SchedulerHarness) -> None:
    """Counted by ReplicaSet the pod is unschedulable; its Deployment has a replica in the other zone already."""
    await harness.open_for(node("node-a", zone="zone-a"), node("node-b", zone="zone-b", cpu="200m"))
    rule = {"metadata": {"name": "even"}, "spec": {"version": "v1", "maxZoneSkew": 1}}
    await harness.cluster.authority.create(KINDS.of_key_kind("SchedulingPolicy.kedge.dev"), rule)
    harness.wire.replica_sets_held = True
    sets = {name: await replica_set(harness, name) for name in ("old", "new")}
    for name, home in (("old", "node-b"), ("new", "node-a"), ("waits", "")):
        body = pod(name, cpu="500m" if name == "waits" else "100m", **({"nodeName": home} if home else {}))
        owner = sets["new" if name == "waits" else name]
        body["metadata"]["ownerReferences"] = [
            reference(owner.kind.api_version, "ReplicaSet", owner.key.name, owner.uid)
        ]
        await harness.cluster.authority.create(POD, body)
        await asyncio.sleep(1)
    await until(lambda: harness.reason("waits") == "0/2 nodes: 1 cpu, 1 policy even v1 maxZoneSkew")
    harness.wire.replica_sets_held = False
    await until(lambda: harness.place("waits"))


def reference(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


async def replica_set(harness: SchedulerHarness, name: str) -> Object:
    """A replica of the Deployment `web`."""
    spec = deployment()["spec"]
    owner = reference("apps/v1", "Deployment", "web", "uid-web")
    body = {"metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]}, "spec": spec}
    return (await harness.cluster.authority.create(KINDS.of_key_kind("ReplicaSet.apps"), body)).object


# -- quotas ----------------------------------------------------------------------------------------


@with_scheduler()
async def test_quota_that_an_assumed_pod_did_not_use_wakes_pods_that_wait_for_it(
    harness: SchedulerHarness,
) -> None:
    """1. A is assumed, which uses up its tenant's quota. 2. B finds none left. 3. A is deleted, unbound."""
    await harness.open_for(node("node-a", cpu="4", zone="zone-a"))
    await harness.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}))
    await asyncio.sleep(2)
    harness.wire.binds_held = True
    await harness.pod("first", cpu="800m")
    await until(lambda: harness.scheduler.statistics().assumed)
    await harness.pod("second", cpu="800m")
    await until(lambda: harness.reason("second") == "0/1 nodes: 1 zone quota default/zone-a")
    await harness.remove("first")
    harness.wire.binds_held = False
    await until(lambda: harness.place("second"))


@pytest.mark.parametrize("shown_by", ["by its reply", "by the cache"])
def test_a_bind_that_a_quota_shows_first_is_not_counted_twice_for_long(shown_by: str) -> None:
    """1. A is bound, and its quota counts it. 2. B is tried; A counts twice. 3. A is known to be bound."""

    @with_scheduler(replace(LIMITS, watch_probe_s=3600.0, watch_silence_s=3600.0))
    async def scene(harness: SchedulerHarness) -> None:
        await harness.open_for(node("node-a", zone="zone-a"))
        await harness.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "2"}))
        harness.wire.binds_held = True
        await harness.pod("first", cpu="800m")
        await until(lambda: harness.scheduler.statistics().assumed)
        await harness.pod("second", cpu="800m", nodeSelector={HOST: "node-b"})
        await until(lambda: harness.attempts("second"))
        await asyncio.sleep(1)
        harness.wire.pod_watch_held = harness.wire.replies_held = True
        harness.wire.binds_held = False
        await until(lambda: harness.place("first"))
        await asyncio.sleep(1)
        await harness.cluster.create(node("node-b", zone="zone-a"))
        await until(lambda: choice_in(harness.attempts("second")[-1]).blocked_zones == ("zone-a",))
        if shown_by == "by its reply":
            harness.wire.replies_held = False
            await until(lambda: harness.place("second"))
            harness.wire.pod_watch_held = False
        else:
            harness.wire.pod_watch_held = False
            await until(lambda: harness.place("second"))
            harness.wire.replies_held = False

    scene()


# -- refusals --------------------------------------------------------------------------------------


@with_scheduler(replace(LIMITS, scheduler_refusals_max=2, scheduler_quarantine_s=10_000.0))
async def test_the_cause_of_a_refusal_wakes_the_pod_though_another_node_is_in_quarantine(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.refusing_node = "node-a"
    await harness.pod("ours", cpu="800m")
    await until(lambda: harness.events("Quarantined"))
    await until(lambda: harness.reason("ours") == "0/1 nodes: 1 refused lately")
    harness.wire.binds_held = True
    await harness.cluster.create(node("node-b", cpu="1"))
    await until(lambda: harness.scheduler.statistics().assumed)
    harness.wire.ledgers_held = harness.wire.pod_watch_held = True
    await harness.pod("theirs", cpu="800m", nodeName="node-b", schedulerName="other")
    harness.wire.binds_held = False
    await until(lambda: any(each.reason == "0/2 nodes: 2 refused lately" for each in harness.attempts("ours")))
    harness.wire.ledgers_held = harness.wire.pod_watch_held = False
    await until(lambda: harness.reason("ours") == "0/2 nodes: 1 cpu, 1 refused lately")


# -- nominations -----------------------------------------------------------------------------------


@with_scheduler()
async def test_room_held_for_a_lower_priority_wakes_a_higher_one_that_never_preempts(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.priority("critical", 20, preemptionPolicy="Never")
    await harness.pod("low", cpu="800m")
    await until(lambda: harness.place("low"))
    await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.scheduler.statistics().nominated)
    await harness.pod("highest", cpu="800m", priorityClassName="critical")
    await until(lambda: harness.reason("highest"))
    await harness.remove("low")
    await until(lambda: harness.place("highest"))
    assert harness.place("high") == ""


@with_scheduler()
async def test_a_gang_of_higher_priority_takes_room_held_for_a_lower_one(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.priority("critical", 20)
    await harness.pod("low", cpu="800m")
    await until(lambda: harness.place("low"))
    await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.scheduler.statistics().nominated)
    await harness.gang("a", "b", size=2, cpu="400m", priorityClassName="critical")
    await until(lambda: harness.reason("a") and harness.reason("b"))
    await harness.remove("low")
    await until(lambda: harness.place("a") and harness.place("b"))
    assert harness.place("high") == ""


@pytest.mark.parametrize("how", ["goes", "is cordoned", "is suspect"])
def test_a_pod_is_nominated_elsewhere_when_its_nominated_node(how: str) -> None:
    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
        await harness.priority("urgent", 10)
        for name in ("low-a", "low-b"):
            await harness.pod(name, cpu="800m")
        await until(lambda: harness.place("low-a") and harness.place("low-b"))
        await harness.pod("high", cpu="800m", priorityClassName="urgent")
        await until(lambda: harness.nominated("high"))
        first = Key("Node", "", harness.nominated("high"))
        if how == "goes":
            await harness.cluster.authority.delete(first)
        elif how == "is cordoned":
            await harness.cluster.authority.patch(first, {"spec": {"unschedulable": True}})
        else:
            suspect = [{"type": "Suspect", "status": "True"}]
            await harness.cluster.authority.patch(first, {"status": {"conditions": suspect}}, subresource="status")
        await until(lambda: harness.nominated("high") not in ("", first.name))
        victim = next(name for name in ("low-a", "low-b") if harness.place(name) == harness.nominated("high"))
        await until(lambda: (found := harness.find(victim)) is not None and found.view.terminating)
        await harness.remove(victim)
        await until(lambda: harness.place("high") not in ("", first.name))

    scene()


@with_scheduler()
async def test_a_failed_preemption_does_not_drop_the_next_nomination(harness: SchedulerHarness) -> None:
    """1. A pod is nominated to a node. 2. The node closes; it is nominated to another. 3. The first eviction fails."""
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.priority("usual", 5)
    await harness.pod("lowest", cpu="800m", nodeName="node-a")
    await harness.pod("low", cpu="800m", nodeName="node-b", priorityClassName="usual")
    harness.wire.protected_pod = "lowest"
    await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.nominated("high") == "node-a")
    await harness.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": True}})
    await until(lambda: harness.nominated("high") == "node-b")
    await until(lambda: (found := harness.find("low")) is not None and found.view.terminating)
    tried = len(harness.attempts("high"))
    await asyncio.sleep(30)
    assert harness.scheduler.statistics().nominated == 1
    assert len(harness.attempts("high")) == tried


@with_scheduler()
async def test_a_failed_nomination_is_dropped_even_after_the_pod_is_relabelled(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.pod("low", cpu="800m", nodeName="node-a")
    harness.wire.protected_pod = "low"
    high = await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.nominated("high"))
    await harness.cluster.authority.patch(high.key, {"metadata": {"labels": {"app": "db"}}})
    await until(lambda: harness.scheduler.cluster_state.nominated.places[high.uid].request.labels == {"app": "db"})
    harness.wire.protected_pod = ""
    await until(lambda: (found := harness.find("low")) is not None and found.view.terminating)
    await harness.remove("low")
    await until(lambda: harness.place("high"))
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_nominated_pod_is_tried_again_after_the_term_that_nominated_it(harness: SchedulerHarness) -> None:
    """1. A pod is nominated, and its victim terminates. 2. The leader is deposed, and leads again without nominations.
    3. No event concerns the pod, and another pod of its priority may take the room."""
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.pod("low", cpu="800m", nodeName="node-a")
    await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: (found := harness.find("low")) is not None and found.view.terminating)
    tried = len(harness.attempts("high"))
    await harness.cluster.authority.patch(
        Key("Lease.coordination.k8s.io", "kube-system", "default-scheduler"), {"spec": {"holderIdentity": ""}}
    )
    await until(lambda: len(harness.attempts("high")) > tried)
    assert harness.scheduler.statistics().nominated == 1


@with_scheduler()
async def test_a_terminating_pod_holds_no_room(harness: SchedulerHarness) -> None:
    """A finalizer may keep it terminating for long."""
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.pod("low", cpu="800m")
    await until(lambda: harness.place("low"))
    high = await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await harness.cluster.authority.patch(high.key, {"metadata": {"finalizers": ["example.com/keep"]}})
    await until(lambda: harness.scheduler.statistics().nominated)
    await harness.pod("late", cpu="800m")
    await until(lambda: harness.reason("late"))
    await harness.cluster.authority.delete(high.key)
    await harness.remove("low")
    await until(lambda: harness.place("late"))


@with_scheduler()
async def test_a_held_pod_holds_no_room(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.pod("low", cpu="800m")
    await until(lambda: harness.place("low"))
    high = await harness.pod("high", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.nominated("high") == "node-a")
    await harness.pod("late", cpu="800m")
    await until(lambda: harness.reason("late"))
    hold = Hold("default-scheduler", "ada", "looking into it", harness.env.now() + timedelta(seconds=3600))
    await harness.cluster.authority.patch(high.key, {"metadata": {"annotations": dict([hold.annotation()])}})
    await until(lambda: not harness.nominated("high"))
    await harness.remove("low")
    await until(lambda: harness.place("late"))


@pytest.mark.parametrize("what", ["a budget", "a hold"])
def test_a_protected_pod_is_evicted_when_its_protection_ends(what: str) -> None:
    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        low = Key("Pod", "default", "low")
        hold = Hold("default-scheduler", "ada", "looking into it", harness.env.now() + timedelta(seconds=3600))
        await harness.open_for(node("node-a", cpu="1"))
        await harness.priority("urgent", 10)
        await harness.budget(0 if what == "a budget" else 1, app="web")
        await harness.pod("low", cpu="800m", nodeName="node-a")
        if what == "a hold":
            await harness.cluster.authority.patch(low, {"metadata": {"annotations": dict([hold.annotation()])}})
        await asyncio.sleep(1)
        await harness.pod("high", cpu="800m", priorityClassName="urgent")
        await until(lambda: harness.reason("high"))
        assert attempt_of(harness.attempts("high")[-1]).unblocked_by == ("node", "room", "budget")
        if what == "a budget":
            budget = Key("PodDisruptionBudget.policy", "default", "budget")
            await harness.cluster.authority.patch(budget, {"status": {"disruptionsAllowed": 1}}, subresource="status")
        else:
            gone = {"metadata": {"annotations": {hold.annotation()[0]: None}}}
            await harness.cluster.authority.patch(low, gone)
        await until(lambda: (found := harness.find("low")) is not None and found.view.terminating)

    scene()


@with_scheduler()
async def test_a_budget_wakes_the_pod_behind_one_that_waits_for_its_victims(harness: SchedulerHarness) -> None:
    """1. The first pod is nominated, the second finds only a protected pod. 2. The budget wakes the first of the two,
    which still waits. 3. The second must be tried too."""
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.budget(0, app="db")
    await harness.pod("low", cpu="800m", nodeName="node-a")
    await harness.pod("safe", cpu="800m", nodeName="node-b", labels={"app": "db"})
    await asyncio.sleep(1)
    await harness.pod("first", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.nominated("first") == "node-a")
    await harness.pod("second", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.reason("second"))
    budget = Key("PodDisruptionBudget.policy", "default", "budget")
    await harness.cluster.authority.patch(budget, {"status": {"disruptionsAllowed": 1}}, subresource="status")
    await until(lambda: (found := harness.find("safe")) is not None and found.view.terminating)


@with_scheduler()
async def test_a_pod_that_never_preempts_does_not_take_the_wake_up_of_one_that_does(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    await harness.priority("patient", 10, preemptionPolicy="Never")
    await harness.budget(0, app="db")
    await harness.pod("safe", cpu="800m", nodeName="node-a", labels={"app": "db"})
    await asyncio.sleep(1)
    await harness.pod("waits", cpu="800m", priorityClassName="patient")
    await until(lambda: harness.reason("waits"))
    await harness.pod("second", cpu="800m", priorityClassName="urgent")
    await until(lambda: harness.reason("second"))
    budget = Key("PodDisruptionBudget.policy", "default", "budget")
    await harness.cluster.authority.patch(budget, {"status": {"disruptionsAllowed": 1}}, subresource="status")
    await until(lambda: (found := harness.find("safe")) is not None and found.view.terminating)


# -- binds in flight -------------------------------------------------------------------------------


@with_scheduler()
async def test_a_preemptor_is_tried_again_once_the_bind_of_its_victim_is_seen(harness: SchedulerHarness) -> None:
    """A pod whose bind is in flight cannot be evicted, and its confirmation frees no room."""
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10)
    harness.wire.binds_held = True
    await harness.pod("low", cpu="700m")
    await until(lambda: len(harness.scheduler.cluster_state.assumed) == 1)
    await harness.pod("urgent", cpu="700m", priorityClassName="urgent")
    await until(lambda: harness.reason("urgent") == "0/1 nodes: 1 cpu")
    harness.wire.binds_held = False
    await until(lambda: harness.place("low"))
    await until(lambda: (urgent := harness.find("urgent")) and urgent.view.status.nominated_node_name == "node-a")
