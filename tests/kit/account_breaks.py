"""Histories in which a record, a count or a claim is false, and only the objects that it is about show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.raw_cluster import RawCluster
from tests.objects import pod, pod_key

from kedge.agent.core import ContainerSetup, Identity
from kedge.api.codec import encode_object
from kedge.api.views import PodView
from kedge.keys import Key, Origin
from kedge.store import DeleteKey, Put

LEDGER = Key("NodeAllocation.kedge.dev", "", "node-a")
NODE = Key("Node", "", "node-a")


async def claim_raw(raw: RawCluster, *, bind: bool = False, **entry: Any) -> None:
    """Give a second pod a claim like that of the first, apart from `entry`; bind it in the same commit if wanted."""
    first, waiting = await raw.bound(), await raw.cluster.create(pod("web-1"))
    ledger = raw.cluster.find(LEDGER)
    assert ledger is not None
    document, body = ledger.edit(), waiting.edit()
    like = document["status"]["entries"][first]
    state = "Bound" if bind else "Reserved"
    made = {**like, "name": "web-1", "state": state, **entry}
    document["status"]["entries"][waiting.uid] = made
    twice = {"cpu": "200m", "memory": "128Mi", "pods": "2"}
    document["status"]["allocated"] = twice if made["requests"] == like["requests"] else {**twice, "cpu": "101m"}
    writes = [Put(LEDGER, encode_object(document))]
    if bind:
        body["spec"]["nodeName"] = "node-a"
        writes.append(Put(waiting.key, encode_object(body)))
    await raw.cluster.store.commit([], writes)


async def claim_too_little(raw: RawCluster) -> None:
    await claim_raw(raw, requests={"cpu": "1m", "memory": "64Mi", "pods": "1"})


async def claim_in_another_zone(raw: RawCluster) -> None:
    await claim_raw(raw, zone="zone-x")


async def claim_for_another_tenant(raw: RawCluster) -> None:
    await claim_raw(raw, namespace="other")


async def commit_a_gang_whose_members_hold_nothing(raw: RawCluster) -> None:
    """The record lists both members."""
    member = {"name": "web-0", "nodeName": "node-a"}
    record = {
        "apiVersion": "kedge.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": "gang", "namespace": "default"},
        "spec": {"gangSize": 2},
        "status": {"phase": "Committed", "members": {"u-1": member, "u-2": member}},
    }
    await raw.add(record, "g-1")


async def bind_to_a_suspect_node(raw: RawCluster) -> None:
    def suspect(found: dict[str, Any]) -> None:
        suspected = {"type": "Suspect", "status": "True", "observedGeneration": found["metadata"].get("generation", 0)}
        found["status"].setdefault("conditions", []).append(suspected)

    await _bind_after(raw, suspect)


async def bind_to_a_node_that_is_being_deleted(raw: RawCluster) -> None:
    await _bind_after(raw, lambda found: found["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))


async def _bind_after(raw: RawCluster, change: Callable[[dict[str, Any]], None]) -> None:
    await raw.put(NODE, change)
    await claim_raw_of_one(raw)


async def claim_raw_of_one(raw: RawCluster) -> None:
    """Claim and bind one pod past the service, which would refuse the node."""
    waiting = await raw.cluster.create(pod())
    node = raw.cluster.find(NODE)
    assert node is not None
    body, requests = waiting.edit(), {"cpu": "100m", "memory": "64Mi", "pods": "1"}
    body["spec"]["nodeName"] = "node-a"
    zone = node.metadata.labels.get("topology.kubernetes.io/zone", "")
    entry = {"namespace": "default", "name": "web-0", "state": "Bound", "requests": requests, "zone": zone}
    ledger = {
        "apiVersion": "kedge.dev/v1",
        "kind": "NodeAllocation",
        "metadata": {"name": "node-a", "uid": "l-1"},
        "spec": {"nodeUID": node.uid},
        "status": {"entries": {waiting.uid: entry}, "allocated": requests},
    }
    await raw.cluster.store.commit([], [Put(LEDGER, encode_object(ledger)), Put(waiting.key, encode_object(body))])


async def preempt_for_an_equal_priority(raw: RawCluster) -> None:
    await raw.bound()
    await raw.cluster.create(pod("web-1"))
    await raw.cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "default-scheduler:p1:1"))


async def succeed_with_an_exit_code(raw: RawCluster) -> None:
    await raw.bound()
    ended = {"name": "main", "state": {"terminated": {"exitCode": 3}}}
    await raw.put(pod_key(), lambda found: found["status"].update(phase="Succeeded", containerStatuses=[ended]))


async def succeed_after_a_process_that_failed(raw: RawCluster) -> None:
    """The status has no exit code; the machine does."""
    uid, node, driver = await raw.bound(), raw.cluster.find(NODE), raw.cluster.nodes["node-a"].driver
    found = raw.cluster.find(pod_key())
    assert found is not None
    assert node is not None
    view = found.as_view(PodView)
    await driver.start(
        Identity(uid, view.spec.containers[0].name, 0, 0, node.uid),
        view,
        view.spec.containers[0],
        ContainerSetup(),
        keep_s=None,
    )
    driver.crash_process(uid)
    await raw.put(pod_key(), lambda found: found["status"].update(phase="Succeeded"))


async def succeed_after_failing(raw: RawCluster) -> None:
    await raw.bound()
    await raw.put(pod_key(), lambda found: found["status"].update(phase="Failed"))
    await raw.put(pod_key(), lambda found: found["status"].update(phase="Succeeded"))


async def count_a_success_that_no_pod_had(raw: RawCluster) -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {**pod()["spec"], "restartPolicy": "Never"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "namespace": "default"}}
    await raw.add({**job, "spec": {"template": template}, "status": {"succeeded": 1}}, "j-1")


ACCOUNT_BREAKS = [
    (claim_too_little, "a claim covers its pod"),
    (claim_in_another_zone, "a claim covers its pod"),
    (claim_for_another_tenant, "a claim covers its pod"),
    (commit_a_gang_whose_members_hold_nothing, "a gang is committed whole"),
    (bind_to_a_suspect_node, "nothing is bound to a suspect node"),
    (bind_to_a_node_that_is_being_deleted, "nothing is bound to a suspect node"),
    (preempt_for_an_equal_priority, "only a higher priority preempts"),
    (succeed_with_an_exit_code, "a failed pod never succeeds"),
    (succeed_after_a_process_that_failed, "a failed pod never succeeds"),
    (succeed_after_failing, "a failed pod never succeeds"),
    (count_a_success_that_no_pod_had, "a job counts pods that succeeded"),
]
