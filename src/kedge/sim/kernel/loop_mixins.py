"""Parts of the event loop that need no virtual time: connections handed to the network, executors run inline.

Base classes of `loop.SimLoop`. `connections` implements `LoopConnections`; `real_io` rejects everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from kedge.errors import check
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

    wires: LoopConnections | None = None
    """Set by `simulation.run`."""

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str | None = None, port: int | None = None, **options: Any
    ) -> tuple[asyncio.Transport, Any]:
        check(self.wires is not None, "this loop has no network: run the program with `kedge.sim.kernel.run`")
        return await cast("LoopConnections", self.wires).connect(protocol_factory, host, port, options)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: int | None = None, **options: Any
    ) -> asyncio.AbstractServer:
        check(self.wires is not None, "this loop has no network: run the program with `kedge.sim.kernel.run`")
        return cast("LoopConnections", self.wires).listen(protocol_factory, host, port, options)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:  # noqa: ARG002
        check(self.wires is not None, "this loop has no network: run the program with `kedge.sim.kernel.run`")
        return cast("LoopConnections", self.wires).resolve(host, port)


class InlineExecutorLoop(RefusingLoop):
    """Executors without threads."""

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., _T],
        *args: Any,
    ) -> asyncio.Future[_T]:
        """Run `func` inline, at a step of its own: a thread could not be replayed."""
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
        """Accepted and ignored: everything runs inline."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002
        return None
