"""A node's pods: unknown first, then released through their owners, taken back while that is possible."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.pod_views import NOW, a_pod, ago, ready_pod

from kedge.api.views import NodeView, OwnerReference, PodView, Taint, Toleration
from kedge.api.views.core import NodeSpec
from kedge.api.wellknown import NOT_READY_TAINT, UNREACHABLE_TAINT
from kedge.controllers.node.evacuation import EvacuationPlan, plan_evacuation, release_after_s
from kedge.controllers.node.heartbeats import NodeHealth
from kedge.controllers.node.plan import NodeState
from kedge.limits import Limits

LIMITS = Limits()
OWNER = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="u", controller=True)


def owned(pod: PodView) -> PodView:
    return replace(pod, metadata=replace(pod.metadata, owner_references=(OWNER,)))


def tolerating(pod: PodView, *tolerations: Toleration) -> PodView:
    return replace(pod, spec=replace(pod.spec, tolerations=tolerations))


def plan(
    state: NodeState, trusted_s: float, *pods: PodView, taints: tuple[Taint, ...] = (), **more: Any
) -> EvacuationPlan:
    node = NodeView(spec=NodeSpec(taints=taints))
    blind = more.pop("blind", "")
    return plan_evacuation(node, state, NodeHealth(trusted_s, trusted_s, blind=blind), pods, LIMITS, NOW, **more)


def destroys(steps: EvacuationPlan) -> bool:
    """Whether any write cannot be undone."""
    return bool(steps.release or steps.remove or steps.end)


def test_a_suspect_node_affects_no_pod() -> None:
    assert plan(
        NodeState.SUSPECT, 39.0, owned(ready_pod("web-0")), owned(a_pod("web-1", node="node-a", lost=True))
    ).silent


def test_the_pods_of_an_unknown_node_are_unknown_and_stay() -> None:
    steps = plan(NodeState.UNKNOWN, 60.0, owned(ready_pod("web-0")), owned(a_pod("web-1", node="node-a")))
    assert [pod.name for pod in steps.unknown] == ["web-0"]
    assert not destroys(steps)


def test_the_pods_of_a_lost_node_are_released_through_their_owners_or_removed() -> None:
    steps = plan(NodeState.LOST, 120.0, owned(ready_pod("web-0")), a_pod("alone", node="node-a"))
    assert [pod.name for pod in steps.release] == ["web-0"]
    assert [pod.name for pod in steps.remove] == ["alone"]


def test_a_release_is_requested_once() -> None:
    assert not plan(NodeState.LOST, 300.0, owned(a_pod("web-0", node="node-a", lost=True))).release


def test_a_node_that_returns_takes_its_pods_back() -> None:
    steps = plan(NodeState.READY, 0.0, owned(a_pod("web-0", node="node-a", lost=True)), owned(ready_pod("web-1")))
    assert [pod.name for pod in steps.take_back] == ["web-0"]
    assert not destroys(steps)


def test_a_new_observer_releases_nothing_before_it_has_seen_the_silence_itself() -> None:
    steps = plan(NodeState.LOST, 5.0, owned(ready_pod("web-0")))
    assert not destroys(steps)
    assert steps.requeue_after_s == 115.0


def test_nothing_is_released_or_hidden_while_the_zone_is_blind() -> None:
    steps = plan(NodeState.LOST, 500.0, owned(ready_pod("web-0")), blind="3 of 3")
    assert steps.silent


def test_an_out_of_service_node_is_lost_at_once() -> None:
    assert plan(NodeState.LOST, 0.0, owned(ready_pod("web-0")), out_of_service=True, blind="all").release


def test_a_held_pod_is_left_alone() -> None:
    pod = owned(ready_pod("web-0"))
    assert plan(NodeState.LOST, 500.0, pod, held=[pod.uid]).silent


@given(st.one_of(st.none(), st.integers(-5, 1000)))
def test_a_toleration_delays_the_release_and_never_hastens_it(seconds: int | None) -> None:
    bears = Toleration(key=UNREACHABLE_TAINT, operator="Exists", effect="NoExecute", toleration_seconds=seconds)
    after_s = release_after_s(tolerating(owned(ready_pod("web-0")), bears), LIMITS)
    if seconds is None:
        assert after_s is None
    else:
        assert after_s == max(LIMITS.node_lost_s, LIMITS.node_unknown_s + max(0, seconds))


def test_a_taint_of_a_reachable_node_deletes_pods_that_do_not_tolerate_it() -> None:
    taint = Taint(key="maintenance", effect="NoExecute", time_added=ago(30))
    bears = [Toleration(key="maintenance", operator="Exists", toleration_seconds=each) for each in (20, 60, None)]
    pods = [owned(ready_pod("none")), *(tolerating(owned(ready_pod(f"t{n}")), each) for n, each in enumerate(bears))]
    steps = plan(NodeState.READY, 0.0, *pods, taints=(taint,))
    assert [pod.name for pod in steps.end] == ["none", "t0"]
    assert steps.requeue_after_s == 30.0


def test_an_unready_node_keeps_its_pods_as_long_as_a_silent_one() -> None:
    young = Taint(key=NOT_READY_TAINT, effect="NoExecute", time_added=ago(60))
    old = Taint(key=NOT_READY_TAINT, effect="NoExecute", time_added=ago(LIMITS.node_lost_s))
    pod = owned(ready_pod("web-0"))
    assert not plan(NodeState.READY, 0.0, pod, taints=(young,)).end
    assert plan(NodeState.READY, 0.0, pod, taints=(old,)).end


states = st.sampled_from(NodeState)


@given(states, st.floats(0, 300), st.booleans(), st.booleans())
def test_no_pod_is_released_unless_its_node_is_lost_and_silent_for_long_enough(
    state: NodeState, trusted_s: float, blind: bool, lost: bool
) -> None:
    pods = owned(a_pod("web-0", node="node-a", lost=lost)), a_pod("alone", node="node-a")
    steps = plan(state, trusted_s, *pods, blind="cut off" if blind else "")
    if destroys(steps):
        assert state is NodeState.LOST
        assert trusted_s >= LIMITS.node_lost_s
        assert not blind
