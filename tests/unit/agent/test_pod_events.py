"""Events of an agent: the reasons of a kubelet, each with its decision, repeats counted, at a bounded rate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tests.kit.agent import ONE_ATTEMPT, AgentHarness, with_agent
from tests.kit.controllers import until
from tests.objects import pod

from kedge.agent.core.driver import CannotStart
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import DECISION_ANNOTATION

LIMITS = replace(ONE_ATTEMPT, agent_restart_s=1.0, agent_restart_s_max=2.0)
EXEC = {"exec": {"command": ["true"]}}
PROBE = {**EXEC, "periodSeconds": 1, "failureThreshold": 1}


async def run(harness: AgentHarness, **container: Any) -> Object:
    """A pod whose container has these fields, and its worker."""
    body = pod()
    body["spec"]["containers"][0].update(container)
    await harness.in_contact()
    found = await harness.bind(await harness.cluster.create(body))
    harness.worker(found)
    return found


async def noted(harness: AgentHarness, reason: str) -> dict[str, Any]:
    await until(lambda: reason in harness.events())
    return harness.events()[reason]


async def crash(harness: AgentHarness, times: int) -> None:
    for number in range(times):
        await until(lambda number=number: len(harness.driver.started) > number)  # type: ignore[misc]
        harness.driver.end(harness.driver.started[number][0], exit_code=3)
    await until(lambda: len(harness.driver.started) > times)
    await asyncio.sleep(1)


async def delete(harness: AgentHarness, found: Object) -> None:
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=30))
    harness.workers[0].update(await harness.cluster.authority.get(found.key))


@with_agent(LIMITS)
async def test_a_start_is_an_event_with_the_decision_that_a_record_has(harness: AgentHarness) -> None:
    found = await run(harness)
    event = await noted(harness, "Started")
    assert (event["type"], event["message"], event["count"]) == ("Normal", "Started container: main", 1)
    assert event["involvedObject"]["uid"] == found.uid
    assert event["source"] == {"component": "agent-node-a"}
    decision = harness.recorder.decision(event["metadata"]["annotations"][DECISION_ANNOTATION])
    assert decision is not None
    assert "start main" in [str(step) for step in decision.steps]


@with_agent(LIMITS)
async def test_a_crash_loop_is_one_event_for_each_reason_with_counts(harness: AgentHarness) -> None:
    await run(harness)
    await crash(harness, 6)
    events = harness.events()
    assert sorted(events) == ["BackOff", "Started"]
    assert (events["Started"]["count"], events["BackOff"]["count"]) == (7, 5), "the first restart has no pause"
    assert events["BackOff"]["type"] == "Warning"
    assert events["BackOff"]["message"] == "Back-off of 2 s before the next start: main"


@with_agent(replace(LIMITS, agent_restart_s=0.1, agent_restart_s_max=0.2, event_burst=3))
async def test_the_events_of_a_crash_loop_have_a_bounded_rate(harness: AgentHarness) -> None:
    await run(harness)
    await crash(harness, 20)
    assert sum(each["count"] for each in harness.events().values()) == 3
    labels = {"controller": "agent-node-a", "why": "rate"}
    assert (harness.env.metrics.registry.get_sample_value("kedge_events_dropped_total", labels) or 0) > 30


@with_agent(LIMITS)
async def test_a_failed_liveness_probe_is_an_event_with_its_output_and_then_the_stop(harness: AgentHarness) -> None:
    harness.driver.probe_passes = lambda _: False
    harness.driver.probe_output = "statuscode: 500"
    await run(harness, livenessProbe=PROBE)
    unhealthy, killing = await noted(harness, "Unhealthy"), await noted(harness, "Killing")
    assert unhealthy["message"] == "Container main: Liveness probe failed: statuscode: 500"
    assert unhealthy["type"] == "Warning"
    assert killing["message"] == "Stopping container, because a probe failed: main"


@with_agent(LIMITS)
async def test_a_readiness_probe_that_keeps_failing_is_one_transition(harness: AgentHarness) -> None:
    harness.driver.probe_passes = lambda _: False
    await run(harness, readinessProbe=PROBE)
    assert (await noted(harness, "Unhealthy"))["message"] == "Container main: Readiness probe failed: no answer"
    await asyncio.sleep(30)
    assert harness.events()["Unhealthy"]["count"] == 1
    harness.driver.probe_passes = lambda _: True
    await asyncio.sleep(3)
    harness.driver.probe_passes = lambda _: False
    await asyncio.sleep(3)
    assert harness.events()["Unhealthy"]["count"] == 2


@with_agent(LIMITS)
async def test_a_failed_post_start_hook_is_an_event_and_no_probe(harness: AgentHarness) -> None:
    harness.driver.hook_result = "exit code 1"
    await run(harness, lifecycle={"postStart": EXEC})
    event = await noted(harness, "FailedPostStartHook")
    assert (event["type"], event["message"]) == ("Warning", "Container main: postStart hook failed: exit code 1")
    assert (await noted(harness, "Killing"))["message"].startswith("Stopping container, because its postStart hook")
    assert "Unhealthy" not in harness.events()


@with_agent(LIMITS)
async def test_a_failed_pre_stop_hook_is_an_event_of_the_deletion(harness: AgentHarness) -> None:
    harness.driver.hook_result = "exit code 2"
    found = await run(harness, lifecycle={"preStop": EXEC})
    await until(lambda: harness.status().phase == "Running")
    await delete(harness, found)
    event = await noted(harness, "FailedPreStopHook")
    assert (event["type"], event["message"]) == ("Warning", "Container main: preStop hook failed: exit code 2")
    assert harness.events()["Killing"]["message"] == "Stopping container, because it is being deleted: main"
    await until(lambda: harness.cluster.find(found.key) is None)
    assert harness.events()["Killing"]["count"] == 1


@with_agent(LIMITS)
async def test_a_container_that_cannot_be_started_is_an_event_with_the_reason(harness: AgentHarness) -> None:
    async def start(*_: Any, **__: Any) -> None:
        raise CannotStart("no such file: server", "CreateContainerError")

    harness.driver.start = start  # type: ignore[method-assign]
    await run(harness)
    event = await noted(harness, "Failed")
    assert event["type"] == "Warning"
    assert event["message"] == "Container main: CreateContainerError: no such file: server"
    assert "Started" not in harness.events()


@with_agent(LIMITS)
async def test_a_pod_that_its_node_does_not_admit_is_an_event_with_the_reason_of_a_kubelet(
    harness: AgentHarness,
) -> None:
    await harness.in_contact()
    body = pod(cpu="64")
    body["spec"]["nodeName"] = "node-a"
    harness.worker(await harness.cluster.create(body))
    event = await noted(harness, "OutOfcpu")
    assert event["type"] == "Warning"
    assert "Node didn't have enough resource: cpu" in event["message"]
    await asyncio.sleep(30)
    assert harness.events()["OutOfcpu"]["count"] == 1


@with_agent(LIMITS)
async def test_an_agent_that_restarts_continues_the_count(harness: AgentHarness) -> None:
    await run(harness)
    await crash(harness, 2)
    before = harness.events()["Started"]["count"]
    harness.workers[0].stop()
    harness.restart()
    stored = harness.cluster.find(harness.workers[0].key)
    assert stored is not None
    harness.worker(stored)
    harness.driver.end(harness.driver.started[-1][0], exit_code=3)
    await until(lambda: harness.events()["Started"]["count"] == before + 1)
