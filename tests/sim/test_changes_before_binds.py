"""Changes between a decision and its bind: labels, the node, the whole namespace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, with_scheduler
from tests.objects import NAMESPACE, NODE, POD, node, pod, reservation

from kedge.api.objects import Object
from kedge.api.requests import Binding
from kedge.controllers.namespace.controller import namespace_controller
from kedge.errors import Refused
from kedge.keys import Key
from kedge.placement.reasons import Reason
from kedge.runtime import ControllerRuntime

WEB = Key("Pod", "default", "web")


async def decided(harness: SchedulerHarness, *nodes: dict[str, Any], **spec: Any) -> Object:
    """A scheduler that has decided for a pod, with its bind in flight."""
    await harness.open_for(*nodes)
    harness.wire.binds_held = True
    made = await harness.pod("web", cpu="400m", **spec)
    await until(lambda: harness.scheduler.statistics().binding == 1)
    await asyncio.sleep(1)
    assert harness.place("web") == ""
    return made


def claims(harness: SchedulerHarness) -> dict[str, tuple[str, str]]:
    """By pod name: the node of its claim, and the node uid of that ledger."""
    return {
        entry.name: (ledger.key.name, ledger.view.spec.node_uid)
        for ledger in harness.cluster.all("NodeAllocation.kedge.dev")
        for entry in ledger.view.status.entries.values()
    }


def refusals(harness: SchedulerHarness) -> list[str]:
    return [each.error for each in harness.decisions() if each.error]


# -- the pod ---------------------------------------------------------------------------------------


@with_scheduler()
async def test_labels_that_change_before_the_bind_survive_it_and_count(
    harness: SchedulerHarness,
) -> None:
    await decided(harness, node("node-a", cpu="1"))
    patch = {"metadata": {"labels": {"app": "loud", "new": "yes"}, "annotations": {"note": "mine"}}}
    await harness.cluster.authority.patch(WEB, patch)
    harness.wire.binds_held = False
    await until(lambda: harness.place("web") == "node-a")
    found = harness.cluster.find(WEB)
    assert found is not None
    assert found.metadata.labels["app"] == "loud"
    assert found.metadata.labels["new"] == "yes"
    assert found.metadata.annotations["note"] == "mine"
    term = {"labelSelector": {"matchLabels": {"app": "loud"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    await harness.pod("quiet", cpu="100m", affinity=apart)
    await until(lambda: "anti-affinity" in harness.reason("quiet"))
    assert harness.place("quiet") == ""
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_pod_that_joins_a_gang_before_the_bind_is_bound_with_the_gang_or_not_at_all(
    harness: SchedulerHarness,
) -> None:
    await decided(harness, node("node-a", cpu="1"))
    await join(harness, "web")
    harness.wire.binds_held = False
    await asyncio.sleep(20)
    assert harness.place("web") == ""
    assert claims(harness) == {}
    await until(lambda: harness.reason("web") == "gang crew: 1 of its 2 members exist")
    await harness.gang("other", size=2, cpu="400m")
    await until(lambda: harness.place("web") == harness.place("other") == "node-a")
    await until(lambda: not harness.cluster.all("Reservation.kedge.dev"))
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_reservation_of_a_single_pod_is_not_one_in_the_gang_that_it_joins(
    harness: SchedulerHarness,
) -> None:
    """1. A scheduler sees the reservation, and binds the pod there. 2. The pod joins a gang. 3. The bind arrives."""
    await harness.cluster.create(node("node-a", cpu="1"))
    alone = await harness.pod("web", cpu="400m", schedulerName="another")
    held = reservation(alone, "node-a")
    held["spec"]["deadline"] = "2060-01-01T00:00:00Z"
    await harness.cluster.create(held)
    await join(harness, "web")
    with pytest.raises(Refused) as refused:
        await harness.cluster.authority.bind(Binding(pod=alone.key, pod_uid=alone.uid, node="node-a"))
    assert refused.value.refusal == Reason.GANG_NOT_COMMITTED
    assert harness.place("web") == ""
    patch = {"metadata": {"labels": {"kedge.dev/gang": None}}}
    await harness.cluster.authority.patch(alone.key, patch)
    await harness.cluster.authority.bind(Binding(pod=alone.key, pod_uid=alone.uid, node="node-a"))
    assert harness.place("web") == "node-a"


async def join(harness: SchedulerHarness, name: str) -> None:
    patch = {"metadata": {"labels": {"kedge.dev/gang": "crew"}, "annotations": {"kedge.dev/gang-size": "2"}}}
    await harness.cluster.authority.patch(Key("Pod", "default", name), patch)


# -- the node --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [False, True], ids=["unseen", "seen before the bind is sent"])
def test_a_node_replaced_before_the_bind_is_not_confused_with_its_replacement(seen: bool) -> None:
    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        await decided(harness, node("node-a", cpu="1"))
        harness.wire.nodes_held = not seen
        await harness.cluster.authority.delete(Key("Node", "", "node-a"))
        tainted = node("node-a", cpu="1", taints=[{"key": "new", "effect": "NoSchedule"}])
        another = (await harness.cluster.authority.create(NODE, tainted)).object
        await asyncio.sleep(1)
        harness.wire.binds_held = False
        await asyncio.sleep(10)
        harness.wire.nodes_held = False
        assert harness.place("web") == ""
        assert claims(harness) == {}
        await until(lambda: "taint" in harness.reason("web"))
        await harness.cluster.authority.patch(another.key, {"spec": {"taints": None}})
        await until(lambda: harness.place("web") == "node-a")
        assert claims(harness) == {"web": ("node-a", another.uid)}
        assert any("is another incarnation now" in each for each in refusals(harness))
        await until(harness.nothing_is_left)

    scene()


# -- the namespace ---------------------------------------------------------------------------------


async def ending(harness: SchedulerHarness) -> None:
    """A namespace with a controller that deletes its contents."""
    await harness.cluster.authority.create(NAMESPACE, {"metadata": {"name": "short"}})
    other = harness.another("namespaces")
    other.host.spawn(
        namespace_controller(ControllerRuntime(other.client, other.env, caches=other.caches)).run(), name="namespaces"
    )


def short(name: str, *, gang: int = 0) -> dict[str, Any]:
    body = pod(name, cpu="400m")
    body["metadata"]["namespace"] = "short"
    if gang:
        body["metadata"]["labels"]["kedge.dev/gang"] = "crew"
        body["metadata"]["annotations"] = {"kedge.dev/gang-size": str(gang)}
    return body


@pytest.mark.parametrize("gang", [0, 3], ids=["one pod", "a gang"])
@pytest.mark.parametrize("held", ["binds", "reserves", "replies"])
def test_a_namespace_deleted_before_the_bind_leaves_nothing_behind(held: str, gang: int) -> None:
    """Whether the bind is committed or refused, ledgers, reservations and the scheduler keep nothing of the pods."""

    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
        await ending(harness)
        setattr(harness.wire, f"{held}_held", True)
        for n in range(gang or 1):
            await harness.cluster.authority.create(POD, short(f"web-{n}", gang=gang))
        await asyncio.sleep(2)
        await harness.cluster.authority.delete(Key("Namespace", "", "short"))
        await asyncio.sleep(0.5)
        setattr(harness.wire, f"{held}_held", False)
        await until(lambda: all(each.view.terminating for each in in_short(harness, "Pod")), within_s=300)
        for found in in_short(harness, "Pod"):  # as their agents would
            await harness.cluster.authority.patch(found.key, {"status": {"phase": "Failed"}}, subresource="status")
            await harness.cluster.authority.delete(found.key)
        await until(lambda: harness.cluster.find(Key("Namespace", "", "short")) is None, within_s=300)
        assert not in_short(harness, "Pod")
        assert not in_short(harness, "Reservation.kedge.dev")
        assert claims(harness) == {}
        await until(harness.nothing_is_left)

    scene()


def in_short(harness: SchedulerHarness, kind: str) -> list[Object]:
    return harness.cluster.all(kind, namespace="short")
