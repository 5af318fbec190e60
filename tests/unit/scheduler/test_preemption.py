"""Victims are the fewest, of the lowest priority, within their budgets: compared with every set of victims."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import node, pod

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.views import NodeView, PodView
from kedge.keys import Key
from kedge.limits import Limits
from kedge.scheduler import decide, snapshot_of
from kedge.scheduler.cycle.decide import NodeDecision
from kedge.scheduler.cycle.preemption import Preemption, PreemptionInputs, plan_preemption
from kedge.scheduler.report.explanation import explain
from kedge.scheduler.state.nominations import Nomination, nominated_claim
from kedge.scheduler.state.shapes import request_of
from kedge.scheduler.state.snapshot import Snapshot

POD, NODE = KINDS.of_key_kind("Pod"), KINDS.of_key_kind("Node")
HOST = "kubernetes.io/hostname"


def placed_pod(name: str, node_name: str, cpu: str, priority: int, *, leaving: bool = False, **spec: Any) -> Object:
    body = pod(name, cpu=cpu, nodeName=node_name, priority=priority, **spec)
    body["metadata"]["uid"] = name
    if leaving:
        body["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return Object(POD, Key("Pod", "default", name), encode_object(body), revision=1, created=len(name))


def node_view(name: str, cpu: str = "1", **spec: Any) -> NodeView:
    return Object(NODE, Key("Node", "", name), encode_object(node(name, cpu=cpu, **spec)), revision=1).as_view(NodeView)


class PreemptionHarness:
    """Nodes with pods, and a pod that needs room."""

    def __init__(self, nodes: Sequence[NodeView], pods: Sequence[Object], kept: frozenset[str] = frozenset()) -> None:
        self.pods = pods
        self.kept = kept
        claims = [(each.uid, each.view.spec.node_name, request_of(each.as_view(PodView), placed=True)) for each in pods]
        self.snapshot: Snapshot = snapshot_of(nodes, claims, limits=Limits())
        self.nominated: dict[str, Nomination] = {}

    def nominate(self, uid: str, node_name: str, cpu: str, priority: int) -> None:
        request = request_of(placed_pod(uid, "", cpu, priority).as_view(PodView))
        self.nominated[uid] = Nomination(node_name, request, priority)
        self.snapshot.add_claim(nominated_claim(uid), node_name, request)

    def decide(self, wanting: Object, **named: Any) -> NodeDecision:
        return decide(self.snapshot, wanting.as_view(PodView), 0, **named)

    def plan(self, wanting: Object, **named: Any) -> Preemption | None:
        decision = self.decide(wanting, **named)
        assert decision.node is None, "it fits: no eviction is needed"
        explanation = explain(self.snapshot, decision)
        before = {each.uid: self.snapshot.claim(each.uid) for each in self.pods}
        preemption_inputs = PreemptionInputs(
            self.on, lambda pods: [each for each in pods if each.uid not in self.kept], self.nominated
        )
        plan = plan_preemption(self.snapshot, decision, explanation, wanting.view.spec.priority or 0, preemption_inputs)
        after = {each.uid: self.snapshot.claim(each.uid) for each in self.pods}
        assert {uid: (c.node, c.request) for uid, c in before.items() if c} == {
            uid: (c.node, c.request) for uid, c in after.items() if c
        }, "a plan changes nothing"
        return plan

    def on(self, name: str) -> list[Object]:
        return [each for each in self.pods if each.view.spec.node_name == name]

    def fits_without(self, wanting: Object, node_name: str, gone: Sequence[Object]) -> bool:
        """The direct way: another snapshot, without the victims."""
        left = {each.uid for each in gone} | {e.uid for e in self.on(node_name) if e.metadata.deletion_timestamp}
        claims = [
            (e.uid, e.view.spec.node_name, request_of(e.as_view(PodView), placed=True))
            for e in self.pods
            if e.uid not in left
        ]
        nodes = [self._views[name] for name in self.snapshot.names]
        others = [name for name in self.snapshot.names if name != node_name]
        decision = decide(snapshot_of(nodes, claims), wanting.as_view(PodView), 0, excluded=others)
        return decision.node == node_name

    _views: dict[str, NodeView]

    @classmethod
    def of(
        cls, nodes: Sequence[NodeView], pods: Sequence[Object], kept: frozenset[str] = frozenset()
    ) -> PreemptionHarness:
        made = cls(nodes, pods, kept)
        made._views = {each.name: each for each in nodes}
        return made


def names(plan: Preemption | None) -> tuple[str, list[str]] | None:
    return None if plan is None else (plan.node, sorted(each.key.name for each in plan.victims))


def test_the_fewest_pods_of_the_lowest_priority_are_evicted() -> None:
    harness = PreemptionHarness.of(
        [node_view("node-a"), node_view("node-b")],
        [
            placed_pod("a1", "node-a", "500m", 1),
            placed_pod("a2", "node-a", "500m", 5),
            placed_pod("b1", "node-b", "500m", 1),
            placed_pod("b2", "node-b", "500m", 1),
        ],
    )
    assert names(harness.plan(placed_pod("new", "", "500m", 9))) in (
        ("node-a", ["a1"]),
        ("node-b", ["b1"]),
        ("node-b", ["b2"]),
    )
    assert names(harness.plan(placed_pod("new", "", "1", 9))) == ("node-b", ["b1", "b2"])


def test_no_pod_is_evicted_for_one_of_no_higher_priority() -> None:
    harness = PreemptionHarness.of([node_view("node-a")], [placed_pod("a", "node-a", "1", 5)])
    assert harness.plan(placed_pod("new", "", "500m", 5)) is None
    assert harness.plan(placed_pod("new", "", "500m", 4)) is None


def test_no_pod_is_evicted_for_one_that_would_still_not_fit() -> None:
    harness = PreemptionHarness.of(
        [node_view("node-a")], [placed_pod("a", "node-a", "500m", 1), placed_pod("b", "node-a", "500m", 9)]
    )
    assert harness.plan(placed_pod("new", "", "600m", 9)) is None
    assert harness.plan(placed_pod("huge", "", "2", 9)) is None
    assert harness.plan(placed_pod("picky", "", "500m", 9, nodeSelector={"disk": "fast"})) is None


def test_no_pod_is_evicted_where_a_zone_quota_or_a_refusal_rejects_the_pod() -> None:
    """These filters come after the resource filter, so a full node hides them."""
    harness = PreemptionHarness.of([node_view("node-a", zone="zone-a")], [placed_pod("a", "node-a", "1", 1)])
    wanting = placed_pod("new", "", "500m", 9)
    assert names(harness.plan(wanting)) == ("node-a", ["a"])
    assert harness.plan(wanting, room={"zone-a": {"cpu": 100}}) is None
    assert harness.plan(wanting, excluded=("node-a",)) is None


def test_a_budget_that_allows_no_eviction_is_respected() -> None:
    pods = [placed_pod("a", "node-a", "500m", 1), placed_pod("b", "node-a", "500m", 2)]
    assert names(
        PreemptionHarness.of([node_view("node-a")], pods, frozenset({"a"})).plan(placed_pod("new", "", "500m", 9))
    ) == (
        "node-a",
        ["b"],
    )
    assert (
        PreemptionHarness.of([node_view("node-a")], pods, frozenset({"a", "b"})).plan(placed_pod("new", "", "500m", 9))
        is None
    )


def test_terminating_pods_are_waited_for_instead_of_more_victims() -> None:
    harness = PreemptionHarness.of(
        [node_view("node-a")],
        [placed_pod("going", "node-a", "500m", 5, leaving=True), placed_pod("b", "node-a", "500m", 1)],
    )
    plan = harness.plan(placed_pod("new", "", "500m", 9))
    assert names(plan) == ("node-a", [])
    assert plan is not None
    assert plan.awaited == {"going"}


def test_a_nomination_of_higher_priority_is_respected_and_one_of_lower_is_not() -> None:
    harness = PreemptionHarness.of([node_view("node-a")], [])
    harness.nominate("kept", "node-a", "1", 5)
    assert harness.plan(placed_pod("low", "", "500m", 4)) is None
    assert harness.plan(placed_pod("same", "", "500m", 5)) is None
    assert names(harness.plan(placed_pod("high", "", "500m", 6))) == ("node-a", [])


def test_preemption_satisfies_rules_about_other_pods() -> None:
    """For a pod with anti-affinity exactly the matching pods are evicted, though resources are free."""
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOST}
            ]
        }
    }
    harness = PreemptionHarness.of(
        [node_view("node-a")], [placed_pod("a", "node-a", "100m", 1), placed_pod("b", "node-a", "100m", 2)]
    )
    assert names(harness.plan(placed_pod("new", "", "100m", 9, affinity=apart))) == ("node-a", ["a", "b"])
    protected_pod = PreemptionHarness.of(
        [node_view("node-a")], [placed_pod("a", "node-a", "100m", 1), placed_pod("b", "node-a", "100m", 9)]
    )
    assert protected_pod.plan(placed_pod("new", "", "100m", 9, affinity=apart)) is None


SIZES = st.sampled_from(("200m", "300m", "500m"))


@st.composite
def crowded_clusters(draw: st.DrawFn) -> tuple[PreemptionHarness, Object]:
    count = draw(st.integers(1, 3))
    nodes = [node_view(f"node-{n}", zone=f"zone-{n % 2}") for n in range(count)]
    pods = [
        placed_pod(
            f"p{n:0{n + 1}}",
            f"node-{draw(st.integers(0, count - 1))}",
            draw(SIZES),
            draw(st.integers(0, 3)),
            leaving=draw(st.integers(0, 5)) == 0,
        )
        for n in range(draw(st.integers(1, 7)))
    ]
    kept = frozenset(draw(st.sets(st.sampled_from([each.uid for each in pods]), max_size=2)))
    rules: dict[str, Any] = {}
    if draw(st.booleans()):
        rules["affinity"] = {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": HOST}
                ]
            }
        }
    wanting = placed_pod("new", "", draw(st.sampled_from(("300m", "700m", "1"))), draw(st.integers(1, 4)), **rules)
    return PreemptionHarness.of(nodes, pods, kept), wanting


@settings(max_examples=120, deadline=None)
@given(crowded_clusters())
def test_no_other_set_of_victims_would_be_better(case: tuple[PreemptionHarness, Object]) -> None:
    """Over all subsets on all nodes: the highest victim is as low as possible, and no victim could have stayed."""
    harness, wanting = case
    if harness.decide(wanting).node is not None:
        return
    priority = wanting.view.spec.priority
    plan = harness.plan(wanting)
    possible: list[tuple[int, str, tuple[Object, ...]]] = []
    for name in harness.snapshot.names:
        lower = [
            each
            for each in harness.on(name)
            if (each.view.spec.priority or 0) < priority
            and each.metadata.deletion_timestamp is None
            and each.uid not in harness.kept
        ]
        for gone in chain.from_iterable(combinations(lower, n) for n in range(len(lower) + 1)):
            if harness.fits_without(wanting, name, gone):
                highest = max((each.view.spec.priority or 0 for each in gone), default=-(2**31))
                possible.append((highest, name, gone))
    if not possible:
        assert plan is None
        return
    assert plan is not None
    assert harness.fits_without(wanting, plan.node, plan.victims)
    assert not {each.uid for each in plan.victims} & harness.kept
    assert all((each.view.spec.priority or 0) < priority for each in plan.victims)
    for spared in plan.victims:
        assert not harness.fits_without(wanting, plan.node, [each for each in plan.victims if each is not spared])
    highest = max((each.view.spec.priority or 0 for each in plan.victims), default=-(2**31))
    assert highest == min(each[0] for each in possible)
