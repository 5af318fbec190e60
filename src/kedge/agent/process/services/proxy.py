"""The proxy of one port of a Service: a listener, and connections to endpoints, round robin.

Without a ready endpoint it does not listen, so that clients are refused at once. An endpoint that does not answer is
skipped. A connection ends with its endpoint: when the endpoint is not listed any more, it is cut.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from kedge.agent.process.services.plan import ServicePortPlan, Target
from kedge.env import Env
from kedge.metrics import Counter

_LOG = logging.getLogger(__name__)
_READ_BYTES = 64 * 1024


@dataclass(slots=True)
class ProxyShared:
    """Shared by all ports of a node."""

    env: Env
    connections: Counter
    """By result."""
    open: int = 0


@dataclass(eq=False, slots=True)
class ServicePortProxy:
    """One port at one address. `update` after each change of its plan; `close` at the end."""

    shared: ProxyShared
    address: str
    port: int
    plan: ServicePortPlan
    _server: asyncio.base_events.Server | None = None
    _open: dict[asyncio.Task[None], Target | None] = field(default_factory=dict)
    _next: int = 0

    @property
    def listens(self) -> bool:
        return self._server is not None

    async def update(self, plan: ServicePortPlan) -> None:
        """Follow the endpoints: cut connections to those that are gone, listen only while one is ready."""
        self.plan = plan
        for task, target in tuple(self._open.items()):
            if target is not None and target not in plan.known:
                task.cancel()
        if plan.ready and self._server is None:
            await self._listen()
        elif not plan.ready and self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _listen(self) -> None:
        limits = self.shared.env.limits
        try:
            self._server = await asyncio.start_server(
                self._serve, self.address, self.port, limit=limits.stream_buffer_bytes
            )
        except OSError as error:
            self.shared.connections.labels("not listening").inc()
            name = "/".join(self.plan.service)
            _LOG.warning("Service %s cannot listen on %s:%d: %s", name, self.address, self.port, error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        shared = self.shared
        if shared.open >= shared.env.limits.service_connections_max:
            shared.connections.labels("too many").inc()
            writer.transport.abort()
            return
        shared.open += 1
        self._open[task] = None
        try:
            await self._forward(task, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # asyncio's own callback would log the cancellation of a handler
        finally:
            shared.open -= 1
            self._open.pop(task, None)
            writer.transport.abort()

    async def _forward(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        found = await self._connect(task)
        if found is None:
            self.shared.connections.labels("no endpoint").inc()
            return
        self.shared.connections.labels("forwarded").inc()
        back_reader, back_writer = found
        for each in (writer, back_writer):
            each.transport.set_write_buffer_limits(high=self.shared.env.limits.stream_buffer_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, back_writer))
                group.create_task(_copy(back_reader, writer))
            writer.close()
            await writer.wait_closed()
        except* OSError:
            pass  # one side broke: both are cut
        finally:
            back_writer.transport.abort()

    async def _connect(self, task: asyncio.Task[None]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the next endpoint that answers; None if none does."""
        limits = self.shared.env.limits
        for _ in range(len(self.plan.ready)):
            ready = self.plan.ready
            if not ready:
                return None
            target = ready[self._next % len(ready)]
            self._next += 1
            self._open[task] = target
            try:
                async with asyncio.timeout(limits.service_connect_s):
                    return await asyncio.open_connection(*target, limit=limits.stream_buffer_bytes)
            except (OSError, TimeoutError):
                continue
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end, then end the other side's input: a half-closed connection stays one."""
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
