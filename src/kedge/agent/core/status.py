"""A pod's status as its agent tells it: from what runs, not from what was last told. Pure.

`pods` writes it, and only when it says anything new. Conditions of others are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import HEALTHY, Ending, PodObservation, PodPlan, latest, told_status, was_started
from kedge.api.conditions import condition
from kedge.api.holds import hold_conditions
from kedge.api.timestamps import format_time
from kedge.api.views import Container, ContainerState, ContainerStatus, PodView


def pod_status(
    pod: PodView, sight: PodObservation, plan: PodPlan, *, now: datetime, address: str, troubles: dict[str, str]
) -> dict[str, Any]:
    """What the agent says of a pod: its last word, if the plan ends it. `troubles` says why a container waits."""
    main = [_container_status(pod, sight, each, troubles) for each in pod.spec.containers]
    init = [_container_status(pod, sight, each, troubles) for each in pod.spec.init_containers]
    phase = _phase(pod, plan, main)
    ready = bool(main) and phase == "Running" and all(each["ready"] for each in main)
    prepared = all(
        _is_prepared(container, said) for container, said in zip(pod.spec.init_containers, init, strict=True)
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


def _exit_code(said: dict[str, Any]) -> int:
    """How a container ended; one that never ran did not end well."""
    ended = said["state"].get("terminated")
    return 1 if ended is None else int(ended["exitCode"])


def _is_prepared(container: Container, said: dict[str, Any]) -> bool:
    if container.restart_policy == "Always":
        return bool(said.get("started"))
    return "terminated" in said["state"] and _exit_code(said) == 0


def _container_status(
    pod: PodView, sight: PodObservation, container: Container, troubles: dict[str, str]
) -> dict[str, Any]:
    name = container.name
    process = latest(sight.processes, name)
    told = told_status(pod, name)
    said: dict[str, Any] = {
        "name": name,
        "image": container.image,
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": told.restart_count if told is not None else 0,
        "state": {"waiting": {"reason": troubles.get(name, "ContainerCreating")}},
        "lastState": {},
    }
    if process is None:
        if told is not None and was_started(told):
            said["state"] = {"terminated": _forgotten(told)}
        return said
    said["restartCount"] = process.identity.attempt
    said["containerID"] = f"kedge://{process.identity.pod_uid}/{name}/{process.identity.attempt}"
    before = [each for each in sight.processes if each.identity.container == name and each is not process]
    if before:
        last = max(before, key=lambda each: each.identity.attempt)
        said["lastState"] = {"terminated": _terminated(last)}
    elif told is not None and told.restart_count == process.identity.attempt:
        said["lastState"] = _last_told(told.last_state)
    if process.running:
        health = sight.health.get(name, HEALTHY)
        said["state"] = {"running": {"startedAt": format_time(process.started_at)}}
        said["started"] = health.started
        said["ready"] = health.started and health.ready
    else:
        said["state"] = {"terminated": _terminated(process)}
    return said


def _terminated(process: ContainerProcess) -> dict[str, Any]:
    return {
        "exitCode": process.exit_code,
        "reason": process.reason or ("Completed" if process.exit_code == 0 else "Error"),
        "startedAt": format_time(process.started_at),
        "finishedAt": format_time(process.ended_at or process.started_at),
    }


def _forgotten(told: ContainerStatus) -> dict[str, Any]:
    """It ran, and the machine knows nothing of it any more."""
    ended = told.state.terminated
    if ended is not None:
        return _last_told(told.state)["terminated"]  # type: ignore[no-any-return]
    return {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "the machine lost track of the process"}


def _last_told(state: ContainerState) -> dict[str, Any]:
    ended = state.terminated
    if ended is None:
        return {}
    said: dict[str, Any] = {"exitCode": ended.exit_code, "reason": ended.reason}
    if ended.started_at is not None:
        said["startedAt"] = format_time(ended.started_at)
    if ended.finished_at is not None:
        said["finishedAt"] = format_time(ended.finished_at)
    return {"terminated": said}
