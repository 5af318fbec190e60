"""Tasks and futures whose order in a set does not depend on their address.

`asyncio.wait` and `asyncio.all_tasks` return sets; a hash made from a serial number gives those sets the same order in
every process. The serial number is drawn at the first hashing, so creating a future costs nothing more.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

_T = TypeVar("_T")


def _serial_hash(self: Any) -> int:
    serial: int = getattr(self, "_serial", 0)
    if not serial:
        loop = self.get_loop()
        loop.serials = serial = self._serial = loop.serials + 1
    return serial


def _is_same(self: object, other: object) -> bool:
    return self is other


class SimFuture(asyncio.Future[_T]):
    """`loop.create_future()` of a simulated loop."""

    __slots__ = ("_serial",)
    _serial: int
    __hash__ = _serial_hash
    __eq__ = _is_same


class SimTask(asyncio.Task[_T]):
    """`loop.create_task()` of a simulated loop."""

    __slots__ = ("_serial",)
    _serial: int
    __hash__ = _serial_hash
    __eq__ = _is_same
