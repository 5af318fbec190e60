"""Tasks and futures whose place in a set does not depend on their address.

`asyncio.wait` and `asyncio.all_tasks` hand out sets; a hash made from a serial number gives those sets the same
order in every process. The serial is drawn at the first hashing, so creating a future costs nothing more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kedge.sim.kernel.loop import SimLoop

_T = TypeVar("_T")


class SimFuture(asyncio.Future[_T]):
    """`loop.create_future()` of a simulated loop."""

    __slots__ = ("_serial",)
    _serial: int

    def __hash__(self) -> int:
        serial: int = getattr(self, "_serial", 0)
        if not serial:
            loop: SimLoop = self.get_loop()  # type: ignore[assignment]
            loop.serials = serial = self._serial = loop.serials + 1
        return serial

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTask(asyncio.Task[_T]):
    """`loop.create_task()` of a simulated loop."""

    __slots__ = ("_serial",)
    _serial: int

    def __hash__(self) -> int:
        serial: int = getattr(self, "_serial", 0)
        if not serial:
            loop: SimLoop = self.get_loop()  # type: ignore[assignment]
            loop.serials = serial = self._serial = loop.serials + 1
        return serial

    def __eq__(self, other: object) -> bool:
        return self is other
