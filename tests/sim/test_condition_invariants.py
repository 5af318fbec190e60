"""The invariants of conditions: each claim is held against committed state, and a return needs an explanation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.kit.cluster import run_without_faults
from tests.kit.raw_cluster import RawCluster, replica_set, slotted
from tests.kit.raw_cluster import ready as ready_pod
from tests.kit.safeguards import replaced
from tests.objects import config_map, deployment, node, pod_key, resource_quota

import kedge.sim.standard as standard_module
from kedge.api.requests import Binding
from kedge.api.wellknown import DRAIN_NODE, OBEYED_PREFIX, SLOT
from kedge.keys import Key, Origin
from kedge.sim.cluster import Cluster
from kedge.sim.judges.condition_invariants import UNJUDGED, claims_of
from kedge.sim.judges.facts import LAG_S, STANDING_LAGS, Step
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.standard import run_standard
from kedge.store import DeleteKey

RS = Key("ReplicaSet.apps", "default", "web")
Program = Callable[[RawCluster], Awaitable[None]]


def judged(program: Program, *, without: tuple[str, ...] = ()) -> tuple[str, str]:
    """The invariant that a program breaks, and the message; empty if it breaks none."""

    async def inner(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster, without=without)
        await cluster.create(node("node-a"))
        await program(RawCluster(cluster, judge))
        await asyncio.sleep(1)

    found = run(inner, 1, faults=NO_FAULTS).violation
    return ("", "") if found is None else (found.invariant, str(found))


async def write(
    raw: RawCluster,
    key: Key,
    type_: str,
    status: str,
    reason: str = "",
    *,
    by: str = "replicaset",
    message: str = "",
    **also: Any,
) -> None:
    """Write one condition of an object as its controller would, with other fields of the status."""

    def change(found: dict[str, Any]) -> None:
        generation = found["metadata"].get("generation", 0)
        written = {"type": type_, "status": status, "reason": reason, "message": message}
        written["observedGeneration"] = generation
        known = found.setdefault("status", {})
        others = [each for each in known.get("conditions", ()) if each["type"] != type_]
        known |= {**also, "conditions": [*others, written]}

    await raw.put(key, change, origin=Origin("", f"{by}:p1:1") if by else Origin("", ""))


async def workload(raw: RawCluster, replicas: int) -> None:
    """A ReplicaSet with as many bound pods."""
    await raw.add(replica_set(replicas), "rs-1")
    for n in range(replicas):
        body = slotted(f"web-{n}")
        body["metadata"]["annotations"][SLOT] = str(n)
        await raw.add(body, f"u-{n}")
        await raw.cluster.authority.bind(Binding(pod=pod_key(f"web-{n}"), pod_uid=f"u-{n}", node="node-a"))


async def remove(raw: RawCluster, name: str) -> None:
    await raw.cluster.store.commit([], [DeleteKey(pod_key(name))])


# -- flaps -----------------------------------------------------------------------------------------


def test_a_scale_down_that_fails_on_a_gone_pod_flaps_at_once() -> None:
    def shrink(found: dict[str, Any]) -> None:
        found["spec"]["replicas"], found["metadata"]["generation"] = 1, 2

    async def program(raw: RawCluster) -> None:
        await workload(raw, 2)
        await raw.put(RS, shrink)
        await remove(raw, "web-1")
        await write(raw, RS, "ReplicaFailure", "True", "NotFound")
        await write(raw, RS, "ReplicaFailure", "False", "Succeeded")

    assert judged(program)[0] == "a true condition holds"
    assert judged(program, without=("a_true_condition_holds",))[0] == "no condition flaps"


def test_a_condition_that_returns_to_older_state_flaps() -> None:
    """The counts explain each status within the lag, but not in this order: the writer went back in time."""

    async def program(raw: RawCluster) -> None:
        await workload(raw, 1)
        await write(raw, RS, "Bound", "True", "AllBound")
        await write(raw, RS, "Bound", "False", "WaitingForNodes")

    assert judged(program)[0] == "no condition flaps"


@pytest.mark.parametrize("sets", [1, 2])
def test_the_counts_of_two_replica_sets_may_be_of_different_times(sets: int) -> None:
    """The first pod is ready, then the second, then the second is gone: a count of the first may still be missing."""
    web = Key("Deployment.apps", "default", "web")

    def child(number: int) -> dict[str, Any]:
        body = replica_set(2)
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-1", "controller": True}
        body["metadata"] |= {"name": f"web-{number}", "ownerReferences": [owner]}
        return body

    def replica(number: int) -> dict[str, Any]:
        body = ready_pod(f"web-{number}-0")
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}
        which = number % sets
        body["metadata"]["ownerReferences"] = [{**owner, "name": f"web-{which}", "uid": f"rs-{which}"}]
        return body

    async def program(raw: RawCluster) -> None:
        body = deployment(replicas=2)
        body["metadata"]["generation"] = 1
        body["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
        await raw.add(body, "d-1")
        for number in range(sets):
            await raw.add(child(number), f"rs-{number}")
        await write(raw, web, "Available", "False", by="deployment")
        for number in range(2):
            await raw.add(replica(number), f"u-{number}")
            await asyncio.sleep(1)
        await write(raw, web, "Available", "True", by="deployment")
        await raw.cluster.store.commit([], [DeleteKey(pod_key("web-1-0"))])
        await write(raw, web, "Available", "False", by="deployment")

    assert judged(program)[0] == ("no condition flaps" if sets == 1 else "")


@pytest.mark.parametrize("lost", [True, False])
def test_a_pod_of_a_lost_node_keeps_a_repair_open_though_no_replica_is_wanted(lost: bool) -> None:
    async def program(raw: RawCluster) -> None:
        await raw.add(replica_set(0), "rs-1")
        await write(raw, RS, "RepairComplete", "False", "Missing")
        await asyncio.sleep(LAG_S + 1)
        await write(raw, RS, "RepairComplete", "True")
        body = slotted("web-0")
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        target = {"type": "DisruptionTarget", "status": "True", "reason": "NodeLost", "observedGeneration": 1}
        body["status"] = {"conditions": [target] if lost else []}
        await raw.add(body, "u-1")
        await write(raw, RS, "RepairComplete", "False", "ReleaseRequested")

    without = ("a_true_condition_holds", "live_copies_are_at_most_desired_plus_surge")
    assert judged(program, without=without)[0] == ("" if lost else "no condition flaps")


def test_a_condition_follows_its_subject_without_a_flap() -> None:
    async def program(raw: RawCluster) -> None:
        await workload(raw, 1)
        await write(raw, RS, "Bound", "True", "AllBound")
        await remove(raw, "web-0")
        await write(raw, RS, "Bound", "False", "WaitingForReplicas")
        await raw.add(slotted("web-0"), "u-9")
        await raw.cluster.authority.bind(Binding(pod=pod_key("web-0"), pod_uid="u-9", node="node-a"))
        await write(raw, RS, "Bound", "True", "AllBound")

    assert judged(program) == ("", "")


@pytest.mark.parametrize("changes", [True, False])
def test_a_refusal_returns_only_with_a_change_of_the_quota(changes: bool) -> None:
    async def program(raw: RawCluster) -> None:
        await raw.cluster.create(resource_quota("all", pods="0"))
        await raw.add(replica_set(2), "rs-1")
        await asyncio.sleep(2 * LAG_S)
        message = 'pods "web-0" is forbidden: exceeded quota: all, requested: pods=1, used: pods=0, limited: pods=0'
        await write(raw, RS, "ReplicaFailure", "True", "Forbidden", message=message)
        if changes:
            await raw.cluster.authority.patch(Key("ResourceQuota", "default", "all"), {"spec": {"hard": {"pods": "2"}}})
        await write(raw, RS, "ReplicaFailure", "False", "Succeeded")

    assert judged(program)[0] == ("" if changes else "no condition flaps")


def budget(allowed: int, healthy: int = 3) -> dict[str, Any]:
    return {"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 3}


BUDGET = Key("PodDisruptionBudget.policy", "default", "web")


async def add_budget(raw: RawCluster) -> None:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    metadata = {"name": "web", "namespace": "default", "generation": 1}
    await raw.add(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}, "pdb-1"
    )


async def flap_a_budget(raw: RawCluster) -> None:
    await add_budget(raw)
    for status, allowed in (("True", 1), ("False", 0), ("True", 1)):
        await write(raw, BUDGET, "DisruptionAllowed", status, by="disruption", **budget(allowed))


@pytest.mark.parametrize("what", ["ready", "not ready", "replaced"])
def test_a_budget_returns_after_an_eviction_that_cost_no_healthy_pod(what: str) -> None:
    async def program(raw: RawCluster) -> None:
        await add_budget(raw)
        await raw.add(slotted("web-0") if what == "not ready" else ready_pod("web-0"), "u-0")
        await asyncio.sleep(1)
        evicted: dict[str, Any] = {"disruptedPods": {"web-0": "2026-01-01T00:00:00Z"}}
        await write(raw, BUDGET, "DisruptionAllowed", "True", by="disruption", **budget(1))
        await write(raw, BUDGET, "DisruptionAllowed", "False", by="disruption", **budget(0), **evicted)
        if what == "replaced":
            await remove(raw, "web-0")
            await raw.add(ready_pod("web-0"), "u-1")
        await write(raw, BUDGET, "DisruptionAllowed", "True", by="disruption", **budget(1), **evicted)

    assert judged(program)[0] == ("no condition flaps" if what == "ready" else "")


async def flap_a_policy(raw: RawCluster) -> None:
    metadata = {"name": "spread", "generation": 1}
    body = {"apiVersion": "kedge.dev/v1", "kind": "SchedulingPolicy", "metadata": metadata, "spec": {"version": "1"}}
    await raw.add(body, "policy-1")
    key = Key("SchedulingPolicy.kedge.dev", "", "spread")
    for status in ("True", "False", "True"):
        await write(raw, key, f"{OBEYED_PREFIX}default-scheduler", status, by="")


async def flap_a_pod(raw: RawCluster) -> None:
    await raw.add(slotted("web-0"), "u-0")
    ready: dict[str, Any] = {
        "phase": "Running",
        "containerStatuses": [{"name": "main", "ready": True, "image": "", "imageID": ""}],
    }
    await raw.put(pod_key(), lambda found: found["spec"]["containers"][0].update(name="main"))
    for status in ("True", "False", "True"):
        await write(raw, pod_key(), "Ready", status, by="", **ready)


async def flap_a_node(raw: RawCluster) -> None:
    key = Key("Node", "", "node-a")
    for status in ("Unknown", "True", "Unknown"):
        await write(raw, key, "Ready", status, by="node-lifecycle")


async def flap_a_rollout(raw: RawCluster) -> None:
    spec = {"target": {"kind": "Deployment", "name": "web"}, "stages": [{"name": "all"}], "template": {}}
    metadata = {"name": "web", "namespace": "default", "generation": 1}
    await raw.add({"apiVersion": "kedge.dev/v1", "kind": "Rollout", "metadata": metadata, "spec": spec}, "rollout-1")
    key = Key("Rollout.kedge.dev", "default", "web")
    for status, phase in (("True", "Progressing"), ("False", "Paused"), ("True", "Progressing")):
        await write(raw, key, "Progressing", status, by="rollout", phase=phase)


async def flap_an_autoscaler(raw: RawCluster) -> None:
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    metadata = {"name": "web", "namespace": "default", "generation": 1}
    spec = {"scaleTargetRef": ref, "minReplicas": 1, "maxReplicas": 2}
    body = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": spec,
        "status": {"currentReplicas": 2, "advice": [{"since": "2026-01-01T00:00:00Z", "low": 3, "high": 3}]},
    }
    await raw.add(body, "hpa-1")
    key = Key("HorizontalPodAutoscaler.autoscaling", "default", "web")
    for status in ("True", "False", "True"):
        await write(raw, key, "ScalingLimited", status, "TooManyReplicas", by="autoscaler")


FLAPS = (flap_a_budget, flap_a_policy, flap_a_pod, flap_a_node, flap_a_rollout, flap_an_autoscaler)


@pytest.mark.parametrize("program", FLAPS, ids=[each.__name__ for each in FLAPS])
def test_conditions_of_every_kind_are_watched_for_flaps(program: Program) -> None:
    assert judged(program, without=("a_true_condition_holds",))[0] == "no condition flaps"


# -- claims ----------------------------------------------------------------------------------------


async def allow_no_disruption(raw: RawCluster) -> None:
    """An eviction takes the last one, and leaves the condition."""
    await add_budget(raw)
    await write(raw, BUDGET, "DisruptionAllowed", "True", by="disruption", **budget(1))
    await raw.put(BUDGET, lambda found: found["status"].update(disruptionsAllowed=0))


async def drain_a_node_with_pods(raw: RawCluster) -> None:
    await workload(raw, 1)
    await asyncio.sleep(LAG_S + 1)
    key = Key("Node", "", "node-a")
    await raw.put(key, lambda found: found["metadata"].update(annotations={DRAIN_NODE: "true"}))
    await write(raw, key, "Drained", "True", "Empty", by="node-lifecycle")


async def resize_nothing(raw: RawCluster) -> None:
    await raw.add(slotted("web-0"), "u-0")

    def settle(found: dict[str, Any]) -> None:
        (container,) = found["spec"]["containers"]
        requests = container.get("resources", {}).get("requests", {})
        known = {"name": container["name"], "ready": True, "image": "", "imageID": "", "allocatedResources": requests}
        found.setdefault("status", {})["containerStatuses"] = [{**known, "resources": container.get("resources", {})}]

    await raw.put(pod_key(), settle)
    await write(raw, pod_key(), "PodResizePending", "True", "Deferred", by="")


async def limit_without_advice(raw: RawCluster) -> None:
    await scaling_condition(raw, "ScalingLimited", "TooManyReplicas")


async def scaling_condition(raw: RawCluster, type_: str, reason: str) -> None:
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    body = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default", "generation": 1},
        "spec": {"scaleTargetRef": ref, "minReplicas": 1, "maxReplicas": 2},
        "status": {"currentReplicas": 2, "advice": [{"since": "2026-01-01T00:00:00Z", "low": 2, "high": 2}]},
    }
    await raw.add(body, "hpa-1")
    key = Key("HorizontalPodAutoscaler.autoscaling", "default", "web")
    await write(raw, key, type_, "True", reason, by="autoscaler")


async def hold_back_without_advice(raw: RawCluster) -> None:
    await scaling_condition(raw, "ScalingHeldBack", "ReplicasPending")


async def read_no_metric(raw: RawCluster) -> None:
    await scaling_condition(raw, "ScalingActive", "ValidMetricFound")


async def scale_a_missing_target(raw: RawCluster) -> None:
    await scaling_condition(raw, "AbleToScale", "ReadyForNewScale")


async def empty_a_namespace_that_stays(raw: RawCluster) -> None:
    await write(raw, Key("Namespace", "", "default"), "NamespaceContentRemaining", "True", by="namespace")


async def refuse_by_a_quota_with_room(raw: RawCluster) -> None:
    await raw.cluster.create(resource_quota("all", pods="5"))
    await raw.add(replica_set(2), "rs-1")
    message = 'pods "web-0" is forbidden: exceeded quota: all, requested: pods=1, used: pods=5, limited: pods=5'
    await write(raw, RS, "ReplicaFailure", "True", "Forbidden", message=message)


FALSE_CLAIMS = (
    allow_no_disruption,
    drain_a_node_with_pods,
    resize_nothing,
    limit_without_advice,
    hold_back_without_advice,
    read_no_metric,
    scale_a_missing_target,
    empty_a_namespace_that_stays,
    refuse_by_a_quota_with_room,
)


@pytest.mark.parametrize("program", FALSE_CLAIMS, ids=[each.__name__ for each in FALSE_CLAIMS])
def test_a_true_condition_that_committed_state_disproves_is_found(program: Program) -> None:
    assert judged(program)[0] == "a true condition holds"


def test_a_silent_node_does_not_stay_ready_and_a_live_one_does_not_stay_suspect() -> None:
    """Judged only where the node lifecycle controller runs, and not before it has had the time."""
    lease = Key("Lease.coordination.k8s.io", "kube-node-lease", "node-a")
    body = {"metadata": {"name": "node-a", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "node-a"}}
    key = Key("Node", "", "node-a")

    async def renew(raw: RawCluster, times: int) -> None:
        for n in range(times):
            if raw.cluster.find(lease) is None:
                await raw.add({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body}, "lease-1")
            else:
                await raw.put(lease, lambda found, n=n: found["spec"].update(leaseTransitions=n))  # type: ignore[misc]
            await asyncio.sleep(5)

    async def silent(raw: RawCluster) -> None:
        await write(raw, key, "Suspect", "False", by="node-lifecycle")
        await write(raw, key, "Ready", "True", by="")
        await renew(raw, 1)
        for n in range(60):
            await asyncio.sleep(10)
            await raw.cluster.create(config_map(f"any-{n}"))

    async def suspected(raw: RawCluster) -> None:
        await renew(raw, 1)
        await write(raw, key, "Suspect", "True", by="node-lifecycle")
        await renew(raw, 60)

    for program, about in ((silent, "Ready=True"), (suspected, "Suspect=True")):
        invariant, message = judged(program)
        assert invariant == "a standing condition holds"
        assert about in message


def test_a_condition_has_the_time_to_follow_a_new_generation() -> None:
    """A pod is gone, and much later the spec changes: the condition is judged by the newer change."""

    async def changed_late(raw: RawCluster) -> None:
        await workload(raw, 1)
        await write(raw, RS, "Bound", "True", "AllBound")
        await raw.cluster.store.commit([], [DeleteKey(pod_key("web-0"))])
        await asyncio.sleep(STANDING_LAGS * LAG_S - 1)
        await raw.put(RS, lambda found: found["metadata"].update(generation=2))
        await asyncio.sleep(2)
        await raw.cluster.create(config_map("in-time"))

    async def never_followed(raw: RawCluster) -> None:
        await changed_late(raw)
        await asyncio.sleep(STANDING_LAGS * LAG_S)
        await raw.cluster.create(config_map("too-late"))

    assert judged(changed_late) == ("", "")
    assert judged(never_followed)[0] == "a standing condition holds"


# -- nothing is left out ---------------------------------------------------------------------------


def test_every_condition_of_a_run_has_a_claim_or_a_reason() -> None:
    seen: dict[tuple[str, str], None] = {}

    def collect(step: Step) -> Iterator[tuple[str, str]]:
        for of, now, _ in step.conditions():
            if claims_of(of.key.kind, now.type) is None and (of.key.kind, now.type) not in UNJUDGED:
                yield of.key.kind, f"{of.key.kind} {now.type} has no claim, and no reason for that"
            seen[of.key.kind, now.type] = None

    async def program(sim: Simulation) -> None:
        world = await run_standard(sim)
        assert world.commits

    class Collecting(Judge):
        def __init__(self, cluster: Cluster, **options: Any) -> None:
            super().__init__(cluster, **options, also=(collect,))

    with replaced(standard_module, "Judge", Collecting):
        run_without_faults(program)
    assert len(seen) > 15
