"""Safeguards of the controllers of workloads, endpoints, garbage collection and namespaces.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kedge.api.conditions import condition
from kedge.api.objects import Object
from kedge.controllers.deployment import controller as deployment
from kedge.controllers.deployment import plan as rolling
from kedge.controllers.deployment.plan import SetFacts
from kedge.controllers.endpoints import controller as endpoints
from kedge.controllers.endpoints import plan as endpoints_plan
from kedge.controllers.garbage import controller as garbage
from kedge.controllers.garbage.controller import GarbageCollector
from kedge.controllers.garbage.plan import GarbagePlan, OwnerState, plan_garbage
from kedge.controllers.namespace.controller import NamespaceReconciler
from kedge.controllers.replicaset import controller as replicaset
from kedge.controllers.replicaset import plan as replicas
from kedge.controllers.replicaset.controller import ReplicaSetReconciler
from kedge.controllers.shared import conditions
from kedge.controllers.shared.actions import ActionRecorder
from kedge.controllers.shared.pods import is_lost
from kedge.keys import Key
from kedge.runtime import Context
from kedge.server.service import deletion
from kedge.sim.zoo.entry import without

TOO_MANY = "live copies are at most desired plus surge"
ONE_COPY = "an at most one slot has one live copy"
TWO_BINDINGS = "a slot has one unreleased binding"
SPARED = "garbage collection spares owned objects"
SERVED = "endpoints are the ready pods"
CONVERGE = ("replicas converge", "stage counts equal the store")

_plan_replicas = replicas.plan_replicas
_replica = replicaset.replica
_owner, _plan_garbage = GarbageCollector._owner, plan_garbage
_wake_services = endpoints.wake_services


# -- replicas --------------------------------------------------------------------------------------


@without(
    replicaset,
    "plan_replicas",
    source="reconciliation: a fourth live copy of fraud-batch",
    breaks=TOO_MANY,
    world="nodes",
)
def replaced_before_release(rules: Any, pods: Any, **more: Any) -> Any:
    """The replacement of a lost pod waits until its release is committed."""
    return _plan_replicas(rules, [pod for pod in pods if not is_lost(pod)], **more)


@without(
    replicaset,
    "plan_replicas",
    source="nomad#12680, kubernetes#30972",
    breaks="stopping copies count",
    world="workloads",
)
def stopping_pods_not_counted(rules: Any, pods: Any, **more: Any) -> Any:
    """A terminating pod still counts as a copy."""
    return _plan_replicas(rules, [pod for pod in pods if not pod.terminating], **more)


@without(
    replicaset,
    "replica",
    source="reconciliation: non-idempotent create; k0smotron#1534",
    breaks=(TOO_MANY, TWO_BINDINGS),
    world="workloads",
)
def replica_names_not_fixed(owner: Object, template: Any, slot: int, replaces: str = "") -> dict[str, Any]:
    """The slot fixes the name of a pod, so that a second create conflicts."""
    body = _replica(owner, template, slot, replaces)
    body["metadata"]["name"] += f"-{owner.revision}"
    return body


@without(
    ReplicaSetReconciler,
    "_find_ghosts",
    source="kubernetes#30972",
    breaks=(TWO_BINDINGS, ONE_COPY),
    world="nodes",
)
async def forced_deletions_not_counted(self: ReplicaSetReconciler, *_: Any) -> tuple[str, ...]:  # noqa: ARG001
    """A pod that was deleted by force counts until its end is confirmed."""
    return ()


@without(replicaset, "wake_adopters", source="reconciliation: no resync path", breaks=CONVERGE, world="workloads")
def replicaset_ignores_pods(change: Any, caches: Any) -> Iterable[Key]:  # noqa: ARG001
    """A pod's change wakes its owner."""
    return ()


@without(
    ActionRecorder,
    "run_on",
    source="issue: a faultless scale-down flaps ReplicaFailure",
    breaks=("a true condition holds", "no condition flaps"),
    world="nodes",
)
async def gone_pod_is_a_failure(self: ActionRecorder, act: str, about: str, write: Any) -> Object | None:
    """A delete of a pod that is already gone is no failure of the workload."""
    return await self.run(act, about, write)


@without(
    conditions,
    "_bound",
    source="testing: status conditions refer to what they observed",
    breaks="a true condition holds",
    world="autoscaled",
)
def bound_when_created(stages: Any, desired: int, why: str) -> dict[str, Any]:  # noqa: ARG001
    """`Bound` is true only when every replica has a node."""
    enough = sum(stages.values()) >= desired
    return condition(conditions.BOUND, status=enough, reason="AllBound" if enough else "WaitingForReplicas")


# -- rollouts --------------------------------------------------------------------------------------


@without(rolling, "_room", source="rollouts: safe change", breaks=TOO_MANY, world="rollouts")
def surge_from_reported_counts(limit: int, every: Iterable[SetFacts]) -> int:
    """Surge counts every copy that may exist, and is zero while their number is unknown."""
    return max(0, limit - sum(each.replicas for each in every))


@without(
    rolling,
    "_shrink_old",
    source="testing: rollback does not delete the only healthy capacity",
    breaks="the last healthy replica is not removed",
    world="rollouts",
)
def old_replicas_removed_first(available_min: int, new: SetFacts, old: Iterable[SetFacts], **_: int) -> dict[str, int]:  # noqa: ARG001
    """An old replica is removed only when enough others are available."""
    return {each.name: 0 for each in old}


@without(
    deployment,
    "_has_floor",
    source="testing: rollback does not delete the only healthy recovery capacity",
    breaks="the last healthy replica is not removed",
    world="rollouts",
)
def rollback_without_floor(facts: Any) -> bool:  # noqa: ARG001
    """A rollback keeps the last available replica, although its strategy allows to remove all."""
    return False


@without(rolling, "_unended", source="rollouts: safe change", breaks="recreate never overlaps", world="rollouts")
def recreate_overlaps(others: Any) -> str:  # noqa: ARG001
    """With Recreate new pods wait until the last old pod has ended."""
    return ""


@without(deployment, "wake_set_owner", source="reconciliation: no resync path", breaks=CONVERGE, world="workloads")
def deployment_ignores_replicasets(change: Any, caches: Any) -> Iterable[Key]:  # noqa: ARG001
    """A ReplicaSet's change wakes its Deployment."""
    return ()


# -- endpoints -------------------------------------------------------------------------------------


@without(
    endpoints,
    "wake_services",
    source="reconciliation: a missed wake-up leaves work stuck",
    breaks=SERVED,
    world="serving",
)
def endpoints_ignore_deletions(change: Any, caches: Any) -> Iterable[Key]:
    """The deletion of a pod wakes its Services."""
    return () if change.new is None else _wake_services(change, caches)


@without(
    endpoints_plan, "is_ready", source="observability: bound, and stuck at startup", breaks=SERVED, world="serving"
)
def serving_before_ready(pod: Any) -> bool:
    """A Service lists only ready pods as ready."""
    return bool(pod.status.pod_ip)


# -- garbage and namespaces ------------------------------------------------------------------------


@without(GarbageCollector, "_owner", source="kubernetes#88097", breaks=SPARED, world="garbage", by="late views")
async def owner_missing_in_the_cache(self: GarbageCollector, ctx: Context, found: Object, ref: Any) -> OwnerState:
    """Only the API server is trusted that an owner is gone."""
    owner = ctx.get(_key_of(self, found, ref))
    if owner is None or owner.uid != ref.uid:
        return OwnerState.GONE
    return await _owner(self, ctx, found, ref)


@without(
    GarbageCollector,
    "_owner",
    source="kubernetes#114603",
    breaks=("orphans are collected", "every owner exists"),
    world="garbage",
)
async def owner_matched_by_name(self: GarbageCollector, ctx: Context, found: Object, ref: Any) -> OwnerState:
    """An owner is identified by its uid."""
    owner = ctx.get(_key_of(self, found, ref))
    return OwnerState.ALIVE if owner is not None else await _owner(self, ctx, found, ref)


def _key_of(collector: GarbageCollector, found: Object, ref: Any) -> Key:
    kind = collector._kinds.of_api(ref.api_version, ref.kind)
    return Key(kind.key_kind, found.key.namespace if kind.namespaced else "", ref.name)


@without(garbage, "plan_garbage", source="watch streams: ownership", breaks=SPARED, world="garbage")
def one_owner_gone_is_enough(metadata: Any, owners: Any, *, has_dependents: bool) -> Any:
    """An object with another living owner is kept."""
    if metadata.deletion_timestamp is None and OwnerState.GONE in owners.values():
        return GarbagePlan("Background")
    return _plan_garbage(metadata, owners, has_dependents=has_dependents)


@without(
    garbage,
    "_blocks",
    source="watch streams: finalizers make deletion safe under lag",
    breaks="finalizers are respected",
    world="garbage",
)
def foreground_unblocked(each: Object, uid: str) -> bool:  # noqa: ARG001
    """An owner in foreground deletion is removed after its dependents."""
    return False


@without(
    NamespaceReconciler,
    "_list",
    source="issue: a deleted namespace empties",
    breaks="nothing outlives its namespace",
    world="garbage",
)
async def namespace_removed_with_content(self: NamespaceReconciler, *_: Any) -> tuple[Object, ...]:  # noqa: ARG001
    """A namespace is listed at the API server before it is removed."""
    return ()


@without(
    deletion,
    "check_delete_preconditions",
    source="kubernetes#114603",
    breaks=SPARED,
    world="garbage",
    by="late writes",
)
def delete_without_preconditions(kind: Any, old: Any, options: Any) -> None:
    """A delete applies only to the uid and version that were read."""
