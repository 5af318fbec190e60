"""Plans the next actions for one pod, from its object and its processes. Pure: no I/O and no clock.

`pods` carries out the plans and plans again after every change. Containers run as Kubernetes runs them: init containers
in turn, sidecars beside them, restarts by policy with backoff; a pod that is being deleted is stopped within its grace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.resize import NO_RESIZE, PodResize, is_replaced
from kedge.api.views import Container, ContainerStateTerminated, ContainerStatus, PodView
from kedge.backoff import Backoff
from kedge.limits import Limits
from kedge.placement.admission import Rejection


@dataclass(frozen=True, slots=True)
class Health:
    """The probe results of one process. Without probes it is started and ready as soon as it runs."""

    started: bool = True
    ready: bool = True
    sick: str = ""
    """Why the process is killed: its liveness or startup probe failed, or its `postStart`. Empty while it is alive."""
    unready: str = ""
    """The latest failure of its readiness probe."""


HEALTHY = Health()
POST_START_FAILED: Final = "postStart hook failed"
"""The beginning of `Health.sick` for a process whose `postStart` failed."""


NODE_REPLACED: Final = "NodeReplaced"
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
"""Why a pod failed, beside the reasons of a rejection."""


class Ending(StrEnum):
    """How the agent finishes a pod once no process of it runs."""

    NO = ""
    RECORD = "record"
    """Write its end to its status, which frees its claim."""
    REMOVE = "remove"
    """It is being deleted: write its end, then remove it."""
    CONFIRM = "confirm"
    """The pod object is gone, or has its end in its status: confirm that nothing runs, and forget it."""


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
    cause: str = ""
    """The failure of the container itself that requires the stop; its status shows it."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The actions to take now, and when time alone may change them."""

    start: tuple[Start, ...] = ()
    stop: tuple[Stop, ...] = ()
    ending: Ending = Ending.NO
    failed: str = ""
    """Why the pod as a whole has failed, where the exit codes of its containers do not show it."""
    message: str = ""
    """The details of `failed`."""
    resync_s: float | None = None
    paused: tuple[tuple[str, float], ...] = ()
    """Containers in backoff before their next start, and the length of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """All inputs of a plan."""

    pod: PodView | None
    """None: the API server has no pod of this uid."""
    processes: Sequence[ContainerProcess]
    health: Mapping[str, Health] = field(default_factory=dict)
    """By container, of its latest process."""
    now_s: float
    """On the node's monotonic clock."""
    age_s: float = 0.0
    """Since the pod started here."""
    leaving_s: float = 0.0
    """Since this agent first observed the deletion of the pod."""
    disowned: bool = False
    """The ledger of this node incarnation has no claim of the pod: it was bound to an earlier incarnation."""
    unadmitted: bool = False
    """The pod was created with this node's name, and its claim is not proved yet."""
    rejection: Rejection | None = None
    """Why this node does not admit it."""
    resize: PodResize = NO_RESIZE
    """The resources of its containers."""
    held_s: float | None = None
    """How much longer a hold keeps the agent from acting on the pod; None without a hold."""


def plan_pod(observation: PodObservation, limits: Limits) -> PodPlan:
    pod = observation.pod
    if pod is None:
        return _stop_all(observation, None, 0.0, "it is gone", Ending.CONFIRM)
    if pod.finished:
        # A pod that only waits for finalizers was removed already.
        goes = pod.terminating and bool(pod.metadata.deletion_grace_period_seconds)
        return _stop_all(observation, pod, 0.0, "it has ended", Ending.REMOVE if goes else Ending.CONFIRM)
    if observation.disowned:
        why = "it was bound to an earlier incarnation of the node"
        plan = _stop_all(observation, pod, 0.0, why, Ending.RECORD)
        return PodPlan(stop=plan.stop, ending=plan.ending, failed=NODE_REPLACED, message=why)
    if observation.held_s is not None:
        # A hold keeps a running pod as it is. A pod that has ended, or is no longer bound here, was stopped above.
        return PodPlan(resync_s=observation.held_s)
    if pod.terminating:
        grace_s = pod.metadata.deletion_grace_period_seconds
        whole_s = float(pod.spec.termination_grace_period_seconds if grace_s is None else grace_s)
        left_s = max(0.0, whole_s - observation.leaving_s)
        return _stop_all(observation, pod, left_s, "it is being deleted", Ending.REMOVE)
    if observation.rejection is not None:
        plan = _stop_all(observation, pod, 0.0, "its node does not admit it", Ending.RECORD)
        reason, message = observation.rejection
        return PodPlan(stop=plan.stop, ending=plan.ending, failed=reason, message=message)
    deadline_s = pod.spec.active_deadline_seconds
    if deadline_s is not None and observation.age_s >= deadline_s:
        plan = _stop_all(observation, pod, _grace_s(pod), "its deadline has passed", Ending.RECORD)
        message = f"it was active for more than its deadline of {deadline_s} s"
        return PodPlan(stop=plan.stop, ending=plan.ending, failed=DEADLINE_EXCEEDED, message=message)
    plan = _run(observation, pod, limits)
    if deadline_s is None:
        return plan
    left_s = deadline_s - observation.age_s
    again_s = left_s if plan.resync_s is None else min(left_s, plan.resync_s)
    return replace(plan, resync_s=again_s)


def latest(processes: Sequence[ContainerProcess], container: str) -> ContainerProcess | None:
    """The newest process of a container."""
    own = [each for each in processes if each.identity.container == container]
    return max(own, key=lambda each: each.identity.attempt) if own else None


def restart_pause_s(restarts: int, limits: Limits) -> float:
    """The backoff before the next start of a container: none for the first."""
    return Backoff(limits.agent_restart_s, limits.agent_restart_s_max).ceiling_s(restarts)


def reported_status(pod: PodView, container: str) -> ContainerStatus | None:
    """The last status of a container that was written to the API."""
    for each in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        if each.name == container:
            return each
    return None


BACKOFF = "CrashLoopBackOff"


def was_started(reported: ContainerStatus | None) -> bool:
    if reported is None:
        return False
    waiting = reported.state.waiting
    in_backoff = waiting is not None and waiting.reason == BACKOFF
    return in_backoff or reported.state.running is not None or reported.state.terminated is not None


def reported_end(reported: ContainerStatus) -> ContainerStateTerminated | None:
    """How the container's last process ended, if its status has that."""
    return reported.state.terminated or (reported.last_state.terminated if reported.state.waiting is not None else None)


# -- one container ---------------------------------------------------------------------------------


class ContainerStage(StrEnum):
    """The state of a container."""

    START = "start"
    PAUSE = "pause"
    RUNNING = "running"
    SICK = "sick"
    """It runs, and its liveness or startup probe has failed, or its `postStart`."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _ContainerState:
    stage: ContainerStage
    attempt: int = 0
    wait_s: float = 0.0
    pause_s: float = 0.0


def _container_state(
    observation: PodObservation, pod: PodView, container: Container, policy: str, limits: Limits
) -> _ContainerState:
    process = latest(observation.processes, container.name)
    if process is None:
        reported = reported_status(pod, container.name)
        if reported is None or not was_started(reported):
            return _ContainerState(ContainerStage.START, reported.restart_count if reported is not None else 0)
        # The driver no longer lists it: it ran, and its exit code is not known.
        ended = reported_end(reported)
        if not _restarts(policy, ended.exit_code if ended is not None else 1):
            return _ContainerState(
                ContainerStage.DONE if ended is not None and ended.exit_code == 0 else ContainerStage.FAILED
            )
        return _ContainerState(ContainerStage.START, reported.restart_count + 1)
    attempt = process.identity.attempt
    if process.running:
        sick = observation.health.get(container.name, HEALTHY).sick
        return _ContainerState(ContainerStage.SICK if sick else ContainerStage.RUNNING, attempt)
    if is_replaced(container, process):
        return _ContainerState(ContainerStage.START, attempt + 1)
    if not _restarts(policy, process.exit_code):
        return _ContainerState(ContainerStage.DONE if process.exit_code == 0 else ContainerStage.FAILED, attempt)
    pause_s = restart_pause_s(_recent(process, limits), limits)
    wait_s = process.since_s + pause_s - observation.now_s
    if wait_s <= 0:
        return _ContainerState(ContainerStage.START, attempt + 1)
    return _ContainerState(ContainerStage.PAUSE, attempt + 1, wait_s, pause_s)


def _recent(last: ContainerProcess, limits: Limits) -> int:
    """The failures in a row that count for the backoff; a run that was long enough resets them."""
    if last.ended_at is not None and (last.ended_at - last.started_at).total_seconds() >= limits.agent_restart_reset_s:
        return 0
    return last.identity.attempt


def _restarts(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


# -- the whole pod ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Acts:
    """The acts that the containers of a pod need, collected one container after the other."""

    observation: PodObservation
    pod: PodView
    limits: Limits
    starts: list[Start] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    paused: list[tuple[str, float]] = field(default_factory=list)

    def add(self, container: Container, policy: str) -> ContainerStage:
        state = _container_state(self.observation, self.pod, container, policy, self.limits)
        if state.stage is ContainerStage.START:
            resources = self.observation.resize.resources.get(container.name) or container.resources
            self.starts.append(Start(msgspec.structs.replace(container, resources=resources), state.attempt))
        elif state.stage is ContainerStage.RUNNING and container.name in self.observation.resize.restart:
            process = latest(self.observation.processes, container.name)
            assert process is not None
            self.stops.append(Stop(process, _grace_s(self.pod), "its resources are resized"))
        elif state.stage is ContainerStage.PAUSE:
            self.waits.append(state.wait_s)
            self.paused.append((container.name, state.pause_s))
        elif state.stage is ContainerStage.SICK:
            process = latest(self.observation.processes, container.name)
            assert process is not None
            health = self.observation.health.get(container.name, HEALTHY)
            probe = container.liveness_probe if health.started else container.startup_probe
            own_s = probe.termination_grace_period_seconds if probe is not None else None
            grace_s = _grace_s(self.pod) if own_s is None else float(own_s)
            why = "its postStart hook failed" if health.sick.startswith(POST_START_FAILED) else "a probe failed"
            self.stops.append(Stop(process, grace_s, why, f"{health.sick}; the container was killed"))
        return state.stage

    def plan(self) -> PodPlan:
        return PodPlan(
            tuple(self.starts), tuple(self.stops), resync_s=min(self.waits, default=None), paused=tuple(self.paused)
        )


def _run(observation: PodObservation, pod: PodView, limits: Limits) -> PodPlan:
    acts = _Acts(observation, pod, limits)
    begun = any(_has_begun(observation, pod, each) for each in pod.spec.containers)
    for container in pod.spec.init_containers:
        if is_sidecar(container):
            stage = acts.add(container, "Always")
            can_continue = stage is ContainerStage.RUNNING and observation.health.get(container.name, HEALTHY).started
        elif begun:
            continue  # it finished before the containers that run now were started
        else:
            # A pod with restarts retries its init containers until they succeed.
            stage = acts.add(container, "Never" if pod.spec.restart_policy == "Never" else "OnFailure")
            if stage is ContainerStage.FAILED:
                return _stop_all(observation, pod, _grace_s(pod), "an init container failed", Ending.RECORD)
            can_continue = stage is ContainerStage.DONE
        if not can_continue and not begun:
            return acts.plan()
    stages = [acts.add(each, pod.spec.restart_policy) for each in pod.spec.containers]
    if all(each in (ContainerStage.DONE, ContainerStage.FAILED) for each in stages):
        return _stop_all(observation, pod, _grace_s(pod), "its containers have ended", Ending.RECORD)
    return acts.plan()


def is_sidecar(container: Container) -> bool:
    """Whether an init container runs beside the main containers."""
    return container.restart_policy == "Always"


def _has_begun(observation: PodObservation, pod: PodView, container: Container) -> bool:
    return latest(observation.processes, container.name) is not None or was_started(
        reported_status(pod, container.name)
    )


def _stop_all(observation: PodObservation, pod: PodView | None, grace_s: float, why: str, ending: Ending) -> PodPlan:
    """Stop every process: sidecars after the other containers, the last one first. Without a grace, all at once."""
    running = [each for each in observation.processes if each.running]
    chosen = running
    if pod is not None and grace_s > 0:
        sidecars = [each.name for each in pod.spec.init_containers if is_sidecar(each)]
        chosen = [each for each in running if each.identity.container not in sidecars]
        for name in reversed(sidecars):
            chosen = chosen or [each for each in running if each.identity.container == name]
    stops = tuple(Stop(each, grace_s, why) for each in chosen)
    return PodPlan(stop=stops, ending=Ending.NO if running else ending)


def _grace_s(pod: PodView) -> float:
    return float(pod.spec.termination_grace_period_seconds)
