"""Parts of the event loop that need no virtual time: connections over the simulated network, executors run inline.

Base classes of `loop.SimLoop`. `connections` implements `LoopConnections`; `real_io` rejects everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kedge.sim.kernel.real_io import RefusingLoop

_T = TypeVar("_T")


class LoopConnections(Protocol):
    """The network under `create_connection` and `create_server`."""

    async def connect(
        self, factory: Callable[[], Any], host: str | None, port: int | None, options: dict[str, Any]
    ) -> tuple[asyncio.Transport, Any]: ...

    def listen(
        self, factory: Callable[[], Any], host: Any, port: int | None, options: dict[str, Any]
    ) -> asyncio.AbstractServer: ...

    def resolve(self, host: Any, port: Any) -> list[Any]: ...

    def close(self) -> None: ...


class ConnectingLoop(RefusingLoop):
    """`create_connection` and `create_server` over the simulated network."""

    connections: LoopConnections

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str | None = None, port: int | None = None, **options: Any
    ) -> tuple[asyncio.Transport, Any]:
        return await self.connections.connect(protocol_factory, host, port, options)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: int | None = None, **options: Any
    ) -> asyncio.AbstractServer:
        return self.connections.listen(protocol_factory, host, port, options)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:  # noqa: ARG002
        return self.connections.resolve(host, port)


class InlineExecutorLoop(RefusingLoop):
    """Executors without threads."""

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., _T],
        *args: Any,
    ) -> asyncio.Future[_T]:
        """Run `func` inline, in a step of its own: a thread could not be replayed."""
        future: asyncio.Future[_T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)

        self.call_soon(work)
        return future

    def set_default_executor(self, executor: Any) -> None:
        """Accepted and ignored: `run_in_executor` runs inline."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002
        return None
