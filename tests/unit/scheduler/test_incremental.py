"""A snapshot that followed every change decides the same as one built at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.scheduler_model import Cluster, Placed, PlacementCase, answer
from tests.kit.scheduler_strategies import FOCI, NAMESPACES, NODE_NAMES, node_views, pod_views, questions

from kedge.api.quantity import parse_quantity
from kedge.api.views import NodeView, ObjectMeta, PodView
from kedge.api.views.base import ResourceList
from kedge.limits import Limits
from kedge.scheduler import Snapshot, snapshot_of

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7), st.integers(0, 7), st.integers(0, 3)), max_size=25)
NODES = st.lists(st.sampled_from(NODE_NAMES).flatmap(node_views), min_size=3, max_size=6)
LIMITS = st.builds(
    lambda shapes, repairs, changes, keys: replace(
        Limits(),
        scheduler_shapes_max=shapes,
        scheduler_repair_max=repairs,
        scheduler_changes_max=changes,
        scheduler_label_keys_max=keys,
    ),
    st.sampled_from([1, 2, 64]),
    st.sampled_from([0, 1, 32]),
    st.sampled_from([1, 4, 4096]),
    st.sampled_from([1, 3, 1024]),
)


def flipped(node: NodeView) -> NodeView:
    """The node, cordoned or open again, with less capacity: its domains do not change."""
    spec = msgspec.structs.replace(node.spec, unschedulable=not node.spec.unschedulable)
    offered = ResourceList({**node.status.allocatable, "cpu": parse_quantity("800m")})
    return msgspec.structs.replace(node, spec=spec, status=msgspec.structs.replace(node.status, allocatable=offered))


def asking(focus: str) -> st.SearchStrategy[tuple[list[PodView], list[PlacementCase]]]:
    """Pods that are added and removed, and questions about others, with the same focus."""
    return st.tuples(
        st.lists(pod_views(focus), min_size=2, max_size=4), st.lists(questions(focus), min_size=2, max_size=3)
    )


class Pair:
    """A snapshot and a model cluster, changed together."""

    def __init__(self, limits: Limits, nodes: list[NodeView], pods: list[PodView]) -> None:
        self.snapshot = Snapshot(limits)
        self.cluster = Cluster()
        self.nodes = nodes
        self.pods = pods

    def step(self, what: int, one: int, other: int) -> None:
        cluster, snapshot = self.cluster, self.snapshot
        node, pod, uid = self.nodes[one % len(self.nodes)], self.pods[other % len(self.pods)], f"uid-{one}"
        match what:
            case 0 if one > 3 and node.name in cluster.nodes:
                node = flipped(cluster.nodes[node.name])
                cluster.nodes[node.name] = node
                snapshot.put_node(node)
            case 0 | 1 | 2:
                cluster.nodes[node.name] = node
                snapshot.put_node(node)
            case 3:
                assert snapshot.remove_node(node.name) == (cluster.nodes.pop(node.name, None) is not None)
            case 4 | 5 | 6 | 7:
                name = NODE_NAMES[other % len(NODE_NAMES)]
                cluster.pods[uid] = Placed(uid, name, pod)
                snapshot.add_claim(uid, name, pod)
            case 8:
                assert snapshot.remove_claim(uid) == (cluster.pods.pop(uid, None) is not None)
            case _:
                labels = {"tier": "gold"} if one % 2 else {}
                cluster.namespaces[NAMESPACES[other % 2]] = labels
                snapshot.put_namespace(NAMESPACES[other % 2], labels)

    def rebuilt(self) -> Snapshot:
        cluster = self.cluster
        return snapshot_of(
            cluster.nodes.values(),
            ((placed.uid, placed.node, placed.pod) for placed in cluster.pods.values()),
            cluster.namespaces,
        )


def result_of(snapshot: Snapshot, question: PlacementCase) -> tuple[Any, ...]:
    decision, explanation = answer(snapshot, question)
    codes = [explanation.legend[code - 1] if code else None for code in explanation.first_failing]
    return (
        decision.node, decision.node_uid, decision.score, decision.feasible, decision.nodes, explanation.names, codes,
        explanation.counts, explanation.top, explanation.near_miss,
    )  # fmt: skip


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=120)
@given(LIMITS, NODES, st.sampled_from(FOCI).flatmap(asking), STEPS)
def test_step_by_step_equals_all_at_once(
    limits: Limits,
    nodes: list[NodeView],
    asking_of: tuple[list[PodView], list[PlacementCase]],
    steps: list[tuple[int, int, int, int]],
) -> None:
    pods, asked = asking_of
    pair = Pair(limits, nodes, pods)
    for what, one, other, ask in steps:
        pair.step(what, one, other)
        for question in asked[:ask]:
            assert result_of(pair.snapshot, question) == result_of(pair.rebuilt(), question)
    for question in asked:
        assert result_of(pair.snapshot, question) == result_of(pair.rebuilt(), question)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=10, max_size=80))
def test_nodes_are_in_order_of_name_after_any_adds_and_removes(steps: list[tuple[int, int]]) -> None:
    """Few changes between two reads are followed; with more the order is built again."""
    snapshot, names, pauses = Snapshot(), set[str](), 0
    for number, pause in steps:
        name = f"node-{number * 7 % 31:02}"
        if name in names:
            names.remove(name)
            snapshot.remove_node(name)
        else:
            names.add(name)
            snapshot.put_node(NodeView(metadata=ObjectMeta(name=name)))
        pauses += 1
        if pauses <= pause:
            continue
        pauses = 0
        order = snapshot.order()
        assert [snapshot.at(row).name for row in order.tolist()] == sorted(names) == list(snapshot.names)
        assert snapshot.places()[order].tolist() == list(range(len(names)))
