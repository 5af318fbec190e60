"""The registration of a node: created once, renewed, verified, and registered again only after a clear."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.agent import ONE_ATTEMPT, AgentHarness, with_agent
from tests.kit.controllers import until
from tests.objects import NODE, node

from kedge.agent.core.driver import Consumption, Identity
from kedge.api.conditions import find_condition, is_true
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, Request
from kedge.api.usage import parse_usage
from kedge.api.views import NodeSystemInfo
from kedge.api.wellknown import NODE_LEASE_NAMESPACE, USAGE
from kedge.errors import Unavailable
from kedge.keys import Key

NODE_KEY = Key("Node", "", "node-a")
LEASE = Key("Lease.coordination.k8s.io", NODE_LEASE_NAMESPACE, "node-a")


def lease(harness: AgentHarness) -> Object:
    found = harness.cluster.find(LEASE)
    assert found is not None, "there is no lease"
    return found


def stored(harness: AgentHarness) -> Object:
    found = harness.cluster.find(NODE_KEY)
    assert found is not None, "there is no node"
    return found


async def set_ready(harness: AgentHarness, status: str) -> None:
    condition = {"type": "Ready", "status": status, "reason": "NodeStatusUnknown"}
    await harness.cluster.authority.patch(NODE_KEY, {"status": {"conditions": [condition]}}, subresource="status")


def is_ready(harness: AgentHarness) -> bool:
    return is_true(stored(harness).view.status.conditions, "Ready")


@with_agent()
async def test_a_new_node_is_created_only_after_the_processes_of_a_former_one_were_cleared(
    harness: AgentHarness,
) -> None:
    await harness.node.register()
    assert harness.clears == ["clear at 0 nodes"]
    found = stored(harness)
    assert (harness.node.uid, is_ready(harness)) == (found.uid, True)
    assert found.metadata.labels["kubernetes.io/hostname"] == "node-a"
    assert dict(found.view.status.allocatable).keys() == {"cpu", "memory", "pods"}


@with_agent()
async def test_an_existing_node_keeps_its_incarnation_and_its_processes(harness: AgentHarness) -> None:
    await harness.cluster.create(node())
    await harness.node.register()
    assert (harness.node.uid, harness.clears) == (stored(harness).uid, [])


@with_agent()
async def test_a_node_that_is_being_deleted_is_not_adopted(harness: AgentHarness) -> None:
    body = node()
    body["metadata"]["finalizers"] = ["example.com/wait"]
    old = await harness.cluster.create(body)
    await harness.cluster.authority.delete(NODE_KEY)
    task = harness.start(harness.node.register())
    await asyncio.sleep(10)
    assert (task.done(), harness.node.uid) == (False, "")
    await harness.cluster.authority.patch(NODE_KEY, {"metadata": {"finalizers": None}})
    await until(task.done)
    assert harness.node.uid not in ("", old.uid)
    assert harness.clears == ["clear at 0 nodes"]


@with_agent()
async def test_registration_is_tried_until_the_api_answers(harness: AgentHarness) -> None:
    harness.transport.dark = True
    task = harness.start(harness.node.register())
    await asyncio.sleep(30)
    assert not task.done()
    harness.transport.dark = False
    await until(task.done)
    assert harness.node.uid == stored(harness).uid


@with_agent()
async def test_a_reboot_updates_the_boot_id_and_keeps_a_changed_allocatable(harness: AgentHarness) -> None:
    await harness.node.register()
    await harness.cluster.authority.patch(NODE_KEY, {"status": {"allocatable": {"cpu": "3"}}}, subresource="status")
    harness.machine = replace(harness.machine, boot_id="boot-2")
    await harness.registration().register()
    status = stored(harness).view.status
    assert (status.node_info.boot_id, str(status.allocatable["cpu"])) == ("boot-2", "3")


@with_agent()
async def test_a_node_has_every_field_of_its_system_and_the_times_of_its_conditions(harness: AgentHarness) -> None:
    harness.machine = replace(harness.machine, system=NodeSystemInfo(kernel_version="6.1", architecture="arm64"))
    await harness.registration().register()
    status = stored(harness).edit()["status"]
    assert status["nodeInfo"] == {
        "machineID": "", "systemUUID": "", "bootID": "boot-1", "kernelVersion": "6.1", "osImage": "",
        "containerRuntimeVersion": "", "kubeletVersion": "kedge", "kubeProxyVersion": "", "operatingSystem": "",
        "architecture": "arm64",
    }  # fmt: skip
    (ready,) = status["conditions"]
    assert ready["lastTransitionTime"] == ready["lastHeartbeatTime"] != ""


@with_agent()
async def test_the_system_of_an_existing_node_is_completed_once(harness: AgentHarness) -> None:
    await harness.node.register()
    await harness.cluster.authority.patch(NODE_KEY, {"status": {"nodeInfo": None}}, subresource="status")
    await harness.registration().register()
    found = stored(harness)
    assert len(found.edit()["status"]["nodeInfo"]) == 10
    await harness.registration().register()
    assert stored(harness).revision == found.revision, "times alone are not written"


# -- heartbeats ------------------------------------------------------------------------------------


@with_agent()
async def test_the_lease_is_created_once_and_then_renewed(harness: AgentHarness) -> None:
    await harness.node.register()
    harness.start(harness.node.run())
    await until(lambda: harness.cluster.find(LEASE) is not None)
    first = lease(harness)
    assert first.view.spec.holder_identity == "node-a"
    await asyncio.sleep(3 * harness.env.limits.node_renew_s)
    last = lease(harness)
    assert last.uid == first.uid
    assert last.view.spec.renew_time > first.view.spec.renew_time
    assert harness.calls.count("contact") >= 3


@with_agent()
async def test_contact_counts_from_when_a_confirmed_renewal_was_sent(harness: AgentHarness) -> None:
    """The server may have counted the renewal at any moment since then, so nothing later is safe."""
    await harness.node.register()

    async def slow(request: Request[Any]) -> None:
        if request.target == LEASE:
            await asyncio.sleep(1.5)

    harness.transport.before = slow
    began_s = harness.env.monotonic()
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    assert harness.node.contact_s == pytest.approx(began_s, abs=0.2)
    assert harness.env.monotonic() - harness.node.contact_s > 1.4


@with_agent()
async def test_a_renewal_that_is_not_confirmed_is_no_contact(harness: AgentHarness) -> None:
    await harness.node.register()
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    harness.transport.dark = True
    await asyncio.sleep(harness.env.limits.node_suspect_s + 1)
    before_s, contacts = harness.node.contact_s, harness.calls.count("contact")
    assert not harness.node.in_contact
    await asyncio.sleep(60)
    assert (harness.node.contact_s, harness.calls.count("contact")) == (before_s, contacts)
    harness.transport.dark = False
    await until(lambda: harness.node.in_contact)


@with_agent()
async def test_a_restarted_agent_is_not_in_contact_before_its_first_renewal(harness: AgentHarness) -> None:
    await harness.node.register()
    assert not harness.node.in_contact
    assert harness.node.keep_s() < 0
    harness.node.contact_s = harness.env.monotonic()
    assert harness.node.in_contact
    assert harness.node.keep_s() == pytest.approx(harness.env.limits.agent_contact_s)


@with_agent()
async def test_a_lease_that_another_writer_changed_is_read_again_and_renewed(harness: AgentHarness) -> None:
    await harness.node.register()
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    await harness.cluster.authority.patch(LEASE, {"metadata": {"labels": {"seen": "yes"}}})
    changed = lease(harness)
    await until(lambda: lease(harness).revision > changed.revision)
    assert lease(harness).metadata.labels == {"seen": "yes"}
    await harness.cluster.authority.delete(LEASE)
    await until(lambda: harness.cluster.find(LEASE) is not None)


@with_agent()
async def test_the_usage_report_is_set_on_the_lease_and_removed_when_it_is_outdated(harness: AgentHarness) -> None:
    await harness.node.register()
    identity = Identity("u1", "main", 0, 0, harness.node.uid)
    harness.driver.run(identity)
    harness.driver.usage = {identity: Consumption(0.0)}
    harness.start(harness.node.run())
    await until(lambda: USAGE in lease(harness).metadata.annotations if "contact" in harness.calls else False)
    harness.driver.usage = {}
    await until(lambda: USAGE not in lease(harness).metadata.annotations)


@with_agent()
async def test_a_node_without_processes_reports_that_it_uses_nothing(harness: AgentHarness) -> None:
    await harness.node.register()
    ended = Identity("u1", "main", 0, 0, harness.node.uid)
    harness.driver.run(ended)
    harness.driver.end(ended)
    harness.start(harness.node.run())
    await until(lambda: USAGE in lease(harness).metadata.annotations if "contact" in harness.calls else False)
    report = parse_usage(lease(harness).metadata.annotations[USAGE])
    assert (dict(report.pods), report.window_seconds > 0) == ({}, True)
    harness.driver.run(Identity("u2", "main", 0, 0, harness.node.uid))  # it cannot be measured: its usage is not zero
    await until(lambda: USAGE not in lease(harness).metadata.annotations)


# -- identity --------------------------------------------------------------------------------------


@with_agent()
async def test_a_node_that_was_deleted_is_registered_again_as_a_new_incarnation(harness: AgentHarness) -> None:
    await harness.node.register()
    first = harness.node.uid
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    harness.calls.clear()
    await harness.cluster.authority.delete(NODE_KEY)
    await until(lambda: harness.node.uid not in ("", first))
    assert harness.clears[0] == "clear at 0 nodes"
    assert harness.node.uid == stored(harness).uid


@with_agent()
async def test_a_node_that_another_process_replaced_is_adopted_only_after_a_clear(harness: AgentHarness) -> None:
    await harness.node.register()
    first = harness.node.uid
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    harness.calls.clear()
    await harness.cluster.authority.delete(NODE_KEY, DeleteOptions(grace_s=0))
    replaced = (await harness.cluster.authority.create(NODE, node())).object
    await until(lambda: harness.node.uid not in ("", first))
    assert harness.node.uid == replaced.uid
    assert harness.clears == ["clear at 1 nodes"]


@with_agent()
async def test_a_node_that_was_deleted_before_the_cache_listed_is_noticed(harness: AgentHarness) -> None:
    """The first list finds nothing and brings no change: the content of the cache has to be checked."""
    await harness.node.register()
    first = harness.node.uid
    await harness.cluster.authority.delete(NODE_KEY)
    harness.start(harness.node.run())
    await until(lambda: harness.node.uid not in ("", first))


@with_agent()
async def test_a_deletion_is_verified_again_until_the_api_answers(harness: AgentHarness) -> None:
    await harness.node.register()
    first = harness.node.uid
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    failures = iter(range(3))

    async def fail_reads(request: Request[Any]) -> None:
        if request.target == NODE_KEY and next(failures, None) is not None:
            raise Unavailable("no reply")

    harness.transport.before = fail_reads
    await harness.cluster.authority.delete(NODE_KEY)
    await until(lambda: harness.node.uid not in ("", first))


@with_agent()
async def test_ready_is_written_again_after_another_writer_took_it_back(harness: AgentHarness) -> None:
    await harness.node.register()
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    await set_ready(harness, "Unknown")
    await until(lambda: is_ready(harness))


@with_agent(replace(ONE_ATTEMPT, node_renew_s=10.0))
async def test_ready_is_corrected_at_most_once_per_heartbeat(harness: AgentHarness) -> None:
    """A lifecycle with late leases writes Unknown after every Ready: the two must not write in a tight loop."""
    await harness.node.register()
    harness.start(harness.node.run())
    await until(lambda: "contact" in harness.calls)
    corrections = 0
    began_s = harness.env.monotonic()
    while harness.env.monotonic() - began_s < 60:
        await set_ready(harness, "Unknown")
        await until(lambda: is_ready(harness))
        corrections += 1
    assert 3 <= corrections <= 8
    assert find_condition(stored(harness).view.status.conditions, "Ready") is not None
