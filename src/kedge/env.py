"""The determinism boundary: time, randomness, identity, spawning, limits, metrics and logs come from here.

Production wires `system_env`; the simulator builds its own. Code under the boundary (`server.service`,
`runtime`, `scheduler`, `controllers`, `agent.core`) uses nothing else for these, and lint enforces that.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from kedge.limits import Limits
from kedge.logs import Log, NoLog, SystemLog
from kedge.metrics import Metrics


class Spawn(Protocol):
    """Starts a task that is kept alive until it ends, and whose failure is reported, never dropped."""

    def __call__(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """Everything that a component gets from outside: clocks, randomness, identity, tasks, limits, metrics, logs."""

    now: Callable[[], datetime]
    """Wall clock, in UTC. For timestamps, never for durations."""
    monotonic: Callable[[], float]
    """Monotonic clock, in seconds. For deadlines and durations."""
    random: random.Random
    new_uid: Callable[[], str]
    spawn: Spawn
    secret_bytes: Callable[[int], bytes] = os.urandom
    """So many random bytes, for nonces and keys: of the system's generator, or in simulation of the seeded one."""
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    log: Log = field(default_factory=NoLog)


def uid_from(source: random.Random) -> str:
    """A version 4 UUID drawn from `source`."""
    bits = source.getrandbits(128) & ~(0xF000 << 64) & ~(0xC000 << 48) | (0x4000 << 64) | (0x8000 << 48)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class TaskSpawner:
    """`Spawn` on the running event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references to its tasks

    def __call__(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": f"task {task.get_name()} failed", "exception": error, "task": task}
            )


def system_env(*, limits: Limits | None = None, metrics: Metrics | None = None) -> Env:
    """The production environment: the machine's clocks and its entropy. Uids are unique, not secret."""
    source = random.Random(random.SystemRandom().getrandbits(256))
    limits = limits or Limits()
    metrics = metrics or Metrics(series_max=limits.metric_series_max)
    return Env(
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        random=source,
        new_uid=lambda: uid_from(source),
        spawn=TaskSpawner(),
        limits=limits,
        metrics=metrics,
        log=SystemLog(metrics),
    )
