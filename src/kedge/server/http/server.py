"""One API server process: it listens with TLS, and stops without dropping requests in progress."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kedge.env import Env
from kedge.server.http.access import Authenticator
from kedge.server.http.api import ApiHandler
from kedge.server.http.connection import Connections
from kedge.server.service import Service

TLS_BUFFER_BYTES = 16 * 1024
"""Read buffer of one TLS connection. asyncio's own default is 256 KiB, which a thousand watches multiply."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The server's certificate with its key, and the authority that clients are checked against."""

    serving: Path
    authority: Path


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 or newer. A client certificate is requested, not required: a caller may have a token instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.serving)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    return context


def bound_tls_buffers() -> None:
    """Bound asyncio's TLS read buffers. The attribute is private: a test fails when a Python version drops it."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


class ApiServer:
    """Serves one `Service` over HTTP. `start`, then `stop`."""

    def __init__(self, service: Service, env: Env, *, authenticator: Authenticator | None = None) -> None:
        self._env = env
        self.handler = ApiHandler(service, env, authenticator or Authenticator())
        self.connections = Connections(self.handler, env)
        self._server: asyncio.base_events.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen, and return the port. Without TLS only on connections that the simulator or a test makes."""
        loop = asyncio.get_running_loop()
        handshake_s = self._env.limits.http_request_s if tls is not None else None
        self._server = await loop.create_server(
            self.connections.protocol, host, port, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        self._sweeper = self._env.spawn(self.connections.run_deadlines(), name="http deadlines")
        self.handler.ready = True
        sockets = self._server.sockets
        return int(sockets[0].getsockname()[1]) if sockets else port

    async def stop(self) -> None:
        """Drain: no new requests, watches end, requests under way finish; after `http_drain_s` the rest is cut."""
        self.handler.ready = False
        self.handler.stopping.set()
        if self._server is not None:
            self._server.close()
        self.connections.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._env.limits.http_drain_s):
                await self.connections.wait_closed()
        self.connections.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
