"""A pod's status, from its processes, its probes and what was reported before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.kit.agent import NOW, pod_view, process_of

from kedge.agent.core.driver import ContainerProcess
from kedge.agent.core.plan import Health, PodObservation, plan_pod
from kedge.agent.core.status import pod_status
from kedge.api.views import PodView
from kedge.limits import Limits
from kedge.placement.admission import Rejection

SIDECAR = {"name": "proxy", "image": "p:1", "restartPolicy": "Always"}


def status(
    view: PodView, *processes: ContainerProcess, waiting: dict[str, dict[str, str]] | None = None, **observed: Any
) -> dict[str, Any]:
    observation = PodObservation(pod=view, processes=processes, now_s=0.0, **observed)
    plan = plan_pod(observation, Limits())
    return pod_status(
        view, observation, plan, now=NOW, address="10.0.0.1", node_address="192.0.2.1", waiting=waiting or {}
    )


def conditions(found: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in found["conditions"]}


def main(found: dict[str, Any]) -> dict[str, Any]:
    (container,) = found["containerStatuses"]
    return dict(container)


def test_a_pod_that_has_not_started_is_pending_and_shows_why_it_waits() -> None:
    assert status(pod_view())["phase"] == "Pending"
    assert main(status(pod_view()))["state"] == {"waiting": {"reason": "ContainerCreating"}}
    found = main(status(pod_view(), waiting={"main": {"reason": "ImagePullBackOff"}}))
    assert found["state"] == {"waiting": {"reason": "ImagePullBackOff"}}


def test_a_running_pod_is_ready_and_has_its_address() -> None:
    found = status(pod_view(), process_of())
    assert (found["phase"], found["podIP"], found["startTime"]) == ("Running", "10.0.0.1", "2030-01-01T00:00:00Z")
    assert (found["hostIP"], found["hostIPs"]) == ("192.0.2.1", [{"ip": "192.0.2.1"}])
    assert conditions(found) == {"Initialized": "True", "ContainersReady": "True", "Ready": "True"}
    assert (main(found)["ready"], main(found)["started"]) == (True, True)


@pytest.mark.parametrize(
    ("health", "started"), [(Health(ready=False), True), (Health(started=False), False)], ids=["unready", "starting"]
)
def test_a_pod_is_ready_only_if_its_probes_have_passed(health: Health, started: bool) -> None:
    found = status(pod_view(), process_of(), health={"main": health})
    assert (main(found)["ready"], main(found)["started"]) == (False, started)
    assert (found["phase"], conditions(found)["Ready"]) == ("Running", "False")


def test_one_unready_container_makes_the_pod_unready() -> None:
    view = pod_view(containers=[{"name": "main", "image": "w:1"}, {"name": "side", "image": "s:1"}])
    assert conditions(status(view, process_of()))["Ready"] == "False"
    assert conditions(status(view, process_of(), process_of("side")))["Ready"] == "True"


def test_a_restart_shows_its_count_and_the_end_of_the_process_before() -> None:
    ended = process_of(attempt=1, running=False, exit_code=3)
    found = main(status(pod_view(), ended, process_of(attempt=2)))
    assert (found["restartCount"], found["lastState"]["terminated"]["exitCode"]) == (2, 3)
    assert found["containerID"] == "kedge://u1/main/2"


def test_the_last_state_survives_a_restart_of_the_agent() -> None:
    """The driver has forgotten the first attempt: its end is in the status alone."""
    before = {"restartCount": 2, "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    view = pod_view(status={"containerStatuses": [{"name": "main", "state": {"running": {}}, **before}]})
    assert main(status(view, process_of(attempt=2)))["lastState"]["terminated"]["exitCode"] == 3


def test_a_container_that_the_driver_lost_is_shown_as_ended_and_unknown() -> None:
    view = pod_view(restartPolicy="Never", status={"containerStatuses": [{"name": "main", "state": {"running": {}}}]})
    found = status(view)
    assert main(found)["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert found["phase"] == "Failed"


def test_an_end_that_was_reported_stays_after_the_driver_forgot_it() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    found = status(pod_view(restartPolicy="Never", status={"containerStatuses": [ended]}))
    assert main(found)["state"]["terminated"] == {"exitCode": 0, "reason": "Completed"}
    assert found["phase"] == "Succeeded"


@pytest.mark.parametrize(("exit_code", "phase"), [(0, "Succeeded"), (1, "Failed")])
def test_a_pod_that_has_ended_has_the_phase_of_its_exit_codes(exit_code: int, phase: str) -> None:
    found = status(pod_view(restartPolicy="Never"), process_of(running=False, exit_code=exit_code))
    assert found["phase"] == phase
    assert main(found)["state"]["terminated"]["reason"] == ("Completed" if exit_code == 0 else "Error")
    assert next(each["reason"] for each in found["conditions"] if each["type"] == "Ready") == (
        "PodCompleted" if exit_code == 0 else "PodFailed"
    )


def test_a_pod_that_fails_as_a_whole_has_the_reason() -> None:
    found = status(pod_view(activeDeadlineSeconds=5), process_of(running=False), age_s=6.0)
    assert (found["phase"], found["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_pod_without_an_ended_process_has_not_succeeded() -> None:
    found = status(pod_view(), disowned=True)
    assert (found["phase"], found["reason"]) == ("Failed", "NodeReplaced")


def test_initialized_needs_every_init_container_and_the_start_of_every_sidecar() -> None:
    view = pod_view(initContainers=[{"name": "prepare", "image": "i:1"}, SIDECAR])
    prepared = process_of("prepare", running=False)
    assert conditions(status(view))["Initialized"] == "False"
    assert conditions(status(view, prepared))["Initialized"] == "False"
    starting = status(view, prepared, process_of("proxy"), health={"proxy": Health(started=False)})
    assert conditions(starting)["Initialized"] == "False"
    found = status(view, prepared, process_of("proxy"))
    assert conditions(found)["Initialized"] == "True"
    assert [each["name"] for each in found["initContainerStatuses"]] == ["prepare", "proxy"]


def test_a_failed_init_container_is_not_initialized() -> None:
    view = pod_view(initContainers=[{"name": "prepare", "image": "i:1"}], restartPolicy="Never")
    found = status(view, process_of("prepare", running=False, exit_code=2))
    assert (conditions(found)["Initialized"], found["phase"]) == ("False", "Failed")


def test_the_class_of_service_comes_from_the_requests_and_stays() -> None:
    limits = {"cpu": "1", "memory": "1Gi"}
    sized = [{"name": "main", "image": "w", "resources": {"requests": limits, "limits": limits}}]
    assert status(pod_view(), process_of())["qosClass"] == "BestEffort"
    assert status(pod_view(containers=sized), process_of())["qosClass"] == "Guaranteed"
    kept = pod_view(containers=sized, status={"qosClass": "Burstable"})
    assert status(kept, process_of())["qosClass"] == "Burstable"


def test_the_start_time_is_written_once() -> None:
    view = pod_view(status={"startTime": "2029-12-31T00:00:00Z"})
    assert status(view, process_of())["startTime"] == "2029-12-31T00:00:00Z"


def test_a_container_in_backoff_waits_and_shows_how_it_ended() -> None:
    found = main(status(pod_view(), process_of(attempt=2, running=False, exit_code=3)))
    assert found["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert found["state"]["waiting"]["message"].startswith("back-off 20s restarting failed container=main")
    assert found["lastState"]["terminated"]["exitCode"] == 3
    assert (found["restartCount"], found["ready"]) == (2, False)


def test_a_termination_message_and_a_reason_of_the_driver_are_shown() -> None:
    process = replace(process_of(running=False, exit_code=137), reason="OOMKilled", message="last words")
    ended = main(status(pod_view(restartPolicy="Never"), process))["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (137, "OOMKilled", "last words")


def test_the_cause_of_a_kill_is_in_the_backoff_message() -> None:
    ended = replace(process_of(attempt=2, running=False, exit_code=143), message="Liveness probe failed: x\nlast words")
    found = main(status(pod_view(), ended))
    assert found["state"]["waiting"]["message"].endswith("(u1): Liveness probe failed: x")
    assert found["lastState"]["terminated"]["message"] == "Liveness probe failed: x\nlast words"


def test_a_failing_readiness_probe_is_named_in_the_conditions() -> None:
    health = {"main": Health(ready=False, unready="Readiness probe failed: no answer")}
    found = status(pod_view(), process_of(), health=health)
    messages = {each["type"]: each["message"] for each in found["conditions"]}
    wanted = "containers with unready status: [main]; main: Readiness probe failed: no answer"
    assert (messages["Ready"], messages["ContainersReady"]) == (wanted, wanted)
    ended = status(pod_view(), process_of(running=False, exit_code=1), health=health)
    assert "Readiness" not in str(ended["conditions"]), "a process that does not run is not probed"


def test_a_rejected_pod_shows_no_container() -> None:
    view = pod_view(initContainers=[{"name": "prepare", "image": "i"}])
    found = status(view, rejection=Rejection("OutOfcpu", "no room"))
    assert (found["phase"], found["reason"]) == ("Failed", "OutOfcpu")
    assert (found["containerStatuses"], found["initContainerStatuses"]) == (None, None)
    ran = status(pod_view(), process_of(running=False), rejection=Rejection("OutOfcpu", "a resize does not fit"))
    assert "terminated" in main(ran)["state"]


def test_conditions_name_the_containers_that_are_missing() -> None:
    found = status(pod_view(initContainers=[{"name": "prepare", "image": "i"}]), process_of("prepare"))
    messages = {each["type"]: (each["reason"], each["message"]) for each in found["conditions"]}
    assert messages["Initialized"] == ("ContainersNotInitialized", "containers with incomplete status: [prepare]")
    assert messages["Ready"] == ("ContainersNotReady", "containers with unready status: [main]")
