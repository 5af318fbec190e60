"""Why a workload may be left without any ready replica: because a person's own words say so, and for nothing else.

Read from committed state for `invariants`, without the controllers' own code. A Deployment's bounds are a licence to
replace what is of an older template, as in Kubernetes; they are none to take what the workload asks for now.
"""

from __future__ import annotations

from typing import Any

from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import DEPLOYMENT_KIND, DRAIN_NODE, NAMESPACE_KIND, NODE_KIND
from kedge.sim.judges.facts import Step, owner_uid, surge_of

_HASH = "pod-template-hash"


def taking_was_asked_for(step: Step, pod: PodView, workload: Object, *, lag_s: float) -> bool:
    """Whether somebody wants it gone whatever becomes of its workload: then a budget is what protects it.

    Or lately wanted it: a controller may honestly act on what was asked for `lag_s` ago.
    """
    facts = step.facts
    namespace = facts.objects.get(workload.key._replace(kind=NAMESPACE_KIND, namespace="", name=workload.key.namespace))
    if workload.metadata.deletion_timestamp is not None:
        return True
    if facts.least_wanted(workload.uid, step.now_s - lag_s) < 1:
        return True
    if namespace is not None and namespace.metadata.deletion_timestamp is not None:
        return True
    node = facts.objects.get(workload.key._replace(kind=NODE_KIND, namespace="", name=pod.spec.node_name))
    if node is not None and DRAIN_NODE in node.metadata.annotations:
        return True
    return _makes_way_for_another(step, pod) or _is_rolled_over(step, pod, workload, lag_s=lag_s)


def _makes_way_for_another(step: Step, pod: PodView) -> bool:
    """A scheduler preempts it for a pod of higher priority, which waits."""
    rank = pod.spec.priority or 0
    waiting = (each.as_view(PodView) for each in step.facts.pods.values())
    return any(
        each.spec.scheduler_name == step.controller and (each.spec.priority or 0) > rank
        for each in waiting
        if not each.spec.node_name and not each.finished
    )


def _is_rolled_over(step: Step, pod: PodView, workload: Object, *, lag_s: float) -> bool:
    """It is of another template than its Deployment asks for now, whose bounds let a rollout do without any."""
    owner = step.facts.by_uid(owner_uid(pod))
    if workload.key.kind != DEPLOYMENT_KIND or owner is None or not _may_do_without(workload):
        return False
    retold_s = step.facts.retold_s.get(workload.uid)
    return (retold_s is not None and step.now_s - retold_s < lag_s) or _template(owner) != _template(workload)


def _template(found: Object) -> dict[str, Any]:
    template: dict[str, Any] = found.edit()["spec"]["template"]
    template.get("metadata", {}).get("labels", {}).pop(_HASH, None)
    return template


def _may_do_without(deployment: Object) -> bool:
    spec = deployment.view.spec
    if spec.strategy.type == "Recreate":
        return True
    rolling = spec.strategy.rolling_update
    least = rolling.max_unavailable if rolling is not None else "25%"
    unavailable = int(spec.replicas) * int(least.rstrip("%")) // 100 if isinstance(least, str) else least
    if surge_of(deployment) == 0:
        unavailable = max(1, unavailable)  # with no room at all a rollout could not move
    return bool(unavailable >= spec.replicas)
