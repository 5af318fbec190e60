"""The reference model of the decision, slow and obviously right: plain Python, one node at a time.

Written from the Kubernetes documentation of each rule, over the objects themselves. It shares with the
scheduler the node-local predicates and the names of things, and none of its tables, counts or shortcuts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kedge.api.quantity import Quantity, parse_quantity
from kedge.api.views import (
    Container,
    LabelSelectorSpec,
    NodeSelectorTerm,
    NodeView,
    PodAffinityTerm,
    PodView,
    TopologySpreadConstraint,
)
from kedge.placement.ledger import Claim, ClaimState, Ledger
from kedge.placement.predicates import (
    affinity_is_met,
    host_ports,
    node_is_named,
    node_is_open,
    node_is_selected,
    node_is_trusted,
    ports_are_free,
    taints_are_tolerated,
    tolerates,
)
from kedge.placement.reasons import Reason
from kedge.placement.resources import Units, add, node_allocatable, pod_requests, shortages, to_units
from kedge.scheduler import (
    Blocker,
    Explanation,
    NodeDecision,
    Settings,
    Snapshot,
    decide,
    explain,
    snapshot_of,
    weights_under,
)

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"


@dataclass
class Placed:
    uid: str
    node: str
    pod: PodView


@dataclass
class Cluster:
    nodes: dict[str, NodeView] = field(default_factory=dict)
    pods: dict[str, Placed] = field(default_factory=dict)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def on(self, node: NodeView) -> list[PodView]:
        return [placed.pod for placed in self.pods.values() if placed.node == node.name]

    def ledger(self, node: NodeView) -> Ledger:
        held = {
            placed.uid: Claim("", "", ClaimState.BOUND, pod_requests(placed.pod), host_ports(placed.pod))
            for placed in self.pods.values()
            if placed.node == node.name
        }
        return Ledger(node.name, node.uid, add(*(claim.requests for claim in held.values())), held)


@dataclass
class PlacementCase:
    """One pod to place, with the other inputs of `decide`."""

    pod: PodView
    draw: int = 0
    settings: Settings = field(default_factory=Settings)
    room: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    excluded: Collection[str] = ()


# -- filters ---------------------------------------------------------------------------------------


def failing(cluster: Cluster, question: PlacementCase, node: NodeView) -> list[list[Blocker]]:
    """The filters that the node fails, in order, each with its blockers."""
    return [failed for check in FILTERS if (failed := list(check(cluster, question, node)))]


def local(
    cluster: Cluster, question: PlacementCase, node: NodeView, predicate: object, reason: Reason
) -> Iterator[Blocker]:
    assert callable(predicate)
    if predicate(question.pod, node, cluster.ledger(node)) is not None:
        yield Blocker(reason)


def terminating(_cluster: Cluster, _question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    if node.terminating:
        yield Blocker(Reason.NODE_TERMINATING)


def resources(cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    for resource in shortages(pod_requests(question.pod), cluster.ledger(node).allocated, node_allocatable(node)):
        yield Blocker(Reason.RESOURCE, resource)


def zone_quota(_cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    zone, asked = node.labels.get(ZONE), pod_requests(question.pod)
    if zone is None:
        return
    for resource, left in question.room.get(zone, {}).items():
        if asked.get(resource, 0) > 0 and asked[resource] > left:
            yield Blocker(Reason.ZONE_QUOTA, f"{question.pod.namespace}/{zone}")
            return


def spread_of(question: PlacementCase, action: str) -> list[TopologySpreadConstraint]:
    return [c for c in question.pod.spec.topology_spread_constraints if c.when_unsatisfiable == action]


def spread(index: int, cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    constraints = spread_of(question, "DoNotSchedule")
    if index >= len(constraints):
        return
    constraint = constraints[index]
    value = node.labels.get(constraint.topology_key)
    counts = domain_counts(cluster, question, constraint, constraints)
    enough = len(counts) >= (constraint.min_domains if constraint.min_domains is not None else 1)
    low = (min(counts.values()) if counts else 2**31 - 1) if enough else 0
    itself = spread_selects(constraint, question.pod, question.pod)
    if value is None or counts.get(value, 0) + itself - low > constraint.max_skew:
        yield Blocker(Reason.TOPOLOGY_SPREAD, constraint.topology_key)


def domain_counts(
    cluster: Cluster,
    question: PlacementCase,
    constraint: TopologySpreadConstraint,
    all_of: list[TopologySpreadConstraint],
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in cluster.nodes.values():
        if any(c.topology_key not in node.labels for c in all_of):
            continue
        if not included(constraint, question.pod, node):
            continue
        matching = [
            pod
            for pod in cluster.on(node)
            if not pod.terminating
            and pod.namespace == question.pod.namespace
            and spread_selects(constraint, question.pod, pod)
        ]
        value = node.labels[constraint.topology_key]
        counts[value] = counts.get(value, 0) + len(matching)
    return counts


def included(constraint: TopologySpreadConstraint, pod: PodView, node: NodeView) -> bool:
    empty = Ledger(node.name, node.uid)
    if constraint.node_affinity_policy == "Honor" and (
        node_is_selected(pod, node, empty) or affinity_is_met(pod, node, empty)
    ):
        return False
    return not (constraint.node_taints_policy == "Honor" and taints_are_tolerated(pod, node, empty))


def spread_selects(constraint: TopologySpreadConstraint, pod: PodView, other: PodView) -> bool:
    if not selects(constraint.label_selector, other.labels):
        return False
    return all(other.labels.get(key) == pod.labels[key] for key in constraint.match_label_keys if key in pod.labels)


def selects(selector: LabelSelectorSpec | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    return all(labels.get(k) == v for k, v in selector.match_labels.items()) and all(
        meets(e.operator, e.values, labels.get(e.key)) for e in selector.match_expressions
    )


def meets(operator: str, values: tuple[str, ...], value: str | None) -> bool:
    if operator in ("Gt", "Lt"):
        if value is None or not is_number(value) or not values or not is_number(values[0]):
            return False
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return {
        "In": value is not None and value in values,
        "NotIn": value is None or value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[operator]


def is_number(text: str) -> bool:
    """As Go's ParseInt reads an int64: one sign, ASCII digits, nothing else."""
    return re.fullmatch(r"[+-]?[0-9]+", text) is not None and -(2**63) <= int(text) < 2**63


def term_matches(cluster: Cluster, owner: PodView, term: PodAffinityTerm, other: PodView) -> bool:
    """Whether a term of `owner` matches `other`."""
    if not term.namespaces and term.namespace_selector is None:
        near = other.namespace == owner.namespace
    else:
        near = other.namespace in term.namespaces or selects(
            term.namespace_selector, cluster.namespaces.get(other.namespace, {})
        )
    if not near or not selects(term.label_selector, other.labels):
        return False
    if any(other.labels.get(key) != owner.labels[key] for key in term.match_label_keys if key in owner.labels):
        return False
    return all(other.labels.get(key) != owner.labels[key] for key in term.mismatch_label_keys if key in owner.labels)


def required_terms(pod: PodView, side: str) -> tuple[PodAffinityTerm, ...]:
    rules = getattr(pod.spec.affinity, side) if pod.spec.affinity is not None else None
    return rules.required_during_scheduling_ignored_during_execution if rules is not None else ()


def placed_with(cluster: Cluster, key: str, value: str) -> list[PodView]:
    """The pods on nodes whose label `key` is `value`."""
    return [pod for node in cluster.nodes.values() if node.labels.get(key) == value for pod in cluster.on(node)]


def pod_affinity(cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    pod, terms = question.pod, required_terms(question.pod, "pod_affinity")
    if not terms:
        return
    if any(term.topology_key not in node.labels for term in terms):
        yield Blocker(Reason.POD_AFFINITY)
        return

    def matched_by_all(other: PodView) -> bool:
        return all(term_matches(cluster, pod, term, other) for term in terms)

    near = all(
        any(matched_by_all(other) for other in placed_with(cluster, term.topology_key, node.labels[term.topology_key]))
        for term in terms
    )
    anywhere = any(
        matched_by_all(other)
        for somewhere in cluster.nodes.values()
        if any(term.topology_key in somewhere.labels for term in terms)
        for other in cluster.on(somewhere)
    )
    if not near and (anywhere or not matched_by_all(pod)):
        yield Blocker(Reason.POD_AFFINITY)


def own_anti_affinity(index: int, cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    terms = required_terms(question.pod, "pod_anti_affinity")
    if index >= len(terms):
        return
    term = terms[index]
    value = node.labels.get(term.topology_key)
    if value is not None and any(
        term_matches(cluster, question.pod, term, other) for other in placed_with(cluster, term.topology_key, value)
    ):
        yield Blocker(Reason.POD_ANTI_AFFINITY, term.topology_key)


def anti_affinity_of_others(key: str, cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    value = node.labels.get(key)
    if value is None:
        return
    for other in placed_with(cluster, key, value):
        for term in required_terms(other, "pod_anti_affinity"):
            if term.topology_key == key and term_matches(cluster, other, term, question.pod):
                yield Blocker(Reason.ANTI_AFFINITY_OF_OTHERS, key)
                return


def policy(cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    settings, pod = question.settings, question.pod
    workload = owner_uid(pod)
    if settings.zone_skew_max is None or not workload or not governed(settings, node):
        return
    counts: dict[str, int] = {}
    for other in cluster.nodes.values():
        empty = Ledger(other.name, other.uid)
        if not governed(settings, other) or any(
            check(pod, other, empty) for check in (node_is_selected, affinity_is_met, taints_are_tolerated)
        ):
            continue
        replicas = [
            p
            for p in cluster.on(other)
            if not p.terminating and (p.namespace, owner_uid(p)) == (pod.namespace, workload)
        ]
        counts[other.labels[ZONE]] = counts.get(other.labels[ZONE], 0) + len(replicas)
    low = min(counts.values()) if counts else 2**31 - 1
    if counts.get(node.labels[ZONE], 0) + 1 - low > settings.zone_skew_max:
        yield Blocker(Reason.POLICY, f"{settings.policy} {settings.version} maxZoneSkew")


def governed(settings: Settings, node: NodeView) -> bool:
    zone, region = node.labels.get(ZONE), node.labels.get(REGION)
    if zone is None or (settings.zones and zone not in settings.zones):
        return False
    return not settings.regions or region in settings.regions


def owner_uid(pod: PodView) -> str:
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def refused_lately(_cluster: Cluster, question: PlacementCase, node: NodeView) -> Iterator[Blocker]:
    if node.name in question.excluded:
        yield Blocker(Reason.REFUSED_LATELY)


TOPOLOGY_KEYS = (ZONE, "host", "rack")
FILTERS = (
    terminating,
    lambda c, q, n: local(c, q, n, node_is_open, Reason.NODE_CORDONED),
    lambda c, q, n: local(c, q, n, node_is_trusted, Reason.NODE_SUSPECT),
    lambda c, q, n: local(c, q, n, node_is_named, Reason.NODE_NAME),
    lambda c, q, n: local(c, q, n, taints_are_tolerated, Reason.TAINT),
    lambda c, q, n: local(c, q, n, node_is_selected, Reason.NODE_SELECTOR),
    lambda c, q, n: local(c, q, n, affinity_is_met, Reason.NODE_AFFINITY),
    lambda c, q, n: local(c, q, n, ports_are_free, Reason.PORT),
    resources,
    zone_quota,
    lambda c, q, n: spread(0, c, q, n),
    lambda c, q, n: spread(1, c, q, n),
    pod_affinity,
    lambda c, q, n: own_anti_affinity(0, c, q, n),
    lambda c, q, n: own_anti_affinity(1, c, q, n),
    *(lambda c, q, n, key=key: anti_affinity_of_others(key, c, q, n) for key in TOPOLOGY_KEYS),
    policy,
    refused_lately,
)


# -- scores ----------------------------------------------------------------------------------------


def scores(cluster: Cluster, question: PlacementCase, feasible: list[NodeView]) -> dict[str, dict[str, int]]:
    """By score, then by node: 0 to 100 each."""
    allocated = {node.name: allocation(cluster, question.pod, node) for node in feasible}
    return {
        "least-allocated": {name: least for name, (least, _, _) in allocated.items()},
        "most-allocated": {name: most for name, (_, most, _) in allocated.items()},
        "balanced-allocation": {name: balanced for name, (_, _, balanced) in allocated.items()},
        "node-affinity": node_preference(question.pod, feasible),
        "taint-toleration": taint_preference(question.pod, feasible),
        "pod-affinity": pod_preference(cluster, question.pod, feasible),
        "topology-spread": spread_preference(cluster, question, feasible),
        "image-locality": {node.name: image_preference(cluster, question.pod, node) for node in feasible},
    }


def image_preference(cluster: Cluster, pod: PodView, node: NodeView) -> int:
    def bytes_on(where: NodeView, image: str) -> int | None:
        last = image.rpartition("/")[2]
        name = image if ":" in last else f"{image}:latest"
        return next((i.size_bytes for i in reversed(where.status.images) if name in i.names), None)

    images = [c.image for c in (*pod.spec.init_containers, *pod.spec.containers)]
    found = 0
    for image in (*images, *(v.image.reference for v in pod.spec.volumes if v.image is not None)):
        size = bytes_on(node, image)
        spread = sum(bytes_on(other, image) is not None for other in cluster.nodes.values())
        found += 0 if size is None else int(size * (spread / len(cluster.nodes)))
    least, most = 23 << 20, (1000 << 20) * len(images)
    return 100 * (min(max(found, least), most) - least) // (most - least)


def scored_requests(pod: PodView) -> dict[str, int]:
    """As `pod_requests`, with 100m and 200Mi for a container without requests, phase by phase; rounded once."""
    of_pod = pod.spec.resources.requests
    stated = {resource for resource in pod_requests(pod) if of_pod}
    assumed = {"cpu": parse_quantity("100m"), "memory": parse_quantity("200Mi")}
    least = {r: amount for r, amount in assumed.items() if r not in stated}
    infeasible = any(each.reason == "Infeasible" for each in pod.status.conditions)
    reported = {each.name: each for each in pod.status.container_statuses}

    def asked(container: Container) -> dict[str, Quantity]:
        known, spec = reported.get(container.name), container.resources.requests
        if known is None or known.resources is None:
            return {**least, **spec}
        every = [known.resources.requests, known.allocated_resources, *([] if infeasible else [spec])]
        names = dict.fromkeys(name for each in every for name in each)
        return {**least, **{name: max(each[name] for each in every if name in each) for name in names}}

    def total(*parts: Mapping[str, Quantity]) -> dict[str, Quantity]:
        zero = parse_quantity("0")
        return {r: sum((part.get(r, zero) for part in parts), zero) for r in ("cpu", "memory")}

    running: list[dict[str, Quantity]] = []
    moments = []
    for container in pod.spec.init_containers:
        moments.append(total(*running, asked(container)))
        if container.restart_policy == "Always":
            running.append(asked(container))
    moments.append(total(*running, *(asked(c) for c in pod.spec.containers)))
    most = {r: max(moment[r] for moment in moments) for r in ("cpu", "memory")} | dict(of_pod)
    return dict(to_units(total(most, pod.spec.overhead)))


def allocation(cluster: Cluster, pod: PodView, node: NodeView) -> tuple[int, int, int]:
    offered, placed = node_allocatable(node), cluster.on(node)
    least, most = [], []
    for resource in ("cpu", "memory"):
        has = offered.get(resource, 0)
        if has <= 0:
            continue
        scored = min(sum(scored_requests(p)[resource] for p in [*placed, pod]), has)
        least.append((has - scored) * 100 // has)
        most.append(scored * 100 // has)
    balanced = 50 + (50 + balance([*placed, pod], offered) - balance(placed, offered)) // 2
    if not any(pod_requests(pod).get(resource, 0) for resource in ("cpu", "memory")):
        balanced = 0
    many = max(len(least), 1)
    return sum(least) // many, sum(most) // many, balanced


def balance(pods: Sequence[PodView], offered: Units) -> int:
    """100 minus the standard deviation of the used shares, as a percentage without its fraction."""
    shares = []
    for resource in ("cpu", "memory"):
        has = offered.get(resource, 0)
        if has > 0:
            shares.append(min(sum(pod_requests(p).get(resource, 0) for p in pods) / has, 1.0))
    apart = abs((shares[0] - shares[1]) / 2) if len(shares) == 2 else 0.0
    return int((1.0 - apart) * 100)


def node_term_met(term: NodeSelectorTerm, node: NodeView) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(meets(e.operator, e.values, node.labels.get(e.key)) for e in term.match_expressions) and all(
        meets(f.operator, f.values, node.name) for f in term.match_fields
    )


def node_preference(pod: PodView, feasible: list[NodeView]) -> dict[str, int]:
    rules = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    preferred = rules.preferred_during_scheduling_ignored_during_execution if rules is not None else ()
    met = {node.name: sum(p.weight for p in preferred if node_term_met(p.preference, node)) for node in feasible}
    most = max(met.values(), default=0)
    return {name: weight * 100 // most if most else 0 for name, weight in met.items()}


def taint_preference(pod: PodView, feasible: list[NodeView]) -> dict[str, int]:
    relevant = [t for t in pod.spec.tolerations if t.effect in ("", "PreferNoSchedule")]
    unwelcome = {
        node.name: sum(
            taint.effect == "PreferNoSchedule" and not any(tolerates(t, taint) for t in relevant)
            for taint in node.spec.taints
        )
        for node in feasible
    }
    most = max(unwelcome.values(), default=0)
    return {name: 100 - count * 100 // most if most else 100 for name, count in unwelcome.items()}


def preferred_terms(pod: PodView) -> list[tuple[PodAffinityTerm, int]]:
    affinity = pod.spec.affinity
    terms = []
    if affinity is not None and affinity.pod_affinity is not None:
        for w in affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution:
            terms.append((w.pod_affinity_term, w.weight))
    if affinity is not None and affinity.pod_anti_affinity is not None:
        for w in affinity.pod_anti_affinity.preferred_during_scheduling_ignored_during_execution:
            terms.append((w.pod_affinity_term, -w.weight))
    return terms


def pod_preference(cluster: Cluster, pod: PodView, feasible: list[NodeView]) -> dict[str, int]:
    pulls = {node.name: 0 for node in feasible}
    for node in feasible:
        for where in cluster.nodes.values():
            for other in cluster.on(where):
                for term, weight in [
                    *((t, w) for t, w in preferred_terms(pod) if term_matches(cluster, pod, t, other)),
                    *((t, w) for t, w in preferred_terms(other) if term_matches(cluster, other, t, pod)),
                    *((t, 1) for t in required_terms(other, "pod_affinity") if term_matches(cluster, other, t, pod)),
                ]:
                    value = where.labels.get(term.topology_key)
                    if value is not None and node.labels.get(term.topology_key) == value:
                        pulls[node.name] += weight
    low, high = min(pulls.values(), default=0), max(pulls.values(), default=0)
    return {
        name: int(100.0 * (float(pull - low) / float(high - low))) if high > low else 0 for name, pull in pulls.items()
    }


def spread_preference(cluster: Cluster, question: PlacementCase, feasible: list[NodeView]) -> dict[str, int]:
    constraints = spread_of(question, "ScheduleAnyway")
    points = {node.name: 0 for node in feasible}
    scored = [node for node in feasible if all(c.topology_key in node.labels for c in constraints)]
    if not constraints or not scored:
        return points
    crowds = {}
    for node in scored:
        crowd = 0.0
        for constraint in constraints:
            domains = {other.labels[constraint.topology_key] for other in scored}
            counts = domain_counts(cluster, question, constraint, constraints)
            count = counts.get(node.labels[constraint.topology_key], 0)
            crowd += count * math.log(len(domains) + 2) + (constraint.max_skew - 1)
        crowds[node.name] = math.floor(crowd + 0.5)
    low, high = min(crowds.values()), max(crowds.values())
    return points | {name: (high + low - crowd) * 100 // high if high else 100 for name, crowd in crowds.items()}


# -- the decision ----------------------------------------------------------------------------------


def totals(cluster: Cluster, question: PlacementCase, feasible: list[NodeView]) -> dict[str, int]:
    parts = scores(cluster, question, feasible)
    return {
        node.name: sum(w * parts[s][node.name] for s, w in weights_under(question.settings).items())
        for node in feasible
    }


def pick(cluster: Cluster, totals_of: Mapping[str, int], draw: int) -> str | None:
    """The best node, by name, with number `draw` modulo their count."""
    if not totals_of:
        return None
    best = max(totals_of.values())
    names = [name for name in sorted(cluster.nodes) if totals_of.get(name) == best]
    return names[draw % len(names)]


def choice(cluster: Cluster, question: PlacementCase) -> str | None:
    feasible = [node for node in cluster.nodes.values() if not failing(cluster, question, node)]
    return pick(cluster, totals(cluster, question, feasible), question.draw)


# -- the scheduler under test -----------------------------------------------------------------------


def built(cluster: Cluster) -> Snapshot:
    return snapshot_of(
        cluster.nodes.values(),
        ((placed.uid, placed.node, placed.pod) for placed in cluster.pods.values()),
        cluster.namespaces,
    )


def answer(snapshot: Snapshot, question: PlacementCase) -> tuple[NodeDecision, Explanation]:
    decision = decide(
        snapshot,
        question.pod,
        question.draw,
        settings=question.settings,
        room=question.room,
        excluded=question.excluded,
    )
    return decision, explain(snapshot, decision)
