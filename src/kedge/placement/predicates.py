"""Node-local predicates: may this pod run on this node, given the claims on it?

They are defined once. The bind calls them on committed state; the scheduler's vector masks are property-tested
equal to them. Spread and inter-pod rules involve other nodes and are only in the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kedge.api.conditions import is_true
from kedge.api.quantity import format_units
from kedge.api.selectors import node_selector
from kedge.api.views import NodeView, PodSpec, PodView, Taint, Toleration
from kedge.api.wellknown import UNSCHEDULABLE_TAINT
from kedge.placement.ledger import ANY_ADDRESS, Claimed, HostPort
from kedge.placement.reasons import Misfit, Reason
from kedge.placement.resources import Units, fits, node_allocatable, shortages, spec_requests

SUSPECT = "Suspect"
"""The node condition that stops new placement: evidence of a failure, not proof."""
_UNSCHEDULABLE_TAINT = Taint(key=UNSCHEDULABLE_TAINT, effect="NoSchedule")
_FORBIDDING = frozenset({"NoSchedule", "NoExecute"})


def first_misfit(pod: PodView, node: NodeView, ledger: Claimed) -> Misfit | None:
    """The first misfit, in the order of `PREDICATES`; None if the pod fits."""
    for predicate in PREDICATES:
        misfit = predicate(pod, node, ledger)
        if misfit is not None:
            return misfit
    return None


def node_is_open(pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    if node.spec.unschedulable and not _tolerated(_UNSCHEDULABLE_TAINT, pod.spec.tolerations):
        return Misfit(Reason.NODE_CORDONED, f"node {node.name} is cordoned")
    return None


def node_is_trusted(_pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    if is_true(node.status.conditions, SUSPECT):
        return Misfit(Reason.NODE_SUSPECT, f"node {node.name} is suspect: its heartbeats are late")
    return None


def node_is_named(pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    if pod.spec.node_name and pod.spec.node_name != node.name:
        return Misfit(Reason.NODE_NAME, f"{pod.name} requests node {pod.spec.node_name}, not {node.name}")
    return None


def taints_are_tolerated(pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    for taint in node.spec.taints:
        if taint.effect in _FORBIDDING and not _tolerated(taint, pod.spec.tolerations):
            value = f"={taint.value}" if taint.value else ""
            return Misfit(Reason.TAINT, f"node {node.name} has the taint {taint.key}{value}:{taint.effect}")
    return None


def execution_is_tolerated(pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    """As `taints_are_tolerated`, for the taints that also remove running pods."""
    for taint in node.spec.taints:
        if taint.effect == "NoExecute" and not _tolerated(taint, pod.spec.tolerations):
            return Misfit(Reason.TAINT, f"node {node.name} has the taint {taint.key}:NoExecute")
    return None


def node_is_selected(pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    labels = node.labels
    for key, value in pod.spec.node_selector.items():
        if labels.get(key) != value:
            return Misfit(Reason.NODE_SELECTOR, f"node {node.name} has no label {key}={value}")
    return None


def affinity_is_met(pod: PodView, node: NodeView, _ledger: Claimed) -> Misfit | None:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is not None and not node_selector(required).matches(node.name, node.labels):
        return Misfit(Reason.NODE_AFFINITY, f"node {node.name} meets no term of the required node affinity")
    return None


def ports_are_free(pod: PodView, node: NodeView, ledger: Claimed) -> Misfit | None:
    wanted = demand_of(pod).ports
    if not wanted:
        return None
    for taken in ledger.ports():
        for port in wanted:
            if port.clashes(taken):
                return Misfit(Reason.PORT, f"port {port.port}/{port.protocol} of node {node.name} is taken")
    return None


def resources_are_free(pod: PodView, node: NodeView, ledger: Claimed) -> Misfit | None:
    requested, claimed = demand_of(pod).requests, ledger.allocated
    if fits(requested, claimed, node):
        return None
    available = node_allocatable(node)
    short = shortages(requested, claimed, available)
    details = ", ".join(
        f"{r} (requested {format_units(r, requested[r])}, claimed {format_units(r, ledger.allocated.get(r, 0))}"
        f" of {format_units(r, available.get(r, 0))})"
        for r in short
    )
    return Misfit(Reason.RESOURCE, f"node {node.name} has too little {details}")


PREDICATES: tuple[Callable[[PodView, NodeView, Claimed], Misfit | None], ...] = (
    node_is_open,
    node_is_trusted,
    node_is_named,
    taints_are_tolerated,
    node_is_selected,
    affinity_is_met,
    ports_are_free,
    resources_are_free,
)
"""In order of evaluation: the checks that concern every pod first, the values that change fastest last."""


class PodDemand(msgspec.Struct, frozen=True, gc=False):
    """The requests and host ports of a pod, on any node. Shared by replicas."""

    requests: Units
    ports: tuple[HostPort, ...]


_ASKS_MAX = 128
_ASK_PARTS_MAX = 256
"""Specs with more containers, volumes and variables are not kept: those kept are hardly larger than as stored."""
_asks: dict[int, tuple[PodSpec, PodDemand]] = {}
"""By the id of a spec, which is kept here so that its id is not reused. Recent replicas share their spec."""


def demand_of(pod: PodView) -> PodDemand:
    """`spec_requests` and `host_ports`, computed once for pods that share a spec."""
    spec = pod.spec
    known = _asks.get(id(spec))
    if known is None:
        known = (spec, PodDemand(spec_requests(spec), host_ports(pod)))
        if len(_asks) >= _ASKS_MAX:
            _asks.clear()
        variables = sum([len(each.env) for each in spec.containers])
        if len(spec.containers) + len(spec.init_containers) + len(spec.volumes) + variables <= _ASK_PARTS_MAX:
            _asks[id(spec)] = known
    return known[1]


def host_ports(pod: PodView) -> tuple[HostPort, ...]:
    """The ports of the node itself that the pod requests, its sidecars' included."""
    spec = pod.spec
    running = spec.containers
    if spec.init_containers:
        running = (*(c for c in spec.init_containers if c.restart_policy == "Always"), *running)
    found = []
    for container in running:
        for port in container.ports:
            if port.host_port:
                found.append(HostPort(port.protocol, port.host_ip or ANY_ADDRESS, port.host_port))
    return tuple(found)


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Kubernetes' rule: an empty effect means every effect, an empty key with `Exists` every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value
