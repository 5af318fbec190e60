"""A listener of plain HTTP for one handler: the metrics of a process without an API server, the page of a recording."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kedge.env import Env
from kedge.errors import Unavailable
from kedge.metrics import Metrics
from kedge.server.http.connections import Connections
from kedge.server.http.exchange import Handler


class PlainListener:
    """`start` and `stop` it once."""

    def __init__(self, handler: Handler, env: Env, *, serves: str, option: str) -> None:
        """`serves` and `option` are for the message if it cannot listen: what it serves, and how to choose another
        address."""
        self._env = env
        # Its connections are not counted among those of an API server.
        self._connections = Connections(handler, replace(env, metrics=Metrics()))
        self._serves, self._option = serves, option
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
            why = error.strerror or error
            raise Unavailable(
                f"cannot serve {self._serves} on {host}:{port}: {why}: pass another {self._option}"
            ) from error
        self._deadlines = self._env.spawn(self._connections.run_deadlines(), name=f"deadlines of {self._serves}")
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._deadlines is not None:
            self._deadlines.cancel()
        self._connections.abort()
