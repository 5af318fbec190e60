"""Lifecycle hooks and references of a pod, through its worker: order, grace, failures, retries."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.agent import AgentHarness, with_agent
from tests.kit.controllers import until
from tests.objects import pod

from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions

EXEC = {"exec": {"command": ["true"]}}


def body(**container: Any) -> dict[str, Any]:
    made = pod()
    made["spec"]["containers"][0].update(container)
    return made


async def bound(harness: AgentHarness, made: dict[str, Any]) -> Object:
    await harness.in_contact()
    found = await harness.bind(await harness.cluster.create(made))
    harness.worker(found)
    return found


def main(harness: AgentHarness) -> Any:
    return harness.status().container_statuses[0]


@with_agent()
async def test_a_container_is_not_started_before_its_post_start_hook_has_ended(harness: AgentHarness) -> None:
    harness.driver.hook_s = 5.0
    await bound(harness, body(lifecycle={"postStart": EXEC}))
    await until(lambda: bool(harness.driver.hooks))
    await until(lambda: harness.status().container_statuses and main(harness).state.running is not None)
    assert (main(harness).started, main(harness).ready) == (False, False)
    await asyncio.sleep(6)
    await until(lambda: main(harness).ready)
    assert len(harness.driver.hooks) == 1


@with_agent()
async def test_a_container_whose_post_start_hook_fails_is_stopped_and_restarted(harness: AgentHarness) -> None:
    harness.driver.hook_result = "exit code 1"
    await bound(harness, body(lifecycle={"postStart": EXEC}))
    await until(lambda: len(harness.driver.started) >= 2)
    assert [identity.attempt for identity, _ in harness.driver.started][:2] == [0, 1]
    assert harness.driver.stopped[0][1] == 30.0
    await until(lambda: main(harness).last_state.terminated is not None)
    message = main(harness).last_state.terminated.message
    assert message == "postStart hook failed: exit code 1; the container was killed"


@with_agent()
async def test_the_failed_probe_is_named_after_the_pre_stop_hook_has_ended(harness: AgentHarness) -> None:
    harness.driver.probe_passes = lambda _: False
    harness.driver.probe_output = "HTTP probe failed with statuscode: 500"
    probe = {"httpGet": {"port": 80}, "periodSeconds": 1, "failureThreshold": 1}
    await bound(harness, body(lifecycle={"preStop": EXEC}, livenessProbe=probe))
    await until(lambda: bool(harness.status().container_statuses) and main(harness).last_state.terminated is not None)
    wanted = "Liveness probe failed: HTTP probe failed with statuscode: 500; the container was killed"
    assert main(harness).last_state.terminated.message == wanted


@with_agent()
async def test_a_pre_stop_hook_ends_before_sigterm_and_takes_from_the_grace(harness: AgentHarness) -> None:
    harness.driver.hook_s = 10.0
    found = await bound(harness, body(lifecycle={"preStop": EXEC}))
    await until(lambda: harness.status().phase == "Running")
    worker = harness.workers[0]
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=30))
    worker.update(await harness.cluster.authority.get(found.key))
    await asyncio.sleep(5)
    assert (len(harness.driver.hooks), harness.driver.stopped) == (1, [])
    worker.wake()  # another plan while the hook runs stops nothing
    await asyncio.sleep(4)
    assert harness.driver.stopped == []
    await until(lambda: bool(harness.driver.stopped))
    assert 19.0 <= harness.driver.stopped[0][1] <= 20.5


@with_agent()
async def test_a_pre_stop_hook_that_takes_the_whole_grace_is_cut_off(harness: AgentHarness) -> None:
    found = await bound(harness, body(lifecycle={"preStop": {"sleep": {"seconds": 3600}}}))
    await until(lambda: harness.status().phase == "Running")
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=8))
    harness.workers[0].update(await harness.cluster.authority.get(found.key))
    await asyncio.sleep(7)
    assert harness.driver.stopped == []
    await until(lambda: bool(harness.driver.stopped))
    assert harness.driver.stopped[0][1] <= harness.env.limits.agent_stop_s_min


@with_agent()
async def test_a_pod_that_is_gone_is_stopped_without_its_hook_and_removed(harness: AgentHarness) -> None:
    found = await bound(harness, body(lifecycle={"preStop": {"sleep": {"seconds": 3600}}}))
    await until(lambda: harness.status().phase == "Running")
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=0))
    harness.workers[0].update(None)
    await until(lambda: harness.finished == [found.uid])
    assert harness.driver.stopped[0][1] == 0.0
    assert harness.driver.removed == [found.uid]


@with_agent()
async def test_a_pod_that_has_ended_keeps_its_logs_until_it_is_deleted(harness: AgentHarness) -> None:
    made = body()
    made["spec"]["restartPolicy"] = "Never"
    found = await bound(harness, made)
    await until(lambda: bool(harness.driver.started))
    harness.driver.end(harness.driver.started[0][0])
    await until(lambda: harness.status().phase == "Succeeded")
    harness.workers[0].update(await harness.cluster.authority.get(found.key))
    await until(lambda: harness.finished == [found.uid])
    assert harness.driver.removed == []


@with_agent()
async def test_a_container_waits_for_a_config_map_and_starts_when_it_is_there(harness: AgentHarness) -> None:
    source = {"configMapKeyRef": {"name": "settings", "key": "color"}}
    await bound(harness, body(env=[{"name": "COLOR", "valueFrom": source}]))
    await until(lambda: bool(harness.status().container_statuses) and main(harness).state.waiting is not None)
    await until(lambda: main(harness).state.waiting.reason == "CreateContainerConfigError")
    assert "ConfigMap default/settings is not found" in main(harness).state.waiting.message
    assert (harness.driver.started, harness.status().phase) == ([], "Pending")
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "default"}}
    await harness.cluster.create({**made, "data": {"color": "blue"}})
    await until(lambda: bool(harness.driver.started), within_s=120)
    assert harness.driver.setups[harness.driver.started[0][0]].env["COLOR"] == "blue"
