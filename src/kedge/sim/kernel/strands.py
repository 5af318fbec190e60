"""Who runs: a strand is one task's line of work, a process is one life of a host.

`loop` queues handles on processes and picks which process runs next; `hosts` gives processes their lives.
A strand travels in the context, so callbacks, timers and child tasks run where their context was born.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

import msgspec


class Handle(msgspec.Struct, eq=False):
    """One queued callback. A struct, not an `asyncio.Handle`: creating these is what a loop spends its time on."""

    callback: Callable[..., Any]
    args: tuple[Any, ...]
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
        """Name the work in a way that does not depend on addresses."""
        return describe_callback(self.callback)


class TimerHandle(Handle, eq=False):
    """A callback for later. `due` is on the host's own clock, as `asyncio` code expects of `when()`."""

    due: float = 0.0

    def when(self) -> float:
        return self.due


class HostProcess:
    """One life of a host: what it still has to do. A crash ends it; a restart makes another."""

    __slots__ = ("graveyard", "host_name", "idle", "number", "open", "plain_context", "queue", "run_queue", "slot")

    def __init__(self, host_name: str, number: int, slot: int) -> None:
        self.host_name = host_name
        self.number = number
        """Which life of the host this is, from 1."""
        self.slot = slot
        """Serial number over all processes of the run."""
        self.run_queue: deque[Handle] = deque()
        """What may run now, in order."""
        self.queue: deque[Handle] = self.run_queue
        """Where new work goes. It is `run_queue` itself unless the process is paused, slow or dead."""
        self.idle = True
        """True only if an append to `queue` must also put the process on the loop's ready list."""
        self.open = True
        """False while `queue` is not `run_queue`. Invariant: `idle` implies `open`."""
        self.plain_context: Context | None = None
        """Where it is called plainly; see `SimLoop.plain_context`."""
        self.graveyard: list[object] = []
        """Keeps a dead process's work referenced, so that no `finally` of it ever runs."""

    def __repr__(self) -> str:
        return f"{self.host_name}#{self.number}"


class Strand(msgspec.Struct, eq=False):
    """One line of work on one process. Its serial number is what a step leaves in the trace."""

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
