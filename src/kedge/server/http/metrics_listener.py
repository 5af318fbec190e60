"""`/metrics` of a process that has no API server: plain HTTP and no other page.

It asks for no identity, so it listens on an address of the machine itself unless the operator chooses another.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kedge.caches import show_caches
from kedge.env import Env
from kedge.errors import Unavailable
from kedge.metrics import Metrics
from kedge.server.http.connection import Connections
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.status import status_body


class MetricsListener:
    """Serves the metrics of `env`. `start` and `stop` it once."""

    def __init__(self, env: Env) -> None:
        self._metrics = env.metrics
        # Its own connections are not counted among those of an API server.
        self._connections = Connections(self, replace(env, metrics=Metrics()))
        self._env = env
        self._server: asyncio.Server | None = None
        self._deadlines: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port.

        Raises:
            Unavailable: the address is in use or is not of this machine. Choose another.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(self._connections.protocol, host, port)
        except OSError as error:
            raise Unavailable(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}: pass another --metrics-listen"
            ) from error
        self._deadlines = self._env.spawn(self._connections.run_deadlines(), name="deadlines of scrapes")
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._deadlines is not None:
            self._deadlines.cancel()
        self._connections.abort()

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        if request.path != b"/metrics" or request.method not in ("GET", "HEAD"):
            exchange.respond(404, status_body(404, "NotFound", "this address has GET /metrics and nothing else"))
            return True
        show_caches(self._metrics)
        shown, content_type = self._metrics.page(request.headers.get(b"accept", b"").decode("latin-1"))
        exchange.respond(200, shown, content_type=content_type.encode())
        return True

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        self.answer_nowait(request, exchange)
