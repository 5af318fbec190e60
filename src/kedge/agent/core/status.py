"""A pod's status from its processes, not from its previous status. Pure.

`pods` writes it, and only if it changes anything. Conditions of other writers are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import HEALTHY, Ending, PodObservation, PodPlan, latest, reported_status, was_started
from kedge.api.conditions import condition
from kedge.api.holds import hold_conditions
from kedge.api.timestamps import format_time
from kedge.api.views import Container, ContainerState, ContainerStatus, PodView


def pod_status(
    pod: PodView,
    observation: PodObservation,
    plan: PodPlan,
    *,
    now: datetime,
    address: str,
    waiting: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """The status of a pod; its final status, if the plan ends it. `waiting` is by container."""
    main = [_container_status(pod, observation, each, waiting) for each in pod.spec.containers]
    init = [_container_status(pod, observation, each, waiting) for each in pod.spec.init_containers]
    phase = _phase(pod, plan, main)
    ready = bool(main) and phase == "Running" and all(each["ready"] for each in main)
    prepared = all(
        _is_prepared(container, written) for container, written in zip(pod.spec.init_containers, init, strict=True)
    )
    reason = "" if ready else "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": format_time(pod.status.start_time or now),
        "conditions": [
            condition("Initialized", status=prepared or phase == "Succeeded", reason=""),
            condition("ContainersReady", status=ready, reason=reason),
            condition("Ready", status=ready, reason=reason),
            *hold_conditions(pod, pod.status.conditions, now),
        ],
        "containerStatuses": main,
    }
    if init:
        status["initContainerStatuses"] = init
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}], "hostIP": address}
    if plan.failed:
        status["reason"] = plan.failed
    return status


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
    if container.restart_policy == "Always":
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
    else:
        written["state"] = {"terminated": _terminated(process)}
    return written


def _terminated(process: ContainerProcess) -> dict[str, Any]:
    return {
        "exitCode": process.exit_code,
        "reason": process.reason or ("Completed" if process.exit_code == 0 else "Error"),
        "startedAt": format_time(process.started_at),
        "finishedAt": format_time(process.ended_at or process.started_at),
    }


def _forgotten(reported: ContainerStatus) -> dict[str, Any]:
    """It ran, and the driver no longer lists it."""
    ended = reported.state.terminated
    if ended is not None:
        return _last_state(reported.state)["terminated"]  # type: ignore[no-any-return]
    return {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "the driver no longer lists the process"}


def _last_state(state: ContainerState) -> dict[str, Any]:
    ended = state.terminated
    if ended is None:
        return {}
    written: dict[str, Any] = {"exitCode": ended.exit_code, "reason": ended.reason}
    if ended.started_at is not None:
        written["startedAt"] = format_time(ended.started_at)
    if ended.finished_at is not None:
        written["finishedAt"] = format_time(ended.finished_at)
    return {"terminated": written}
