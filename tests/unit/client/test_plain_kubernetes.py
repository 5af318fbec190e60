"""A server without fences and operation ids, as Kubernetes is: kedge's own headers reach it and mean nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.kit.api_server import TrustingAuthenticator
from tests.kit.loops import eventually, on_loop

from kedge.api.kinds import KINDS
from kedge.api.requests import Binding, DeleteOptions, ListOptions, WatchOptions, WriteOptions
from kedge.cli.wiring import ControlPlane, ensure_namespaces
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, ServerAddress
from kedge.env import system_env
from kedge.errors import NotFound, OutcomeUnknown
from kedge.keys import NO_ORIGIN, Fence, Key, Origin
from kedge.server.http.exchange import Exchange, Handler, HttpRequest
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

CONFIG_MAP, NODE, POD, DEPLOYMENT, REPLICA_SET = (
    KINDS.of_key_kind(name) for name in ("ConfigMap", "Node", "Pod", "Deployment.apps", "ReplicaSet.apps")
)
A = Key("ConfigMap", "default", "a")
FENCED = WriteOptions(fence=Fence(Key("Fence.kedge.dev", "default", "lost"), 77), origin=Origin("op", "decision"))


class IgnoresHeaders:
    """A handler that does not see kedge's headers."""

    def __init__(self, handler: Handler, seen: list[bytes]) -> None:
        self._handler = handler
        self._seen = seen

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        self._seen.append(request.path)
        request.headers = {name: value for name, value in request.headers.items() if not name.startswith(b"kedge-")}
        return self._handler.answer_nowait(request, exchange)

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        await self._handler(request, exchange)


@asynccontextmanager
async def plain_server() -> AsyncIterator[tuple[HttpTransport, list[bytes]]]:
    """A server that ignores kedge's headers, and the paths of the requests that it got."""
    env = system_env()
    store = MemoryStore(env)
    server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
    seen: list[bytes] = []
    server.connections.handler = IgnoresHeaders(server.handler, seen)
    port = await server.start("127.0.0.1", 0, None)
    transport = HttpTransport(ServerAddress("127.0.0.1", port), is_kedge=False)
    try:
        await ensure_namespaces(Client(transport, env, component="test"))
        yield transport, seen
    finally:
        await transport.close()
        await server.stop()
        await store.close()


@on_loop
async def test_every_verb_works_without_headers_of_kedges_own() -> None:
    async with plain_server() as (transport, _):
        client = Client(transport, system_env(), component="test")
        made = await client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, namespace="default", options=FENCED)
        assert made.object.origin == NO_ORIGIN  # the fence was not checked, the operation not recorded
        await client.patch(A, {"data": {"x": "1"}})
        listed = await client.list(CONFIG_MAP, ListOptions(namespace="default"))
        assert [each.edit()["data"] for each in listed.objects] == [{"x": "1"}]
        events = await client.watch(CONFIG_MAP, WatchOptions(namespace="default"))
        assert (await anext(events)).object is not None
        await events.aclose()
        gone = await client.delete(A)
        assert (gone.removed, gone.object.key, gone.object.uid) == (True, A, made.object.uid)
        deleted = await client.delete_collection(CONFIG_MAP, ListOptions(namespace="default"))
        assert list(deleted) == []


@on_loop
async def test_a_bind_and_an_eviction_that_are_answered_by_a_status_are_read_back() -> None:
    async with plain_server() as (transport, seen):
        client = Client(transport, system_env(), component="test")
        amounts = {"cpu": "4", "memory": "4Gi", "pods": "10"}
        await client.create(NODE, {"metadata": {"name": "n1"}, "status": {"capacity": amounts, "allocatable": amounts}})
        body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        pod = (await client.create(POD, body, namespace="default")).object
        bound = await client.bind(Binding(pod=pod.key, pod_uid=pod.uid, node="n1"))
        assert bound.object.view.spec.node_name == "n1"
        assert bound.object.revision > pod.revision
        assert seen[-2:] == [b"/api/v1/namespaces/default/pods/p/binding", b"/api/v1/namespaces/default/pods/p"]
        evicted = await client.evict(pod.key, DeleteOptions(grace_s=0))
        assert evicted.removed or evicted.object.metadata.deletion_timestamp is not None


@on_loop
async def test_a_lost_reply_stays_unknown_because_nothing_proves_whose_write_it_is() -> None:
    async with plain_server() as (transport, _):

        class LosesReplies(HttpTransport):
            def __init__(self) -> None:
                self._pool, self._kinds, self._is_kedge = transport._pool, KINDS, False

            async def send(self, request):  # type: ignore[no-untyped-def]
                reply = await super().send(request)
                if not request.reads:
                    raise OutcomeUnknown("the reply was lost")
                return reply

        client = Client(LosesReplies(), system_env(), component="test")
        with pytest.raises(OutcomeUnknown):
            await client.create(CONFIG_MAP, {"metadata": {"name": "a"}}, namespace="default")
        assert (await client.get(A)).key == A


@on_loop
async def test_controllers_run_there_and_their_records_show_that_nothing_was_fenced(tmp_path: Path) -> None:
    async with plain_server() as (transport, _):
        env = system_env()
        plane = ControlPlane(transport, env, decisions=tmp_path, schedulers=())
        plane.recorder.open_window("test", until_s=env.monotonic() + 600)
        assert not plane.client.one_history
        running = asyncio.ensure_future(plane.run())
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
        await plane.client.create(DEPLOYMENT, {"metadata": {"name": "d"}, "spec": spec}, namespace="default")

        async def made() -> bool:
            return bool((await plane.client.list(POD)).objects)

        await eventually(made, within_s=60)
        decisions = [each for each in plane.recorder.decisions() if each.fence]
        assert decisions
        assert not any(each.fenced for each in decisions)
        running.cancel()
        with suppress(asyncio.CancelledError, NotFound):
            await running
