"""A component in the process of the service has a name beside every version that it writes."""

from __future__ import annotations

from tests.kit.loops import on_loop
from tests.objects import CONFIG_MAP, NAMESPACE, config_map

from kedge.api.requests import ListOptions, WriteOptions
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.keys import Key, Origin
from kedge.server.service import Service
from kedge.store.memory import MemoryStore


@on_loop
async def test_every_write_through_a_named_transport_has_its_caller_and_groups() -> None:
    env = system_env()
    service = Service(MemoryStore(env), env)
    transport = DirectTransport(service, caller="system:node:a", groups=("system:nodes",))
    client = Client(transport, env, component="agent")
    await client.create(NAMESPACE, {"metadata": {"name": "default"}})
    options = WriteOptions(origin=Origin("op", "agent-a:p:1"))
    made = (await client.create(CONFIG_MAP, config_map(), options=options)).object
    assert made.origin == Origin("op", "agent-a:p:1", "system:node:a", ("system:nodes",))
    listed = await client.list(CONFIG_MAP, ListOptions(namespace="default"))
    assert [each.origin for each in listed.objects] == [made.origin]
    key = Key("ConfigMap", "default", "settings")
    patched = (await client.patch(key, {"data": {"a": "1"}})).object
    assert (patched.origin.caller, patched.origin.groups) == ("system:node:a", ("system:nodes",))
    unnamed = Client(DirectTransport(service), env, component="other")
    assert (await unnamed.patch(key, {"data": {"a": "2"}})).object.origin.caller == ""
