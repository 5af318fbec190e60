"""The plan of a Job: its counts, the pods to create next, and its end. Pure.

An ended pod is counted in three steps, and a crash may come between any two: its uid is written to the status, its
tracking finalizer is removed, the uid moves into the count. So no pod is counted twice, and none is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kedge.api.conditions import TRUE, find_condition
from kedge.api.views import JobView, PodView
from kedge.api.wellknown import JOB_INDEX, JOB_TRACKING_FINALIZER
from kedge.backoff import Backoff
from kedge.controllers.job.failure_policy import fail_job_message, is_ignored
from kedge.controllers.shared.pods import in_deletion_order, is_ahead, is_lost, restarts
from kedge.controllers.shared.slots import slot_of

COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"
SUCCESS_TARGET, FAILURE_TARGET = "SuccessCriteriaMet", "FailureTarget"
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class JobRules:
    """The limits of a plan."""

    burst: int = 100
    backoff_s: float = 10.0
    backoff_s_max: float = 600.0
    uncounted_max: int = 500
    ghosts: tuple[str, ...] = ()
    """The names of copies that may still run although their pods are gone; counted only for at-most-one Jobs."""


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Ended pods: counted, and recorded as uncounted."""

    succeeded: int
    failed: int
    uncounted_succeeded: tuple[str, ...] = ()
    uncounted_failed: tuple[str, ...] = ()
    completed: frozenset[int] = frozenset()
    """The completed indexes of an Indexed Job."""
    indexed: bool = False

    @property
    def succeeded_in_all(self) -> int:
        """An index counts once, and immediately, however many of its pods succeeded."""
        return len(self.completed) if self.indexed else self.succeeded + len(self.uncounted_succeeded)

    @property
    def failed_in_all(self) -> int:
        return self.failed + len(self.uncounted_failed)

    @property
    def uncounted(self) -> frozenset[str]:
        return frozenset((*self.uncounted_succeeded, *self.uncounted_failed))


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How the Job ends. Decided first; reached when no pod runs and all are counted."""

    succeeds: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The writes to make now, and the result for the status."""

    counts: JobCounts
    outcome: JobOutcome | None = None
    over: bool = False
    """The outcome is reached: no pod runs, all are counted."""
    want: int = 0
    """How many pods should run now."""
    create: tuple[int | None, ...] = ()
    """One entry per pod to create: its index, or None for a Job without indexes."""
    delete: tuple[PodView, ...] = ()
    release: tuple[PodView, ...] = ()
    """Lost with their node: their end is recorded."""
    unmark: tuple[PodView, ...] = ()
    """Uncounted in this plan's counts, or ignored: once the counts are committed, the finalizer may go."""
    suspended: bool = False
    requeue_at: datetime | None = None
    curtailed: bool = False

    @property
    def silent(self) -> bool:
        return not (self.create or self.delete or self.release or self.unmark)


def plan_job(
    job: JobView, pods: Sequence[PodView], rules: JobRules, now: datetime, *, held: Collection[str] = ()
) -> JobPlan:
    """One step of an unfinished Job. `pods` are all that it owns; `held` the uids that a person holds."""
    counts = count_ended(job, pods, rules.uncounted_max)
    running = [pod for pod in pods if outcome_of(pod) is None]
    active = [pod for pod in running if not pod.terminating]
    outcome = decided_outcome(job) or _failed_by_policy(job, pods) or _decide(job, counts, running, now)
    left = sum(JOB_TRACKING_FINALIZER in pod.metadata.finalizers for pod in pods if outcome_of(pod) is not None)
    over = outcome is not None and not running and left == 0 and not counts.uncounted
    lost = [pod for pod in running if is_lost(pod) and pod.uid not in held]
    want = 0 if outcome is not None or job.spec.suspend else _want(job, counts, len(active))

    surplus = [pod for pod in active if pod.uid not in held and pod not in lost]
    given_up = in_deletion_order(surplus, now=now)[: max(0, len(active) - len(lost) - want)]
    missing = max(0, want - len(running) - len(rules.ghosts))
    retry_at = next_start([pod for pod in pods if not is_ignored(job, pod)], rules, now) if missing else None
    if retry_at is not None and retry_at > now:
        missing = 0
    else:
        retry_at = None
    unmark = [
        pod
        for pod in pods
        if JOB_TRACKING_FINALIZER in pod.metadata.finalizers
        and pod.uid not in held
        and (pod.uid in counts.uncounted or is_ignored(job, pod))
    ]
    waits = [retry_at, deadline_of(job) if outcome is None else None]
    burst = rules.burst
    return JobPlan(
        counts,
        outcome,
        over=over,
        want=want,
        create=_indexes(job, counts, running, rules.ghosts, min(missing, burst)),
        delete=tuple(given_up[:burst]),
        release=tuple(lost[:burst]),
        unmark=tuple(unmark[:burst]),
        suspended=job.spec.suspend and outcome is None,
        requeue_at=min((at for at in waits if at is not None and at > now), default=None),
        curtailed=burst < max(missing, len(given_up), len(lost), len(unmark)),
    )


# -- counting --------------------------------------------------------------------------------------


def outcome_of(pod: PodView) -> bool | None:
    """Whether it succeeded; None while it may still run. A pod that is deleted before it had a node has failed."""
    if pod.status.phase == "Succeeded":
        return True
    if pod.status.phase == "Failed" or (pod.terminating and not pod.spec.node_name):
        return False
    return None


def count_ended(job: JobView, pods: Sequence[PodView], uncounted_max: int) -> JobCounts:
    """The next counts. A uid moves into the count only when its pod is gone or has lost the finalizer; a uid is
    recorded only while the pod has the finalizer."""
    status = job.status
    marked = {pod.uid for pod in pods if JOB_TRACKING_FINALIZER in pod.metadata.finalizers}
    waiting = status.uncounted_terminated_pods
    still_succeeded = [uid for uid in waiting.succeeded if uid in marked]
    still_failed = [uid for uid in waiting.failed if uid in marked]
    succeeded = status.succeeded + len(waiting.succeeded) - len(still_succeeded)
    failed = status.failed + len(waiting.failed) - len(still_failed)
    known = {*waiting.succeeded, *waiting.failed}
    room = max(0, uncounted_max - len(still_succeeded) - len(still_failed))
    ended = (pod for pod in pods if outcome_of(pod) is not None and not is_ignored(job, pod))
    fresh = [pod for pod in ended if pod.uid in marked and pod.uid not in known][:room]
    still_succeeded += [pod.uid for pod in fresh if outcome_of(pod)]
    still_failed += [pod.uid for pod in fresh if not outcome_of(pod)]
    if job.spec.completion_mode != "Indexed":
        return JobCounts(succeeded, failed, tuple(still_succeeded), tuple(still_failed))
    done = {index_of(pod) for pod in fresh if outcome_of(pod)} | set(parse_indexes(status.completed_indexes))
    most = job.spec.completions or 0
    completed = frozenset(index for index in done if index is not None and index < most)
    return JobCounts(
        len(completed), failed, tuple(still_succeeded), tuple(still_failed), completed=completed, indexed=True
    )


def index_of(pod: PodView) -> int | None:
    text = pod.metadata.annotations.get(JOB_INDEX, "")
    return int(text) if text.isascii() and text.isdigit() else None


def named_index(job: str, pod: str) -> int | None:
    """The index in the name of a pod of an Indexed Job; None for another name."""
    text = pod.rpartition("-")[0].rpartition("-")[2]
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text) if slot_of(f"{job}-{int(text)}", pod) is not None else None


def parse_indexes(text: str) -> list[int]:
    """Parse `0-2,5`. Parts that cannot be parsed are ignored: those indexes run again."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if first.isascii() and first.isdigit() and (not last or (last.isascii() and last.isdigit())):
            found.extend(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """`0-2,5`."""
    runs: list[list[int]] = []
    for index in sorted(set(indexes)):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# -- outcome ---------------------------------------------------------------------------------------


def is_over(job: JobView) -> bool:
    """Whether its status has a final condition."""
    found = (find_condition(job.status.conditions, kind) for kind in (COMPLETE, FAILED))
    return any(each is not None and each.status == TRUE for each in found)


def over_since(job: JobView) -> datetime | None:
    for kind in (COMPLETE, FAILED):
        found = find_condition(job.status.conditions, kind)
        if found is not None and found.status == TRUE:
            return found.last_transition_time
    return None


def decided_outcome(job: JobView) -> JobOutcome | None:
    """An outcome that the status already has: it stays."""
    for kind, succeeds in ((FAILURE_TARGET, False), (SUCCESS_TARGET, True)):
        found = find_condition(job.status.conditions, kind)
        if found is not None and found.status == TRUE:
            return JobOutcome(succeeds, found.reason, found.message)
    return None


def _failed_by_policy(job: JobView, pods: Sequence[PodView]) -> JobOutcome | None:
    message = fail_job_message(job, pods)
    return JobOutcome(False, "PodFailurePolicy", message) if message else None  # noqa: FBT003


def _decide(job: JobView, counts: JobCounts, running: Sequence[PodView], now: datetime) -> JobOutcome | None:
    spec = job.spec
    if spec.suspend:
        return None
    succeeded = counts.succeeded_in_all
    if spec.completions is not None and succeeded >= spec.completions:
        return JobOutcome(True, "CompletionsReached", f"{succeeded} of {spec.completions} succeeded")  # noqa: FBT003
    if spec.completions is None and succeeded > 0 and not running:
        return JobOutcome(True, "CompletionsReached", f"{succeeded} succeeded, and none is left")  # noqa: FBT003
    if counts.failed_in_all > spec.backoff_limit or _restarted_too_often(job, running):
        return JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")  # noqa: FBT003
    deadline = deadline_of(job)
    if deadline is not None and deadline <= now:
        return JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")  # noqa: FBT003
    return None


def _restarted_too_often(job: JobView, running: Sequence[PodView]) -> bool:
    """As in Kubernetes, pods that restart in place count by their restarts."""
    if job.spec.template.spec.restart_policy != "OnFailure":
        return False
    return sum(restarts(pod) for pod in running) >= max(1, job.spec.backoff_limit)


def deadline_of(job: JobView) -> datetime | None:
    """When its active deadline passes."""
    if job.spec.active_deadline_seconds is None or job.status.start_time is None or job.spec.suspend:
        return None
    return job.status.start_time + timedelta(seconds=job.spec.active_deadline_seconds)


def _want(job: JobView, counts: JobCounts, active: int) -> int:
    spec = job.spec
    if spec.completions is None:
        # A work queue of unknown length: after the first success no more pods are started.
        return spec.parallelism if counts.succeeded_in_all == 0 else min(active, spec.parallelism)
    return max(0, min(spec.parallelism, spec.completions - counts.succeeded_in_all))


def _indexes(
    job: JobView, counts: JobCounts, running: Sequence[PodView], ghosts: Collection[str], count: int
) -> tuple[int | None, ...]:
    if job.spec.completion_mode != "Indexed":
        return (None,) * count
    busy = {index_of(pod) for pod in running} | counts.completed | {named_index(job.name, name) for name in ghosts}
    free = (index for index in range(job.spec.completions or 0) if index not in busy)
    return tuple(index for index, _ in zip(free, range(count), strict=False))


def next_start(pods: Sequence[PodView], rules: JobRules, now: datetime) -> datetime | None:
    """When the next pod may start: consecutive failures cause a delay, which doubles with each."""
    last_success = max((ended_at(pod) for pod in pods if outcome_of(pod) is True), default=_LONG_AGO)
    failures = [at for pod in pods if outcome_of(pod) is False and (at := ended_at(pod)) > last_success]
    if not failures:
        return None
    if is_ahead(max(failures), now):
        return None
    pause_s = Backoff(rules.backoff_s, rules.backoff_s_max).ceiling_s(len(failures))
    return max(failures) + timedelta(seconds=pause_s)


def ended_at(pod: PodView) -> datetime:
    """When it ended, as far as its status shows."""
    ends = [each.state.terminated for each in pod.status.container_statuses]
    finished = [end.finished_at for end in ends if end is not None and end.finished_at is not None]
    if finished:
        return max(finished)
    known = [each.last_transition_time for each in pod.status.conditions if each.last_transition_time is not None]
    return max([*known, pod.metadata.creation_timestamp or _LONG_AGO])
