"""The acts of an agent on a pod: each as a step of a record and, if users of the pod should see it, as an Event.

Events have the reasons of a kubelet where it has one. `pod_records` notes the acts and leaves out repeats. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kedge.agent.core.driver import ContainerProcess, Identity
from kedge.agent.core.plan import POST_START_FAILED, Health, PodPlan, Start
from kedge.observe.records import PodAct

STARTED: Final = "Started"
KILLING: Final = "Killing"
BACK_OFF: Final = "BackOff"
UNHEALTHY: Final = "Unhealthy"
FAILED: Final = "Failed"
FAILED_POST_START: Final = "FailedPostStartHook"
FAILED_PRE_STOP: Final = "FailedPreStopHook"


class PodEvent(NamedTuple):
    """An Event about a pod."""

    reason: str
    text: str
    subject: str = ""
    """The container, where the text is the same for all of them."""
    warning: bool = False


class NotedAct(NamedTuple):
    act: PodAct
    event: PodEvent | None = None


def started(start: Start) -> NotedAct:
    name = start.container.name
    act = PodAct("restart" if start.attempt else "start", name, attempt=start.attempt)
    return NotedAct(act, PodEvent(STARTED, "Started container", name))


def refused(start: Start, reason: str, message: str) -> NotedAct:
    """A container could not be started. `reason` is that of its `waiting` state."""
    name, why = start.container.name, f"{reason}: {message}"
    return NotedAct(
        PodAct("refuse", name, why, start.attempt), PodEvent(FAILED, f"Container {name}: {why}", warning=True)
    )


def pre_stop_failed(identity: Identity, problem: str) -> NotedAct:
    why = f"preStop hook failed: {problem}"
    event = PodEvent(FAILED_PRE_STOP, f"Container {identity.container}: {why}", warning=True)
    return NotedAct(PodAct("hook", identity.container, why, identity.attempt), event)


def planned(plan: PodPlan) -> Iterator[NotedAct]:
    """The acts of a plan but its starts, which are noted when they are done."""
    for stop in plan.stop:
        identity = stop.process.identity
        event = PodEvent(KILLING, f"Stopping container, because {stop.why}", identity.container)
        yield NotedAct(PodAct("stop", identity.container, stop.why, identity.attempt), event)
    for name, pause_s in plan.paused:
        why = "it ended and is started again after a pause"
        event = PodEvent(BACK_OFF, f"Back-off of {pause_s:.0f} s before the next start", name, warning=True)
        yield NotedAct(PodAct("back off", name, why, delay_s=pause_s), event)
    if plan.failed:
        event = PodEvent(plan.failed, plan.message, warning=True)
        yield NotedAct(PodAct("fail", "", f"{plan.failed}: {plan.message}"), event)


def probed(name: str, before: Health, now: Health) -> Iterator[NotedAct]:
    """The results of a container that changed."""
    if before.started != now.started:
        yield NotedAct(PodAct("probe", name, "started" if now.started else "not started yet"))
    if before.ready != now.ready or before.unready != now.unready:
        why = now.unready or ("ready" if now.ready else "not ready")
        yield NotedAct(PodAct("probe", name, why), _failure(name, now.unready))
    if before.sick != now.sick:
        verb = "hook" if now.sick.startswith(POST_START_FAILED) else "probe"
        why = f"{now.sick}, so the process is stopped" if now.sick else "alive"
        yield NotedAct(PodAct(verb, name, why), _failure(name, now.sick))


def _failure(name: str, problem: str) -> PodEvent | None:
    if not problem:
        return None
    reason = FAILED_POST_START if problem.startswith(POST_START_FAILED) else UNHEALTHY
    return PodEvent(reason, f"Container {name}: {problem}", warning=True)


def ended(process: ContainerProcess) -> NotedAct:
    """A process ended. The status of its container shows it, so it has no Event."""
    reason = f", {process.reason}" if process.reason else ""
    message = f": {process.message}" if process.message else ""
    why = f"exit code {process.exit_code}{reason}{message}"
    return NotedAct(PodAct("exit", process.identity.container, why, process.identity.attempt))
