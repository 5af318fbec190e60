"""One HTTP connection: limits, pipelining, parse errors as `Status`, and replies that are never half a lie."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from typing import Any

from tests.kit.api_server import Gate, exchange, local_api
from tests.kit.loops import eventually, on_loop
from tests.kit.raw_http import sent

from kedge.limits import Limits

SMALL = dataclasses.replace(
    Limits(), http_header_bytes_max=2_000, http_url_bytes_max=500, http_body_bytes_max=10_000, http_connections_max=3
)


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def code_and_status(reply: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@on_loop
async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with local_api() as (_, port):
        reply = await exchange(port, get("/livez") + get("/version") + get("/livez", "Connection: close"), end=False)
    assert reply.count(b"HTTP/1.1 200") == 3
    assert reply.index(b"ok") < reply.index(b"gitVersion") < reply.rindex(b"ok")


@on_loop
async def test_more_pipelined_requests_than_the_limit_are_refused() -> None:
    limits = dataclasses.replace(SMALL, http_pipelined_max=2)
    async with local_api(limits=limits) as (server, port):
        server.connections.handler = gate = Gate(server.handler)
        gate.open.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/livez") * 4)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""  # the reply under way is cut
        writer.close()
        gate.open.set()
        assert server.connections.unreadable.labels("400").value == 1
        reply = await exchange(port, get("/livez") * 2 + get("/livez", "Connection: close"), end=False)
        assert reply.count(b"HTTP/1.1 200") == 3


@on_loop
async def test_a_long_body_of_yaml_is_refused() -> None:
    limits = dataclasses.replace(Limits(), http_yaml_bytes_max=1_000)
    body = b"kind: Namespace\nmetadata: {name: a, annotations: {x: " + b"a" * 1_000 + b"}}\n"
    async with local_api(limits=limits) as (_, port):
        code, _, status = await sent(port, "POST", "/api/v1/namespaces", body, "application/yaml")
        taken, _, _ = await sent(port, "POST", "/api/v1/namespaces", b"metadata: {name: a}", "application/yaml")
    assert (code, taken) == (400, 201)
    assert "at most 1000 bytes" in status["message"]


@on_loop
async def test_bytes_that_are_no_http_get_a_status_and_are_cut_off() -> None:
    async with local_api() as (_, port):
        code, status = code_and_status(await exchange(port, b"\x16\x03\x01 hello\r\n\r\n", end=False))
    assert (code, status["kind"], status["reason"]) == (400, "Status", "BadRequest")


@on_loop
async def test_a_header_without_end_is_refused_while_it_grows() -> None:
    async with local_api(limits=SMALL) as (_, port):
        code, status = code_and_status(await exchange(port, b"GET / HTTP/1.1\r\nX: " + b"a" * 5_000, end=False))
    assert (code, status["reason"]) == (431, "RequestHeaderFieldsTooLarge")


@on_loop
async def test_many_small_headers_are_refused_too() -> None:
    headers = [f"X-{number}: {'a' * 50}" for number in range(100)]
    async with local_api(limits=SMALL) as (_, port):
        code, _ = code_and_status(await exchange(port, get("/livez", *headers), end=False))
    assert code == 431


@on_loop
async def test_a_long_url_is_refused() -> None:
    async with local_api(limits=SMALL) as (_, port):
        code, status = code_and_status(await exchange(port, get("/" + "a" * 1_000), end=False))
    assert (code, status["reason"]) == (414, "RequestURITooLong")


@on_loop
async def test_a_large_body_is_refused_before_it_is_sent() -> None:
    head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n"
    async with local_api(limits=SMALL) as (_, port):
        code, status = code_and_status(await exchange(port, head, end=False))
    assert (code, status["reason"]) == (413, "RequestEntityTooLarge")


@on_loop
async def test_a_large_body_in_chunks_is_refused_when_it_is_too_large() -> None:
    head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"1388\r\n" + b"a" * 5_000 + b"\r\n"
    async with local_api(limits=SMALL) as (_, port):
        code, _ = code_and_status(await exchange(port, head, chunk, chunk, chunk, end=False))
    assert code == 413


@on_loop
async def test_a_trailer_behind_a_chunked_body_is_no_header() -> None:
    """A proxy that keeps clients from acting as others removes headers, and may leave trailers."""
    head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = b'{"metadata":{"name":"a"}}'
    chunks = b"%x\r\n%b\r\n0\r\nImpersonate-User: ada\r\n\r\n" % (len(body), body)
    async with local_api() as (_, port):
        code, made = code_and_status(await exchange(port, head, chunks, end=False))
    assert (code, made["metadata"]["name"]) == (201, "a")
    async with local_api(limits=SMALL) as (_, port):
        trailers = b"".join(b"x-%d: %b\r\n" % (n, b"a" * 100) for n in range(1_000))
        code, _ = code_and_status(await exchange(port, head, b"0\r\n" + trailers + b"\r\n", end=False))
    assert code == 431


@on_loop
async def test_a_length_beside_chunks_is_refused() -> None:
    head = b"POST /api HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    async with local_api() as (_, port):
        code, _ = code_and_status(await exchange(port, head, end=False))
    assert code == 400


@on_loop
async def test_a_client_that_expects_continue_gets_it() -> None:
    body = b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}'
    head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\n"
    async with local_api() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert b"201 Created" in await reader.read()
        writer.close()


@on_loop
async def test_half_a_request_is_cut_off_in_time() -> None:
    limits = dataclasses.replace(Limits(), http_request_s=0.05)
    async with local_api(limits=limits) as (_, port):
        code, status = code_and_status(await exchange(port, b"GET /livez HTT", end=False))
    assert (code, status["reason"]) == (408, "Timeout")


@on_loop
async def test_a_request_whose_body_never_starts_is_cut_off_in_time() -> None:
    limits = dataclasses.replace(Limits(), http_request_s=0.05)
    head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n"
    async with local_api(limits=limits) as (_, port):
        code, status = code_and_status(await exchange(port, head, end=False))
    assert (code, status["reason"]) == (408, "Timeout")


@on_loop
async def test_a_request_that_waits_behind_a_watch_does_not_end_the_watch() -> None:
    limits = dataclasses.replace(Limits(), http_request_s=0.05)
    async with local_api(limits=limits) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/api/v1/namespaces?watch=1&timeoutSeconds=3"))
        reply = await reader.readuntil(b"\r\n\r\n")
        writer.write(get("/livez", "Connection: close"))
        reply += await asyncio.wait_for(reader.read(), 60)
        writer.close()
    assert reply.count(b"HTTP/1.1 200") == 2


@on_loop
async def test_an_idle_connection_is_closed_without_a_reply() -> None:
    limits = dataclasses.replace(Limits(), http_idle_s=0.05)
    async with local_api(limits=limits) as (_, port):
        assert await exchange(port, end=False) == b""


@on_loop
async def test_connections_past_the_limit_are_refused_and_the_others_live() -> None:
    async with local_api(limits=SMALL) as (server, port):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await eventually(lambda: len(server.connections.open) == 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        kept[0][1].write(get("/livez"))
        assert b"200 OK" in await kept[0][0].readuntil(b"ok")
        for _, each in kept:
            each.close()


@on_loop
async def test_a_stopping_server_finishes_requests_and_ends_watches_with_a_bookmark() -> None:
    async with local_api() as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/api/v1/namespaces?watch=1&allowWatchBookmarks=true"))
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}'
        await exchange(
            port,
            b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body),
            body,
            end=True,
        )
        seen = await reader.readuntil(b"ADDED")
        await server.stop()
        rest = seen + await reader.read()
        assert b'"type":"BOOKMARK"' in rest
        assert rest.endswith(b"0\r\n\r\n")
        writer.close()
