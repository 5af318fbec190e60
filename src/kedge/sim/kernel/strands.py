"""Units of execution: a strand is the work of one task, a process is one incarnation of a host.

`loop` queues handles on processes and picks which process runs next; `hosts` starts and ends processes.
A strand travels in the context, so callbacks, timers and child tasks run on the process that created their context.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

import msgspec


class Handle(msgspec.Struct, eq=False):
    """One queued callback. A struct, not an `asyncio.Handle`, because a loop spends much of its time creating these."""

    call: tuple[Any, ...]
    """The callback and its arguments, so that a step unpacks one tuple and builds none."""
    context: Context
    strand: Strand
    dropped: bool = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def get_context(self) -> Context:
        return self.context

    def describe(self) -> str:
        """A name of the work that does not depend on addresses."""
        return describe_callback(self.call[0])


class TimerHandle(Handle, eq=False):
    """A callback for later. `due` is on the clock of its host, as `asyncio` code expects of `when()`."""

    due: float = 0.0

    def when(self) -> float:
        return self.due


class WorldCall(msgspec.Struct, eq=False):
    """A callback of the world itself at an exact moment. It cannot be cancelled, and no crash drops it."""

    callback: Callable[..., Any]
    args: tuple[Any, ...]


class HostProcess:
    """One incarnation of a host, with its pending work. A crash ends it; a restart makes the next one."""

    __slots__ = ("host_name", "idle", "number", "open", "parked", "plain_context", "queue", "run_queue", "slot")

    def __init__(self, host_name: str, number: int, slot: int) -> None:
        self.host_name = host_name
        self.number = number
        """Incarnation of the host, from 1."""
        self.slot = slot
        """Serial number over all processes of the run."""
        self.run_queue: deque[Handle] = deque()
        """Work that may run now, in order."""
        self.queue: deque[Handle] = self.run_queue
        """Where new work goes. It is `run_queue` itself unless the process is paused, slow or dead."""
        self.idle = True
        """True only if an append to `queue` must also put the process on the loop's ready list."""
        self.open = True
        """False while `queue` is not `run_queue`. Invariant: `idle` implies `open`."""
        self.plain_context: Context | None = None
        """See `SimLoop.plain_context`."""
        self.parked: list[object] = []
        """Keeps the work of a crashed process referenced, so that no `finally` block of it ever runs."""

    def __repr__(self) -> str:
        return f"{self.host_name}#{self.number}"


class Strand(msgspec.Struct, eq=False):
    """The work of one task on one process. A step records its serial number in the trace."""

    process: HostProcess
    number: int


STRAND: ContextVar[Strand] = ContextVar("kedge.sim.strand")


def describe_callback(callback: Callable[..., Any]) -> str:
    """A name for a callback: the task it steps, or the function it is."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
    if owner is not None and not isinstance(owner, type(asyncio)):
        return f"{type(owner).__name__}.{getattr(callback, '__name__', name)}"
    return str(name)
