"""An OTLP/HTTP receiver on loopback: a real server that decodes export requests with `opentelemetry-proto`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(slots=True)
class OtlpReceiver:
    """Answers with the codes in `codes`, then with 200. Requests that it answers with 200 are decoded."""

    url: str = ""
    codes: list[int] = field(default_factory=list)
    reply_headers: str = ""
    heads: list[str] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    silent: bool = False
    """It takes requests and never answers."""

    def spans(self) -> Iterator[tuple[dict[str, Any], Span]]:
        """Each span with the attributes of its resource."""
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        yield values_of(resource.resource.attributes), span

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:")
                )
                body = await reader.readexactly(length)
                self.heads.append(head)
                if self.silent:
                    await asyncio.sleep(3600)
                code = self.codes.pop(0) if self.codes else 200
                if code == 200:
                    self.requests.append(ExportTraceServiceRequest.FromString(body))
                writer.write(f"HTTP/1.1 {code} X\r\n{self.reply_headers}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()


def values_of(attributes: Any) -> dict[str, Any]:
    """Attributes as plain data."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await receiver._serve(reader, writer)
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
        for task in tuple(open_now):
            task.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
