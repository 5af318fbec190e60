"""Lifecycle hooks of one pod: `postStart` beside a new process, `preStop` before its SIGTERM, within its grace.

Hooks run at least once: an agent that is killed during `preStop` runs it again. A `postStart` whose agent was killed is
taken for done, because the process runs and must not be started twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kedge.agent.core.driver import Driver, Identity
from kedge.api.views import Container, LifecycleHook
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.metrics import Counter

_SOONER_S = 1.0
"""A grace that ends earlier by less than this is the same grace, measured later."""


@dataclass(slots=True)
class _Stopping:
    task: asyncio.Task[None]
    deadline_s: float


class PodHooks:
    """Runs the hooks of one pod's processes. `on_change` is called when a `postStart` ends or a `preStop` fails."""

    def __init__(self, driver: Driver, env: Env, failures: Counter, on_change: Callable[[], None]) -> None:
        """`failures` counts by hook."""
        self._driver = driver
        self._env = env
        self._failures = failures
        self._on_change = on_change
        self._starting: dict[Identity, asyncio.Task[None]] = {}
        self._stopping: dict[Identity, _Stopping] = {}
        self.failed: dict[Identity, str] = {}
        """Processes whose `postStart` failed, and why: each is stopped, and restarted by its policy."""
        self._failed_stops: list[tuple[Identity, str]] = []

    def started(self, identity: Identity, container: Container) -> None:
        """A process was started: run its `postStart`."""
        hook = container.lifecycle.post_start if container.lifecycle is not None else None
        if hook is not None and identity not in self._starting:
            name = f"postStart of {identity.pod_uid}/{identity.container}"
            self._starting[identity] = self._env.spawn(self._run_post_start(identity, hook), name=name)

    def is_starting(self, identity: Identity) -> bool:
        """Whether its `postStart` has not ended."""
        return identity in self._starting and identity not in self.failed

    def take_failed_stops(self) -> list[tuple[Identity, str]]:
        """The processes whose `preStop` failed since the last call, and why."""
        failed, self._failed_stops = self._failed_stops, []
        return failed

    async def stop(self, identity: Identity, container: Container | None, grace_s: float, cause: str = "") -> None:
        """Stop a process: with a `preStop` after that, in the background. A repeat can only shorten it."""
        hook = container.lifecycle.pre_stop if container is not None and container.lifecycle is not None else None
        deadline_s = self._env.monotonic() + grace_s
        running = self._stopping.get(identity)
        if hook is None or grace_s <= 0:
            if running is not None:
                running.task.cancel()
            await self._driver.stop(identity, grace_s=grace_s, cause=cause)
            return
        if running is None:
            name = f"preStop of {identity.pod_uid}/{identity.container}"
            work = self._run_pre_stop(identity, hook, deadline_s, cause)
            self._stopping[identity] = _Stopping(self._env.spawn(work, name=name), deadline_s)
        elif running.task.done() or deadline_s < running.deadline_s - _SOONER_S:
            running.task.cancel()
            running.deadline_s = min(running.deadline_s, deadline_s)
            left_s = max(0.0, running.deadline_s - self._env.monotonic())
            await self._driver.stop(identity, grace_s=left_s, cause=cause)

    def forget(self, identity: Identity) -> None:
        """The process has ended."""
        for task in (self._starting.pop(identity, None), getattr(self._stopping.pop(identity, None), "task", None)):
            if task is not None:
                task.cancel()
        self.failed.pop(identity, None)

    def close(self) -> None:
        for identity in [*self._starting, *self._stopping]:
            self.forget(identity)

    async def _run_post_start(self, identity: Identity, hook: LifecycleHook) -> None:
        problem = await self._run(identity, hook, self._env.limits.agent_post_start_s)
        if problem:
            self._failures.labels("postStart").inc()
            self.failed[identity] = problem
        else:
            self._starting.pop(identity, None)
        self._on_change()

    async def _run_pre_stop(self, identity: Identity, hook: LifecycleHook, deadline_s: float, cause: str) -> None:
        """A hook that fails or takes the whole grace does not keep the process: SIGTERM follows in any case."""
        problem = await self._run(identity, hook, deadline_s - self._env.monotonic())
        if problem:
            self._failures.labels("preStop").inc()
            self._failed_stops.append((identity, problem))
            self._on_change()
        left_s = deadline_s - self._env.monotonic()
        while True:
            try:
                grace_s = max(self._env.limits.agent_stop_s_min, left_s)
                await self._driver.stop(identity, grace_s=grace_s, cause=cause)
            except OperatingError:
                await asyncio.sleep(self._env.limits.agent_retry_s)
            else:
                return

    async def _run(self, identity: Identity, hook: LifecycleHook, within_s: float) -> str:
        """Why the hook failed; empty if it succeeded."""
        try:
            async with asyncio.timeout(within_s):
                if hook.sleep is not None:
                    await asyncio.sleep(hook.sleep.seconds)
                    return ""
                return await self._driver.run_hook(identity, hook, within_s=within_s)
        except TimeoutError:
            return f"it did not end within {within_s:.0f} s"
        except OperatingError as error:
            return str(error)
