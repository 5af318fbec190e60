"""The listener of an agent's endpoint: TLS both ways, one request a connection, a bounded number of them.

`sessions` serves the streams. The only callers are API servers, which have authorized the request; this module checks
that the caller is one, and nothing about users.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.http11 import Request

from kedge.agent.process import ProcessDriver
from kedge.agent.process.endpoint import channels
from kedge.agent.process.endpoint.certificate import endpoint_context, is_api_server, use_certificate
from kedge.agent.process.endpoint.channels import ChannelSocket
from kedge.agent.process.endpoint.sessions import ExecRequest, run_command, send_output, write_chunks
from kedge.agent.process.logs import LogOptions
from kedge.env import Env
from kedge.errors import BadRequest, NotFound, OperatingError, TooManyRequests, Unavailable, check, to_status

_encode = msgspec.json.Encoder().encode


class EndpointAddress(NamedTuple):
    """Where an endpoint listens."""

    host: str
    port: int


class AgentEndpoint:
    """Serves the streams of one node. `start`, then `stop`, which ends commands that have a terminal."""

    def __init__(self, driver: ProcessDriver, env: Env) -> None:
        self._driver = driver
        self._env = env
        self._limits = env.limits
        self._server: asyncio.base_events.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._open: set[asyncio.Task[None]] = set()
        metrics = env.metrics
        metrics.gauge("kedge_agent_streams", "Open streams of logs, exec and attach").set_function(
            lambda: len(self._open)
        )
        self._refused = metrics.counter("kedge_agent_streams_refused_total", "Streams that were refused", ("reason",))

    async def start(self, host: str, port: int, authority_pem: str) -> EndpointAddress:
        """Listen. Callers need a certificate of an API server that the authority has signed, and are served once
        `use_certificate` was called.

        Raises:
            Unavailable: the address cannot be used.
        """
        self._tls = endpoint_context(authority_pem)
        try:
            self._server = await asyncio.start_server(
                self._serve,
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.stream_connect_s,
                limit=self._limits.stream_buffer_bytes,
            )
        except OSError as error:
            raise Unavailable(
                f"the agent cannot listen on {host}:{port}: {error.strerror or error}: pass another --listen"
            ) from error
        return EndpointAddress(host, int(self._server.sockets[0].getsockname()[1]))

    def use_certificate(self, pem: bytes) -> None:
        """Show this certificate, with its key, to API servers from now on. Streams that are open go on."""
        check(self._tls is not None, "an endpoint has a certificate only after its start")
        assert self._tls is not None
        use_certificate(self._tls, pem)

    async def stop(self) -> None:
        """Stop listening and end every stream."""
        if self._server is not None:
            self._server.close()
        for each in tuple(self._open):
            each.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        transport = writer.transport
        transport.set_write_buffer_limits(high=self._limits.stream_buffer_bytes)
        if not is_api_server(writer.get_extra_info("peercert")):
            self._refused.labels("not an API server").inc()
            transport.abort()
            return
        is_full = len(self._open) >= self._limits.agent_streams_max
        self._open.add(task)
        try:
            await self._answer(reader, writer, is_full=is_full)
            writer.close()
            async with asyncio.timeout(self._limits.stream_connect_s):
                await writer.wait_closed()
        except (OSError, TimeoutError):
            transport.abort()
        except asyncio.CancelledError:
            transport.abort()  # asyncio's own callback would log the cancellation of a handler
        finally:
            self._open.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_full: bool) -> None:
        socket = ChannelSocket(reader, writer, message_bytes_max=self._limits.stream_message_bytes_max)
        async with asyncio.timeout(self._limits.stream_connect_s):
            request = await socket.read_request()
        if request is None:
            return
        try:
            if is_full:
                self._refused.labels("too many").inc()
                raise TooManyRequests(
                    f"the agent serves {self._limits.agent_streams_max} streams already: end one", retry_after_s=1.0
                )
            session = self._session(request, socket, reader, writer)
        except OperatingError as error:
            await _respond_error(writer, error)
            return
        await session

    def _session(
        self, request: Request, socket: ChannelSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Coroutine[Any, Any, None]:
        url = urlsplit(request.path)
        query = parse_qs(url.query, keep_blank_values=True)
        match url.path.strip("/").split("/"):
            case ["pods", uid, container, "log"]:
                return self._log(self._open_log(uid, container, query), reader, writer)
            case ["pods", uid, container, "exec"]:
                return self._exec(request, socket, uid, container, _exec_request(query))
            case ["pods", uid, container, "attach"]:
                return self._attach(request, socket, uid, container)
        raise NotFound(f"the agent serves no {url.path}: API server and agent must be of one version")

    async def _exec(
        self, request: Request, socket: ChannelSocket, uid: str, container: str, wanted: ExecRequest
    ) -> None:
        if await socket.accept(request):
            starting = self._driver.exec(uid, container, wanted.command, terminal=wanted.terminal)
            await run_command(socket, wanted, starting, ping_s=self._limits.stream_ping_s)

    async def _attach(self, request: Request, socket: ChannelSocket, uid: str, container: str) -> None:
        if not await socket.accept(request):
            return
        try:
            pieces = self._driver.logs.open(uid, container, LogOptions(follow=True, tail_lines=0))
        except OperatingError as error:
            await socket.finish(channels.error_status(error))
            return
        await send_output(socket, pieces, ping_s=self._limits.stream_ping_s)

    def _open_log(self, uid: str, container: str, query: dict[str, list[str]]) -> AsyncIterator[bytes]:
        options = _log_options(query, self._env.now())
        try:
            return self._driver.logs.open(uid, container, options)
        except NotFound as error:
            pod = _first(query, "pod")
            earlier = "previous terminated " if options.previous else ""
            raise BadRequest(f'{earlier}container "{container}" in pod "{pod}" not found on its node') from error

    async def _log(
        self, pieces: AsyncIterator[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        writing = asyncio.ensure_future(write_chunks(writer, pieces))
        gone = asyncio.ensure_future(_until_gone(reader))
        try:
            await asyncio.wait([writing, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (writing, gone):
                each.cancel()
            await asyncio.gather(writing, gone, return_exceptions=True)


async def _until_gone(reader: asyncio.StreamReader) -> None:
    """Wait for the end of a connection on which nothing more is expected."""
    with suppress(OSError):
        while await reader.read(4096):
            pass


async def _respond_error(writer: asyncio.StreamWriter, error: OperatingError) -> None:
    status = to_status(error)
    body = _encode(status)
    head = f"HTTP/1.1 {status['code']} Error\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
    await writer.drain()


def _first(query: dict[str, list[str]], name: str) -> str:
    return query.get(name, [""])[0]


def _flag(query: dict[str, list[str]], name: str) -> bool:
    return _first(query, name) in ("true", "1")


def _exec_request(query: dict[str, list[str]]) -> ExecRequest:
    terminal = _flag(query, "tty")
    return ExecRequest(
        command=tuple(query.get("command", ())),
        terminal=terminal,
        stdin=_flag(query, "stdin"),
        stdout=_flag(query, "stdout"),
        stderr=_flag(query, "stderr") and not terminal,
    )


def _log_options(query: dict[str, list[str]], now: datetime) -> LogOptions:
    """The options of a log request. The API server has checked their values."""
    since: datetime | None = None
    if seconds := _first(query, "sinceSeconds"):
        since = now - timedelta(seconds=int(seconds))
    elif moment := _first(query, "sinceTime"):
        since = datetime.fromisoformat(moment)
    tail, limit = _first(query, "tailLines"), _first(query, "limitBytes")
    return LogOptions(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        tail_lines=int(tail) if tail else None,
        since=since,
        timestamps=_flag(query, "timestamps"),
        limit_bytes=int(limit) if limit else None,
    )
