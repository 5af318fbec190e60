"""The agent as a whole: what it does with processes and claims that an earlier run or incarnation left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.kit.agent import NODE, ONE_ATTEMPT, AgentHarness, claims, with_agent
from tests.kit.controllers import until
from tests.objects import node, pod, pod_key

from kedge.agent.core import Agent
from kedge.agent.core.driver import Identity
from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import AT_MOST_ONE

SOON = replace(ONE_ATTEMPT, agent_audit_s=20.0)


def new_agent(harness: AgentHarness) -> Agent:
    return Agent(harness.client, harness.env, harness.driver, harness.machine, harness.recorder)


async def registered(harness: AgentHarness) -> str:
    """A node that exists before the agent starts. Returns its incarnation."""
    return (await harness.cluster.create(node())).uid


@with_agent()
async def test_a_process_of_a_pod_that_is_gone_is_adopted_and_stopped(harness: AgentHarness) -> None:
    orphan = Identity("gone", "main", 0, 1, await registered(harness))
    harness.driver.run(orphan)
    harness.start(new_agent(harness).run())
    await until(lambda: orphan in harness.driver.forgotten)
    assert harness.driver.stopped == [(orphan, 0.0)]


@with_agent()
async def test_running_processes_of_a_bound_pod_are_adopted_and_not_restarted(harness: AgentHarness) -> None:
    uid = await registered(harness)
    found = await harness.bound_pod()
    running = Identity(found.uid, "main", 0, 1, uid)
    harness.driver.run(running)
    harness.start(new_agent(harness).run())
    await until(lambda: harness.status().phase == "Running")
    assert (harness.driver.started, harness.driver.stopped) == ([], [])


@with_agent()
async def test_processes_of_an_earlier_incarnation_are_stopped_before_any_pod_is_started(
    harness: AgentHarness,
) -> None:
    await registered(harness)
    await harness.bound_pod()
    old = Identity("old-pod", "main", 0, 1, "old-incarnation")
    harness.driver.run(old)
    harness.driver.on_stop = lambda _: None
    harness.start(new_agent(harness).run())
    await until(lambda: harness.driver.stopped)
    await asyncio.sleep(20)
    assert harness.driver.started == [], "the old process still runs"
    harness.driver.end(old)
    await until(lambda: harness.driver.started)


@with_agent()
async def test_a_new_node_is_registered_only_after_every_process_has_ended(harness: AgentHarness) -> None:
    old = Identity("old-pod", "main", 0, 1, "old-incarnation")
    harness.driver.run(old)
    harness.driver.on_stop = lambda _: None
    harness.start(new_agent(harness).run())
    await asyncio.sleep(20)
    assert harness.cluster.find(NODE) is None
    harness.driver.end(old)
    await until(lambda: harness.cluster.find(NODE) is not None)


@with_agent(SOON)
async def test_a_claim_of_a_pod_that_the_agent_never_saw_is_released_by_the_audit(harness: AgentHarness) -> None:
    await registered(harness)
    found = await harness.bound_pod()
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=0))
    assert claims(harness.cluster) == ["web-0"]
    harness.start(new_agent(harness).run())
    await until(lambda: not claims(harness.cluster), within_s=3 * SOON.agent_audit_s)
    assert harness.driver.started == []


@with_agent(SOON)
async def test_a_pod_that_is_not_in_the_cache_is_confirmed_by_the_audit(harness: AgentHarness) -> None:
    """Its worker knows it from the ledger alone: the cache never had it, so no deletion event will come."""
    await registered(harness)
    harness.start(new_agent(harness).run())
    await asyncio.sleep(5)
    harness.transport.mute = True
    found = await harness.bound_pod()
    await until(lambda: harness.driver.started, within_s=3 * SOON.agent_audit_s)
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=0))
    await until(lambda: harness.driver.forgotten, within_s=3 * SOON.agent_audit_s)
    assert (claims(harness.cluster), len(harness.driver.started)) == ([], 1)


@with_agent()
async def test_each_confirmed_heartbeat_extends_at_most_one_processes(harness: AgentHarness) -> None:
    await registered(harness)
    body = pod()
    body["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    await harness.bind(await harness.cluster.create(body))
    harness.start(new_agent(harness).run())
    await until(lambda: len(harness.driver.kept) >= 3)
    harness.transport.dark = True
    await asyncio.sleep(10)
    kept = len(harness.driver.kept)
    await asyncio.sleep(60)
    assert len(harness.driver.kept) == kept


@with_agent()
async def test_processes_keep_running_when_the_agent_is_cancelled(harness: AgentHarness) -> None:
    await registered(harness)
    await harness.bound_pod()
    task = harness.start(new_agent(harness).run())
    await until(lambda: harness.status().phase == "Running")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(30)
    assert harness.driver.stopped == []
    assert harness.cluster.find(pod_key()) is not None
