"""Safeguards of the controllers of workloads, of endpoints, of garbage collection and of namespaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kedge.api.objects import Object
from kedge.controllers import deployment, endpoints, garbage, replicas, replicaset, rolling
from kedge.controllers.garbage import GarbageCollector, Owner
from kedge.controllers.namespaces import NamespaceReconciler
from kedge.controllers.pods import is_active, is_lost
from kedge.controllers.replicaset import ReplicaSetReconciler
from kedge.controllers.rolling import SetFacts
from kedge.keys import Key
from kedge.runtime import Context
from kedge.server.service import deletion
from kedge.sim.zoo.entries import Entry, swapping
from kedge.sim.zoo.runtime import LATE

TOO_MANY = "live copies are at most desired plus surge"
LAST_ONE = "the last healthy replica is not taken"
SPARED = "garbage collection spares the owned"

_plan_replicas = replicas.plan_replicas
_replica = replicaset.replica
_owner = GarbageCollector._owner
_wake_services = endpoints.wake_services


def _only_the_active_count(rules: Any, pods: Any, **more: Any) -> Any:
    """Plan as if what stops, drains or is out of contact were no copy."""
    return _plan_replicas(rules, [pod for pod in pods if is_active(pod) and not is_lost(pod)], **more)


def _one_more_for_each_lost(rules: Any, pods: Any, **more: Any) -> Any:
    """Replace what is lost at once, before its end is on record."""
    plan = _plan_replicas(rules, pods, **more)
    lost = [pod for pod in pods if is_lost(pod)]
    return replace(plan, create=(*plan.create, *("" for _ in lost)))


def _named_anew(owner: Object, made: Any, slot: int, replaces: str = "") -> dict[str, Any]:
    body = _replica(owner, made, slot, replaces)
    body["metadata"]["name"] += f"-{owner.revision}"
    return body


async def _no_ghosts(self: ReplicaSetReconciler, *_: Any) -> tuple[str, ...]:  # noqa: ARG001
    return ()


def _room_without_asking(limit: int, every: Iterable[SetFacts]) -> int:
    """Count what was asked for, not what there may be."""
    return max(0, limit - sum(each.replicas for each in every))


def _shrink_without_asking(available_min: int, new: SetFacts, old: Iterable[SetFacts]) -> dict[str, int]:  # noqa: ARG001
    return {each.name: 0 for each in old}


def _never_any_waiting(others: Any) -> str:  # noqa: ARG001
    return ""


async def _owner_by_cache(self: GarbageCollector, ctx: Context, found: Object, ref: Any) -> Owner:
    kind = self._kinds.of_api(ref.api_version, ref.kind)
    owner = ctx.get(Key(kind.key_kind, found.key.namespace if kind.namespaced else "", ref.name))
    if owner is None or owner.uid != ref.uid:
        return Owner.GONE
    return await _owner(self, ctx, found, ref)


async def _owner_by_name(self: GarbageCollector, ctx: Context, found: Object, ref: Any) -> Owner:
    """A namesake is taken for the owner."""
    kind = self._kinds.of_api(ref.api_version, ref.kind)
    owner = ctx.get(Key(kind.key_kind, found.key.namespace if kind.namespaced else "", ref.name))
    return Owner.ALIVE if owner is not None else await _owner(self, ctx, found, ref)


def _any_owner_gone(metadata: Any, owners: Any, *, has_dependents: bool) -> Any:
    """One owner that is gone is enough."""
    if metadata.deletion_timestamp is None and Owner.GONE in owners.values():
        return garbage.GarbagePlan("Background")
    return _plan_garbage(metadata, owners, has_dependents=has_dependents)


_plan_garbage = garbage.plan_garbage


async def _empty_by_word(self: NamespaceReconciler, ctx: Context, kind: Any, namespace: str) -> tuple[Object, ...]:  # noqa: ARG001
    return ()


def _only_what_is_new(change: Any, caches: Any) -> Iterable[Key]:
    return () if change.new is None else _wake_services(change, caches)


def _no_preconditions(*_: Any) -> None:
    return


def _ready_or_not(pod: Any) -> bool:
    return bool(pod.status.pod_ip)


ENTRIES = (
    Entry(
        name="replaced-before-release",
        source="reconciliation: a fourth live copy of fraud-batch",
        safeguard="a replacement waits until the release is committed",
        breaks=(TOO_MANY,),
        theme="nodes",
        patch=swapping(replicaset, "plan_replicas", _one_more_for_each_lost),
    ),
    Entry(
        name="stopping-counts-for-nothing",
        source="nomad#12680, kubernetes#30972",
        safeguard="what stops or is out of contact still counts as a copy",
        breaks=(TOO_MANY, "an at most one slot has one live copy", "a slot has one unreleased binding", *LATE),
        theme="nodes",
        patch=swapping(replicaset, "plan_replicas", _only_the_active_count),
    ),
    Entry(
        name="names-drawn-anew",
        source="reconciliation: non-idempotent create; k0smotron#1534",
        safeguard="a slot fixes the name, so that a second create collides",
        breaks=(TOO_MANY, "a slot has one unreleased binding", *LATE),
        theme="workloads",
        patch=swapping(replicaset, "replica", _named_anew),
    ),
    Entry(
        name="ghosts-not-counted",
        source="kubernetes#30972",
        safeguard="a copy that was deleted by force counts until its end is confirmed",
        breaks=("a slot has one unreleased binding", "an at most one slot has one live copy"),
        theme="nodes",
        patch=swapping(ReplicaSetReconciler, "_find_ghosts", _no_ghosts),
    ),
    Entry(
        name="surge-on-hearsay",
        source="rollouts: safe change",
        safeguard="room is what is left of all copies there may be, and none while that is not known",
        breaks=(TOO_MANY,),
        theme="workloads",
        patch=swapping(rolling, "_room", _room_without_asking),
    ),
    Entry(
        name="old-given-up-first",
        source="testing: rollback does not delete the only healthy capacity",
        safeguard="an old replica goes only when enough others are available",
        breaks=(LAST_ONE,),
        theme="workloads",
        patch=swapping(rolling, "_shrink_old", _shrink_without_asking),
    ),
    Entry(
        name="recreate-overlaps",
        source="rollouts: safe change",
        safeguard="with Recreate the new wait for the last of the old to end",
        breaks=(TOO_MANY,),
        theme="workloads",
        patch=swapping(rolling, "_unended", _never_any_waiting),
    ),
    Entry(
        name="buried-by-the-cache",
        source="kubernetes#88097",
        safeguard="that an owner is gone is believed of the authority alone",
        breaks=(SPARED,),
        theme="garbage",
        patch=swapping(GarbageCollector, "_owner", _owner_by_cache),
    ),
    Entry(
        name="namesake-owner",
        source="kubernetes#114603",
        safeguard="an owner is known by its uid",
        breaks=("children go with their owner", "no owner is a ghost"),
        theme="garbage",
        patch=swapping(GarbageCollector, "_owner", _owner_by_name),
    ),
    Entry(
        name="one-owner-gone-is-enough",
        source="watch streams: ownership",
        safeguard="what another owner holds stays",
        breaks=(SPARED,),
        theme="garbage",
        patch=swapping(garbage, "plan_garbage", _any_owner_gone),
    ),
    Entry(
        name="foreground-unblocked",
        source="watch streams: finalizers make deletion safe under lag",
        safeguard="who waits for children goes after them",
        breaks=("finalizers are respected",),
        theme="garbage",
        patch=swapping(garbage, "_blocks", lambda *_: False),
    ),
    Entry(
        name="namespace-let-go-full",
        source="lessons: a deleted namespace empties",
        safeguard="a namespace is counted at the authority before it goes",
        breaks=("nothing outlives its namespace",),
        theme="garbage",
        patch=swapping(NamespaceReconciler, "_list", _empty_by_word),
    ),
    Entry(
        name="delete-whoever-it-is",
        source="kubernetes#114603",
        safeguard="a delete is of the uid and version that were judged",
        breaks=(SPARED, *LATE),
        theme="garbage",
        patch=swapping(deletion, "check_delete_preconditions", _no_preconditions),
    ),
    Entry(
        name="endpoints-deaf-to-deletions",
        source="reconciliation: a missed wake-up leaves work stuck",
        safeguard="a pod that goes wakes its Services",
        breaks=("endpoints are the ready",),
        theme="workloads",
        patch=swapping(endpoints, "wake_services", _only_what_is_new),
    ),
    Entry(
        name="serving-before-ready",
        source="observability: bound, and stuck at startup",
        safeguard="a Service lists as ready only what is",
        breaks=("endpoints are the ready",),
        theme="workloads",
        patch=swapping(endpoints, "is_ready", _ready_or_not),
    ),
    Entry(
        name="replicaset-deaf-to-pods",
        source="reconciliation: no resync path",
        safeguard="a pod's change wakes its owner",
        breaks=LATE,
        theme="workloads",
        patch=swapping(replicaset, "wake_adopters", lambda *_: ()),
    ),
    Entry(
        name="deployment-deaf-to-sets",
        source="reconciliation: no resync path",
        safeguard="a ReplicaSet's change wakes its Deployment",
        breaks=LATE,
        theme="workloads",
        patch=swapping(deployment, "wake_set_owner", lambda *_: ()),
    ),
)
