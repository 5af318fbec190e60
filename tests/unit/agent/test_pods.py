"""A pod's worker: what must be proved before a start, a stop or a status write, and what a restart continues."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from tests.kit.agent import LEDGER, ONE_ATTEMPT, AgentHarness, claims, with_agent
from tests.kit.controllers import until
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP, config_map, node, pod, pod_key

from kedge.agent.core.driver import ContainerSetup, FileVolume, Identity, PullFailed
from kedge.agent.core.pods import PodWorker
from kedge.api.requests import Delete, DeleteOptions, Patch, Request
from kedge.api.wellknown import AT_MOST_ONE
from kedge.keys import Key

NODE_KEY = Key("Node", "", "node-a")
QUICK_RESTARTS = replace(ONE_ATTEMPT, agent_restart_s=0.1, agent_restart_s_max=0.2)


def started(harness: AgentHarness) -> list[Identity]:
    return [identity for identity, _ in harness.driver.started]


def has_started(harness: AgentHarness, count: int) -> bool:
    return len(started(harness)) == count


def at_most_one(**body: Any) -> dict[str, Any]:
    made = pod(**body)
    made["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    return made


async def running(harness: AgentHarness, **body: Any) -> Identity:
    """A pod that the worker of this test runs."""
    await harness.in_contact()
    harness.worker(await harness.bound_pod(**body))
    await until(lambda: harness.driver.started)
    await until(lambda: harness.status().phase == "Running")
    return started(harness)[0]


# -- start -----------------------------------------------------------------------------------------


@with_agent()
async def test_a_process_is_started_for_pod_uid_bind_revision_and_node_incarnation(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()
    proved = harness.cluster.find(NODE_KEY)
    assert proved is not None
    harness.worker(found)
    await until(lambda: harness.driver.started)
    assert started(harness) == [Identity(found.uid, "main", 0, proved.revision, harness.node.uid)]
    await until(lambda: harness.status().phase == "Running")
    assert harness.status().pod_ip == "10.0.0.1"


@with_agent()
async def test_a_pod_that_was_deleted_since_the_cache_saw_it_is_not_started(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()
    await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=0))
    worker = harness.worker(found)
    await asyncio.sleep(5)
    worker.update(None)
    await until(lambda: harness.finished == [found.uid])
    assert (started(harness), claims(harness.cluster)) == ([], [])


@with_agent()
async def test_a_pod_that_is_deleted_during_the_pull_is_not_started(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()

    async def delete() -> None:
        await harness.cluster.authority.delete(found.key)

    harness.driver.after_pull = delete
    harness.worker(found)
    await asyncio.sleep(10)
    assert started(harness) == []


@with_agent()
async def test_a_pod_of_the_same_name_is_not_started_for_the_worker_of_the_first(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()

    async def replace_pod() -> None:
        await harness.cluster.authority.delete(found.key, DeleteOptions(grace_s=0))
        await harness.bound_pod()

    harness.driver.after_pull = replace_pod
    harness.worker(found)
    await until(lambda: harness.finished == [found.uid])
    assert started(harness) == []


@with_agent()
async def test_a_claim_counts_only_in_the_ledger_of_this_incarnation(harness: AgentHarness) -> None:
    await harness.in_contact()
    context, mine = harness.context, harness.node.uid
    assert await context.claim_is_held("u1", mine) is None, "there is no ledger yet"
    found = await harness.bound_pod()
    assert await context.claim_is_held(found.uid, mine) is True
    assert await context.claim_is_held("u1", mine) is False
    assert await context.claim_is_held(found.uid, "another") is None
    assert await context.claim_is_held(found.uid, "") is None


@with_agent()
async def test_a_pod_whose_claim_was_released_is_ended_and_not_started(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()

    async def released(*_: str) -> bool:
        return False

    with replaced(harness.context, "claim_is_held", released):
        harness.worker(found)
        await until(lambda: harness.status().phase == "Failed")
    assert (harness.status().reason, started(harness)) == ("NodeReplaced", [])


@with_agent()
async def test_a_pod_that_was_bound_to_an_earlier_incarnation_is_not_started(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()
    await harness.cluster.authority.delete(NODE_KEY)
    await harness.node.register()
    harness.node.contact_s = harness.env.monotonic()
    harness.worker(found)
    await asyncio.sleep(10)
    assert started(harness) == []


@with_agent()
async def test_a_node_that_is_replaced_between_the_proof_and_the_start_starts_nothing(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()
    mine = harness.node.uid

    async def replace_node(request: Request[Any]) -> None:
        if request.target == LEDGER:
            harness.node.uid = "another"

    harness.transport.before = replace_node
    harness.worker(found)
    await asyncio.sleep(5)
    assert started(harness) == []
    harness.transport.before, harness.node.uid = None, mine
    await until(lambda: harness.driver.started)


@with_agent()
async def test_a_proof_that_took_too_long_starts_nothing(harness: AgentHarness) -> None:
    """Between a slow read and its answer the pod may have been moved: the proof is made again."""
    await harness.in_contact()
    found = await harness.bound_pod()

    async def slow(request: Request[Any]) -> None:
        if request.target == LEDGER:
            await asyncio.sleep(harness.env.limits.agent_proof_s + 0.5)

    harness.transport.before = slow
    harness.worker(found)
    await asyncio.sleep(4 * harness.env.limits.agent_proof_s)
    assert started(harness) == []
    harness.transport.before = None
    await until(lambda: harness.driver.started)


@with_agent()
async def test_an_image_that_cannot_be_pulled_is_shown_and_tried_again(harness: AgentHarness) -> None:
    await harness.in_contact()
    harness.driver.pull_error = PullFailed("no registry")
    harness.worker(await harness.bound_pod())
    await until(lambda: bool(harness.status().container_statuses))
    await until(lambda: harness.status().container_statuses[0].state.waiting.reason == "ImagePullBackOff")
    assert started(harness) == []
    harness.driver.pull_error = None
    await until(lambda: harness.status().phase == "Running")


# -- restart ---------------------------------------------------------------------------------------


@with_agent(QUICK_RESTARTS)
async def test_a_container_that_failed_is_started_again_as_the_next_attempt(harness: AgentHarness) -> None:
    first = await running(harness)
    harness.driver.end(first, exit_code=1)
    await until(lambda: len(started(harness)) == 2)
    assert started(harness)[1] == first._replace(attempt=1)
    await until(lambda: harness.status().container_statuses[0].restart_count == 1)
    assert harness.status().container_statuses[0].last_state.terminated.exit_code == 1


@with_agent(QUICK_RESTARTS)
async def test_only_the_last_ended_process_of_a_container_is_kept(harness: AgentHarness) -> None:
    first = await running(harness)
    for attempt in range(3):
        harness.driver.end(first._replace(attempt=attempt), exit_code=1)
        await until(partial(has_started, harness, attempt + 2))
    await until(lambda: len(harness.driver.forgotten) == 2)
    assert {each.attempt for each in harness.driver.table} == {2, 3}


@with_agent()
async def test_a_new_worker_continues_with_the_processes_that_run(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()
    harness.driver.run(Identity(found.uid, "main", 2, 1, harness.node.uid))
    harness.worker(found)
    await until(lambda: harness.status().phase == "Running")
    assert started(harness) == []
    assert harness.status().container_statuses[0].restart_count == 2


# -- stop ------------------------------------------------------------------------------------------


@with_agent()
async def test_a_pod_that_is_missing_in_the_cache_alone_keeps_running(harness: AgentHarness) -> None:
    identity = await running(harness)
    worker_of(harness).update(None)
    await asyncio.sleep(30)
    assert (harness.driver.stopped, harness.finished) == ([], [])
    assert harness.driver.table[identity].running


@with_agent()
async def test_a_missing_pod_is_not_stopped_while_the_api_does_not_answer(harness: AgentHarness) -> None:
    await running(harness)
    harness.transport.dark = True
    worker_of(harness).update(None)
    await asyncio.sleep(30)
    assert harness.driver.stopped == []


@with_agent()
async def test_a_forced_deletion_is_confirmed_only_after_the_process_has_ended(harness: AgentHarness) -> None:
    identity = await running(harness)
    harness.driver.on_stop = lambda _: None
    await harness.cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
    worker_of(harness).update(None)
    await until(lambda: harness.driver.stopped)
    assert harness.driver.stopped[0] == (identity, 0.0)
    await asyncio.sleep(10)
    assert (claims(harness.cluster), harness.finished) == (["web-0"], [])
    harness.driver.end(identity)
    await until(lambda: harness.finished == [identity.pod_uid])
    assert (claims(harness.cluster), harness.driver.forgotten) == ([], [identity])


@with_agent()
async def test_a_deleted_pod_is_stopped_within_its_grace_and_removed_after_its_end_is_recorded(
    harness: AgentHarness,
) -> None:
    identity = await running(harness, terminationGracePeriodSeconds=7)
    harness.driver.on_stop = lambda _: None
    await harness.cluster.authority.delete(pod_key())
    worker_of(harness).update(await harness.cluster.authority.get(pod_key()))
    await until(lambda: harness.driver.stopped)
    assert harness.driver.stopped[0][1] <= 7.0
    assert harness.cluster.find(pod_key()) is not None
    harness.driver.end(identity)
    await until(lambda: harness.cluster.find(pod_key()) is None)
    assert claims(harness.cluster) == []


@with_agent()
async def test_an_older_version_from_the_cache_does_not_replace_an_own_write(harness: AgentHarness) -> None:
    await harness.in_contact()
    found = await harness.bound_pod()
    worker = harness.worker(found)
    await until(lambda: harness.status().phase == "Running" and "Started" in harness.events())
    harness.transport.asked.clear()
    worker.update(found)
    await asyncio.sleep(5)
    assert (harness.transport.asked, worker.awaits_contact) == ([], False)


# -- contact ---------------------------------------------------------------------------------------


@with_agent()
async def test_an_at_most_one_pod_is_started_with_the_time_that_contact_allows(harness: AgentHarness) -> None:
    await harness.in_contact()
    made = await harness.cluster.create(at_most_one())
    harness.worker(await harness.bind(made))
    await until(lambda: harness.driver.started)
    keep_s = harness.driver.started[0][1]
    assert keep_s is not None
    assert 0 < keep_s <= harness.env.limits.agent_contact_s


@with_agent()
async def test_an_at_most_one_pod_is_not_started_after_too_long_without_contact(harness: AgentHarness) -> None:
    await harness.in_contact()
    made = await harness.cluster.create(at_most_one())

    async def lose_contact() -> None:
        harness.node.contact_s = harness.env.monotonic() - harness.env.limits.agent_contact_s

    harness.driver.after_pull = lose_contact
    harness.worker(await harness.bind(made))
    await asyncio.sleep(5)
    assert started(harness) == []
    harness.node.contact_s = harness.env.monotonic()
    await until(lambda: harness.driver.started)


@with_agent()
async def test_contact_extends_the_time_of_running_at_most_one_processes(harness: AgentHarness) -> None:
    await harness.in_contact()
    made = await harness.cluster.create(at_most_one())
    worker = harness.worker(await harness.bind(made))
    await until(lambda: harness.driver.started)
    assert worker.at_most_one
    await worker.keep()
    assert harness.driver.kept == started(harness)


@with_agent()
async def test_a_status_is_written_only_after_a_heartbeat(harness: AgentHarness) -> None:
    """Before it the node lifecycle would write Unknown over it, and the two would write in a loop."""
    await harness.node.register()
    worker = harness.worker(await harness.bound_pod())
    await asyncio.sleep(10)
    assert (worker.awaits_contact, harness.status().container_statuses) == (True, ())
    harness.node.contact_s = harness.env.monotonic()
    worker.wake()
    await until(lambda: harness.status().phase == "Running")
    assert not worker.awaits_contact


@with_agent()
async def test_a_status_that_was_overwritten_is_written_again_only_after_the_next_heartbeat(
    harness: AgentHarness,
) -> None:
    await running(harness)
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    await harness.cluster.authority.patch(pod_key(), {"status": {"conditions": [unknown]}}, subresource="status")
    worker = worker_of(harness)
    worker.update(await harness.cluster.authority.get(pod_key()))
    await asyncio.sleep(5)
    assert (worker.awaits_contact, ready(harness)) == (True, "Unknown")
    harness.node.contact_s = harness.env.monotonic()
    worker.wake()
    await until(lambda: ready(harness) == "True")


@with_agent()
async def test_a_pod_that_another_process_replaced_the_node_of_is_not_confirmed_by_this_one(
    harness: AgentHarness,
) -> None:
    """The ledger of a new incarnation holds claims of its own: a confirmation names the incarnation it is for."""
    identity = await running(harness)
    await harness.cluster.authority.delete(NODE_KEY)
    await harness.cluster.create(node())
    await harness.cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
    worker_of(harness).update(None)
    await until(lambda: harness.finished == [identity.pod_uid])


# -- another pod of the same name ------------------------------------------------------------------


async def replace_pod(harness: AgentHarness, **status: Any) -> str:
    """Delete the pod by force, and create another of its name on no node. Returns the uid of that one."""
    await harness.cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
    made = await harness.cluster.create(pod())
    if status:
        await harness.cluster.authority.patch(pod_key(), {"status": status}, subresource="status")
    return made.uid


@with_agent()
async def test_the_end_of_another_pod_of_the_same_name_is_not_taken_for_the_end_of_this_one(
    harness: AgentHarness,
) -> None:
    """A status write meets a conflict, and the pod that is read then is another one, which has ended.

    Taken for this one, it would count as ended, and the claim of this one would never be confirmed.
    """
    await harness.in_contact()
    found = await harness.bound_pod()
    replaced_by: list[str] = []

    async def replace_first(request: Request[Any]) -> None:
        if isinstance(request, Patch) and request.target == pod_key() and not replaced_by:
            replaced_by.append("")  # before the first await: the worker must not come here again
            replaced_by[0] = await replace_pod(harness, phase="Succeeded")

    harness.transport.before = replace_first
    worker = harness.worker(found)
    await until(lambda: replaced_by and replaced_by[0])
    await asyncio.sleep(5)
    worker.update(None)
    await until(lambda: harness.finished == [found.uid])
    assert claims(harness.cluster) == []
    left = harness.cluster.find(pod_key())
    assert left is not None
    assert left.uid == replaced_by[0]


@with_agent()
async def test_the_removal_of_an_ended_pod_spares_another_of_the_same_name(harness: AgentHarness) -> None:
    identity = await running(harness, terminationGracePeriodSeconds=1)
    await harness.cluster.authority.delete(pod_key())
    replaced_by: list[str] = []

    async def replace_first(request: Request[Any]) -> None:
        if isinstance(request, Delete) and request.target == pod_key() and not replaced_by:
            replaced_by.append("")
            replaced_by[0] = await replace_pod(harness)

    harness.transport.before = replace_first
    worker_of(harness).update(await harness.cluster.authority.get(pod_key()))
    await until(lambda: replaced_by and replaced_by[0])
    worker_of(harness).update(None)
    await until(lambda: harness.finished == [identity.pod_uid])
    left = harness.cluster.find(pod_key())
    assert left is not None
    assert left.uid == replaced_by[0]
    assert left.view.metadata.deletion_timestamp is None


def worker_of(harness: AgentHarness) -> PodWorker:
    (worker,) = harness.workers
    return worker


def ready(harness: AgentHarness) -> str:
    found: str = next(each.status for each in harness.status().conditions if each.type == "Ready")
    return found


# -- files of running containers -------------------------------------------------------------------


def with_files(name: str) -> dict[str, Any]:
    mounts = [{"name": "v", "mountPath": "/v"}]
    container = {"name": "main", "image": "x", "command": ["run"], "volumeMounts": mounts}
    return {"containers": [container], "volumes": [{"name": "v", "configMap": {"name": name}}]}


def files(setup: ContainerSetup) -> dict[str, bytes]:
    (mount,) = setup.mounts
    assert isinstance(mount.volume, FileVolume)
    return {each.path: each.data for each in mount.volume.files}


@with_agent(limits=replace(ONE_ATTEMPT, agent_refresh_s=5.0))
async def test_a_changed_config_map_reaches_a_running_container_without_a_restart(harness: AgentHarness) -> None:
    await harness.cluster.authority.create(CONFIG_MAP, config_map("settings", color="blue"), namespace="default")
    await harness.in_contact()
    harness.worker(await harness.bound_pod(**with_files("settings")))
    await until(lambda: harness.driver.started)
    assert [files(each) for each in harness.driver.setups.values()] == [{"color": b"blue"}]
    key = Key("ConfigMap", "default", "settings")
    await harness.cluster.authority.patch(key, {"data": {"color": "red"}})
    await until(lambda: harness.driver.updated and files(harness.driver.updated[-1]) == {"color": b"red"})
    count = len(harness.driver.updated)
    await harness.cluster.authority.delete(key, DeleteOptions())
    await asyncio.sleep(20)
    assert len(harness.driver.updated) <= count + 1, "without the object the files stay as they are"
    assert len(started(harness)) == 1
