"""Whom a stage of a rollout reaches: tenants, workloads, labels, a share of workloads, regions and zones. Pure.

The same answers as the scheduler gives for its policies, which a test holds the two to: controllers and scheduler are
blind to each other, and a gate that looked at other pods than the policy governs would prove nothing.
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
    """`sets` are the metadata of ReplicaSets by uid."""
    owner = controller_of(pod.metadata)
    if owner is None:
        return Workload()
    between = sets.get(owner.uid)
    above = controller_of(between) if between is not None else None
    return Workload(owner.uid, owner.name) if above is None else Workload(above.uid, above.name)


def is_in_place(scope: Scope, node_labels: Mapping[str, str] | None) -> bool:
    """Whether a pod on such a node is where the scope counts. One without a node may still go there."""
    if node_labels is None:
        return True
    if scope.zones and node_labels.get(ZONE_LABEL, "") not in scope.zones:
        return False
    return not scope.regions or node_labels.get(REGION_LABEL, "") in scope.regions


def template_problem(scope: Scope, namespace: str, workload: str, labels: Mapping[str, str]) -> str:
    """Why a stage with this scope reaches nothing of one Deployment, whose pods have these labels; empty if it does.

    Tenants, workloads and labels say whether a stage is about the Deployment at all; zones, regions and percent say
    which of its replicas get the new template.
    """
    if scope.tenants and namespace not in scope.tenants:
        return f"its scope does not reach the tenant {namespace}"
    if scope.workloads and not {workload, f"{namespace}/{workload}"}.intersection(scope.workloads):
        return f"its scope does not reach {workload}"
    if scope.pod_selector is not None and not label_selector(scope.pod_selector).matches(labels):
        return "its scope does not reach pods with the labels of the template"
    return "" if scope.percent > 0 else "it reaches 0 percent"


def topology_of(stage: RolloutStage) -> TopologySelector | None:
    """The zones and regions that a stage is about; None for one that is about all."""
    scope = stage.scope
    return TopologySelector(scope.zones, scope.regions, stage.name) if scope.zones or scope.regions else None


def share_of_topology(scope: Scope, replicas: int, there: int, elsewhere: int) -> int:
    """How many replicas may be of the new template, when `there` are in the places of a stage, of either template.

    What has it already, `elsewhere`, keeps it: a stage only adds. At least one is added, or there would be nothing to
    judge.
    """
    return min(replicas, elsewhere + max(1, -(-there * scope.percent // 100)))


def share_of_replicas(scope: Scope, replicas: int) -> int:
    """How many replicas a stage gives the new template: at least one, or there would be nothing to judge."""
    return min(replicas, max(1, -(-replicas * scope.percent // 100)))
