"""Memory about an object goes with the object: in standbys, after missed events, and for names that callers choose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.kit.config_maps import a_map, key_of
from tests.kit.runtime import QUICK, make_cache_harness, until
from tests.objects import CONFIG_MAP, NAMESPACE, NODE, Clock, asynchronous, make_env, make_world, node, pod

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Create, Delete
from kedge.api.views import ClusterRoleView, NodeView, PodView
from kedge.api.wellknown import (
    CLUSTER_ROLE_KIND,
    LEASE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    NODE_LEASE_NAMESPACE,
    POD_KIND,
)
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.controllers.garbage.controller import GarbageCollector, garbage_controller
from kedge.controllers.node.controller import NodeLifecycle, lifecycle_controller
from kedge.controllers.node.heartbeats import _NODES_MIN
from kedge.env import system_env
from kedge.errors import Refused
from kedge.keys import Key
from kedge.placement.reasons import Reason
from kedge.runtime import ControllerRuntime
from kedge.runtime.cache import Cache
from kedge.scheduler.binding.refusals import Refusals
from kedge.scheduler.queue.scheduling_queue import _SWEEP_MIN, SchedulingQueue
from kedge.scheduler.state.shapes import request_of
from kedge.scheduler.state.snapshot import _RESOURCES_MIN, Snapshot
from kedge.scheduler.state.unreleased_claims import UnreleasedClaims
from kedge.server.service import Service
from kedge.server.service.access.role_index import RoleIndex
from kedge.store.memory import MemoryStore

POD = KINDS.of_key_kind(POD_KIND)
LEASE = KINDS.of_key_kind(LEASE_KIND)
CLUSTER_ROLE = KINDS.of_key_kind(CLUSTER_ROLE_KIND)


def pod_object(number: int, revision: int = 1, **labels: str) -> Object:
    body = pod(f"p{number}")
    body["metadata"] |= {"uid": f"uid-{number}", "labels": labels}
    return Object(POD, Key(POD_KIND, "default", f"p{number}"), encode_object(body), revision=revision)


def node_offering(name: str, *resources: str) -> NodeView:
    body = node(name)
    body["metadata"]["uid"] = f"uid of {name}"
    body["status"]["allocatable"] |= dict.fromkeys(resources, "4")
    return Object(NODE, Key(NODE_KIND, "", name), encode_object(body), revision=1).as_view(NodeView)


def pod_asking(resource: str) -> PodView:
    body = pod("p")
    body["spec"]["containers"][0]["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
    return Object(POD, Key(POD_KIND, "default", "p"), encode_object(body), revision=1).as_view(PodView)


# -- the scheduler ---------------------------------------------------------------------------------


def test_a_standby_keeps_no_pod_that_its_leader_has_bound() -> None:
    """A standby takes nothing from its queue: pods come, and are removed when they have a node."""
    queue = SchedulingQueue(make_env())
    for number in range(1_000):
        queue.put(pod_object(number), 0)
        queue.put(pod_object(number, changed="twice"), 0)
        queue.remove(f"uid-{number}")
    assert len(queue._active) <= _SWEEP_MIN + 2


def test_pods_that_are_woken_from_a_backoff_leave_nothing_in_it() -> None:
    clock = Clock()
    queue = SchedulingQueue(make_env(clock=clock))
    queue.put(pod_object(1), 0)
    for _ in range(1_000):
        taken = queue.take()
        assert taken is not None
        queue.pause(taken, 1e6, "held")
        queue.wake("uid-1", "changed")
    assert len(queue._backoff) <= _SWEEP_MIN + 2


def test_a_sweep_of_the_queue_keeps_the_order() -> None:
    queue = SchedulingQueue(make_env())
    for number in range(5):
        queue.put(pod_object(number), number % 2)
    for number in range(10, 200):
        queue.put(pod_object(number), 5)
        queue.remove(f"uid-{number}")
    taken = [queue.take() for _ in range(6)]
    assert [each.uid[-1] if each else None for each in taken] == ["1", "3", "0", "2", "4", None]


def test_resources_that_only_pods_name_have_no_column() -> None:
    """A pod may be created with the name of a node, so any caller can have claims with any resource counted."""
    snapshot = Snapshot()
    snapshot.put_node(node_offering("a"))
    for number in range(500):
        snapshot.add_claim(f"uid-{number}", "a", pod_asking(f"example.com/r{number}"))
    assert len(snapshot.resources) == len(snapshot.offered) == len(snapshot.claimed) <= 5
    for number in range(500):
        snapshot.remove_claim(f"uid-{number}")
    row = snapshot.find("a")
    assert row is not None
    assert row.claimed == {}


def test_a_resource_that_a_node_offers_later_counts_the_claims_of_before() -> None:
    snapshot = Snapshot()
    snapshot.put_node(node_offering("a"))
    snapshot.add_claim("uid-1", "a", pod_asking("example.com/gpu"))
    assert not snapshot.claimed[0].any()  # the columns are written
    snapshot.put_node(node_offering("a", "example.com/gpu"))
    row = snapshot.find("a")
    assert row is not None
    assert snapshot.claimed[snapshot.resources["example.com/gpu"], row.row] == 1


def test_columns_of_resources_that_no_node_offers_any_more_are_dropped() -> None:
    snapshot = Snapshot()
    snapshot.put_node(node_offering("stays", "example.com/kept"))
    snapshot.add_claim("uid-1", "stays", pod_asking("example.com/kept"))
    for number in range(1_000):
        snapshot.put_node(node_offering("changes", f"example.com/r{number}", f"example.com/r{number - 1}"))
    assert len(snapshot.resources) == len(snapshot.offered) == len(snapshot.claimed) <= _RESOURCES_MIN
    stays = snapshot.find("stays")
    assert stays is not None
    column = snapshot.resources["example.com/kept"]
    assert (snapshot.offered[column, stays.row], snapshot.claimed[column, stays.row]) == (4, 1)


def test_refusals_of_nodes_that_are_gone_are_forgotten_while_the_pod_waits() -> None:
    nodes: dict[Key, int] = {}
    refusals = Refusals(make_env(), lambda *_: True, lambda key: nodes.get(key, 0))
    for number in range(100):
        nodes.clear()
        key = Key(NODE_KIND, "", f"n{number}")
        nodes[key] = number + 1
        refusals.record("pod", key.name, Refused("no", refusal=Reason.RESOURCE.value, key=key, revision=1))
    assert list(refusals._pairs["pod"]) == ["n99"]


class _LedgerCache:
    """A cache of ledgers that has none, at a revision."""

    revision = 20


def test_a_refusal_by_a_ledger_that_was_deleted_meanwhile_is_not_waited_for() -> None:
    caches: Any = {NODE_ALLOCATION_KIND: _LedgerCache()}
    claims = UnreleasedClaims(Snapshot(), caches, lambda _: None, lambda _: None)
    claims.ledger_refused("a", 19)
    assert claims._refused_by == {}
    claims.ledger_refused("a", 21)  # the cache is behind: the ledger may still come
    assert claims._refused_by == {"a": 21}


def test_a_claim_that_an_attempt_took_along_is_no_unreleased_claim_for_ever() -> None:
    """1. A ledger holds a claim of a pod. 2. The pod is assumed elsewhere. 3. The ledger releases the claim."""
    snapshot, caches, dropped = Snapshot(), {NODE_ALLOCATION_KIND: _LedgerCache()}, list[str]()
    claims = UnreleasedClaims(snapshot, caches, lambda _: None, dropped.append)  # type: ignore[arg-type]
    request = request_of(pod_asking("cpu"))
    for uid in ("moved", "undone"):
        snapshot.add_claim(uid, "a", request)
        claim = snapshot.claim(uid)
        assert claim is not None
        assert claims.keep(uid, claim, 21)
        snapshot.add_claim(uid, "b", request)
    snapshot.remove_claim("undone")
    _LedgerCache.revision = 22
    try:
        claims.review("a")
    finally:
        _LedgerCache.revision = 20
    assert not claims.by_node
    assert dropped == []


# -- controllers -----------------------------------------------------------------------------------


@asynchronous
async def test_a_deletion_that_was_stuck_is_not_counted_once_it_is_over() -> None:
    harness = await make_cache_harness(QUICK)
    controller = garbage_controller(ControllerRuntime(harness.client, harness.env, caches=harness.caches))
    collector = controller.reconciler
    assert isinstance(collector, GarbageCollector)
    running = asyncio.create_task(controller.run())
    service = harness.world.service
    await service.create(CONFIG_MAP, a_map("held", finalizers=["example.com/never"]))
    await service.delete(key_of("held"))
    harness.world.clock.advance(2 * QUICK.finalizer_stuck_s)
    await until(lambda: collector._reported)
    await service.patch(key_of("held"), {"metadata": {"finalizers": None}})
    await until(lambda: not collector._reported)
    await controller.stop()
    await running
    await harness.caches.stop()


@asynchronous
async def test_a_node_that_was_never_counted_leaves_no_heartbeat() -> None:
    """A node under a hold is observed, and not counted. It has no lease whose deletion would be seen."""
    world = await make_world()
    lifecycle = NodeLifecycle(world.env)
    lifecycle._heartbeats.observe("gone", 0.0)

    class NoNode:
        def get(self, _: Key) -> None:
            return None

    await lifecycle.reconcile(NoNode(), Key(NODE_KIND, "", "gone"))  # type: ignore[arg-type]
    assert lifecycle._heartbeats._nodes == {}


@asynchronous
async def test_a_standby_forgets_nodes_that_went_after_their_leases() -> None:
    """A standby reconciles no node, so the deletion of a node alone reaches it nowhere."""
    env = system_env()
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NODE_LEASE_NAMESPACE}}
    await client.send(Create(NAMESPACE, namespace))
    controller = lifecycle_controller(ControllerRuntime(client, env))
    assert isinstance(controller.reconciler, NodeLifecycle)
    seen = controller.reconciler._heartbeats._nodes
    controller._follow()
    nodes, leases = controller.caches.cache(NODE), controller.caches.cache(LEASE, namespace=NODE_LEASE_NAMESPACE)
    for number in range(2 * _NODES_MIN):
        body = {"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": {"name": f"n{number}"}}
        made = (await client.send(Create(NODE, node(f"n{number}")))).object.key
        await until(holding(nodes, made))
        lease = (await client.send(Create(LEASE, body, namespace=NODE_LEASE_NAMESPACE))).object.key
        await until(holding(leases, lease))
        if number == 5:
            continue  # this one stays
        await client.send(Delete(lease))
        await until(without(leases, lease))
        await client.send(Delete(made))
        await until(without(nodes, made))
    assert len(seen) <= _NODES_MIN
    assert "n5" in seen
    await controller.caches.stop()


def holding(cache: Cache, key: Key) -> Callable[[], bool]:
    return lambda: cache.synced and cache.get(key).value is not None


def without(cache: Cache, key: Key) -> Callable[[], bool]:
    return lambda: cache.synced and cache.get(key).value is None


# -- roles -----------------------------------------------------------------------------------------


def role(name: str, selects: str = "", *, verbs: str = "") -> Object:
    body: dict[str, Any] = {
        "apiVersion": CLUSTER_ROLE.api_version,
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"name": name}},
    }
    if selects:
        body["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {"name": selects}}]}
    else:
        body["rules"] = [{"apiGroups": [""], "resources": ["pods"], "verbs": [verbs]}]
    return Object(CLUSTER_ROLE, Key(CLUSTER_ROLE_KIND, "", name), encode_object(body), revision=1)


def test_rules_of_an_older_version_of_a_role_are_not_remembered() -> None:
    index = RoleIndex()
    old = role("all", "reads")
    for each in (role("reads", verbs="get"), role("writes", verbs="update"), old, role("all", "writes")):
        index.put(each)
    assert [rule.verbs for rule in index.cluster_rules(old.as_view(ClusterRoleView))] == [("get",)]
    assert [rule.verbs for rule in index.cluster_rules(index.cluster_roles["all"])] == [("update",)]
    index.drop(Key(CLUSTER_ROLE_KIND, "", "all"))
    index.cluster_rules(old.as_view(ClusterRoleView))
    assert index._aggregated == {}
