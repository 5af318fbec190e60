"""Memory that callers could fill: each cache has a bound in bytes beside that in entries."""

from __future__ import annotations

import asyncio

from tests.objects import CONFIG_MAP, NAMESPACE, asynchronous, make_env, make_world

from kedge.api.access import Attributes
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Create, Delete
from kedge.api.views import PodView
from kedge.api.views.core import Container, EnvVar, PodSpec
from kedge.api.wellknown import LEASE_KIND, NODE_LEASE_NAMESPACE
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.controllers.node.controller import NodeLifecycle, lifecycle_controller
from kedge.controllers.node.heartbeats import _ZONES_MAX, Heartbeats
from kedge.env import system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.placement import predicates
from kedge.placement.stored_ledger import StoredLedger
from kedge.runtime.controller import ControllerRuntime
from kedge.server.audit.policy import WRITES_POLICY, AuditRead
from kedge.server.http.flow.list_costs import ListCosts, ListShape
from kedge.server.service import Service
from kedge.server.service.ledgers import Ledgers
from kedge.store.memory import MemoryStore


@asynchronous
async def test_decoded_objects_have_a_bound_in_bytes() -> None:
    world = await make_world(limits=Limits(object_cache_bytes_max=10_000, object_cache_max=100))
    core = world.service._core
    for number in range(300):
        key = Key("ConfigMap", "default", f"m{number % 50}")
        core.remember(Object(CONFIG_MAP, key, b"x" * (900 if number % 7 else 4_000), revision=number + 1))
        assert sum(len(each.value) for each in core._objects.values()) == core._object_bytes <= 10_000
    for key in list(core._objects):
        core.forget(key)
        core.forget(key)
    assert core._object_bytes == 0
    for number in range(300):
        core.remember(Object(CONFIG_MAP, Key("ConfigMap", "default", f"n{number}"), b"x", revision=number + 1))
        assert len(core._objects) <= 100


def test_decoded_ledgers_have_a_bound_in_bytes() -> None:
    ledgers = Ledgers(make_env(limits=Limits(ledger_cache_bytes_max=10_000)))
    head = b'{"apiVersion":"kedge.dev/v1","kind":"NodeAllocation",'
    empty = head + b'"metadata":{"name":"%b","filler":"%b"},"spec":{"nodeUID":"u"},"status":{}}'
    for number in range(100):
        value = empty % (b"n", b"x" * (500 + number))
        ledgers.keep(Key("NodeAllocation", "", f"n{number % 40}"), StoredLedger.read(value))
        assert sum(len(each.value) for each in ledgers._entries.values()) == ledgers._bytes <= 10_000


def test_long_requests_are_not_kept_by_the_audit_policy() -> None:
    for number in range(100):
        wanted = Attributes("create", "", "pods", "", f"{number}" * 5_000, "")
        WRITES_POLICY.answer(AuditRead("u", (), wanted))
    kept = [key for key in WRITES_POLICY._remembered if len(str(key)) > 2_000]
    assert not kept


def test_long_names_are_not_kept_by_the_sizes_of_lists() -> None:
    costs = ListCosts(10, 1)
    costs.observe(ListShape("", "pods", "x" * 10_000, ""), 5)
    costs.observe(ListShape("", "pods", "", "9" * 10_000), 5)
    costs.observe(ListShape("", "pods", "short", ""), 5)
    assert len(costs) == 1


def test_the_demands_of_pods_keep_few_specs_and_none_of_many_parts() -> None:
    variables = tuple(EnvVar(name=str(number)) for number in range(1_000))
    large = PodView(spec=PodSpec(containers=(Container(name="a", env=variables),)))
    predicates.demand_of(large)
    assert id(large.spec) not in predicates._asks
    small = PodView(spec=PodSpec(containers=(Container(name="a"),)))
    assert predicates.demand_of(small) is predicates.demand_of(small)
    others = [PodView(spec=PodSpec(containers=(Container(name=str(n)),))) for n in range(500)]
    assert [predicates.demand_of(each).ports for each in others] == [()] * 500
    assert len(predicates._asks) <= 128


def test_zones_that_nodes_no_longer_have_are_forgotten() -> None:
    heartbeats = Heartbeats(make_env())
    for number in range(2 * _ZONES_MAX):
        heartbeats.survey(f"zone-{number}", {f"zone-{number}": ["a"]})
    assert len(heartbeats._zones) == _ZONES_MAX


@asynchronous
async def test_leases_without_nodes_leave_nothing_behind() -> None:
    env = system_env()
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NODE_LEASE_NAMESPACE}}
    await client.send(Create(NAMESPACE, namespace))
    controller = lifecycle_controller(ControllerRuntime(client, env))
    assert isinstance(controller.reconciler, NodeLifecycle)
    seen = controller.reconciler._heartbeats._nodes
    running = asyncio.ensure_future(controller.run())
    lease = KINDS.of_key_kind(LEASE_KIND)
    async with asyncio.timeout(60):
        for number in range(5):
            body = {"apiVersion": lease.api_version, "kind": "Lease", "metadata": {"name": f"hostile-{number}"}}
            made = await client.send(Create(lease, body, namespace=NODE_LEASE_NAMESPACE))
            while not seen:  # noqa: ASYNC110  there is no event to wait for
                await asyncio.sleep(0.01)
            await client.send(Delete(made.object.key))
            while seen:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await controller.stop()
    await running
