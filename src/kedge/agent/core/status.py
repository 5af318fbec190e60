"""A pod's status from its processes, not from its previous status. Pure.

`pods` writes it, and only if it changes anything. Conditions of other writers are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import (
    BACKOFF,
    HEALTHY,
    Ending,
    PodObservation,
    PodPlan,
    is_sidecar,
    latest,
    reported_end,
    reported_status,
    was_started,
)
from kedge.agent.core.resize import PodResize, ResizeStage
from kedge.api.conditions import condition
from kedge.api.holds import hold_conditions
from kedge.api.quantity import Quantity
from kedge.api.timestamps import format_time
from kedge.api.validation.resize import qos_class
from kedge.api.views import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    PodView,
    ResourceRequirements,
)
from kedge.api.wellknown import RESIZE_IN_PROGRESS, RESIZE_PENDING


def pod_status(
    pod: PodView,
    observation: PodObservation,
    plan: PodPlan,
    *,
    now: datetime,
    address: str,
    node_address: str,
    waiting: Mapping[str, Mapping[str, str]],
    resize_failed: str = "",
) -> dict[str, Any]:
    """The status of a pod; its final status, if the plan ends it. `waiting` is by container."""
    shown = {**waiting, **{name: _backoff(observation, pod, name, pause_s) for name, pause_s in plan.paused}}
    main = [_container_status(pod, observation, each, shown) for each in pod.spec.containers]
    init = [_container_status(pod, observation, each, shown) for each in pod.spec.init_containers]
    phase = _phase(pod, plan, main)
    ready = bool(main) and phase == "Running" and all(each["ready"] for each in main)
    pairs = zip(pod.spec.init_containers, init, strict=True)
    unprepared = [container.name for container, written in pairs if not _is_prepared(container, written)]
    prepared = not unprepared or phase == "Succeeded"
    unready = [each["name"] for each in main if not each["ready"]]
    reason = _unready_reason(phase, ready=ready)
    about_ready = _about_unready(observation, unready) if reason == "ContainersNotReady" else ""
    about_init = "" if prepared else f"containers with incomplete status: [{' '.join(unprepared)}]"
    status: dict[str, Any] = {
        "phase": phase,
        # The write of a new start time is what makes the service prove the claim of an unadmitted pod.
        "startTime": format_time(now if observation.unadmitted else pod.status.start_time or now),
        "conditions": [
            condition(
                "Initialized",
                status=prepared,
                reason="" if prepared else "ContainersNotInitialized",
                message=about_init,
            ),
            condition("ContainersReady", status=ready, reason=reason, message=about_ready),
            condition("Ready", status=ready, reason=reason, message=about_ready),
            *hold_conditions(pod, pod.status.conditions, now),
            *_resize_conditions(pod, observation.resize, resize_failed),
        ],
        "containerStatuses": main,
        "qosClass": pod.status.qos_class or qos_class(pod.spec),
    }
    if init:
        status["initContainerStatuses"] = init
    if observation.rejection is not None and not observation.processes:
        # Nothing was created or will be: a waiting container would be shown in place of the rejection.
        status |= {"containerStatuses": None, "initContainerStatuses": None}
    status |= _resources_of_pod(pod, observation.resize)
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    if node_address:
        status |= {"hostIP": node_address, "hostIPs": [{"ip": node_address}]}
    if plan.failed:
        status["reason"] = plan.failed
    if plan.message:
        status["message"] = plan.message
    return status


def dropped_conditions(status: Mapping[str, Any]) -> tuple[str, ...]:
    """The conditions about resizes that a status leaves out: they are removed, as a kubelet removes them."""
    shown = {each["type"] for each in status["conditions"]}
    return tuple(each for each in (RESIZE_PENDING, RESIZE_IN_PROGRESS) if each not in shown)


def _resize_conditions(pod: PodView, resize: PodResize, failed: str) -> list[dict[str, Any]]:
    if pod.terminating:
        return []
    if resize.stage in (ResizeStage.DEFERRED, ResizeStage.INFEASIBLE):
        return [condition(RESIZE_PENDING, status=True, reason=resize.stage.value, message=resize.message)]
    if failed:
        return [condition(RESIZE_IN_PROGRESS, status=True, reason="Error", message=failed)]
    if resize.stage is ResizeStage.FITS or not resize.is_applied(pod):
        return [condition(RESIZE_IN_PROGRESS, status=True, reason="")]
    return []


def _resources_of_pod(pod: PodView, resize: PodResize) -> dict[str, Any]:
    """The resources of the pod itself, if it has any. The driver has no group for a whole pod: nothing is applied."""
    own, known = pod.spec.resources, pod.status.resources
    if not (own.requests or own.limits):
        return {}
    if resize.allocates:
        return {"allocatedResources": _amounts(own.requests), "resources": _requirements(own)}
    if known is None:
        return {}
    return {"allocatedResources": _amounts(pod.status.allocated_resources), "resources": _requirements(known)}


def _requirements(found: ResourceRequirements) -> dict[str, Any]:
    parts = {"requests": _amounts(found.requests), "limits": _amounts(found.limits)}
    return {name: amounts for name, amounts in parts.items() if amounts}


def _amounts(amounts: Mapping[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _about_unready(observation: PodObservation, unready: Sequence[str]) -> str:
    """The unready containers, and the failed probe of each that has one."""
    parts = [f"containers with unready status: [{' '.join(unready)}]"]
    for name in unready:
        process = latest(observation.processes, name)
        health = observation.health.get(name, HEALTHY)
        if process is not None and process.running and (problem := health.sick or health.unready):
            parts.append(f"{name}: {problem}")
    return "; ".join(parts)


def _unready_reason(phase: str, *, ready: bool) -> str:
    if ready:
        return ""
    return {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "ContainersNotReady")


def _backoff(observation: PodObservation, pod: PodView, container: str, pause_s: float) -> dict[str, str]:
    """The waiting state of a container that is restarted later, with the first line on the end of its last process."""
    last = latest(observation.processes, container)
    cause = f": {last.message.strip().splitlines()[0]}" if last is not None and last.message.strip() else ""
    about = f"container={container} pod={pod.name}_{pod.namespace}({pod.uid}){cause}"
    return {"reason": BACKOFF, "message": f"back-off {pause_s:.0f}s restarting failed {about}"}


def _phase(pod: PodView, plan: PodPlan, main: Sequence[dict[str, Any]]) -> str:
    if plan.ending in (Ending.RECORD, Ending.REMOVE):
        return "Succeeded" if not plan.failed and all(_exit_code(each) == 0 for each in main) else "Failed"
    begun = any("waiting" not in each["state"] or each["restartCount"] for each in main)
    return "Running" if begun else pod.status.phase or "Pending"


def _exit_code(written: dict[str, Any]) -> int:
    """The exit code of a container; 1 if it never ran."""
    ended = written["state"].get("terminated")
    return 1 if ended is None else int(ended["exitCode"])


def _is_prepared(container: Container, written: dict[str, Any]) -> bool:
    if is_sidecar(container):
        return bool(written.get("started"))
    return "terminated" in written["state"] and _exit_code(written) == 0


def _container_status(
    pod: PodView, observation: PodObservation, container: Container, waiting: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    name = container.name
    process = latest(observation.processes, name)
    reported = reported_status(pod, name)
    written: dict[str, Any] = {
        "name": name,
        "image": container.image,
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": reported.restart_count if reported is not None else 0,
        "state": {"waiting": dict(waiting.get(name, {"reason": "ContainerCreating"}))},
        "lastState": {},
    }
    resources = observation.resize.resources.get(name)
    if resources is not None:
        allocated = container.resources if observation.resize.allocates else resources
        written |= {"allocatedResources": _amounts(allocated.requests), "resources": _requirements(resources)}
    if process is None:
        if reported is not None and was_started(reported):
            written["state"] = {"terminated": _forgotten(reported)}
        return written
    written["restartCount"] = process.identity.attempt
    written["containerID"] = f"kedge://{process.identity.pod_uid}/{name}/{process.identity.attempt}"
    before = [each for each in observation.processes if each.identity.container == name and each is not process]
    if before:
        last = max(before, key=lambda each: each.identity.attempt)
        written["lastState"] = {"terminated": _terminated(last)}
    elif reported is not None and reported.restart_count == process.identity.attempt:
        written["lastState"] = _last_state(reported.last_state)
    if process.running:
        health = observation.health.get(name, HEALTHY)
        written["state"] = {"running": {"startedAt": format_time(process.started_at)}}
        written["started"] = health.started
        written["ready"] = health.started and health.ready
    elif waiting.get(name, {}).get("reason") == BACKOFF:
        written["lastState"] = {"terminated": _terminated(process)}
    else:
        written["state"] = {"terminated": _terminated(process)}
        written["ready"] = _is_finished_init(pod, name, process)
    return written


def _is_finished_init(pod: PodView, name: str, process: ContainerProcess) -> bool:
    """An init container that succeeded is ready: it has done its work."""
    return process.exit_code == 0 and any(each.name == name for each in pod.spec.init_containers)


def _terminated(process: ContainerProcess) -> dict[str, Any]:
    return {
        "exitCode": process.exit_code,
        "reason": process.reason or ("Completed" if process.exit_code == 0 else "Error"),
        "startedAt": format_time(process.started_at),
        "finishedAt": format_time(process.ended_at or process.started_at),
        **({"message": process.message} if process.message else {}),
    }


def _forgotten(reported: ContainerStatus) -> dict[str, Any]:
    """It ran, and the driver no longer lists it."""
    ended = reported_end(reported)
    if ended is not None:
        return _written_end(ended)
    return {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "the driver no longer lists the process"}


def _last_state(state: ContainerState) -> dict[str, Any]:
    return {} if state.terminated is None else {"terminated": _written_end(state.terminated)}


def _written_end(ended: ContainerStateTerminated) -> dict[str, Any]:
    written: dict[str, Any] = {"exitCode": ended.exit_code, "reason": ended.reason}
    if ended.message:
        written["message"] = ended.message
    if ended.started_at is not None:
        written["startedAt"] = format_time(ended.started_at)
    if ended.finished_at is not None:
        written["finishedAt"] = format_time(ended.finished_at)
    return written
