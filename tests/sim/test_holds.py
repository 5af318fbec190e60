"""Every controller respects a hold: no change until it expires, and the status shows it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.autoscaling import autoscaler
from tests.kit.controllers import replica_set
from tests.kit.holds import LIMITS, Notes, annotated, bound_pod, noted
from tests.kit.rollouts import rollout
from tests.kit.workload_manifests import batch
from tests.objects import config_map, deployment, node, pod, reservation, resource_quota

from kedge.api.codec import encode_object
from kedge.api.holds import Hold
from kedge.api.objects import Object
from kedge.controllers import CONTROLLERS
from kedge.keys import Key
from kedge.runtime import ControllerRuntime
from kedge.sim.cluster import Cluster, ProcessContext
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.standard import budget, service
from kedge.store import Put

HOLD_S = 240.0
Acted = Callable[[], bool]
Case = Callable[[Cluster, Notes], Awaitable[tuple[Key, Acted]]]
WEB = Key("Deployment.apps", "default", "web")


def there(cluster: Cluster, kind: str) -> Acted:
    return lambda: bool(cluster.all(kind))


def gone(cluster: Cluster, key: Key) -> Acted:
    return lambda: cluster.find(key) is None


async def a_deployment(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await cluster.create(noted(deployment("web", replicas=1), notes))
    return made.key, there(cluster, "ReplicaSet.apps")


async def a_replica_set(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await cluster.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", **noted(replica_set("web", 1), notes)})
    return made.key, there(cluster, "Pod")


async def a_job(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await cluster.create({"apiVersion": "batch/v1", "kind": "Job", **noted(batch(completions=1), notes)})
    return made.key, there(cluster, "Pod")


async def an_autoscaler(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    await cluster.create(deployment("web", replicas=1))
    made = await cluster.create(noted(autoscaler(3, 5), notes))
    return made.key, lambda: cluster.find(WEB).view.spec.replicas == 3  # type: ignore[union-attr]


async def a_rollout(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    await cluster.create(deployment("web", replicas=1))
    made = await cluster.create(noted(rollout({"name": "all", "scope": {}}), notes))
    return made.key, lambda: cluster.find(WEB).metadata.generation > 1  # type: ignore[union-attr]


async def a_silent_node(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await cluster.create({"apiVersion": "v1", "kind": "Node", **noted(node("node-a"), notes)})

    def suspect() -> bool:
        conditions = cluster.find(made.key).view.status.conditions  # type: ignore[union-attr]
        return any(each.type == "Suspect" and each.status == "True" for each in conditions)

    return made.key, suspect


async def a_service(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    await bound_pod(cluster, ready=True)
    made = await cluster.create(noted(service("web", "web"), notes))
    return made.key, there(cluster, "EndpointSlice.discovery.k8s.io")


async def a_budget(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    await bound_pod(cluster, ready=True)
    made = await cluster.create(noted(budget("web", "web", 1), notes))
    return made.key, lambda: cluster.find(made.key).view.status.observed_generation > 0  # type: ignore[union-attr]


async def a_wrong_quota(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await cluster.create({"apiVersion": "v1", "kind": "ResourceQuota", **noted(resource_quota(pods="9"), notes)})
    await tampered(cluster, made, lambda body: body.setdefault("status", {}).update(used={"pods": "7"}))

    def used() -> str:
        return str(cluster.find(made.key).view.status.used.get("pods"))  # type: ignore[union-attr]

    return made.key, lambda: used() == "0"


async def a_deleted_namespace(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await cluster.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", **annotated(notes)}}
    )
    inside = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "shop"}}
    kept = await cluster.create(inside)
    await cluster.authority.delete(made.key)
    return made.key, gone(cluster, kept.key)


async def an_orphan(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", **noted(config_map("settings"), notes)}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "long-gone"}
    made = await cluster.create({**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}})
    return made.key, gone(cluster, made.key)


async def an_orphaned_reservation(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    waiting = await reserved_pod(cluster)
    key = Key("Reservation.kedge.dev", "default", waiting.uid)
    found = cluster.find(key)
    assert found is not None
    body = noted(found.edit(), notes)
    await cluster.authority.delete(waiting.key)
    await cluster.store.commit([], [Put(key, encode_object(body))])
    return key, gone(cluster, key)


async def an_orphaned_claim(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    waiting = await reserved_pod(cluster)
    await cluster.authority.patch(Key("Node", "", "node-a"), {"metadata": annotated(notes)})
    ledger = Key("NodeAllocation.kedge.dev", "", "node-a")
    found = cluster.find(ledger)
    assert found is not None
    claims = found.value
    await cluster.authority.delete(waiting.key)
    await cluster.store.commit([], [Put(ledger, claims)])
    return Key("Node", "", "node-a"), lambda: not cluster.find(ledger).view.status.entries  # type: ignore[union-attr]


async def a_pod_without_a_node(cluster: Cluster, notes: Notes) -> tuple[Key, Acted]:
    made = await bound_pod(cluster, notes=notes)
    await cluster.authority.delete(Key("Node", "", "node-a"))
    return made.key, gone(cluster, made.key)


CASES: dict[str, Case] = {
    "deployment": a_deployment,
    "replicaset": a_replica_set,
    "job": a_job,
    "autoscaler": an_autoscaler,
    "rollout": a_rollout,
    "node-lifecycle": a_silent_node,
    "endpoints": a_service,
    "disruption": a_budget,
    "quota": a_wrong_quota,
    "namespace": a_deleted_namespace,
    "garbage": an_orphan,
    "reservation-repair": an_orphaned_reservation,
    "ledger-repair": an_orphaned_claim,
    "binding-repair": a_pod_without_a_node,
}
"""For each controller an object that it would change at once, and that a person holds."""


async def tampered(cluster: Cluster, found: Object, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Write to the store directly, as a bug or a broken disk would."""
    document = found.edit()
    edit(document)
    await cluster.store.commit([], [Put(found.key, encode_object(document))])


async def reserved_pod(cluster: Cluster) -> Object:
    await cluster.create({"apiVersion": "v1", "kind": "Node", **node("node-a")})
    made = await cluster.create({"apiVersion": "v1", "kind": "Pod", **pod("web-0")})
    body = reservation(made, "node-a")
    body["spec"]["deadline"] = "2100-01-01T00:00:00Z"
    await cluster.create({"apiVersion": "kedge.dev/v1", "kind": "Reservation", **body})
    return made


def shown(cluster: Cluster, key: Key, controller: str) -> bool:
    """The object's status shows the hold; for a kind without conditions, `explain` of the controller does."""
    found = cluster.find(key)
    conditions = (found.edit().get("status") or {}).get("conditions") or [] if found is not None else []
    messages = [each["message"] for each in conditions if each["type"] == "Held" and each["status"] == "True"]
    messages += [each.reason for process in cluster.processes for each in process.context.recorder.decisions()]
    return any(f"ada holds {controller} until" in message and "looking into it" in message for message in messages)


async def act(sim: Simulation, name: str, *, held: bool) -> None:
    cluster = Cluster(sim, limits=LIMITS)
    await cluster.set_up()
    until = cluster.store_host.env().now() + timedelta(seconds=HOLD_S)
    notes = dict([Hold(name, "ada", "looking into it", until).annotation()]) if held else {}
    key, acted = await CASES[name](cluster, notes)
    make = CONTROLLERS[name]

    def made(context: ProcessContext) -> Any:
        return make(context.runtime())

    cluster.boot("manager", [made])
    assert not acted()
    while held and sim.now_s < HOLD_S - 5:
        await asyncio.sleep(1)
        assert not acted(), f"{name} acted {sim.now_s:.0f} s into a hold of {HOLD_S:.0f} s"
    assert not held or shown(cluster, key, name)
    deadline_s = HOLD_S + 300 if held else HOLD_S - 20  # without a hold it would have acted long before
    while not acted():
        assert sim.now_s < deadline_s, f"{name} has not acted after {sim.now_s:.0f} s"
        await asyncio.sleep(1)


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_shows_a_hold_and_acts_only_when_it_has_ended(name: str, held: bool) -> None:
    async def program(sim: Simulation) -> None:
        await act(sim, name, held=held)

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"


def test_a_hold_does_not_make_an_old_status_look_new() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=LIMITS)
        await cluster.set_up()
        until = cluster.store_host.env().now() + timedelta(seconds=HOLD_S)
        await bound_pod(cluster, ready=True)
        found = (await cluster.create(budget("web", "web", 1))).key
        cluster.boot(
            "manager",
            [
                lambda context: CONTROLLERS["disruption"](
                    ControllerRuntime(context.client, context.env, caches=context.caches)
                )
            ],
        )
        await asyncio.sleep(20)
        name, text = Hold("disruption", "ada", "looking into it", until).annotation()
        change = {"metadata": {"annotations": {name: text}}, "spec": {"maxUnavailable": 0}}
        await cluster.authority.patch(found, change)
        await asyncio.sleep(20)
        view = cluster.find(found).view  # type: ignore[union-attr]
        assert any(each.type == "Held" for each in view.status.conditions)
        # The counts are of the old spec: an eviction must not take them for the new one's.
        assert view.status.observed_generation < view.generation

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation
