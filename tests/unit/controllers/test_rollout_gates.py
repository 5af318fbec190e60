"""The gates of a rollout: open on fresh evidence only; errors and missing samples are never good."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import a_pod, ready_pod

from kedge.api.scopes import Workload
from kedge.api.views import Condition, ContainerStatus, ObjectMeta, PodView, Scope
from kedge.api.views.base import Labels, LabelSelectorSpec, OwnerReference
from kedge.api.views.core import ContainerState, ContainerStateWaiting
from kedge.api.views.kedge_dev import RolloutGates
from kedge.controllers.rollout.gates import (
    CacheFact,
    GateEvaluation,
    GateFacts,
    GateResult,
    Heartbeat,
    SampleOutcome,
    evaluate_gates,
    pending_of,
    sample,
)
from kedge.controllers.rollout.scopes import (
    is_in_place,
    share_of_replicas,
    share_of_topology,
    template_problem,
    workload_of,
)

RULES = RolloutGates(min_samples=2, sample_age_seconds_max=60, ready_percent_min=100)
FRESH = (CacheFact("Pod", 120, 1.0), CacheFact("Node", 101, 2.0))
GOOD, BAD, ERROR, OLD = SampleOutcome.GOOD, SampleOutcome.BAD, SampleOutcome.ERROR, SampleOutcome.OLD


def judge(
    *samples: SampleOutcome,
    caches: tuple[CacheFact, ...] = FRESH,
    expected: int = 0,
    pending: Mapping[tuple[str, str], int] | None = None,
    baseline: Mapping[tuple[str, str], int] | None = None,
    rules: RolloutGates = RULES,
    behind: str = "",
) -> GateEvaluation:
    facts = GateFacts(100, caches, samples, expected, pending or {}, baseline or {}, behind)
    return evaluate_gates(rules, facts)


def why(judgement: GateEvaluation) -> str:
    return "" if judgement.shut is None else judgement.shut.reason


# -- freshness -------------------------------------------------------------------------------------


def test_every_gate_is_open_on_fresh_and_good_samples() -> None:
    assert judge(GOOD, GOOD, expected=2).result is GateResult.OPEN


def test_a_cache_that_is_not_past_the_change_shuts_every_gate() -> None:
    found = judge(GOOD, GOOD, caches=(CacheFact("Pod", 120, 1.0), CacheFact("Node", 99, 1.0)))
    assert found.result is GateResult.SHUT
    assert why(found) == "CacheBehind"
    assert all(each.status == "Unknown" for each in found.gates)


@pytest.mark.parametrize("age_s", [61.0, float("inf"), float("nan")])
def test_an_old_cache_shuts_every_gate(age_s: float) -> None:
    assert why(judge(GOOD, GOOD, caches=(CacheFact("Pod", 120, age_s),))) == "CacheStale"


def test_without_caches_or_before_the_change_is_active_nothing_is_evaluated() -> None:
    assert why(judge(GOOD, GOOD, caches=())) == "NotActive"
    assert why(evaluate_gates(RULES, GateFacts(0, FRESH, (GOOD, GOOD)))) == "NotActive"


def test_a_component_that_has_not_observed_the_change_shuts_every_gate() -> None:
    assert why(judge(GOOD, GOOD, behind="the scheduler obeys an older generation")) == "ChangeNotObserved"


def test_old_caches_show_no_regression() -> None:
    worse = {("queued", "Unschedulable"): 9}
    assert judge(GOOD, GOOD, pending=worse, caches=(CacheFact("Pod", 120, 99.0),)).result is GateResult.SHUT


# -- samples and health ----------------------------------------------------------------------------


def test_without_data_no_gate_opens() -> None:
    """flagger#1011: traffic stopped in the middle of an analysis, and the canary advanced."""
    found = judge(expected=0)
    assert found.result is GateResult.SHUT
    assert why(found) == "NoData"


def test_errors_are_never_good() -> None:
    """argo-rollouts#4479: an analysis whose every measurement errored was a success."""
    assert judge(ERROR, ERROR, ERROR).result is GateResult.SHUT
    assert judge(GOOD, GOOD, ERROR).result is GateResult.SHUT
    assert judge(GOOD, GOOD, ERROR).gates[2].reason == "SamplesErrored"


def test_replicas_on_silent_nodes_are_named_and_are_no_regression() -> None:
    found = judge(GOOD, GOOD, OLD, pending={("unknown", "NodeUnknown"): 1})
    assert found.result is GateResult.SHUT
    assert found.gates[2].reason == "ReplicasUnknown"
    assert found.gates[2].message.endswith("1 are on silent nodes")


def test_errors_and_old_samples_do_not_count_towards_the_required_samples() -> None:
    assert why(judge(GOOD, ERROR, OLD)) == "TooFewSamples"
    lenient = RolloutGates(min_samples=2, ready_percent_min=0)
    assert judge(ERROR, ERROR, rules=lenient).result is GateResult.SHUT


def test_missing_replicas_count_as_not_ready() -> None:
    assert judge(GOOD, GOOD, expected=3).result is GateResult.SHUT
    lenient = RolloutGates(min_samples=2, ready_percent_min=60)
    assert judge(GOOD, GOOD, expected=3, rules=lenient).result is GateResult.OPEN


def test_unready_pods_shut_a_gate_and_are_no_regression() -> None:
    assert judge(GOOD, BAD).result is GateResult.SHUT


# -- pending reasons -------------------------------------------------------------------------------


def test_more_pending_for_a_reason_than_before_the_change_is_a_regression() -> None:
    before = {("queued", "Unschedulable"): 2}
    assert judge(GOOD, GOOD, pending=before, baseline=before).result is GateResult.OPEN
    assert judge(GOOD, GOOD, pending={("queued", "Unschedulable"): 3}, baseline=before).result is GateResult.REGRESSED
    assert judge(pending={("starting", "CrashLoopBackOff"): 1}, baseline=before).result is GateResult.REGRESSED


def test_an_allowed_increase_is_no_regression() -> None:
    rules = RolloutGates(min_samples=2, pending_increase_max=1)
    assert judge(GOOD, GOOD, pending={("queued", "Unschedulable"): 1}, rules=rules).result is GateResult.OPEN


def test_a_reason_that_disappears_does_not_offset_a_new_one() -> None:
    before, now = {("queued", "Unschedulable"): 5}, {("starting", "ErrImagePull"): 1}
    assert judge(GOOD, GOOD, pending=now, baseline=before).result is GateResult.REGRESSED


@pytest.mark.parametrize("reason", ["WaitingForScheduler", "WaitingForAgent", "ContainersNotReady"])
def test_waiting_for_a_turn_is_no_regression(reason: str) -> None:
    assert judge(GOOD, GOOD, pending={("queued", reason): 4}).result is GateResult.OPEN


# -- samples of pods ------------------------------------------------------------------------------


def ask(pod: PodView, revision: int = 150, age_s: float = 5) -> SampleOutcome | None:
    return sample(pod, Heartbeat(revision, age_s), after=100, age_s_max=60)


def test_a_ready_pod_is_good_if_its_node_has_renewed_since_the_change() -> None:
    assert ask(ready_pod("web-0")) is GOOD
    assert ask(ready_pod("web-0"), revision=100) is OLD
    assert ask(ready_pod("web-0"), age_s=61) is OLD
    assert sample(ready_pod("web-0"), None, after=100, age_s_max=60) is OLD


def test_an_unknown_pod_is_an_error_and_an_unready_one_is_bad() -> None:
    unknown = a_pod("web-0", node="node-a", conditions=(Condition(type="Ready", status="Unknown"),))
    assert ask(unknown) is ERROR
    assert ask(a_pod("web-0", node="node-a", conditions=(Condition(type="Ready", status="False"),))) is BAD


def test_a_waiting_or_leaving_pod_is_no_sample() -> None:
    assert ask(a_pod("web-0")) is None
    assert ask(a_pod("web-0", node="node-a")) is None
    assert ask(ready_pod("web-0", draining_s=1.0)) is None


def test_an_ended_pod_is_a_sample() -> None:
    assert ask(a_pod("batch-0", node="node-a", phase="Succeeded")) is GOOD
    assert ask(a_pod("batch-0", node="node-a", phase="Failed")) is BAD


def test_pending_is_counted_by_stage_and_reason() -> None:
    refused = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    waiting = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
    crashing = (ContainerStatus(name="main", state=waiting),)
    pods = [
        ready_pod("a"),
        a_pod("b", conditions=(refused,)),
        a_pod("c", node="n", statuses=crashing),
        a_pod("d", node="n", phase="Failed"),
    ]
    assert pending_of(pods) == {
        ("queued", "Unschedulable"): 1,
        ("starting", "CrashLoopBackOff"): 1,
        ("ended", "Failed"): 1,
    }


# -- always ----------------------------------------------------------------------------------------

keys = st.tuples(st.sampled_from(["queued", "starting"]), st.sampled_from(["Unschedulable", "ContainersNotReady"]))


@given(
    st.lists(st.sampled_from(list(SampleOutcome)), max_size=8),
    st.integers(0, 8),
    st.dictionaries(keys, st.integers(1, 5)),
    st.dictionaries(keys, st.integers(1, 5)),
    st.lists(st.tuples(st.integers(90, 110), st.floats(0, 120)), max_size=3),
    st.builds(
        RolloutGates, min_samples=st.integers(1, 4), ready_percent_min=st.integers(0, 100),
        pending_increase_max=st.integers(0, 2),
    ),
)  # fmt: skip
def test_an_open_gate_has_enough_fresh_good_samples_and_no_regression(
    samples: list[SampleOutcome],
    expected: int,
    pending: dict[tuple[str, str], int],
    baseline: dict[tuple[str, str], int],
    caches: list[tuple[int, float]],
    rules: RolloutGates,
) -> None:
    known = tuple(CacheFact(f"cache {n}", *each) for n, each in enumerate(caches))
    found = judge(*samples, caches=known, expected=expected, pending=pending, baseline=baseline, rules=rules)
    if found.result is GateResult.OPEN:
        assert known
        assert all(each.revision >= 100 and each.age_s <= rules.sample_age_seconds_max for each in known)
        assert samples.count(GOOD) + samples.count(BAD) >= rules.min_samples
        assert samples.count(GOOD) * 100 >= rules.ready_percent_min * max(expected, len(samples))
        unschedulable = pending.get(("queued", "Unschedulable"), 0)
        assert unschedulable <= baseline.get(("queued", "Unschedulable"), 0) + rules.pending_increase_max
    # One more error never opens a gate that was shut.
    worse = judge(*samples, ERROR, caches=known, expected=expected, pending=pending, baseline=baseline, rules=rules)
    assert worse.result is not GateResult.OPEN or found.result is GateResult.OPEN


# -- scopes ----------------------------------------------------------------------------------------


def test_the_workload_of_a_pod_is_the_controller_of_its_replica_set() -> None:
    above = OwnerReference(kind="Deployment", name="web", uid="d", controller=True)
    sets = {"rs": ObjectMeta(name="web-1", uid="rs", owner_references=(above,))}
    ref = OwnerReference(kind="ReplicaSet", name="web-1", uid="rs", controller=True)
    pod = PodView(metadata=ObjectMeta(name="web-1-0", owner_references=(ref,)))
    assert workload_of(pod, sets) == Workload("d", "web")
    assert workload_of(pod, {}) == Workload("rs", "web-1")
    assert workload_of(PodView(), sets) == Workload()


def test_zones_and_regions_select_the_pods_that_count() -> None:
    labels = Labels({"topology.kubernetes.io/zone": "zone-a", "topology.kubernetes.io/region": "eu"})
    assert is_in_place(Scope(zones=("zone-a",)), labels)
    assert not is_in_place(Scope(zones=("zone-b",)), labels)
    assert not is_in_place(Scope(regions=("us",)), labels)
    assert is_in_place(Scope(zones=("zone-b",)), None)


def test_a_stage_of_a_template_reaches_its_deployment_or_names_the_problem() -> None:
    labels = {"app": "web"}
    reaching = Scope(percent=10, tenants=("risk",), workloads=("risk/web",), zones=("a",), regions=("r",))
    assert template_problem(reaching, "risk", "web", labels) == ""
    chosen = Scope(pod_selector=LabelSelectorSpec(match_labels=Labels({"app": "web"})))
    assert template_problem(chosen, "risk", "web", labels) == ""
    assert "labels" in template_problem(chosen, "risk", "web", {"app": "other"})
    assert "tenant" in template_problem(Scope(tenants=("other",)), "risk", "web", labels)
    assert "does not reach web" in template_problem(Scope(workloads=("other",)), "risk", "web", labels)
    assert template_problem(Scope(percent=0), "risk", "web", labels)


@pytest.mark.parametrize(
    ("percent", "there", "elsewhere", "share"),
    [(100, 3, 0, 3), (50, 3, 0, 2), (100, 0, 0, 1), (100, 3, 2, 5), (100, 9, 9, 10)],
)
def test_a_stage_by_zones_adds_its_share_and_at_least_one(percent: int, there: int, elsewhere: int, share: int) -> None:
    assert share_of_topology(Scope(percent=percent), 10, there, elsewhere) == share


@pytest.mark.parametrize(("percent", "replicas", "share"), [(10, 3, 1), (50, 3, 2), (100, 3, 3), (1, 1, 1), (50, 0, 0)])
def test_a_share_has_at_least_one_replica(percent: int, replicas: int, share: int) -> None:
    assert share_of_replicas(Scope(percent=percent), replicas) == share
