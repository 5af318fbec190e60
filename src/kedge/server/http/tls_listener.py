"""Accepts TLS connections: those in their handshake count as open ones, so that silent clients stay within the bound.

asyncio's own server notifies its protocols of a connection after the handshake, and never of one that fails.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from kedge.env import Env
from kedge.server.http.connections import Connections
from kedge.server.http.peers import address_of
from kedge.tasks import gather_ended

_BACKLOG = 1_024
"""Connections that the kernel holds until they are accepted: a burst of one client leaves room for others."""
_PAUSE_S = 1.0
"""Pause after an accept that failed, as asyncio has it: the process may have no file descriptor left."""


class _Handshake:
    """A handshake under way, which counts as a connection of its peer."""

    dispensable = True

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()


class TlsListener:
    """The sockets on which one server listens with TLS."""

    def __init__(self, connections: Connections, env: Env, tls: ssl.SSLContext) -> None:
        self._connections = connections
        self._env = env
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        env.metrics.gauge("kedge_http_handshakes", "TLS handshakes under way", ()).set_function(
            lambda: len(self._handshakes)
        )
        self._failed = env.metrics.counter("kedge_http_handshakes_failed_total", "TLS handshakes that failed", ())

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        bound = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        self._sockets = [each.dup() for each in bound.sockets]
        bound.close()
        for each in self._sockets:
            each.settimeout(0)
            each.listen(_BACKLOG)
            self._accepting.append(self._env.spawn(self._accept(each), name="http accept"))
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept no more connections. Handshakes under way end."""
        ending = [*self._accepting, *self._handshakes]
        for task in ending:
            task.cancel()
        await gather_ended(*ending)
        for each in self._sockets:
            each.close()
        self._accepting.clear()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop, connections = asyncio.get_running_loop(), self._connections
        while True:
            try:
                accepted, peername = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            address = address_of(peername)
            if not connections.peers.has_room(address):
                connections.refused.inc()
                accepted.close()
            else:
                self._begin(accepted, address)
            await asyncio.sleep(0)  # a burst of connections is accepted one in each turn: a handshake takes about 1 ms

    def _begin(self, accepted: socket.socket, address: str) -> None:
        task = self._env.spawn(self._shake_hands(accepted), name="http handshake")
        handshake = _Handshake(task)
        self._handshakes[task] = None
        self._connections.peers.add(address, handshake)

        def forget(ended: asyncio.Task[None]) -> None:
            del self._handshakes[ended]
            self._connections.peers.remove(address, handshake)

        task.add_done_callback(forget)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._connections.protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._connections.limits.http_handshake_s,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            self._failed.inc()
        except asyncio.CancelledError:
            with suppress(OSError):
                accepted.close()
            raise
