"""The HTTP transport: requests mean over the wire what they mean in process, and a lost reply is never a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.sample_requests import SAMPLES

from kedge.api.kinds import KINDS
from kedge.api.requests import (
    AnyRequest,
    Binding,
    Create,
    Delete,
    DeleteOptions,
    Get,
    ListOptions,
    PatchType,
    WatchOptions,
    WriteOptions,
)
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, ServerAddress, wire
from kedge.env import system_env
from kedge.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Fenced,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from kedge.keys import Fence, Key, Origin

CONFIG_MAP, NAMESPACE, NODE, POD = (KINDS.of_key_kind(name) for name in ("ConfigMap", "Namespace", "Node", "Pod"))
A = Key("ConfigMap", "default", "a")


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@asynccontextmanager
async def remote() -> AsyncIterator[Client]:
    """A client over HTTP of a server that has the namespace `default`."""
    async with local_api() as (_, port):
        transport = HttpTransport(ServerAddress("127.0.0.1", port))
        client = Client(transport, system_env(), component="test")
        await client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        yield client
        await transport.close()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answered_by(answer: Answer) -> AsyncIterator[HttpTransport]:
    """A transport to a server that misbehaves."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        transport = HttpTransport(ServerAddress("127.0.0.1", server.sockets[0].getsockname()[1]))
        yield transport
        await transport.close()
        await asyncio.sleep(0.05)  # the server's ends are closed too


def test_every_request_of_the_union_has_an_http_form() -> None:
    samples = {type(request) for request in SAMPLES}
    assert samples == set(get_args(AnyRequest))
    for request in SAMPLES:
        call = wire.http_call(request, KINDS)
        assert call.target.startswith("/api")


@on_loop
async def test_an_object_survives_a_round_trip_over_the_wire() -> None:
    async with remote() as client:
        options = WriteOptions(origin=Origin("op-1", "deployment:7"))
        written = await client.create(CONFIG_MAP, config_map(x="1"), namespace="default", options=options)
        found = await client.get(A)
        assert (found.revision, found.value, found.key) == (written.object.revision, written.object.value, A)
        assert found.origin == Origin("op-1", "deployment:7", "test", ("system:masters",))
        assert found.created == found.revision
        assert b"resourceVersion" not in found.value
        listed = await client.list(CONFIG_MAP, ListOptions(namespace="default"))
        assert [(each.value, each.revision, each.origin, each.created) for each in listed.objects] == [
            (found.value, found.revision, found.origin, found.created)
        ]


@on_loop
async def test_a_repeat_of_an_operation_gets_its_first_outcome() -> None:
    async with remote() as client:
        options = WriteOptions(origin=Origin("op-1"))
        first = await client.create(CONFIG_MAP, config_map(), namespace="default", options=options)
        again = await client.create(CONFIG_MAP, config_map(), namespace="default", options=options)
        assert again.object.revision == first.object.revision
        with pytest.raises(AlreadyExists):
            await client.create(CONFIG_MAP, config_map(), namespace="default")


@on_loop
async def test_updates_patches_and_deletes_respect_their_preconditions() -> None:
    async with remote() as client:
        first = (await client.create(CONFIG_MAP, config_map(x="1"), namespace="default")).object
        body = {**first.edit(), "data": {"x": "2"}}
        body["metadata"]["resourceVersion"] = str(first.revision)
        second = (await client.update(A, body)).object
        assert second.revision > first.revision
        with pytest.raises(Conflict):
            await client.update(A, body)
        await client.patch(A, {"data": {"y": "3"}})
        await client.patch(A, [{"op": "remove", "path": "/data/x"}], patch_type=PatchType.JSON)
        third = await client.get(A)
        assert third.edit()["data"] == {"y": "3"}
        with pytest.raises(Conflict):
            await client.delete(A, DeleteOptions(uid="another"))
        gone = await client.delete(A, DeleteOptions(uid=third.uid, revision=third.revision))
        assert gone.removed
        assert gone.object.edit()["data"] == {"y": "3"}
        with pytest.raises(NotFound):
            await client.get(A)


@on_loop
async def test_errors_keep_what_they_knew() -> None:
    async with remote() as client:
        with pytest.raises(Invalid) as raised:
            await client.create(CONFIG_MAP, config_map("Bad Name"), namespace="default")
        assert raised.value.errors[0].path == "metadata.name"
        fence = Fence(Key("Fence.kedge.dev", "default", "another"), 77)
        with pytest.raises(Fenced):
            await client.create(CONFIG_MAP, config_map(), namespace="default", options=WriteOptions(fence=fence))
        with pytest.raises(NotFound):
            await client.find(A) or await client.get(A)


@on_loop
async def test_a_bind_that_does_not_fit_is_refused_with_its_reason() -> None:
    async with remote() as client:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        node["status"] = {"capacity": {"cpu": "1", "pods": "10"}, "allocatable": {"cpu": "1", "pods": "10"}}
        await client.create(NODE, node)
        container = {"name": "a", "image": "x", "resources": {"requests": {"cpu": "4"}}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
        made = (await client.create(POD, pod, namespace="default")).object
        with pytest.raises((Refused, Conflict)) as raised:
            await client.bind(Binding(pod=made.key, pod_uid=made.uid, node="n1", decided_on={"Node/n1": 1}))
        assert raised.value.key is not None


@on_loop
async def test_a_watch_sends_existing_objects_then_changes_with_their_origins() -> None:
    async with remote() as client:
        await client.create(CONFIG_MAP, config_map("first"), namespace="default")
        options = WatchOptions(allow_bookmarks=True, send_initial_events=True, resource_version_match="NotOlderThan")
        events = await client.watch(CONFIG_MAP, options)
        first = await anext(events)
        assert first.object is not None
        assert first.object.key.name == "first"
        assert (await anext(events)).initial_end
        made = await client.create(
            CONFIG_MAP, config_map("second"), namespace="default", options=WriteOptions(origin=Origin("o", "d"))
        )
        event = await anext(events)
        while event.object is None:
            event = await anext(events)
        assert (event.type.value, event.object.revision) == ("ADDED", made.object.revision)
        assert event.object.origin == Origin("o", "d", "test", ("system:masters",))
        await events.aclose()


@on_loop
async def test_a_watch_of_a_malformed_version_is_a_bad_request() -> None:
    async with remote() as client:
        with pytest.raises(BadRequest):
            await client.watch(CONFIG_MAP, WatchOptions(resource_version="yesterday"))


@on_loop
async def test_a_server_that_is_not_there_is_unavailable() -> None:
    transport = HttpTransport(ServerAddress("127.0.0.1", 1))
    with pytest.raises(Unavailable):
        await transport.send(Get(A))


@on_loop
async def test_a_write_whose_reply_is_lost_is_unknown_and_a_read_is_unavailable() -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with answered_by(swallow) as transport:
        with pytest.raises(OutcomeUnknown):
            await transport.send(Create(CONFIG_MAP, config_map(), "default"))
        with pytest.raises(Unavailable):
            await transport.send(Get(A))


@on_loop
async def test_half_a_reply_is_no_reply() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}")
        writer.close()

    async with answered_by(cut) as transport:
        with pytest.raises(OutcomeUnknown):
            await transport.send(Delete(A))


@on_loop
async def test_a_cancelled_request_never_leaves_its_reply_to_the_next_one() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                writer.close()
                return
            await asyncio.sleep(0.1 if b"/slow" in head else 0)
            name = b"slow" if b"/slow" in head else b"fast"
            body = b'{"metadata":{"name":"%b","resourceVersion":"5"}}' % name
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with answered_by(slow) as transport:
        assert (await transport.send(Get(Key("ConfigMap", "default", "fast")))).key.name == "fast"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await transport.send(Get(Key("ConfigMap", "default", "slow")))
        await asyncio.sleep(0.15)
        assert (await transport.send(Get(Key("ConfigMap", "default", "fast")))).key.name == "fast"


@on_loop
async def test_the_connections_of_a_burst_are_reused_by_the_next() -> None:
    async with local_api() as (server, port):
        transport = HttpTransport(ServerAddress("127.0.0.1", port))
        await transport.send(Create(NAMESPACE, {"metadata": {"name": "default"}}))
        await transport.send(Create(CONFIG_MAP, config_map("web"), "default"))
        used = []
        for _ in range(3):  # of reads: writes of one turn share an exchange
            await asyncio.gather(*(transport.send(Get(Key("ConfigMap", "default", "web"))) for _ in range(40)))
            used.append(set(server.connections.open))
        assert len(used[0]) == 40
        assert used[0] == used[1] == used[2]
        await transport.close()
