"""The scope of a stage: its zones and regions, its share of replicas, and whether it reaches a Deployment. Pure.

`api.scopes` matches a scope to pods.
"""

from __future__ import annotations

from collections.abc import Mapping

from kedge.api.owners import controller_of
from kedge.api.scopes import Workload
from kedge.api.selectors import label_selector
from kedge.api.views import ObjectMeta, PodView, Scope
from kedge.api.views.kedge_dev import RolloutStage
from kedge.api.wellknown import REGION_LABEL, ZONE_LABEL
from kedge.controllers.shared.topology import TopologySelector


def workload_of(pod: PodView, sets: Mapping[str, ObjectMeta]) -> Workload:
    """The top-level controller of a pod. `sets` is the metadata of ReplicaSets by uid."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return Workload()
    between = sets.get(owner.uid)
    above = controller_of(between) if between is not None else None
    return Workload(owner.uid, owner.name) if above is None else Workload(above.uid, above.name)


def is_in_place(scope: Scope, node_labels: Mapping[str, str] | None) -> bool:
    """Whether a pod on such a node is in the scope. A pod without a node may still be placed there."""
    if node_labels is None:
        return True
    if scope.zones and node_labels.get(ZONE_LABEL, "") not in scope.zones:
        return False
    return not scope.regions or node_labels.get(REGION_LABEL, "") in scope.regions


def template_problem(scope: Scope, namespace: str, workload: str, labels: Mapping[str, str]) -> str:
    """Why a stage with this scope reaches no replica of a Deployment, whose pods have these labels; empty if it does.

    Tenants, workloads and labels select the Deployment; zones, regions and percent select its replicas.
    """
    if scope.tenants and namespace not in scope.tenants:
        return f"its scope does not reach the tenant {namespace}"
    if scope.workloads and not {workload, f"{namespace}/{workload}"}.intersection(scope.workloads):
        return f"its scope does not reach {workload}"
    if scope.pod_selector is not None and not label_selector(scope.pod_selector).matches(labels):
        return "its scope does not reach pods with the labels of the template"
    return "" if scope.percent > 0 else "it reaches 0 percent"


def topology_of(stage: RolloutStage) -> TopologySelector | None:
    """The zones and regions of a stage; None for a stage of all zones."""
    scope = stage.scope
    return TopologySelector(scope.zones, scope.regions, stage.name) if scope.zones or scope.regions else None


def share_of_topology(scope: Scope, replicas: int, there: int, elsewhere: int) -> int:
    """How many replicas may have the new template. `there` counts the replicas of both templates in the zones.

    Replicas that have it already, `elsewhere`, keep it: a stage only adds. At least one is added, or there would be
    nothing to sample.
    """
    return min(replicas, elsewhere + max(1, -(-there * scope.percent // 100)))


def share_of_replicas(scope: Scope, replicas: int) -> int:
    """How many replicas get the new template in a stage: at least one, or there would be nothing to sample."""
    return min(replicas, max(1, -(-replicas * scope.percent // 100)))
