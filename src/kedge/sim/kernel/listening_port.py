"""The server that `loop.create_server` returns in a simulation. `connections` has the ports and their connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kedge.sim.kernel.connections import SimConnections
    from kedge.sim.kernel.hosts import Host


class SimServer(asyncio.AbstractServer):
    """A listening port of one process of a host."""

    def __init__(
        self, wires: SimConnections, factory: Callable[[], Any], host: Host, port: int, context: Context
    ) -> None:
        self.factory = factory
        self.host = host
        self.port = port
        self.context = context
        self.process = host.process
        self._wires = wires
        self._serving = True
        self._closed: asyncio.Future[None] | None = None
        self.sockets: tuple[Any, ...] = ()
        """Always empty: there are no real sockets. `port` is the port."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = True
        self._wires.open(self)

    async def serve_forever(self) -> None:
        await self.start_serving()
        self._closed = asyncio.get_running_loop().create_future()
        try:
            await self._closed
        finally:
            self.close()

    def close(self) -> None:
        self._serving = False
        self._wires.unlisten(self)
        if self._closed is not None and not self._closed.done():
            self._closed.cancel()

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)

    def close_clients(self) -> None:
        for transport in self._wires.accepted(self):
            transport.close()

    def abort_clients(self) -> None:
        for transport in self._wires.accepted(self):
            transport.abort()
