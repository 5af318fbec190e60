"""gRPC probes against a real gRPC server: only SERVING passes, and nothing else that listens does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tests.kit.loops import on_loop

from kedge.agent.process.grpc_health import is_serving

STATUS = {b"": 1, b"ready": 1, b"down": 2}


class Health(grpc.GenericRpcHandler):
    """`grpc.health.v1.Health` with its two messages as bytes."""

    def service(self, call: Any) -> Any:
        if call.method != "/grpc.health.v1.Health/Check":
            return None
        return grpc.unary_unary_rpc_method_handler(self.check)

    async def check(self, asked: bytes, context: Any) -> bytes:
        name = asked[2:] if asked else b""
        if name not in STATUS:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return b"\x08" + bytes([STATUS[name]])


@asynccontextmanager
async def serving(*handlers: Any) -> AsyncIterator[int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@on_loop
async def test_a_service_passes_only_while_it_is_serving() -> None:
    async with serving(Health()) as port:
        assert await is_serving("127.0.0.1", port, "")
        assert await is_serving("127.0.0.1", port, "ready")
        assert not await is_serving("127.0.0.1", port, "down")
        assert not await is_serving("127.0.0.1", port, "unknown")
        with pytest.raises(ValueError, match="too long for a probe"):
            await is_serving("127.0.0.1", port, "x" * 200)


@on_loop
async def test_a_server_without_the_health_service_fails() -> None:
    async with serving() as port:
        assert not await is_serving("127.0.0.1", port, "")


@on_loop
async def test_a_server_of_another_protocol_fails() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ValueError, match="protocol is not HTTP/2"):
            await is_serving("127.0.0.1", port, "")
    with pytest.raises(OSError, match="Connect"):
        await is_serving("127.0.0.1", port, "")
