"""The queues and caches of a process as documents and as tables, from a whole control plane."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kit.loops import eventually, on_loop
from tests.objects import node, pod

from kedge.api.access import CONTROLLERS, MASTERS, Caller
from kedge.api.kinds import KINDS
from kedge.api.wellknown import NODE_KIND, POD_KIND
from kedge.cli.caches import cache_lines
from kedge.cli.debug_pages import CACHES_PATH, QUEUES_PATH, add_debug_pages, queue_document
from kedge.cli.queue import queue_lines, queues_of
from kedge.cli.wiring import ControlPlane, ensure_namespaces
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.client.http import RestClient, ServerAddress
from kedge.env import system_env
from kedge.errors import Forbidden, NotFound
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore


class GroupAuthenticator(Authenticator):
    """Takes every caller for a member of some groups."""

    def __init__(self, groups: tuple[str, ...]) -> None:
        super().__init__()
        self._groups = groups

    def caller(self, request: HttpRequest) -> Caller:
        del request
        return Caller("test", self._groups)


Work = Callable[[Client, RestClient, ControlPlane], Awaitable[None]]


async def with_plane(folder: Path, work: Work, *, groups: tuple[str, ...] = (MASTERS,)) -> None:
    """A control plane and a server in one process, and a client of the server."""
    env = system_env()
    store = MemoryStore(env)
    service = Service(store, env)
    client = Client(DirectTransport(service), env, component="test")
    await ensure_namespaces(client)
    plane = ControlPlane(DirectTransport(service), env, decisions=folder / "decisions")
    server = ApiServer(service, env, authenticator=GroupAuthenticator(groups))
    add_debug_pages(server.handler.add_page, plane, env, lambda: store.statistics().revision)
    port = await server.start("127.0.0.1", 0, None)
    running = asyncio.ensure_future(plane.run())
    rest = RestClient(ServerAddress("127.0.0.1", port), on_warning=print)
    try:
        await work(client, rest, plane)
    finally:
        await rest.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()


@on_loop
async def test_a_pending_pod_is_in_the_scheduler_s_queue_with_what_it_waits_for(tmp_path: Path) -> None:
    async def work(client: Client, rest: RestClient, plane: ControlPlane) -> None:
        await client.create(KINDS.of_key_kind(NODE_KIND), node("node-a", cpu="1"))
        await client.create(KINDS.of_key_kind(POD_KIND), pod("huge", cpu="64"), namespace="default")

        async def waits() -> bool:
            found = queues_of(queue_document(plane, system_env()), "default-scheduler")
            return [each["state"] for each in found[0]["keys"]] == ["unschedulable"]

        await eventually(waits, within_s=60)
        document = await rest.call("GET", QUEUES_PATH)
        assert (document["apiVersion"], document["kind"]) == ("kedge.dev/v1", "QueueReport")
        (found,) = queues_of(document, "default-scheduler")
        (key,) = found["keys"]
        assert (key["key"], key["retries"]) == ("Pod/default/huge", 0)
        assert key["reason"] == "waits for: node, room"
        text = "\n".join(queue_lines(document))
        assert re.search(r"^default-scheduler +Pod/default/huge +unschedulable ", text, re.M)
        assert " keys, none left out;" in text
        with pytest.raises(NotFound, match=r"no controller is called none: use one of deployment"):
            queues_of(document, "none")

    await with_plane(tmp_path, work)


@on_loop
async def test_every_cache_has_its_revision_its_lag_and_its_relists(tmp_path: Path) -> None:
    async def work(client: Client, rest: RestClient, plane: ControlPlane) -> None:
        made = await client.create(KINDS.of_key_kind(NODE_KIND), node("node-a", cpu="1"))
        found: dict[str, Any] = {}

        async def seen() -> bool:
            document = await rest.call("GET", CACHES_PATH)
            found.update({each["cache"]: each for each in document["caches"]})
            return bool(found.get("Node", {}).get("revision", 0) >= made.object.revision)

        await eventually(seen, within_s=60)
        assert found["Node"]["objects"] == 1
        assert found["Node"]["relists"] == 0
        assert found["Node"]["healthy"]
        document = await rest.call("GET", CACHES_PATH)
        assert all(each["lagRevisions"] <= document["storeRevision"] for each in document["caches"])
        text = "\n".join(cache_lines(document))
        assert f"when the store was at revision {document['storeRevision']}; every cache is listed" in text
        assert json.dumps(document)
        assert plane.caches.statistics()

    await with_plane(tmp_path, work)


@on_loop
async def test_only_administrators_read_debug_pages_and_other_servers_have_none(tmp_path: Path) -> None:
    async def work(client: Client, rest: RestClient, plane: ControlPlane) -> None:
        del client, plane
        for path in (QUEUES_PATH, CACHES_PATH):
            with pytest.raises(Forbidden, match="cannot get path"):
                await rest.call("GET", path)
        with pytest.raises(Forbidden):
            await rest.call("GET", "/kedge/debug/other")

    await with_plane(tmp_path, work, groups=(CONTROLLERS,))
