"""The fast staging of a new pod stages what `effects.stage` stages, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import CONFIG_MAP, NAMESPACE, NODE, POD, config_map, make_world, node, pod, resource_quota

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.errors import OperatingError
from kedge.keys import NO_REVISION, Key
from kedge.server.service.core import Core, Proof
from kedge.server.service.effects import stage
from kedge.server.service.fast.pod_stage import stage_plain_pod
from kedge.server.service.namespaces import namespace_key

NAMESPACES = ("default", "limited", "leaving", "missing")


async def make_core() -> Core:
    """A service with a namespace of each sort, and a node."""
    world = await make_world()
    for name in ("limited", "leaving"):
        await world.service.create(NAMESPACE, {"metadata": {"name": name}})
    await world.create({**resource_quota(pods="5"), "metadata": {"name": "few", "namespace": "limited"}})
    await world.service.delete(namespace_key("leaving"), DeleteOptions())
    await world.service.create(NODE, node())
    return world.service._core


def new_object(kind: str, namespace: str, node_name: str) -> Object:
    body = config_map("new") if kind == "ConfigMap" else pod("new")
    body["metadata"].update(namespace=namespace, uid="u-new")
    if kind == "Pod" and node_name:
        body["spec"]["nodeName"] = node_name
    definition = CONFIG_MAP if kind == "ConfigMap" else POD
    return Object(definition, Key(kind, namespace, "new"), encode_object(body), revision=NO_REVISION)


async def plain(core: Core, proof: Proof, new: Object) -> Any:
    try:
        await stage(core, proof, new.kind, new.key, None, new)
    except OperatingError as error:
        return type(error)
    return None


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("Pod", "ConfigMap")),
    st.sampled_from(NAMESPACES),
    st.sampled_from(("", "node-a", "no-such-node")),
    st.booleans(),
)
def test_the_fast_staging_does_what_the_plain_one_does_or_nothing(
    kind: str, namespace: str, node_name: str, namespace_read: bool
) -> None:
    async def both() -> None:
        core = await make_core()
        new = new_object(kind, namespace, node_name)
        reads = (new.key, namespace_key(namespace)) if namespace_read else (new.key,)
        quick, slow = Proof(core), Proof(core)
        for proof in (quick, slow):
            await proof.entries(*reads)
        staged = stage_plain_pod(quick, new)
        if staged is None:
            assert not quick.writes
            return
        assert staged is new
        assert await plain(core, slow, new) is None
        assert quick.writes == slow.writes
        assert quick.checks() == slow.checks()

    asyncio.run(both())


def test_a_plain_pod_takes_the_fast_path() -> None:
    async def program() -> None:
        core = await make_core()
        new, proof = new_object("Pod", "default", ""), Proof(core)
        await proof.entries(new.key, namespace_key("default"))
        assert stage_plain_pod(proof, new) is new

    asyncio.run(program())
