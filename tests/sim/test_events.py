"""Events of controllers and agents in a whole cluster: the transitions that a user expects, each with its decision."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.controllers import REPLICA_SET, replica_set
from tests.kit.workload_harness import WorkloadHarness, without_faults
from tests.objects import RESOURCE_QUOTA, resource_quota

from kedge.api.wellknown import DECISION_ANNOTATION, EVENT_KIND
from kedge.keys import Key
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.standard import (
    LEDGER,
    SHOP,
    STANDARD,
    WEB,
    JudgedCluster,
    Size,
    autoscaler,
    budget,
    job,
    quota,
    service,
    workload,
)

SMALL = Size(nodes=4, zones=2, servers=1, schedulers=1, managers=1, limits=STANDARD.limits)


async def busy(sim: Simulation) -> None:
    """A rollout, a Job, an autoscaler, and a node that is lost and returns."""
    sim.heal()
    world = JudgedCluster(sim, SMALL)
    await world.open(cluster_faults=False)
    user, cluster = world.user, world.cluster
    await user.apply(workload("Deployment", "web", 3))
    await user.apply(workload("ReplicaSet", "ledger", 2))
    await user.apply(workload("Deployment", "shop", 2, cpu="250m"))
    await user.apply(autoscaler("shop", SHOP, 2, 4))
    await user.apply(autoscaler("nobody", SHOP, 2, 4))
    world.set_load("shop", cores=0.5)
    await user.apply(job("sums", 2))
    await asyncio.sleep(60)
    await user.roll_out(WEB, "web:2")
    await user.scale(LEDGER, 1)
    await asyncio.sleep(30)
    cluster.nodes["node-1"].power_off(for_s=170.0)
    await asyncio.sleep(260)
    await world.close()
    listing = await cluster.store.list(EVENT_KIND)
    found = [cluster.authority._core.object_of(each) for each in listing.entries]
    sim.attach("events", [{**each.edit(), "origin": each.origin.decision} for each in found])


def test_controllers_write_their_transitions_as_events_with_their_decisions() -> None:
    outcome = run(busy, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    events: list[dict[str, Any]] = outcome.attachments["events"]
    reasons = {(each["involvedObject"]["kind"], each["reason"]) for each in events}
    assert reasons >= {
        ("Deployment", "ScalingReplicaSet"),
        ("ReplicaSet", "SuccessfulCreate"),
        ("ReplicaSet", "SuccessfulDelete"),
        ("ReplicaSet", "ReleasedPod"),
        ("Job", "SuccessfulCreate"),
        ("Job", "Completed"),
        ("HorizontalPodAutoscaler", "SuccessfulRescale"),
        ("HorizontalPodAutoscaler", "AmbiguousSelector"),
        ("Node", "NodeSuspect"),
        ("Node", "NodeNotReady"),
        ("Node", "NodeLost"),
        ("Node", "NodeReady"),
        ("Pod", "NodeLost"),
        ("Pod", "Started"),
        ("Pod", "Killing"),
    }, sorted(reasons)
    for each in events:
        decision = each["metadata"]["annotations"][DECISION_ANNOTATION]
        assert decision.partition(":")[0] == each["source"]["component"]
        assert decision == each["origin"], "the version itself was written for the same decision"
        assert each["count"] >= 1
        assert each["firstTimestamp"] <= each["lastTimestamp"]
    (rollout,) = [each for each in events if each["involvedObject"]["name"] == "web"]
    assert rollout["count"] > 2, "one Event for all scalings of the Deployment"


def about(events: list[dict[str, Any]], kind: str) -> dict[str, tuple[str, str, int]]:
    """Type, message and count by reason."""
    chosen = [each for each in events if each["involvedObject"]["kind"] == kind]
    return {each["reason"]: (each["type"], each["message"], each["count"]) for each in chosen}


async def quiet_controllers(sim: Simulation) -> None:
    """A budget loses its pods, a Service may have no slices, and a namespace waits for a finalizer."""
    sim.heal()
    world = JudgedCluster(sim, SMALL)
    await world.open(cluster_faults=False)
    user, cluster = world.user, world.cluster
    await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    await cluster.create(quota("slices", **{"count/endpointslices.discovery.k8s.io": "0"}))
    await user.apply(workload("ReplicaSet", "ledger", 2))
    await asyncio.sleep(20)
    await user.apply(budget("ledger", "ledger", 1))
    await user.apply(service("ledger", "ledger"))
    await asyncio.sleep(60)
    await user.scale(LEDGER, 0)
    await asyncio.sleep(60)
    await user.scale(LEDGER, 1)  # its pod matches again, which is no Event
    stuck = {"name": "stuck", "namespace": "shop", "finalizers": ["a.example/b"]}
    await cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": stuck})
    await cluster.authority.delete(Key("Namespace", "", "shop"))
    await asyncio.sleep(300)
    sim.attach("events", [each.edit() for each in cluster.all(EVENT_KIND)])


def test_budgets_endpoints_and_namespaces_write_transitions_and_repeat_no_state() -> None:
    outcome = run(quiet_controllers, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    events: list[dict[str, Any]] = outcome.attachments["events"]
    assert about(events, "PodDisruptionBudget") == {
        "NoPods": ("Normal", "No pod matches the selector, so no disruption is counted", 1)
    }
    warned, message, count = about(events, "Service")["FailedToUpdateEndpointSlices"]
    assert (warned, "exceeded quota: slices" in message) == ("Warning", True)
    assert 1 < count <= SMALL.limits.event_burst + 2
    found = about(events, "Namespace")
    assert sorted(found) == ["SomeFinalizersRemain", "SomeResourcesRemain"]
    assert found["SomeFinalizersRemain"] == ("Warning", "The deletion waits for: a.example/b: 1", 1)
    assert "ConfigMap: 1" in found["SomeResourcesRemain"][1]
    assert found["SomeResourcesRemain"][::2] == ("Normal", 1)


@without_faults
async def test_a_refused_create_is_a_warning_with_its_reason_and_its_repeats_are_counted(
    harness: WorkloadHarness,
) -> None:
    await harness.service.create(RESOURCE_QUOTA, resource_quota(pods="1"))
    await harness.service.create(REPLICA_SET, replica_set("web", 2))
    await asyncio.sleep(90)
    (event,) = [each.edit() for each in harness.reader.objects(EVENT_KIND) if each.edit()["reason"] == "FailedCreate"]
    assert event["type"] == "Warning"
    assert "web-1" in event["message"]
    assert "exceeded quota: limits" in event["message"]
    assert 1 < event["count"] <= harness.cluster.limits.event_burst + 1
