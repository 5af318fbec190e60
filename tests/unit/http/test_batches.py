"""Batches of writes: each call means what it means alone, and is answered when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, create_config_map, request, sent

from kedge.api.access import AUTHENTICATED, MASTERS, Caller
from kedge.env import Env
from kedge.limits import Limits
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.flow.levels import PriorityLevel
from kedge.server.http.list_parts import SLICE_ITEMS
from kedge.server.service import Service

MERGE = {"content-type": "application/merge-patch+json"}


def call(method: str, target: str, body: Any = None, **headers: str) -> list[Any]:
    return [method, target, {name.replace("_", "-"): value for name, value in headers.items()}, body]


async def batch(port: int, *calls: list[Any]) -> list[list[Any]]:
    """The answers of a batch, in the order of its calls."""
    reply = await exchange(port, request("POST", "/kedge/batch", list(calls)), end=False)
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200", reply
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(body.split(b"\r\n")[1::2])
    return sorted(json.loads(line) for line in body.splitlines())


async def refused(port: int, body: Any) -> tuple[int, str]:
    code, _, status = await sent(port, "POST", "/kedge/batch", body)
    return code, status["message"]


@on_loop
async def test_each_call_has_its_own_outcome() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        answers = await batch(
            port,
            call("POST", CONFIG_MAPS, {"metadata": {"name": "b"}}),
            ["PATCH", f"{CONFIG_MAPS}/a", MERGE, {"data": {"x": "1"}}],
            call("POST", CONFIG_MAPS, {"metadata": {"name": "a"}}),
            call("DELETE", f"{CONFIG_MAPS}/never"),
            call("POST", CONFIG_MAPS, {"metadata": {"name": "UPPER"}}),
            call("PUT", "/apis/none/v1/things/a", {}),
        )
        assert [each[:2] for each in answers] == [[0, 201], [1, 200], [2, 409], [3, 404], [4, 422], [5, 404]]
        _, _, stored = await sent(port, "GET", f"{CONFIG_MAPS}/a")
        assert answers[1][3] == stored
        assert answers[2][3]["reason"] == "AlreadyExists"


@on_loop
async def test_a_call_carries_the_headers_of_kedges_own_both_ways() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        (answer,) = await batch(port, call("DELETE", f"{CONFIG_MAPS}/a", kedge_operation="op-1"))
        assert answer[2]["kedge-removed"] == "1"


@on_loop
async def test_a_reply_that_is_streamed_alone_is_one_line_of_a_batch() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        for n in range(SLICE_ITEMS):
            await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": f"m{n}"}})
        (answer,) = await batch(port, call("DELETE", CONFIG_MAPS))
        assert answer[1] == 200
        assert len(answer[3]["items"]) == SLICE_ITEMS + 1


@on_loop
async def test_a_batch_that_cannot_be_read_does_nothing() -> None:
    async with local_api(limits=Limits(http_batch_calls_max=2)) as (_, port):
        await create_config_map(port, "a")
        made = call("POST", CONFIG_MAPS, {"metadata": {"name": "b"}})
        assert (await refused(port, b"[1]"))[0] == 400
        assert await refused(port, [made] * 3) == (400, "a batch has at most 2 calls, not 3: send several")
        code, message = await refused(port, [made, call("GET", f"{CONFIG_MAPS}/a")])
        assert (code, message) == (400, "a batch is of writes, and GET is none: send it alone")
        assert (await refused(port, [made, call("POST", "/kedge/batch", [])]))[0] == 400
        assert (await sent(port, "GET", f"{CONFIG_MAPS}/b"))[0] == 404
        assert await batch(port) == []


class ByHeader(Authenticator):
    """Takes the bearer token for the user's name. Only `admin` may do anything."""

    def caller(self, request: HttpRequest) -> Caller:
        user = request.headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        return Caller(user, (MASTERS, AUTHENTICATED) if user == "admin" else (AUTHENTICATED,))


@on_loop
async def test_a_call_has_the_identity_of_its_batch_whatever_it_claims() -> None:
    async with local_api(authenticator=ByHeader()) as (_, port):
        claims = call("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}}, Authorization="Bearer admin")
        acting = call("POST", "/api/v1/namespaces", {"metadata": {"name": "mine"}}, Impersonate_User="admin")
        body = json.dumps([claims, acting]).encode()
        head = f"POST /kedge/batch HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        reply = await exchange(port, f"{head}Authorization: Bearer other\r\n\r\n".encode() + body, end=False)
        answers = [json.loads(line) for line in reply.partition(b"\r\n\r\n")[2].splitlines()]
        assert [each[1] for each in answers] == [403, 403]


@on_loop
async def test_an_answer_does_not_wait_for_a_slow_call() -> None:
    async with local_api() as (server, port):
        await create_config_map(port, "a")
        flow = server.handler.flow
        lane = flow._requests[PriorityLevel.OTHERS]
        lane.take("someone", lane.capacity, 1)  # the first call waits for a seat
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        calls = [
            ["PATCH", f"{CONFIG_MAPS}/a", {**MERGE, "Impersonate-User": "ada"}, {"data": {"x": "1"}}],
            call("POST", CONFIG_MAPS, {"metadata": {"name": "quick"}}),
        ]
        writer.write(request("POST", "/kedge/batch", calls))
        assert b"[1,201," in await asyncio.wait_for(reader.readuntil(b"}]\n"), 20)
        flow.release(lane, "someone", lane.capacity)
        assert b"[0,403," in await asyncio.wait_for(reader.read(), 20)
        writer.close()


class TokensCounted(Authenticator):
    """Every token is the administrator's."""

    def __init__(self) -> None:
        self.tokens = 0

    async def token_caller(self, request: HttpRequest, service: Service, env: Env) -> Caller:
        del request, service, env
        self.tokens += 1
        return Caller("admin", (MASTERS,))


@on_loop
async def test_the_token_of_a_batch_is_checked_once() -> None:
    """Each check is charged to the flow of the address: calls of a batch would be refused behind a few batches."""
    tokens = TokensCounted()
    async with local_api(authenticator=tokens) as (_, port):
        calls = [call("POST", "/api/v1/namespaces", {"metadata": {"name": f"n-{n}"}}) for n in range(8)]
        answers = await batch(port, *calls)
        assert [each[1] for each in answers] == [201] * 8
    assert tokens.tokens == 1
