"""Reads over HTTP mean what Kubernetes documents: versions, pages, watches, deletecollection and generated names."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.kit.api_server import TrustingAuthenticator, exchange
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, request, sent

from kedge.env import system_env
from kedge.limits import Limits
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.store.memory import MemoryStore


class Plane:
    """A server with a store whose past can be compacted."""

    def __init__(self, port: int, store: MemoryStore) -> None:
        self.port = port
        self._store = store

    async def send(self, method: str, path: str, body: Any = None, *more: str, **query: str) -> tuple[int, Any]:
        where = f"{path}?{urlencode(query)}" if query else path
        code, _, reply = await sent(self.port, method, where, body, *more)
        return code, reply

    async def make(self, name: str, **labels: str) -> int:
        code, made = await self.send("POST", CONFIG_MAPS, {"metadata": {"name": name, "labels": labels}})
        assert code == 201
        return int(made["metadata"]["resourceVersion"])

    async def names(self, **query: str) -> list[str]:
        code, found = await self.send("GET", CONFIG_MAPS, **query)
        assert code == 200, found
        return [each["metadata"]["name"] for each in found["items"]]

    async def watch(self, **query: str) -> list[dict[str, Any]]:
        """The events of a watch of one second."""
        path = f"{CONFIG_MAPS}?{urlencode({'watch': '1', 'timeoutSeconds': '1', **query})}"
        reply = await exchange(self.port, request("GET", path), end=False)
        _, _, body = reply.partition(b"\r\n\r\n")
        lines = [line for line in body.split(b"\r\n") if line.startswith(b"{")]
        return [json.loads(each) for line in lines for each in line.splitlines()]

    async def compact(self) -> None:
        await self._store.compact(await self._store.revision())


@asynccontextmanager
async def plane() -> AsyncIterator[Plane]:
    env = system_env(limits=dataclasses.replace(Limits(), watch_future_wait_s=0.2))
    store = MemoryStore(env)
    server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
    port = await server.start("127.0.0.1", 0, None)
    found = Plane(port, store)
    await found.send("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
    try:
        yield found
    finally:
        await server.stop()
        await store.close()


@on_loop
async def test_versions_of_a_list() -> None:
    async with plane() as api:
        first = await api.make("a")
        await api.make("b")
        old, newest = str(first), ["a", "b"]
        assert await api.names() == newest
        assert await api.names(resourceVersion="0") == newest
        assert await api.names(resourceVersion=old) == newest  # not older than
        assert await api.names(resourceVersion=old, resourceVersionMatch="NotOlderThan") == newest
        assert await api.names(resourceVersion=old, resourceVersionMatch="Exact") == ["a"]
        assert await api.names(resourceVersion=old, limit="10") == ["a"]  # exact, as before there was a match
        assert await api.names(resourceVersion=old, limit="10", resourceVersionMatch="NotOlderThan") == newest
        assert await api.names(resourceVersion="0", limit="10") == newest
        await api.compact()
        code, gone = await api.send("GET", CONFIG_MAPS, resourceVersion=old, resourceVersionMatch="Exact")
        assert (code, gone["reason"]) == (410, "Expired")
        assert await api.names(resourceVersion=old) == newest


@on_loop
async def test_versions_that_cannot_be_served() -> None:
    async with plane() as api:
        await api.make("a")
        for query, expected in (
            ({"resourceVersion": "abc"}, 400),
            ({"resourceVersion": "-1"}, 400),
            ({"resourceVersionMatch": "Exact"}, 422),
            ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422),
            ({"resourceVersion": "1", "resourceVersionMatch": "Around"}, 422),
            ({"watch": "1", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"}, 422),
            ({"watch": "1", "sendInitialEvents": "true"}, 422),
            ({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"}, 422),
            ({"sendInitialEvents": "false"}, 422),
            ({"watch": "1", "resourceVersion": "abc"}, 400),
            ({"continue": "nonsense"}, 400),
            ({"limit": "few"}, 400),
        ):
            code, status = await api.send("GET", CONFIG_MAPS, **query)
            assert (code, status["kind"]) == (expected, "Status"), query
        code, status = await api.send("GET", f"{CONFIG_MAPS}/a", resourceVersion="100000")
        assert (code, status["reason"]) == (504, "Timeout")
        assert "Too large resource version" in json.dumps(status["details"]["causes"])
        assert (await api.send("GET", f"{CONFIG_MAPS}/a", resourceVersion="1"))[0] == 200


@on_loop
async def test_pages_count_the_rest_and_continue_from_a_compacted_past() -> None:
    async with plane() as api:
        for number in range(5):
            await api.make(f"c{number}", odd=str(number % 2))
        _, first = await api.send("GET", CONFIG_MAPS, limit="2")
        assert first["metadata"]["remainingItemCount"] == 3
        token = first["metadata"]["continue"]
        await api.send("DELETE", f"{CONFIG_MAPS}/c2")
        await api.make("c9")
        _, second = await api.send("GET", CONFIG_MAPS, limit="2", **{"continue": token})
        assert [each["metadata"]["name"] for each in second["items"]] == ["c2", "c3"]
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert (await api.send("GET", CONFIG_MAPS, **{"continue": token, "resourceVersion": "5"}))[0] == 400
        _, odd = await api.send("GET", CONFIG_MAPS, limit="1", labelSelector="odd=1")
        assert "remainingItemCount" not in odd["metadata"]
        assert odd["metadata"]["continue"]
        await api.compact()
        code, gone = await api.send("GET", CONFIG_MAPS, limit="2", **{"continue": token})
        assert (code, gone["reason"]) == (410, "Expired")
        fresh = gone["metadata"]["continue"]
        assert await api.names(limit="9", **{"continue": fresh}) == ["c3", "c4", "c9"]


@on_loop
async def test_a_watch_begins_at_the_version_that_it_names() -> None:
    async with plane() as api:
        first = await api.make("a")
        await api.make("b")

        async def names(**query: str) -> list[tuple[str, str]]:
            events = await api.watch(**query)
            return [(each["type"], each["object"]["metadata"].get("name", "")) for each in events]

        everything = [("ADDED", "a"), ("ADDED", "b")]
        assert await names() == everything
        assert await names(resourceVersion="0") == everything
        assert await names(resourceVersion=str(first)) == [("ADDED", "b")]
        marked = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
        found = await api.watch(**marked)
        assert [each["type"] for each in found][:3] == ["ADDED", "ADDED", "BOOKMARK"]
        assert found[2]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert await names(sendInitialEvents="false", resourceVersionMatch="NotOlderThan") == []
        await api.compact()
        (error,) = await api.watch(resourceVersion=str(first))
        assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


@on_loop
async def test_an_object_that_leaves_a_selection_is_deleted_with_its_last_matching_state() -> None:
    async with plane() as api:
        start = await api.make("a", app="x")
        watching = asyncio.ensure_future(api.watch(labelSelector="app=x", resourceVersion=str(start)))
        await asyncio.sleep(0.1)
        for label in ("x", "y", "x"):
            patch = {"metadata": {"labels": {"app": label, "n": label}}}
            await api.send("PATCH", f"{CONFIG_MAPS}/a", patch, MERGE)
        _, last = await api.send("DELETE", f"{CONFIG_MAPS}/a")
        events = await watching
    assert [each["type"] for each in events] == ["MODIFIED", "DELETED", "ADDED", "DELETED"]
    left = events[1]["object"]["metadata"]
    assert left["labels"]["app"] == "x"
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in events]
    assert versions == sorted(set(versions))
    assert last["status"] == "Success"


@on_loop
async def test_deletecollection_deletes_what_is_selected_and_nothing_in_a_dry_run() -> None:
    async with plane() as api:
        for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
            await api.make(name, app=app)
        code, dry = await api.send("DELETE", CONFIG_MAPS, {"dryRun": ["All"]}, labelSelector="app=x")
        assert (code, len(dry["items"])) == (200, 2)
        assert await api.names() == ["a", "b", "c"]
        code, gone = await api.send("DELETE", CONFIG_MAPS, None, labelSelector="app=x")
        assert (code, gone["kind"]) == (200, "ConfigMapList")
        assert await api.names() == ["c"]
        assert (await api.send("DELETE", CONFIG_MAPS, None, fieldSelector="metadata.name=c"))[0] == 200
        assert await api.names() == []
        assert (await api.send("DELETE", "/api/v1/namespaces"))[0] == 405


@on_loop
async def test_generated_names_are_unique_and_long_prefixes_are_cut() -> None:
    async with plane() as api:
        body = {"metadata": {"generateName": "made-"}}
        made = await asyncio.gather(*(api.send("POST", CONFIG_MAPS, body) for _ in range(40)))
        assert {code for code, _ in made} == {201}
        assert len({each["metadata"]["name"] for _, each in made}) == 40
        _, long = await api.send("POST", CONFIG_MAPS, {"metadata": {"generateName": "x" * 100}})
        assert len(long["metadata"]["name"]) == 63
        code, status = await api.send("POST", CONFIG_MAPS, {"metadata": {}})
        assert (code, status["reason"]) == (422, "Invalid")


@pytest.mark.parametrize("attempts", [1, 8])
def test_a_generated_name_that_is_taken_is_drawn_again(attempts: int) -> None:
    async def run() -> None:
        env = system_env(limits=dataclasses.replace(Limits(), generated_name_attempts_max=attempts))
        drawn = iter("aaaaa" * 2 + "bbbbb" * 20)
        choose = env.random.choice
        env.random.choice = lambda _: next(drawn)  # type: ignore[method-assign,assignment,return-value]
        store = MemoryStore(env)
        server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
        port = await server.start("127.0.0.1", 0, None)
        await sent(port, "POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
        body = {"metadata": {"generateName": "n-"}}
        first, _, _ = await sent(port, "POST", CONFIG_MAPS, body)
        second, _, found = await sent(port, "POST", CONFIG_MAPS, body)
        env.random.choice = choose  # type: ignore[method-assign]
        await server.stop()
        await store.close()
        assert first == 201
        if attempts == 1:
            assert (second, found["reason"]) == (409, "AlreadyExists")
        else:
            assert (second, found["metadata"]["name"]) == (201, "n-bbbbb")

    asyncio.run(run())
