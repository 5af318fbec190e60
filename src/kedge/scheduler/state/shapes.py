"""Shapes: equivalence classes of pods that every filter and score treats the same, so their work is shared.

A `PodRequest` is the part of a pod that decides its placement; a `PodShape` is a request compiled under one policy,
with only the labels that some rule reads. Both are pure functions of objects. `snapshot` keeps the state of shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kedge.api.owners import controller_of
from kedge.api.pod_resources import is_set_for_pods
from kedge.api.quantity import Quantity, parse_quantity
from kedge.api.selectors import (
    IN,
    NOT_IN,
    NOTHING,
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Requirement,
    label_selector,
    node_selector,
    node_term,
)
from kedge.api.views import (
    Affinity,
    Container,
    ContainerPort,
    LabelSelectorSpec,
    PodAffinityTerm,
    PodSpec,
    PodView,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
)
from kedge.api.views.base import Labels, ResourceList
from kedge.caches import remembered, weighed
from kedge.placement.ledger import HostPort
from kedge.placement.predicates import host_ports
from kedge.placement.resize import counted_requests, parts_of_spec, reports_resources
from kedge.placement.resources import CPU, MEMORY, Units, pod_requests
from kedge.scheduler.policy.settings import Settings

_SCORED_AT_LEAST = {CPU: parse_quantity("100m"), MEMORY: parse_quantity("200Mi")}
"""The request that scores assume for a container without one, so that many such pods do not fill one node."""
HARD_AFFINITY_WEIGHT = 1
"""The weight in scores of a placed pod's required affinity term that matches the pod."""
NO_LABELS = Labels()


# -- terms about other pods ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """Selects pods by namespace and labels, in the domains of `topology_key`."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector

    def matches_pod(self, namespace: str, labels: Mapping[str, str], namespace_labels: Mapping[str, str]) -> bool:
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(labels)


class WeightedTerm(NamedTuple):
    term: Term
    weight: int
    """Negative for anti-affinity."""


@dataclass(frozen=True, slots=True)
class PodTerms:
    """A pod's rules about other pods."""

    affinity: tuple[Term, ...] = ()
    anti_affinity: tuple[Term, ...] = ()
    preferred: tuple[WeightedTerm, ...] = ()


NO_TERMS = PodTerms()


@weighed(entries=4096, bytes_max=32 << 20)
def pod_terms(affinity: Affinity | None, namespace: str, labels: Labels) -> PodTerms:
    """Compile a pod's rules about other pods. Of `labels`, only those in match label keys are read."""
    if affinity is None:
        return NO_TERMS
    near, apart = affinity.pod_affinity, affinity.pod_anti_affinity

    def compiled(term: PodAffinityTerm) -> Term:
        return _term(term, namespace, labels)

    preferred = []
    if near is not None:
        preferred += [
            WeightedTerm(compiled(w.pod_affinity_term), w.weight)
            for w in near.preferred_during_scheduling_ignored_during_execution
        ]
    if apart is not None:
        preferred += [
            WeightedTerm(compiled(w.pod_affinity_term), -w.weight)
            for w in apart.preferred_during_scheduling_ignored_during_execution
        ]
    return PodTerms(
        affinity=tuple(map(compiled, near.required_during_scheduling_ignored_during_execution)) if near else (),
        anti_affinity=tuple(map(compiled, apart.required_during_scheduling_ignored_during_execution)) if apart else (),
        preferred=tuple(preferred),
    )


def _term(term: PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> Term:
    """Without namespaces and a namespace selector it is the pod's own namespace; an empty selector is all."""
    own = not term.namespaces and term.namespace_selector is None
    return Term(
        topology_key=term.topology_key,
        selector=with_label_keys(term.label_selector, labels, term.match_label_keys, term.mismatch_label_keys),
        namespaces=frozenset((namespace,)) if own else frozenset(term.namespaces),
        namespace_selector=label_selector(term.namespace_selector),
    )


def with_label_keys(
    spec: LabelSelectorSpec | None, labels: Mapping[str, str], match: tuple[str, ...], mismatch: tuple[str, ...] = ()
) -> LabelSelector:
    """A selector narrowed to the pod's own values of some labels, or to others. Keys that the pod lacks are ignored."""
    selector = label_selector(spec)
    if selector is NOTHING or not (match or mismatch):
        return selector
    more = [Requirement(key, IN, frozenset((labels[key],))) for key in match if key in labels]
    more += [Requirement(key, NOT_IN, frozenset((labels[key],))) for key in mismatch if key in labels]
    return LabelSelector((*selector.requirements, *more))


# -- requests --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PodRequirements:
    """The parts of a pod's spec that decide. Equal specs share one object, so it is compared by identity."""

    requests: Units
    scored: tuple[int, int]
    """CPU and memory as the scores count them."""
    ports: tuple[HostPort, ...]
    node_name: str
    selector: tuple[tuple[str, str], ...]
    required: NodeSelector | None
    preferred: tuple[tuple[NodeTerm, int], ...]
    tolerations: tuple[Toleration, ...]
    affinity: Affinity | None
    """Only if it has terms about other pods."""
    spread: tuple[TopologySpreadConstraint, ...]
    label_keys: frozenset[str]
    """The labels of the pod itself that its own rules read."""
    images: tuple[str, ...] = ()
    """The image of each container, with its tag."""
    volume_images: tuple[str, ...] = ()
    """The image of each volume that is one, with its tag."""


class PodRequest(NamedTuple):
    """The part of one pod that decides its placement."""

    requirements: PodRequirements
    namespace: str
    labels: Labels
    workload: str
    """The uid of its workload: `maxZoneSkew` counts pods of one workload together."""
    terminating: bool


def request_of(pod: PodView, *, workload: str | None = None, placed: bool = False) -> PodRequest:
    """The request of `pod`. `workload` is the uid of its workload, by default of its controller.

    If `placed`, the node name is ignored: it is no constraint any more, and replicas on different nodes stay equal.
    """
    metadata, spec = pod.metadata, pod.spec
    if workload is None:
        owner = controller_of(metadata) if metadata.owner_references else None
        workload = owner.uid if owner is not None else ""
    # A pod that is resized in place counts with more than its spec. The status of a pod without a node does not count.
    is_counted = placed and reports_resources(pod.status)
    parts = counted_requests(pod) if is_counted else parts_of_spec(spec, "requests")
    requirements = _requirements(
        tuple([(r, c.ports) for r, c in zip(parts.containers, spec.containers, strict=True)]),
        tuple(
            [(r, c.ports, c.restart_policy) for r, c in zip(parts.init_containers, spec.init_containers, strict=True)]
        ),
        spec.overhead or None,
        parts.of_pod or None,
        "" if placed else spec.node_name,
        spec.node_selector or None,
        spec.affinity,
        spec.tolerations,
        spec.topology_spread_constraints,
        tuple([_tagged(c.image) for c in (*spec.init_containers, *spec.containers)]),
        tuple([_tagged(v.image.reference) for v in spec.volumes if v.image is not None]) if spec.volumes else (),
    )
    labels = metadata.labels or NO_LABELS
    return PodRequest(requirements, metadata.namespace, labels, workload, metadata.deletion_timestamp is not None)


class RequestMemo:
    """Remembers the last pod: replicas arrive one after another with equal specs, and share one request."""

    __slots__ = ("_pod", "_request", "_workload")

    def __init__(self) -> None:
        self._pod: PodView | None = None
        self._workload: str | None = None
        self._request: PodRequest

    def request_of(self, pod: PodView, workload: str | None) -> PodRequest:
        """As the function `request_of`, for a pending pod; the same object for the next replica."""
        last = self._pod
        if last is not None and self._workload == workload and _same_request(last, pod):
            return self._request
        self._pod, self._workload, self._request = pod, workload, request_of(pod, workload=workload)
        return self._request


def _same_request(one: PodView, other: PodView) -> bool:
    mine, theirs = one.metadata, other.metadata
    return (
        one.spec == other.spec
        and mine.labels == theirs.labels
        and mine.namespace == theirs.namespace
        and mine.owner_references == theirs.owner_references
        and mine.deletion_timestamp == theirs.deletion_timestamp
    )


def bare_request(namespace: str, requests: Units, ports: tuple[HostPort, ...]) -> PodRequest:
    """The request of a claim whose pod is gone: it holds its room, and no rule about pods matches it."""
    requirements = PodRequirements(
        requests=requests,
        scored=(requests.get(CPU, 0), requests.get(MEMORY, 0)),
        ports=ports,
        node_name="",
        selector=(),
        required=None,
        preferred=(),
        tolerations=(),
        affinity=None,
        spread=(),
        label_keys=frozenset(),
    )
    return PodRequest(requirements, namespace, NO_LABELS, "", terminating=True)


@weighed(entries=8192, bytes_max=64 << 20)
def _requirements(
    containers: tuple[tuple[ResourceList, tuple[ContainerPort, ...]], ...],
    init_containers: tuple[tuple[ResourceList, tuple[ContainerPort, ...], str], ...],
    overhead: ResourceList | None,
    of_pod: ResourceList | None,
    node_name: str,
    selector: Labels | None,
    affinity: Affinity | None,
    tolerations: tuple[Toleration, ...],
    spread: tuple[TopologySpreadConstraint, ...],
    images: tuple[str, ...],
    volume_images: tuple[str, ...],
) -> PodRequirements:
    pod = PodView(
        spec=PodSpec(
            containers=tuple(Container(resources=_asking(r), ports=p) for r, p in containers),
            init_containers=tuple(
                Container(resources=_asking(r), ports=p, restart_policy=restart) for r, p, restart in init_containers
            ),
            overhead=overhead or ResourceList(),
            resources=_asking(of_pod or ResourceList()),
        )
    )
    scored = pod_requests(_with_scored_minimum(pod))
    on_nodes = affinity.node_affinity if affinity is not None else None
    on_pods = affinity is not None and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None)
    required = on_nodes.required_during_scheduling_ignored_during_execution if on_nodes is not None else None
    preferred = on_nodes.preferred_during_scheduling_ignored_during_execution if on_nodes is not None else ()
    return PodRequirements(
        requests=pod_requests(pod),
        scored=(scored.get(CPU, 0), scored.get(MEMORY, 0)),
        ports=host_ports(pod),
        node_name=node_name,
        selector=tuple(sorted(selector.items())) if selector else (),
        required=node_selector(required) if required is not None else None,
        preferred=tuple((node_term(p.preference), p.weight) for p in preferred),
        tolerations=tolerations,
        affinity=affinity if on_pods else None,
        spread=spread,
        label_keys=_own_label_keys(affinity if on_pods else None, spread),
        images=images,
        volume_images=volume_images,
    )


@remembered(entries=1024, entry_bytes=2048, key_length=512)
def _tagged(image: str) -> str:
    """As nodes list it: an image without a tag is the latest."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


def _asking(requests: ResourceList) -> ResourceRequirements:
    return ResourceRequirements(requests=requests)


def _with_scored_minimum(pod: PodView) -> PodView:
    """With a minimum for each container that has no request. A request of the pod itself covers its containers."""
    least: Mapping[str, Quantity] = _SCORED_AT_LEAST
    if any(is_set_for_pods(resource) for resource in pod.spec.resources.requests):
        requested = pod_requests(pod)
        least = {resource: amount for resource, amount in least.items() if resource not in requested}

    def padded(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(
            msgspec.structs.replace(c, resources=_asking(ResourceList({**least, **c.resources.requests})))
            for c in containers
        )

    spec = msgspec.structs.replace(
        pod.spec, containers=padded(pod.spec.containers), init_containers=padded(pod.spec.init_containers)
    )
    return msgspec.structs.replace(pod, spec=spec)


def _own_label_keys(affinity: Affinity | None, spread: tuple[TopologySpreadConstraint, ...]) -> frozenset[str]:
    """Every label key in the pod's own rules."""
    keys: set[str] = set()
    for constraint in spread:
        keys.update(selector_keys(label_selector(constraint.label_selector)), constraint.match_label_keys)
    if affinity is None:
        return frozenset(keys)
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if side is None:
            continue
        terms = [
            *side.required_during_scheduling_ignored_during_execution,
            *(w.pod_affinity_term for w in side.preferred_during_scheduling_ignored_during_execution),
        ]
        for term in terms:
            keys.update(selector_keys(label_selector(term.label_selector)))
            keys.update(term.match_label_keys, term.mismatch_label_keys)
    return frozenset(keys)


def selector_keys(selector: LabelSelector) -> frozenset[str]:
    return frozenset(requirement.key for requirement in selector.requirements)


# -- the shape -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """One topology spread constraint, compiled for one shape."""

    topology_key: str
    selector: LabelSelector
    skew_max: int
    domains_min: int
    honor_affinity: bool
    honor_taints: bool
    counts_itself: bool


class ShapeKey(NamedTuple):
    """Identifies a shape."""

    requirements: PodRequirements
    namespace: str
    labels: Labels
    workload: str
    settings: Settings


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """A `ShapeKey`, compiled."""

    key: ShapeKey
    terms: PodTerms
    spread_required: tuple[Spread, ...]
    spread_preferred: tuple[Spread, ...]

    @property
    def requirements(self) -> PodRequirements:
        return self.key.requirements


def shape_key(request: PodRequest, settings: Settings, mentioned: Mapping[str, int] | frozenset[str]) -> ShapeKey:
    """The shape of a request. `mentioned` are the label keys in rules of placed pods."""
    requirements, labels = request.requirements, request.labels
    if mentioned or requirements.label_keys:
        seen = {k: v for k, v in labels.items() if k in mentioned or k in requirements.label_keys}
        projected = Labels(seen) if len(seen) < len(labels) else labels
    else:
        projected = NO_LABELS
    workload = request.workload if settings.zone_skew_max is not None else ""
    return ShapeKey(requirements, request.namespace, projected, workload, settings)


def compile_shape(key: ShapeKey) -> PodShape:
    requirements, labels = key.requirements, key.labels
    constraints = [(c, _spread(c, labels)) for c in requirements.spread]
    return PodShape(
        key=key,
        terms=pod_terms(requirements.affinity, key.namespace, labels),
        spread_required=tuple(s for c, s in constraints if c.when_unsatisfiable == "DoNotSchedule"),
        spread_preferred=tuple(s for c, s in constraints if c.when_unsatisfiable == "ScheduleAnyway"),
    )


def _spread(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> Spread:
    selector = with_label_keys(constraint.label_selector, labels, constraint.match_label_keys)
    return Spread(
        topology_key=constraint.topology_key,
        selector=selector,
        skew_max=constraint.max_skew,
        domains_min=constraint.min_domains if constraint.min_domains is not None else 1,
        honor_affinity=constraint.node_affinity_policy == "Honor",
        honor_taints=constraint.node_taints_policy == "Honor",
        counts_itself=selector.matches(labels),
    )
