"""Probes of running processes: startup first, then liveness and readiness, each at its own pace.

They only measure; `plan` decides what a result means. A result changes after the threshold of equal answers in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kedge.agent.core.driver import Driver, Identity
from kedge.agent.core.plan import HEALTHY, Health
from kedge.api.views import Container, Probe
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.logs import DECISION


def has_probes(container: Container) -> bool:
    return any((container.startup_probe, container.liveness_probe, container.readiness_probe))


class Prober:
    """Probes one process until `stop`. `health` is the current result."""

    def __init__(
        self, driver: Driver, env: Env, identity: Identity, container: Container, on_change: Callable[[], None]
    ) -> None:
        self._driver = driver
        self._identity = identity
        self._container = container
        self._on_change = on_change
        self.health = replace(HEALTHY, started=container.startup_probe is None, ready=container.readiness_probe is None)
        self._task = env.spawn(self._run(), name=f"probes of {identity.pod_uid}/{identity.container}")

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        DECISION.set("")  # it outlives the decision that starts it
        container = self._container
        if container.startup_probe is not None:
            if not await self._until_started(container.startup_probe):
                return
            self._set_health(started=True)
        probes = (
            (container.liveness_probe, self._set_alive, True),
            (container.readiness_probe, self._set_ready, False),
        )
        await asyncio.gather(
            *(self._follow(probe, report, verdict=verdict) for probe, report, verdict in probes if probe is not None)
        )

    async def _until_started(self, probe: Probe) -> bool:
        await asyncio.sleep(probe.initial_delay_seconds)
        failures = 0
        while True:
            problem = await self._probe(probe)
            if not problem:
                return True
            failures += 1
            if failures >= max(1, probe.failure_threshold):
                self._set_health(sick=f"Startup probe failed: {problem}")
                return False
            await asyncio.sleep(max(1, probe.period_seconds))

    async def _follow(self, probe: Probe, report: Callable[[str], None], *, verdict: bool) -> None:
        """Report a new verdict, and the latest failure of every threshold of failures in a row."""
        await asyncio.sleep(probe.initial_delay_seconds)
        passed = failed = 0
        while True:
            problem = await self._probe(probe)
            passed, failed = (0, failed + 1) if problem else (passed + 1, 0)
            if failed >= max(1, probe.failure_threshold):
                verdict, failed = False, 0
                report(problem)
            elif passed >= max(1, probe.success_threshold) and not verdict:
                verdict = True
                report("")
            await asyncio.sleep(max(1, probe.period_seconds))

    async def _probe(self, probe: Probe) -> str:
        """Why the process does not pass; empty if it does."""
        timeout_s = max(1, probe.timeout_seconds)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._driver.probe(self._identity, probe)
        except TimeoutError:
            return f"no answer within {timeout_s} s"
        except OperatingError as error:
            return str(error)

    def _set_alive(self, problem: str) -> None:
        self._set_health(sick=problem and f"Liveness probe failed: {problem}")

    def _set_ready(self, problem: str) -> None:
        self._set_health(ready=not problem, unready=problem and f"Readiness probe failed: {problem}")

    def _set_health(self, **found: Any) -> None:
        health: Health = replace(self.health, **found)
        if health != self.health:
            self.health = health
            self._on_change()
