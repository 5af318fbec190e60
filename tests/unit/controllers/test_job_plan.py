"""The plan of a Job: counted exactly, never more pods at once than requested, ended with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, a_pod, ago

from kedge.api.views import Condition, ContainerState, ContainerStatus, JobView, PodView
from kedge.api.views.core import ContainerStateTerminated, PodSpec, PodTemplate
from kedge.api.views.workloads import (
    ExitCodeRequirement,
    JobSpec,
    JobStatus,
    PodConditionPattern,
    PodFailurePolicy,
    PodFailureRule,
    UncountedTerminatedPods,
)
from kedge.api.wellknown import JOB_INDEX, JOB_TRACKING_FINALIZER
from kedge.controllers.job.plan import JobPlan, JobRules, format_indexes, is_over, outcome_of, parse_indexes, plan_job

RULES = JobRules(burst=10, backoff_s=0.0)


def a_job(status: JobStatus | None = None, **spec: Any) -> JobView:
    spec.setdefault("completions", 3)
    spec.setdefault("parallelism", 2)
    return JobView(spec=JobSpec(**spec), status=status or JobStatus(start_time=ago(10)))


def a_run(name: str, phase: str = "Running", *, marked: bool = True, **more: Any) -> PodView:
    return a_pod(name, node="a", phase=phase, finalizers=(JOB_TRACKING_FINALIZER,) if marked else (), **more)


def plan(job: JobView, *pods: PodView, rules: JobRules = RULES, **more: Any) -> JobPlan:
    return plan_job(job, pods, rules, NOW, **more)


def names(pods: Any) -> list[str]:
    return [pod.name for pod in pods]


# -- how many run ----------------------------------------------------------------------------------


def test_no_more_pods_run_at_once_than_requested() -> None:
    assert plan(a_job()).create == (None, None)
    assert plan(a_job(), a_run("j-0")).create == (None,)
    assert plan(a_job(), a_run("j-0"), a_run("j-1")).create == ()


def test_no_more_are_started_than_are_left_to_do() -> None:
    done = JobStatus(start_time=ago(9), succeeded=2)
    assert plan(a_job(done), a_run("j-2")).create == ()
    assert plan(a_job(done)).create == (None,)


def test_a_pod_that_is_still_stopping_is_not_replaced() -> None:
    assert plan(a_job(parallelism=1), a_run("j-0", terminating=True)).create == ()


def test_a_lower_parallelism_deletes_pods_in_deletion_order() -> None:
    found = plan(a_job(parallelism=1), a_run("j-0", ready_s=50), a_run("j-1"))
    assert names(found.delete) == ["j-1"]


def test_a_work_queue_starts_no_more_pods_after_the_first_success() -> None:
    status = JobStatus(start_time=ago(9), succeeded=1)
    running = plan(a_job(status, completions=None, parallelism=3), a_run("j-0"))
    assert (running.create, running.delete, running.outcome) == ((), (), None)
    ended = plan(a_job(status, completions=None, parallelism=3))
    assert ended.outcome is not None
    assert ended.outcome.succeeds


def test_a_suspended_job_runs_nothing() -> None:
    found = plan(a_job(suspend=True), a_run("j-0"))
    assert names(found.delete) == ["j-0"]
    assert found.suspended
    assert found.create == ()


def test_a_held_pod_is_left_alone() -> None:
    assert plan(a_job(suspend=True), a_run("j-0"), held={"uid-of-j-0"}).delete == ()


def test_a_lost_pod_is_released_before_another_starts() -> None:
    found = plan(a_job(parallelism=1), a_run("j-0", lost=True))
    assert names(found.release) == ["j-0"]
    assert found.create == ()


def test_consecutive_failures_delay_the_next_start_and_a_success_resets_that() -> None:
    rules = JobRules(backoff_s=10, backoff_s_max=60)
    failed = [a_run(f"j-{n}", "Failed", marked=False, age_s=5) for n in range(2)]
    status = JobStatus(start_time=ago(50), failed=2)
    waiting = plan(a_job(status), *failed, rules=rules)
    assert waiting.create == ()
    assert waiting.requeue_at == NOW + timedelta(seconds=15)
    later = a_run("j-2", "Succeeded", marked=False, age_s=1)
    assert len(plan(a_job(replace_status(status, succeeded=1)), *failed, later, rules=rules).create) == 2


def test_a_failure_in_the_far_future_does_not_delay_the_next_start() -> None:
    rules = JobRules(backoff_s=10, backoff_s_max=60)
    failed = a_run("j-0", "Failed", marked=False, age_s=-86_400)
    assert len(plan(a_job(JobStatus(start_time=ago(50), failed=1)), failed, rules=rules).create) == 2


def replace_status(status: JobStatus, **changes: Any) -> JobStatus:
    return msgspec.structs.replace(status, **changes)


# -- counting --------------------------------------------------------------------------------------


def test_an_ended_pod_is_recorded_before_its_finalizer_is_removed() -> None:
    found = plan(a_job(), a_run("j-0", "Succeeded"), a_run("j-1", "Failed"))
    assert found.counts.uncounted_succeeded == ("uid-of-j-0",)
    assert found.counts.uncounted_failed == ("uid-of-j-1",)
    assert (found.counts.succeeded, found.counts.failed) == (0, 0)
    assert names(found.unmark) == ["j-0", "j-1"]


@pytest.mark.parametrize("pods", [[], [a_run("j-0", "Succeeded", marked=False)]])
def test_it_moves_into_the_count_when_its_pod_is_gone_or_free(pods: list[PodView]) -> None:
    waiting = UncountedTerminatedPods(succeeded=("uid-of-j-0",))
    status = JobStatus(start_time=ago(9), succeeded=1, uncounted_terminated_pods=waiting)
    found = plan(a_job(status), *pods)
    assert (found.counts.succeeded, found.counts.uncounted_succeeded) == (2, ())


def test_while_it_has_its_finalizer_it_is_not_counted_again() -> None:
    waiting = UncountedTerminatedPods(succeeded=("uid-of-j-0",))
    status = JobStatus(start_time=ago(9), succeeded=1, uncounted_terminated_pods=waiting)
    found = plan(a_job(status), a_run("j-0", "Succeeded"))
    assert (found.counts.succeeded, found.counts.uncounted_succeeded) == (1, ("uid-of-j-0",))
    assert found.counts.succeeded_in_all == 2


def test_a_pod_that_was_counted_and_freed_is_not_counted_again() -> None:
    found = plan(a_job(JobStatus(start_time=ago(9), succeeded=1)), a_run("j-0", "Succeeded", marked=False))
    assert found.counts.succeeded_in_all == 1


def test_a_pod_deleted_before_it_had_a_node_has_failed() -> None:
    gone = a_pod("j-0", terminating=True, finalizers=(JOB_TRACKING_FINALIZER,))
    assert plan(a_job(), gone).counts.uncounted_failed == ("uid-of-j-0",)


def test_the_number_of_uncounted_pods_is_bounded() -> None:
    pods = [a_run(f"j-{n}", "Succeeded") for n in range(5)]
    found = plan(a_job(completions=9), *pods, rules=replace(RULES, uncounted_max=2))
    assert len(found.counts.uncounted) == 2


# -- the end ---------------------------------------------------------------------------------------


def test_a_job_is_over_only_when_nothing_runs_and_everything_is_counted() -> None:
    status = JobStatus(start_time=ago(9), succeeded=3)
    ending = plan(a_job(status), a_run("j-3"))
    assert ending.outcome is not None
    assert names(ending.delete) == ["j-3"]
    assert not ending.over
    assert not plan(a_job(status), a_run("j-3", terminating=True)).over
    assert not plan(a_job(status), a_run("j-3", "Failed")).over
    assert plan(a_job(status), a_run("j-3", "Failed", marked=False)).over


@pytest.mark.parametrize(
    ("job", "pods", "reason"),
    [
        (a_job(JobStatus(start_time=ago(9), failed=2), backoff_limit=1), [], "BackoffLimitExceeded"),
        (a_job(active_deadline_seconds=10), [], "DeadlineExceeded"),
        (
            a_job(
                template=PodTemplate(spec=PodSpec(restart_policy="OnFailure")),
                backoff_limit=3,
            ),
            [a_run("j-0", restarts=3)],
            "BackoffLimitExceeded",
        ),
    ],
)
def test_a_failed_job_has_a_reason(job: JobView, pods: list[PodView], reason: str) -> None:
    found = plan(job, *pods)
    assert found.outcome is not None
    assert (found.outcome.succeeds, found.outcome.reason) == (False, reason)


def test_a_job_tolerates_as_many_failures_as_its_limit() -> None:
    assert plan(a_job(JobStatus(start_time=ago(9), failed=1), backoff_limit=1)).outcome is None
    assert plan(a_job(active_deadline_seconds=11)).outcome is None
    assert plan(a_job(active_deadline_seconds=11)).requeue_at == NOW + timedelta(seconds=1)


def test_a_decided_outcome_stays() -> None:
    decided = Condition(type="FailureTarget", status="True", reason="DeadlineExceeded", message="late")
    found = plan(a_job(JobStatus(start_time=ago(9), succeeded=3, conditions=(decided,))))
    assert found.outcome is not None
    assert not found.outcome.succeeds
    assert found.over


# -- indexes ---------------------------------------------------------------------------------------


def an_indexed(name: str, index: int, phase: str = "Running", **more: Any) -> PodView:
    return a_run(name, phase, annotations={JOB_INDEX: str(index)}, **more)


def test_the_lowest_indexes_that_are_not_done_nor_running_are_next() -> None:
    status = JobStatus(start_time=ago(9), completed_indexes="0,2", succeeded=2)
    job = a_job(status, completion_mode="Indexed", completions=6, parallelism=4)
    assert plan(job, an_indexed("j-1-0", 1)).create == (3, 4, 5)


def test_an_index_counts_once_however_often_it_succeeds() -> None:
    job = a_job(completion_mode="Indexed", completions=2, parallelism=2)
    found = plan(job, an_indexed("j-0-0", 0, "Succeeded"), an_indexed("j-0-1", 0, "Succeeded"))
    assert found.counts.succeeded_in_all == found.counts.succeeded == 1
    assert found.create == (1,)


def test_an_index_that_failed_is_tried_again() -> None:
    job = a_job(completion_mode="Indexed", completions=2, parallelism=1)
    assert plan(job, an_indexed("j-0-0", 0, "Failed")).create == (0,)


@given(st.sets(st.integers(0, 40)))
def test_indexes_survive_a_round_trip(indexes: set[int]) -> None:
    assert set(parse_indexes(format_indexes(indexes))) == indexes


def test_indexes_are_written_as_kubernetes_does() -> None:
    assert format_indexes([5, 0, 1, 2]) == "0-2,5"
    assert parse_indexes("x,1-,3") == [1, 3]


# -- properties ------------------------------------------------------------------------------------


@dataclass(slots=True)
class JobModel:
    """A Job, its pods and their true outcomes. A controller may crash between any two writes."""

    spec: JobSpec
    now: datetime = NOW
    status: JobStatus = field(default_factory=lambda: JobStatus(start_time=NOW))
    pods: dict[str, PodView] = field(default_factory=dict)
    born: int = 0
    succeeded: list[PodView] = field(default_factory=list)
    failed: list[PodView] = field(default_factory=list)

    def job(self) -> JobView:
        return JobView(spec=self.spec, status=self.status)

    def running(self) -> list[PodView]:
        return [pod for pod in self.pods.values() if outcome_of(pod) is None]

    def end(self, pod: PodView, phase: str) -> None:
        status = msgspec.structs.replace(pod.status, phase=phase)
        self.pods[pod.uid] = msgspec.structs.replace(pod, status=status)
        (self.succeeded if phase == "Succeeded" else self.failed).append(pod)

    def remove(self, pod: PodView) -> None:
        """Delete an ended pod: it is gone when its finalizer is removed."""
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=NOW, deletion_grace_period_seconds=0)
        self._put(msgspec.structs.replace(pod, metadata=metadata))

    def _put(self, pod: PodView) -> None:
        if pod.terminating and not pod.metadata.finalizers and outcome_of(pod) is not None:
            self.pods.pop(pod.uid, None)
        else:
            self.pods[pod.uid] = pod

    def apply(self, plan: JobPlan, chance: Random) -> None:
        """Carry the plan out in the controller's order, and maybe crash somewhere."""
        left = chance.choice([0, 1, 2, 3, 99, 99, 99])
        for pod in plan.delete:
            if (left := left - 1) < 0:
                return
            self.end(pod, "Failed")
        for index in plan.create:
            if (left := left - 1) < 0:
                return
            self.born += 1
            notes = {} if index is None else {JOB_INDEX: str(index)}
            made = a_run(f"j-{self.born}", annotations=notes)
            self.pods[made.uid] = made
        if (left := left - 1) < 0:
            return
        self._write_status(plan)
        for pod in plan.unmark:
            if (left := left - 1) < 0:
                return
            now = self.pods.get(pod.uid)
            if now is not None:
                self._put(msgspec.structs.replace(now, metadata=msgspec.structs.replace(now.metadata, finalizers=())))

    def _write_status(self, plan: JobPlan) -> None:
        counts, conditions = plan.counts, list(self.status.conditions)
        if plan.outcome is not None and not conditions:
            kind = "SuccessCriteriaMet" if plan.outcome.succeeds else "FailureTarget"
            conditions.append(Condition(type=kind, status="True", reason=plan.outcome.reason))
        if plan.over and plan.outcome is not None:
            conditions.append(Condition(type="Complete" if plan.outcome.succeeds else "Failed", status="True"))
        self.status = msgspec.structs.replace(
            self.status,
            succeeded=counts.succeeded,
            failed=counts.failed,
            uncounted_terminated_pods=UncountedTerminatedPods(
                succeeded=counts.uncounted_succeeded, failed=counts.uncounted_failed
            ),
            completed_indexes=format_indexes(counts.completed),
            conditions=tuple(conditions),
        )


@settings(max_examples=300)
@given(st.integers(0, 2**32).map(Random), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_every_ended_pod_is_counted_once_despite_crashes_and_deletions(
    chance: Random, completions: int, parallelism: int, indexed: bool
) -> None:
    mode = "Indexed" if indexed else "NonIndexed"
    model = JobModel(JobSpec(completions=completions, parallelism=parallelism, backoff_limit=3, completion_mode=mode))
    for round_ in range(200):
        calm = round_ > 120
        for pod in list(model.pods.values()):
            if outcome_of(pod) is None and chance.random() < 0.4:
                model.end(pod, "Succeeded" if chance.random() < 0.8 or calm else "Failed")
            elif outcome_of(pod) is not None and chance.random() < 0.1:
                model.remove(pod)
        if is_over(model.job()):
            break
        found = plan_job(model.job(), list(model.pods.values()), RULES, model.now)
        before = len(model.running())
        model.apply(found, Random(0) if calm else chance)
        assert len(model.running()) <= max(before, parallelism)
        counted = model.status.succeeded + len(model.status.uncounted_terminated_pods.succeeded)
        assert indexed or counted <= len(model.succeeded)
    status = model.status
    assert is_over(model.job()), f"not over: {status}"
    assert status.failed == len(model.failed), "a failure was lost or counted twice"
    if indexed:
        assert status.succeeded == len(parse_indexes(status.completed_indexes)) <= completions
    else:
        assert status.succeeded == len(model.succeeded), "a success was lost or counted twice"
    assert status.uncounted_terminated_pods == UncountedTerminatedPods()
    assert not any(JOB_TRACKING_FINALIZER in pod.metadata.finalizers for pod in model.pods.values())


# -- the policy for failures -----------------------------------------------------------------------

POLICY = PodFailurePolicy(
    rules=(
        PodFailureRule(action="FailJob", on_exit_codes=ExitCodeRequirement("main", "In", (42,))),
        PodFailureRule(action="Ignore", on_pod_conditions=(PodConditionPattern(type="DisruptionTarget"),)),
        PodFailureRule(action="Count", on_exit_codes=ExitCodeRequirement(operator="NotIn", values=(1,))),
        PodFailureRule(action="Ignore", on_exit_codes=ExitCodeRequirement(operator="In", values=(1,))),
    )
)
DISRUPTED = Condition(type="DisruptionTarget", status="True", reason="NodeLost")


def ended_with(code: int, name: str = "j-0", container: str = "main", **more: Any) -> PodView:
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=code, finished_at=ago(5)))
    return a_run(name, "Failed", statuses=(ContainerStatus(name=container, state=state),), **more)


def test_an_exit_code_that_no_retry_mends_fails_the_job_at_once() -> None:
    found = plan(a_job(pod_failure_policy=POLICY), ended_with(42), a_run("j-1"))
    assert found.outcome is not None
    assert (found.outcome.succeeds, found.outcome.reason) == (False, "PodFailurePolicy")
    assert found.outcome.message.startswith("Container main for pod ")
    assert found.outcome.message.endswith("j-0 failed with exit code 42 matching FailJob rule at index 0")
    assert names(found.delete) == ["j-1"]


def test_a_rule_is_about_its_container_only() -> None:
    assert plan(a_job(pod_failure_policy=POLICY), ended_with(42, container="side")).outcome is None


@pytest.mark.parametrize("pod", [ended_with(1), ended_with(137, conditions=(DISRUPTED,))])
def test_an_ignored_failure_is_replaced_and_neither_counts_nor_delays(pod: PodView) -> None:
    rules = replace(RULES, backoff_s=60.0)
    found = plan(a_job(pod_failure_policy=POLICY, backoff_limit=0, parallelism=1), pod, rules=rules)
    assert (found.counts.failed_in_all, found.outcome, found.create) == (0, None, (None,))
    assert names(found.unmark) == ["j-0"]


def test_the_first_rule_that_matches_decides_and_a_failure_without_a_rule_counts() -> None:
    both = ended_with(42, conditions=(DISRUPTED,))
    assert plan(a_job(pod_failure_policy=POLICY), both).outcome is not None
    counted = plan(a_job(pod_failure_policy=POLICY, backoff_limit=0), ended_with(7))
    assert counted.outcome is not None
    assert counted.outcome.reason == "BackoffLimitExceeded"
    assert plan(a_job(pod_failure_policy=PodFailurePolicy()), ended_with(42)).counts.failed_in_all == 1


# -- copies whose pods are gone ------------------------------------------------------------------


def test_a_copy_that_may_still_run_is_not_replaced() -> None:
    job = replace_name(a_job(parallelism=1), "j")
    assert plan(job, rules=replace(RULES, ghosts=("j-0",))).create == ()
    indexed = replace_name(a_job(completions=2, completion_mode="Indexed"), "j")
    assert plan(indexed, rules=replace(RULES, ghosts=("j-0-3",))).create == (1,)


def replace_name(job: JobView, name: str) -> JobView:
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name=name))
