"""What to do about one pod, from what the API says of it and what runs for it. Pure: no I/O and no clock.

`pods` carries plans out and asks again after every change. Containers run as Kubernetes runs them: init containers in
turn, sidecars beside, restarts by policy with a growing pause; a pod that is leaving is stopped within its grace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kedge.agent.core.driver import ContainerProcess
from kedge.api.views import Container, ContainerStatus, PodView
from kedge.backoff import Backoff
from kedge.limits import Limits


@dataclass(frozen=True, slots=True)
class Health:
    """What probes have said of one process. Without probes it is started and ready as soon as it runs."""

    started: bool = True
    ready: bool = True
    alive: bool = True


HEALTHY = Health()


class Ending(StrEnum):
    """How the agent is done with a pod once nothing of it runs."""

    NO = ""
    RECORD = "record"
    """Its end is to be written in its status, which frees its claim."""
    REMOVE = "remove"
    """It was being deleted: its end is written, and then it goes."""
    CONFIRM = "confirm"
    """The API has no such pod any more, or has its end on record: say that nothing runs, and forget it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a container's next process; its image comes first."""

    container: Container
    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    process: ContainerProcess
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What to do now, and when time alone may change that."""

    start: tuple[Start, ...] = ()
    stop: tuple[Stop, ...] = ()
    ending: Ending = Ending.NO
    failed: str = ""
    """Why the pod as a whole has failed, where its containers' exit codes do not say."""
    look_again_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """All that a plan is made from."""

    pod: PodView | None
    """None: the authority has no pod of this uid."""
    processes: Sequence[ContainerProcess]
    health: Mapping[str, Health] = field(default_factory=dict)
    """By container, of its latest process."""
    now_s: float
    """On the node's monotonic clock."""
    age_s: float = 0.0
    """Since the pod started here."""
    leaving_s: float = 0.0
    """Since this agent saw that the pod is being deleted."""
    disowned: bool = False
    """The ledger of this incarnation of the node has no claim of the pod: it was bound to an earlier one."""
    held_s: float | None = None
    """For how much longer a person holds the pod off the agent; None if nobody does."""


def plan_pod(sight: PodObservation, limits: Limits) -> PodPlan:
    pod = sight.pod
    if pod is None:
        return _stop_all(sight, 0.0, "it is gone", Ending.CONFIRM)
    if pod.finished:
        # One that waits for finalizers alone was let go already.
        goes = pod.terminating and bool(pod.metadata.deletion_grace_period_seconds)
        return _stop_all(sight, 0.0, "it has ended", Ending.REMOVE if goes else Ending.CONFIRM)
    if sight.disowned:
        plan = _stop_all(sight, 0.0, "it was bound to an earlier incarnation of the node", Ending.RECORD)
        return PodPlan(stop=plan.stop, ending=plan.ending, failed="NodeReplaced")
    if sight.held_s is not None:
        # Hands off what is its own to run. What is over, or another's by now, was stopped above: no word keeps that.
        return PodPlan(look_again_s=sight.held_s)
    if pod.terminating:
        grace_s = pod.metadata.deletion_grace_period_seconds
        whole_s = float(pod.spec.termination_grace_period_seconds if grace_s is None else grace_s)
        return _stop_all(sight, max(0.0, whole_s - sight.leaving_s), "it is being deleted", Ending.REMOVE)
    deadline_s = pod.spec.active_deadline_seconds
    if deadline_s is not None and sight.age_s >= deadline_s:
        plan = _stop_all(sight, _grace_s(pod), "its deadline has passed", Ending.RECORD)
        return PodPlan(stop=plan.stop, ending=plan.ending, failed="DeadlineExceeded")
    plan = _run(sight, pod, limits)
    if deadline_s is None:
        return plan
    left_s = deadline_s - sight.age_s
    again_s = left_s if plan.look_again_s is None else min(left_s, plan.look_again_s)
    return PodPlan(plan.start, plan.stop, plan.ending, plan.failed, again_s)


def latest(processes: Sequence[ContainerProcess], container: str) -> ContainerProcess | None:
    """The newest process of a container."""
    own = [each for each in processes if each.identity.container == container]
    return max(own, key=lambda each: each.identity.attempt) if own else None


def restart_pause_s(restarts: int, limits: Limits) -> float:
    """How long a container that ended waits for its next start: the first does not wait."""
    return Backoff(limits.agent_restart_s, limits.agent_restart_s_max).ceiling_s(restarts)


def told_status(pod: PodView, container: str) -> ContainerStatus | None:
    """What the API was last told of a container."""
    for each in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        if each.name == container:
            return each
    return None


def was_started(told: ContainerStatus | None) -> bool:
    return told is not None and (told.state.running is not None or told.state.terminated is not None)


# -- one container ---------------------------------------------------------------------------------


class ContainerStage(StrEnum):
    """Where a container stands."""

    START = "start"
    PAUSE = "pause"
    RUNNING = "running"
    SICK = "sick"
    """It runs, and a probe says that it must not."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _ContainerState:
    stage: ContainerStage
    attempt: int = 0
    wait_s: float = 0.0


def _standing(
    sight: PodObservation, pod: PodView, container: Container, policy: str, limits: Limits
) -> _ContainerState:
    process = latest(sight.processes, container.name)
    if process is None:
        told = told_status(pod, container.name)
        if told is None or not was_started(told):
            return _ContainerState(ContainerStage.START, told.restart_count if told is not None else 0)
        # The machine forgot it: it ran, and nobody knows how it ended.
        ended = told.state.terminated
        if not _restarts(policy, ended.exit_code if ended is not None else 1):
            return _ContainerState(
                ContainerStage.DONE if ended is not None and ended.exit_code == 0 else ContainerStage.FAILED
            )
        return _ContainerState(ContainerStage.START, told.restart_count + 1)
    attempt = process.identity.attempt
    if process.running:
        healthy = sight.health.get(container.name, HEALTHY).alive
        return _ContainerState(ContainerStage.RUNNING if healthy else ContainerStage.SICK, attempt)
    if not _restarts(policy, process.exit_code):
        return _ContainerState(ContainerStage.DONE if process.exit_code == 0 else ContainerStage.FAILED, attempt)
    wait_s = process.since_s + restart_pause_s(_recent(process, limits), limits) - sight.now_s
    return _ContainerState(ContainerStage.PAUSE if wait_s > 0 else ContainerStage.START, attempt + 1, max(0.0, wait_s))


def _recent(last: ContainerProcess, limits: Limits) -> int:
    """How many starts in a row came to nothing; one that ran for long is forgiven all before it."""
    if last.ended_at is not None and (last.ended_at - last.started_at).total_seconds() >= limits.agent_restart_reset_s:
        return 0
    return last.identity.attempt


def _restarts(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


# -- the whole pod ---------------------------------------------------------------------------------


def _run(sight: PodObservation, pod: PodView, limits: Limits) -> PodPlan:
    starts: list[Start] = []
    stops: list[Stop] = []
    waits: list[float] = []

    def tend(container: Container, policy: str) -> _ContainerState:
        standing = _standing(sight, pod, container, policy, limits)
        if standing.stage is ContainerStage.START:
            starts.append(Start(container, standing.attempt))
        elif standing.stage is ContainerStage.PAUSE:
            waits.append(standing.wait_s)
        elif standing.stage is ContainerStage.SICK:
            process = latest(sight.processes, container.name)
            assert process is not None
            stops.append(Stop(process, _grace_s(pod), "a probe failed"))
        return standing

    begun = any(_has_begun(sight, pod, each) for each in pod.spec.containers)
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            standing = tend(container, "Always")
            ready_to_go_on = (
                standing.stage is ContainerStage.RUNNING and sight.health.get(container.name, HEALTHY).started
            )
        elif begun:
            continue  # it did its work before the containers that run now
        else:
            # A pod that may be restarted retries its preparation until it succeeds.
            standing = tend(container, "Never" if pod.spec.restart_policy == "Never" else "OnFailure")
            if standing.stage is ContainerStage.FAILED:
                return _stop_all(sight, _grace_s(pod), "an init container failed", Ending.RECORD)
            ready_to_go_on = standing.stage is ContainerStage.DONE
        if not ready_to_go_on and not begun:
            return PodPlan(tuple(starts), tuple(stops), look_again_s=min(waits, default=None))
    standings = [tend(each, pod.spec.restart_policy) for each in pod.spec.containers]
    if all(each.stage in (ContainerStage.DONE, ContainerStage.FAILED) for each in standings):
        return _stop_all(sight, _grace_s(pod), "its containers have ended", Ending.RECORD)  # sidecars go last
    return PodPlan(tuple(starts), tuple(stops), look_again_s=min(waits, default=None))


def _has_begun(sight: PodObservation, pod: PodView, container: Container) -> bool:
    return latest(sight.processes, container.name) is not None or was_started(told_status(pod, container.name))


def _stop_all(sight: PodObservation, grace_s: float, why: str, ending: Ending) -> PodPlan:
    running = tuple(Stop(each, grace_s, why) for each in sight.processes if each.running)
    return PodPlan(stop=running, ending=Ending.NO if running else ending)


def _grace_s(pod: PodView) -> float:
    return float(pod.spec.termination_grace_period_seconds)
