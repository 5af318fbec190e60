"""One API server process: it listens with TLS, and stops without dropping requests in progress."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kedge.env import Env
from kedge.limits import Limits
from kedge.server.audit import Auditor
from kedge.server.http.access import Authenticator
from kedge.server.http.agents import AgentDialer
from kedge.server.http.api import ApiHandler
from kedge.server.http.connections import Connections
from kedge.server.http.tls_listener import TlsListener
from kedge.server.service import Service
from kedge.slo import API_AVAILABILITY


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


def bound_tls_buffers(limits: Limits) -> None:
    """Bound asyncio's TLS read buffers. The attribute is private: a test fails when a Python version drops it."""
    sslproto.SSLProtocol.max_size = limits.http_tls_buffer_bytes


class ApiServer:
    """Serves one `Service` over HTTP. `start`, then `stop`."""

    def __init__(
        self,
        service: Service,
        env: Env,
        *,
        authenticator: Authenticator | None = None,
        agents_tls: ssl.SSLContext | None = None,
        auditor: Auditor | None = None,
    ) -> None:
        """Logs, exec and attach reach agents with the client certificate of `agents_tls`; without it they do not. The
        owner of `auditor` closes its log after the server has stopped."""
        self._env = env
        self._service = service
        agents = AgentDialer(service, env, agents_tls)
        self.handler = ApiHandler(service, env, authenticator or Authenticator(), agents, auditor)
        self.connections = Connections(self.handler, env, self.handler.flow.expire)
        self._listener: asyncio.base_events.Server | TlsListener | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def past_alert(self) -> list[str]:
        """The objectives of this server whose error budget burns past the bounds of their alert."""
        return [API_AVAILABILITY] if self.connections.availability.is_past_alert() else []

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Read the roles, listen, and return the port. Without TLS only on connections that the simulator or a test
        makes."""
        await self._service.start_access()
        if tls is not None:
            self._listener = listener = TlsListener(self.connections, self._env, tls)
            port = await listener.start(host, port)
        else:
            loop = asyncio.get_running_loop()
            self._listener = plain = await loop.create_server(self.connections.protocol, host, port)
            port = int(plain.sockets[0].getsockname()[1]) if plain.sockets else port
        self._sweeper = self._env.spawn(self.connections.run_deadlines(), name="http deadlines")
        self.handler.ready = True
        return port

    async def stop(self) -> None:
        """Drain: watches end, requests under way finish, and later ones are refused with 503. Listening goes on until
        then; after `http_drain_s` the rest is cut."""
        self.connections.draining = True
        self.handler.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._env.limits.http_drain_s):
                await self.connections.drain()
                await self._stop_listening()
                await self.connections.close()
        await self._stop_listening()
        self.connections.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._service.stop_access()

    async def _stop_listening(self) -> None:
        if isinstance(self._listener, TlsListener):
            await self._listener.close()
        elif self._listener is not None:
            self._listener.close()
