"""The state of a node follows the evidence: silence moves it forward, only a renewal brings it back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW
from tests.objects import Clock, make_env

from kedge.api.codec import encode_json
from kedge.api.conditions import find_condition, is_true, set_condition
from kedge.api.views import NodeView, decode_as
from kedge.api.wellknown import DRAIN_NODE, NOT_READY_TAINT, OUT_OF_SERVICE, UNREACHABLE_TAINT
from kedge.controllers.node.heartbeats import UNDATED, Heartbeats, NodeHealth, blindness
from kedge.controllers.node.plan import LOST, NodePlan, NodeState, next_state, plan_node, state_of
from kedge.limits import Limits
from kedge.placement.predicates import SUSPECT

LIMITS = Limits()
ORDER = list(NodeState)


def a_node(document: dict[str, Any] | None = None) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    return {"metadata": {"name": "node-a"}, "spec": {}, "status": {"conditions": [ready]}, **(document or {})}


def view(document: dict[str, Any]) -> NodeView:
    return decode_as(NodeView, encode_json(document))


def carry_out(document: dict[str, Any], plan: NodePlan) -> dict[str, Any]:
    conditions = document["status"]["conditions"]
    for each in plan.conditions:
        conditions = set_condition(conditions, each, NOW)
    spec = dict(document["spec"])
    if plan.taints is not None:
        spec["taints"] = list(plan.taints)
    if plan.cordon:
        spec["unschedulable"] = True
    return {**document, "spec": spec, "status": {"conditions": conditions}}


def silent(seconds: float, **more: Any) -> NodeHealth:
    return NodeHealth(seconds, seconds, **more)


healths = st.builds(
    lambda silence, trusted, alive, blind: NodeHealth(
        silence, min(silence, trusted), alive, "cut off" if blind else ""
    ),
    st.floats(0, 400),
    st.floats(0, 400),
    st.booleans(),
    st.booleans(),
)


@given(st.sampled_from(NodeState), healths)
def test_a_node_moves_forward_by_silence_and_back_only_by_a_heartbeat(was: NodeState, health: NodeHealth) -> None:
    now = next_state(was, health, LIMITS)
    if ORDER.index(now) < ORDER.index(was):
        assert now is NodeState.READY
        assert health.alive
        assert health.silence_s < LIMITS.node_suspect_s
    if now is NodeState.LOST and was is not NodeState.LOST:
        assert health.trusted_s >= LIMITS.node_lost_s
        assert not health.blind
    if health.blind and ORDER.index(was) <= ORDER.index(NodeState.SUSPECT):
        assert ORDER.index(now) <= ORDER.index(NodeState.SUSPECT)


@given(st.lists(healths, min_size=1, max_size=8), st.booleans())
def test_a_plan_that_was_carried_out_plans_nothing_more(seen: list[NodeHealth], cordoned: bool) -> None:
    document = a_node({"spec": {"unschedulable": cordoned}})
    for health in seen:
        plan = plan_node(view(document), health, LIMITS, NOW)
        document = carry_out(document, plan)
        again = plan_node(view(document), health, LIMITS, NOW)
        assert again.state is plan.state
        assert not again.conditions
        assert again.taints is None


def test_the_states_follow_one_another_with_their_conditions_and_taints() -> None:
    document = a_node()
    document = carry_out(document, plan_node(view(document), silent(25), LIMITS, NOW))
    assert is_true(view(document).status.conditions, SUSPECT)
    assert not view(document).spec.taints
    document = carry_out(document, plan_node(view(document), silent(45), LIMITS, NOW))
    found = find_condition(view(document).status.conditions, "Ready")
    assert found is not None
    assert found.status == "Unknown"
    assert {(t.key, t.effect) for t in view(document).spec.taints} == {
        (UNREACHABLE_TAINT, "NoSchedule"),
        (UNREACHABLE_TAINT, "NoExecute"),
    }
    assert all(t.time_added for t in view(document).spec.taints if t.effect == "NoExecute")
    document = carry_out(document, plan_node(view(document), silent(130), LIMITS, NOW))
    assert is_true(view(document).status.conditions, LOST)
    document = carry_out(document, plan_node(view(document), silent(1, alive=True), LIMITS, NOW))
    conditions = view(document).status.conditions
    assert not is_true(conditions, LOST)
    assert not is_true(conditions, SUSPECT)
    # Its agent has not reported yet: until then nothing new is placed there, and nothing is deleted.
    assert {(t.key, t.effect) for t in view(document).spec.taints} == {(UNREACHABLE_TAINT, "NoSchedule")}


def test_a_node_is_not_declared_lost_before_the_rate_limit_allows_it() -> None:
    plan = plan_node(view(a_node()), silent(500), LIMITS, NOW, may_lose=False)
    assert plan.state is NodeState.UNKNOWN
    assert plan.requeue_after_s <= LIMITS.node_suspect_s


def test_a_new_observer_does_not_return_a_node_without_a_heartbeat() -> None:
    document = a_node()
    document = carry_out(document, plan_node(view(document), silent(130), LIMITS, NOW))
    plan = plan_node(view(document), silent(0), LIMITS, NOW)  # it has just started
    assert plan.state is NodeState.LOST
    assert not plan.conditions


def test_an_out_of_service_taint_declares_a_node_lost() -> None:
    taint = {"key": OUT_OF_SERVICE, "effect": "NoExecute", "value": "ada pulled the plug"}
    plan = plan_node(view(a_node({"spec": {"taints": [taint]}})), silent(0, alive=True), LIMITS, NOW, may_lose=False)
    assert plan.state is NodeState.LOST


def test_a_node_whose_agent_reports_not_ready_is_tainted() -> None:
    document = a_node({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    plan = plan_node(view(document), silent(1, alive=True), LIMITS, NOW)
    assert plan.state is NodeState.READY
    assert plan.taints is not None
    assert {(t["key"], t["effect"]) for t in plan.taints} == {
        (NOT_READY_TAINT, "NoSchedule"),
        (NOT_READY_TAINT, "NoExecute"),
    }


def test_other_taints_stay_and_cordons_are_shown() -> None:
    theirs = {"key": "gpu", "effect": "NoSchedule", "value": "a100"}
    document = a_node({"spec": {"taints": [theirs], "unschedulable": True}})
    plan = plan_node(view(document), silent(0, alive=True), LIMITS, NOW)
    assert plan.taints == (theirs, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    document["metadata"]["annotations"] = {DRAIN_NODE: "new disks"}
    document["spec"]["unschedulable"] = False
    assert plan_node(view(document), silent(0, alive=True), LIMITS, NOW).cordon
    assert state_of(view(document)) is NodeState.READY


# -- the observer ----------------------------------------------------------------------------------


def observer() -> tuple[Heartbeats, Clock]:
    clock = Clock()
    return Heartbeats(make_env(clock=clock)), clock


def test_silence_counts_since_the_last_renewal_that_was_seen() -> None:
    heartbeats, clock = observer()
    heartbeats.note("a", 0.0, renewed=False)
    assert not heartbeats.observe("a", 0.0)["alive"]
    clock.advance(10)
    heartbeats.note("a", 0.0, renewed=True)
    clock.advance(15)
    assert heartbeats.observe("a", 0.0) == {"silence_s": 15.0, "alive": True}


def test_a_new_report_of_the_agent_is_a_heartbeat_and_an_old_one_is_not() -> None:
    heartbeats, clock = observer()
    heartbeats.note("a", 0.0, renewed=False)
    heartbeats.observe("a", 0.0, report="at nine")
    clock.advance(20)
    assert heartbeats.observe("a", 0.0, report="at nine") == {"silence_s": 20.0, "alive": False}
    clock.advance(20)
    assert heartbeats.observe("a", 0.0)["silence_s"] == 40.0  # another writer has set Ready to unknown
    clock.advance(5)
    assert heartbeats.observe("a", 0.0, report="at ten") == {"silence_s": 0.0, "alive": True}
    clock.advance(5)
    heartbeats.note("a", 0.0, renewed=True)
    clock.advance(5)
    assert heartbeats.observe("a", 0.0, report="at ten")["silence_s"] == 5.0
    assert heartbeats.observe("a", 0.0, report="at eleven")["silence_s"] == 0.0


def test_a_report_that_only_gets_a_time_is_no_heartbeat() -> None:
    heartbeats, clock = observer()
    heartbeats.note("a", 0.0, renewed=True)
    heartbeats.observe("a", 0.0, report=UNDATED)
    clock.advance(20)
    assert heartbeats.observe("a", 0.0, report="at nine")["silence_s"] == 20.0


def test_silence_does_not_grow_while_the_observer_cannot_see() -> None:
    heartbeats, clock = observer()
    heartbeats.note("a", 0.0, renewed=True)
    for _ in range(30):
        clock.advance(10)
        assert heartbeats.observe("a", clock.monotonic() - observed_s(clock))["silence_s"] <= 10.0
    # The watch resumes after minutes: every node has its whole time again.
    assert heartbeats.observe("a", 0.0)["silence_s"] == 0.0
    clock.advance(30)
    assert heartbeats.observe("a", 0.0)["silence_s"] == 30.0


def observed_s(clock: Clock) -> float:
    return Clock().monotonic() + min(10.0, clock.monotonic() - Clock().monotonic())


def test_a_short_gap_in_the_watch_restarts_nothing() -> None:
    heartbeats, clock = observer()
    heartbeats.note("a", 0.0, renewed=True)
    clock.advance(20)
    heartbeats.observe("a", 0.0)
    clock.advance(40)
    assert heartbeats.observe("a", 0.0)["silence_s"] == 60.0


def test_a_zone_that_was_blind_gives_its_nodes_their_time_again() -> None:
    heartbeats, clock = observer()
    zones = {"a": ["a1", "a2", "a3"], "b": ["b1"]}
    for name in ("a1", "a2", "a3", "b1"):
        heartbeats.note(name, 0.0, renewed=True)
    for _ in range(5):
        clock.advance(20)
        heartbeats.note("b1", 0.0, renewed=True)
        found = heartbeats.survey("a", zones)
    assert "3 of 3" in found["blind"]
    heartbeats.note("a1", 0.0, renewed=True)
    heartbeats.note("a2", 0.0, renewed=True)
    clock.advance(15)
    heartbeats.note("b1", 0.0, renewed=True)
    found = heartbeats.survey("a", zones)
    assert found == {"blind": "", "clear_s": 15.0}


def test_nodes_of_one_zone_are_declared_lost_one_at_a_time() -> None:
    heartbeats, clock = observer()
    assert heartbeats.may_lose("a")
    assert not heartbeats.may_lose("a")
    assert heartbeats.may_lose("b")
    clock.advance(LIMITS.node_loss_every_s)
    assert heartbeats.may_lose("a")


@given(st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_a_zone_is_blind_only_when_many_or_all_are_silent(counts: dict[str, tuple[int, int]]) -> None:
    silent_by = {zone: quiet for zone, (quiet, _) in counts.items()}
    nodes = {zone: quiet + loud for zone, (quiet, loud) in counts.items()}
    for zone in counts:
        found = blindness(silent_by, nodes, zone, 3, 0.55)
        every_node = 0 < sum(silent_by.values()) == sum(nodes.values())
        many = silent_by[zone] >= 3 and silent_by[zone] >= 0.55 * nodes[zone]
        assert bool(found) == (every_node or many)
