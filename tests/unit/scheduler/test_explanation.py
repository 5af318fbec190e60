"""Explanations, policies and bounds, on small clusters that are written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.objects import node, pod

from kedge.api.scopes import Workload
from kedge.api.views import NodeView, PodView, SchedulingPolicyView, decode_as
from kedge.errors import InvariantBroken
from kedge.limits import Limits
from kedge.placement.reasons import Reason, refusal_reason
from kedge.scheduler import (
    DEFAULT_SETTINGS,
    Blocker,
    Settings,
    Snapshot,
    decide,
    explain,
    settings_for,
    snapshot_of,
    summarize,
)
from kedge.scheduler.pipeline.plugin import Filter
from kedge.scheduler.pipeline.plugins import PIPELINE
from kedge.scheduler.pipeline.scores.allocation import AllocationScore, allocation_parts
from kedge.scheduler.pipeline.scores.topology_spread import fixed_log

HOST = "kubernetes.io/hostname"
LIMITS = Limits()


def node_view(name: str, **changes: Any) -> NodeView:
    return decode_as(NodeView, msgspec.json.encode(node(name, **changes)))


def pod_view(namespace: str = "risk", **changes: Any) -> PodView:
    document = pod(**changes)
    document["metadata"]["namespace"] = namespace
    return decode_as(PodView, msgspec.json.encode(document))


def labelled(name: str, label: str, **changes: Any) -> NodeView:
    document = node(name, **changes)
    document["metadata"]["labels"]["disk"] = label
    return decode_as(NodeView, msgspec.json.encode(document))


def many_nodes() -> Iterator[NodeView]:
    for i in range(90):
        yield labelled(f"plain-{i}", "hdd")
    for i in range(30):
        yield labelled(f"small-{i}", "ssd", cpu="1")
    for i in range(8):
        yield labelled(f"full-{i}", "ssd", zone="zone-c")


def test_the_summary_counts_every_node() -> None:
    snapshot = snapshot_of(many_nodes())
    asking = pod_view(cpu="2", nodeSelector={"disk": "ssd"})
    decision = decide(snapshot, asking, 7, room={"zone-c": {"cpu": 1000}})
    explanation = explain(snapshot, decision)
    assert summarize(decision, explanation) == "0/128 nodes: 8 zone quota risk/zone-c, 90 node selector, 30 cpu"
    assert len(explanation.first_failing) == 128
    assert explanation.near_miss is not None
    assert explanation.near_miss.blocker == Blocker(Reason.ZONE_QUOTA, "risk/zone-c")


def test_a_rule_of_the_pod_is_never_the_decisive_blocker() -> None:
    """Empty nodes with a taint are the best near misses, but the pod waits for CPU."""
    taint = {"key": "control", "effect": "NoSchedule"}
    tainted = [node_view(name, taints=[taint]) for name in ("a-control", "b-control")]
    snapshot = snapshot_of([*tainted, node_view("c", cpu="1")])
    decision = decide(snapshot, pod_view(cpu="2"), 0)
    explanation = explain(snapshot, decision)
    assert explanation.near_miss is not None
    assert explanation.near_miss.node == "a-control"
    assert explanation.decisive == Blocker(Reason.RESOURCE, "cpu")
    assert summarize(decision, explanation) == "0/3 nodes: 1 cpu, 2 taint"


def test_the_message_of_an_attempt_does_not_depend_on_its_draw() -> None:
    """Two nodes are equally near, with different blockers: a message that changed would be written again and again."""
    cordoned = node_view("a", unschedulable=True)
    snapshot = snapshot_of([cordoned, node_view("b", zone="zone-c"), node_view("c", zone="zone-c")])
    found = set()
    for draw in range(6):
        decision = decide(snapshot, pod_view(cpu="2"), draw, room={"zone-c": {"cpu": 1000}})
        found.add(summarize(decision, explain(snapshot, decision)))
    assert found == {"0/3 nodes: 2 zone quota risk/zone-c, 1 cordoned"}


def test_the_account_if_nodes_were_empty_is_that_of_the_same_nodes_without_pods() -> None:
    nodes = list(many_nodes())
    snapshot, empty = snapshot_of(nodes), snapshot_of(nodes)
    asking = pod_view(cpu="2", nodeSelector={"disk": "ssd"})
    filler = decide(snapshot, pod_view(cpu="3"), 0).request
    for number, each in enumerate(nodes):
        if each.name.startswith("full-"):
            snapshot.add_claim(f"uid-{number}", each.name, filler)
    decision = decide(snapshot, asking, 7, room={"zone-a": {"cpu": 0}})
    explanation = explain(snapshot, decision)
    assert decision.node is None
    assert explanation.if_empty is not None
    assert dict(explanation.if_empty) == {Blocker(Reason.NODE_SELECTOR): 90, Blocker(Reason.RESOURCE, "cpu"): 30}
    assert dict(explanation.if_empty) == dict(explain(empty, decide(empty, asking, 7)).counts)


def test_an_account_without_filters_is_the_account_of_the_filters() -> None:
    """Where every node fits, the filters are not asked again: they would have failed none."""
    snapshot = snapshot_of([each for each in many_nodes() if each.name.startswith("full-")])
    decision = decide(snapshot, pod_view(cpu="1"), 7)
    assert decision.feasible == decision.nodes > 1
    found = explain(snapshot, decision)
    slow = explain(snapshot, msgspec.structs.replace(decision, feasible=decision.feasible - 1))
    assert found.top[: len(slow.top)] == slow.top
    assert (found.first_failing, found.legend, dict(found.counts)) == (slow.first_failing, (), {})
    assert found.first_failing == bytes(decision.nodes)
    assert (found.near_miss, found.decisive, found.if_empty) == (None, None, None)


def test_points_of_a_few_nodes_are_those_of_all_nodes() -> None:
    snapshot = snapshot_of(many_nodes())
    request = decide(snapshot, pod_view(cpu="500m"), 1).request
    for n, name in enumerate(snapshot.names[:40]):
        snapshot.add_claim(f"uid-{n}", name, request)
    asked = decide(snapshot, pod_view(cpu="1", memory="1Gi"), 3).request.requirements
    score = AllocationScore(snapshot, asked, AllocationScore.weights)
    rows = np.arange(12)
    few, all_rows = score.parts(rows, snapshot.exists), allocation_parts(snapshot, asked)
    for name, points in few.items():
        assert points.tolist() == all_rows[name][rows].tolist()


def test_a_decision_is_explained_only_while_the_snapshot_is_unchanged() -> None:
    snapshot = snapshot_of([node_view("a")])
    decision = decide(snapshot, pod_view(), 0)
    assert decision.node == "a"
    snapshot.add_claim("u", "a", decision.request)
    with pytest.raises(InvariantBroken, match="snapshot has changed"):
        explain(snapshot, decision)


def test_a_decision_names_the_version_of_the_node_it_used() -> None:
    snapshot = Snapshot()
    snapshot.put_node(node_view("a"), 17)
    assert not snapshot.put_node(node_view("a"), 18), "a heartbeat changes nothing that decides"
    assert decide(snapshot, pod_view(), 0).node_revision == 18


def test_the_draw_reaches_each_of_the_best_nodes() -> None:
    for nodes in (3, 700):
        snapshot = snapshot_of(node_view(f"n{i:03}") for i in range(nodes))
        chosen = [decide(snapshot, pod_view(), draw).node for draw in range(nodes)]
        assert chosen == [f"n{i:03}" for i in range(nodes)]


def test_a_draw_beyond_the_last_best_node_wraps_around() -> None:
    views = [node_view(f"n{i:04}", cpu="4" if i < 600 else "1") for i in range(2000)]
    snapshot = snapshot_of(views)
    assert decide(snapshot, pod_view(cpu="2"), 1999).node == "n0199"


# -- amounts beyond the limit of a column ----------------------------------------------------------

HUGE = st.sampled_from([0, 1, 2**49, 2**60 - 1, 2**60, 2**60 + 1, 2**62, 2**63 - 1])


@given(HUGE, st.lists(HUGE, max_size=4), HUGE)
def test_no_amount_overflows_and_no_pod_passes_that_does_not_fit(offered: int, claims: list[int], asked: int) -> None:
    snapshot = Snapshot()
    document = node("a")
    document["status"]["allocatable"]["memory"] = str(offered)
    snapshot.put_node(decode_as(NodeView, msgspec.json.encode(document)))
    for i, claim in enumerate(claims):
        snapshot.add_claim(f"u{i}", "a", pod_view(memory=str(claim)))
    found = decide(snapshot, pod_view(memory=str(asked)), 0).node
    fits = asked == 0 or sum(claims) + asked <= offered
    if found is not None:
        assert fits
    if sum(claims) + asked <= 2**60:
        assert (found is not None) == fits
    for i in range(len(claims)):
        snapshot.remove_claim(f"u{i}")
    again = decide(snapshot, pod_view(memory=str(asked)), 0).node
    assert (
        again
        == decide(
            snapshot_of([decode_as(NodeView, msgspec.json.encode(document))]), pod_view(memory=str(asked)), 0
        ).node
    )


# -- bounded memory --------------------------------------------------------------------------------


def test_shapes_are_bounded_and_release_their_tallies() -> None:
    snapshot = Snapshot(replace(LIMITS, scheduler_shapes_max=2))
    snapshot.put_node(node_view("a"))
    for i in range(5):
        rule = {"labelSelector": {"matchLabels": {"app": f"a{i}"}}, "topologyKey": HOST}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
        assert decide(snapshot, pod_view(affinity=apart), 0).node == "a"
    statistics = snapshot.statistics()
    assert (statistics["kedge_scheduler_shapes"], statistics["kedge_scheduler_tallies"]) == (2, 2)


def test_label_keys_that_pods_name_are_bounded() -> None:
    most = 20
    snapshot = Snapshot(replace(LIMITS, scheduler_label_keys_max=most))
    snapshot.put_node(node_view("a"))
    for i in range(10 * most):
        assert decide(snapshot, pod_view(nodeSelector={f"key-{i}": "x"}), 0).node is None
        assert len(snapshot._columns) <= most + 3
        rule = {"labelSelector": {"matchLabels": {f"app-{i}": "x"}}, "topologyKey": f"topology-{i}"}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
        placed = pod_view(name=f"p{i}", affinity=apart)
        snapshot.add_claim(f"uid-{i}", "a", placed)
        snapshot.remove_claim(f"uid-{i}")
    assert snapshot.statistics()["kedge_scheduler_label_keys"] <= 3 * most


def test_names_of_deleted_nodes_are_forgotten() -> None:
    snapshot = snapshot_of([node_view("keeper")])
    asking = pod_view(nodeSelector={HOST: "keeper"})
    for i in range(1000):
        snapshot.put_node(node_view(f"passing-{i}"))
        assert decide(snapshot, asking, i).node == "keeper"
        snapshot.remove_node(f"passing-{i}")
    assert len(snapshot.column(HOST).values) <= 4 * snapshot.capacity + 1


def test_claims_on_an_unknown_node_count_when_it_is_added() -> None:
    snapshot = Snapshot()
    snapshot.add_claim("u", "late", pod_view(cpu="3"))
    snapshot.put_node(node_view("late"))
    assert decide(snapshot, pod_view(cpu="2"), 0).node is None
    snapshot.remove_node("late")
    snapshot.put_node(node_view("late"))
    assert decide(snapshot, pod_view(cpu="2"), 0).node is None, "a node that comes back has its claims still"
    assert snapshot.remove_claim("u")
    assert decide(snapshot, pod_view(cpu="2"), 0).node == "late"


# -- policies --------------------------------------------------------------------------------------


def policy(name: str = "zones", **spec: Any) -> SchedulingPolicyView:
    return decode_as(
        SchedulingPolicyView, msgspec.json.encode({"metadata": {"name": name}, "spec": {"version": "v4", **spec}})
    )


def test_the_policy_of_the_highest_rank_decides_and_its_canary_inside_its_own_scope() -> None:
    canary = {
        "version": "v5",
        "maxZoneSkew": 1,
        "scope": {"workloads": ["risk-api"]},
        "weights": {"least-allocated": 9},
    }
    policies = [policy("all"), policy(rank=5, scope={"tenants": ["risk"]}, maxZoneSkew=3, canary=canary)]
    api, other = Workload("w1", "risk-api"), Workload("w2", "risk-batch")
    found = settings_for(policies, pod_view(), api, revisions={"zones": 40})
    assert (found.policy, found.version, found.canary, found.zone_skew_max) == ("zones", "v5", True, 1)
    assert (found.revision, dict(found.weights)["least-allocated"]) == (40, 9)
    plain = settings_for(policies, pod_view(), other)
    assert (plain.version, plain.canary, plain.zone_skew_max) == ("v4", False, 3)
    assert settings_for(policies, pod_view("elsewhere"), other).policy == "all"


def test_a_policy_that_is_inactive_or_for_another_scheduler_does_not_apply() -> None:
    idle = [policy("idle", active=False), policy("theirs", schedulerNames=["batch"])]
    assert settings_for(idle, pod_view(), Workload("w", "x")) is DEFAULT_SETTINGS


@given(st.integers(0, 100), st.integers(0, 100), st.uuids())
def test_a_larger_share_of_the_workloads_only_adds(one: int, other: int, uid: Any) -> None:
    def admitted(percent: int) -> bool:
        chosen = settings_for([policy(scope={"percent": percent})], pod_view(), Workload(str(uid), "x"))
        return chosen is not DEFAULT_SETTINGS

    if admitted(min(one, other)):
        assert admitted(max(one, other))
    assert admitted(100)
    assert not admitted(0)


def test_zone_skew_applies_to_one_workload_and_not_to_others() -> None:
    snapshot = snapshot_of([node_view("a", zone="za"), node_view("b", zone="zb", cpu="1")])
    settings = Settings(policy="zones", version="v5", zone_skew_max=1)

    def replica(workload: str) -> PodView:
        document = pod(cpu="900m")
        owner = {"uid": workload, "name": workload, "kind": "ReplicaSet", "apiVersion": "apps/v1", "controller": True}
        document["metadata"]["ownerReferences"] = [owner]
        return decode_as(PodView, msgspec.json.encode(document))

    snapshot.add_claim("1", "a", replica("w1"))
    assert decide(snapshot, replica("w1"), 0, settings=settings).node == "b"
    snapshot.add_claim("2", "b", replica("w2"))
    decision = decide(snapshot, replica("w1"), 0, settings=settings)
    assert summarize(decision, explain(snapshot, decision)) == "0/2 nodes: 1 cpu, 1 policy zones v5 maxZoneSkew"
    assert decide(snapshot, replica("w1"), 0).node == "a"


def test_the_logarithm_in_integers_is_the_natural_logarithm() -> None:
    for number in (2, 3, 7, 12, 1000, 5002, 50_002):
        assert abs(fixed_log(number) / 2**30 - math.log(number)) < 2**-30


@pytest.mark.parametrize("each", PIPELINE.filters, ids=lambda each: each.__name__)
def test_the_reason_of_a_filter_can_be_read_from_the_message(each: type[Filter]) -> None:
    """Workloads show it as the reason of their conditions, whatever the detail is."""
    for detail in ("", "risk/zone-c", "cpu") if each.label else ("cpu",):
        expected = each.reason if each.label else "InsufficientCpu"
        assert refusal_reason(f"0/3 nodes: 2 {each.blocker(detail)}, 1 memory") == expected


def test_a_message_of_another_form_has_no_reason() -> None:
    assert refusal_reason("0/2 nodes: 2 example.com/big-gpu") == "InsufficientBigGpu"
    assert refusal_reason("0/0 nodes: there are none") == "NoNodes"
    assert refusal_reason("gang red: 2 of its 3 members exist") == "Gang"
    assert refusal_reason("") == ""
