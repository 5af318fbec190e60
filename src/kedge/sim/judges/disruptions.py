"""When a controller may remove the last ready replica of a workload: only if a user's objects require it.

Reads committed state for `lifecycle_invariants`, without code of controllers. The bounds of a rollout allow to replace
pods of an older template, as in Kubernetes; they do not allow removing pods of the current one. A rollback keeps the
last ready replica whatever its bounds are, unless its availability floor is off.
"""

from __future__ import annotations

from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import DEPLOYMENT_KIND, DRAIN_NODE, NAMESPACE_KIND, NODE_KIND
from kedge.sim.judges.facts import Step
from kedge.sim.judges.pod_facts import counts, owner_uid
from kedge.sim.judges.workload_specs import surge_of, template_without_hash


def removal_was_requested(step: Step, pod: PodView, workload: Object, *, lag_s: float) -> bool:
    """Whether a user's objects require the removal of the pod; then only a disruption budget protects it.

    Requests of the last `lag_s` count too: a controller may still act on what it saw then.
    """
    facts = step.facts
    namespace = facts.objects.get(workload.key._replace(kind=NAMESPACE_KIND, namespace="", name=workload.key.namespace))
    if workload.metadata.deletion_timestamp is not None:
        return True
    if owner_uid(pod) in facts.deleted_by_users:
        return True  # a ReplicaSet of a Deployment that is there
    if facts.least_wanted(workload.uid, step.now_s - lag_s) < 1:
        return True
    if namespace is not None and namespace.metadata.deletion_timestamp is not None:
        return True
    node = facts.objects.get(workload.key._replace(kind=NODE_KIND, namespace="", name=pod.spec.node_name))
    if node is not None and DRAIN_NODE in node.metadata.annotations:
        return True
    return _is_preempted(step, pod) or _is_rolled_over(step, pod, workload, lag_s=lag_s)


def _is_preempted(step: Step, pod: PodView) -> bool:
    """A scheduler preempts it for a pending pod of higher priority."""
    rank = pod.spec.priority or 0
    waiting = (each.as_view(PodView) for each in step.facts.pods.values())
    return any(
        each.spec.scheduler_name == step.controller and (each.spec.priority or 0) > rank
        for each in waiting
        if not each.spec.node_name and not each.finished
    )


def _is_rolled_over(step: Step, pod: PodView, workload: Object, *, lag_s: float) -> bool:
    """It is of an older template, and the bounds of its Deployment allow a rollout without any ready replica.

    After a rollback a controller may still act on the rollout before it, if that was in force within the lag. Proof is
    the pod's ReplicaSet: within the lag it requested fewer replicas than it has.
    """
    owner = step.facts.by_uid(owner_uid(pod))
    if workload.key.kind != DEPLOYMENT_KIND or owner is None or not _allows_none_ready(workload):
        return False
    template = template_without_hash(owner)
    if template != template_without_hash(workload) and not step.facts.has_floor(workload):
        return True
    changed_s, rolled_out = step.facts.rolled_out.get(workload.uid, (-lag_s, template))
    others = sum(counts(each.as_view(PodView)) for each in step.facts.pods_of(owner.uid) if each.uid != pod.uid)
    shrinks = step.facts.least_wanted(owner.uid, step.now_s - lag_s) <= others
    return step.now_s - changed_s < lag_s and template != rolled_out and shrinks


def _allows_none_ready(deployment: Object) -> bool:
    spec = deployment.view.spec
    if spec.strategy.type == "Recreate":
        return True
    rolling = spec.strategy.rolling_update
    least = rolling.max_unavailable if rolling is not None else "25%"
    unavailable = int(spec.replicas) * int(least.rstrip("%")) // 100 if isinstance(least, str) else least
    if surge_of(deployment) == 0:
        unavailable = max(1, unavailable)  # with neither surge nor unavailability a rollout could not progress
    return bool(unavailable >= spec.replicas)
