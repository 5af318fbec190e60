"""What the pods of a node use, measured by its agent: two samples of what each process has used make a rate.

The driver counts, `rates_of` compares, and `node` sends the text along with the heartbeat. A pod of which any process
was not measured in both samples is left out: half of a pod's usage would look like an idle pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kedge.agent.core.driver import Consumption, ContainerProcess, Driver, Identity
from kedge.api.quantity import NANO, Quantity
from kedge.api.usage import format_usage
from kedge.env import Env
from kedge.errors import OperatingError

PodRates = dict[str, dict[str, dict[str, Quantity]]]
"""By pod uid and container: what is used of each resource."""
_MILLI = NANO // 1000
SHORTEST_S = 0.001
"""Two samples nearer than that make no rate: what a clock cannot tell apart would look like any number of cores."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What had been used at one moment of the node's monotonic clock."""

    at_s: float
    used: Mapping[Identity, Consumption] = field(default_factory=dict)


def rates_of(processes: Sequence[ContainerProcess], before: Sample, after: Sample) -> PodRates:
    """What each pod used between two samples, as cores, and the memory that it holds. Pure."""
    found: PodRates = {}
    unknown: set[str] = set()
    window_s = after.at_s - before.at_s
    for process in processes:
        if not process.running:
            continue
        identity = process.identity
        first, last = before.used.get(identity), after.used.get(identity)
        if first is None or last is None or window_s < SHORTEST_S:
            unknown.add(identity.pod_uid)
            continue
        milli = round(max(0.0, last.cpu_s - first.cpu_s) / window_s * 1000)
        amounts = {"cpu": Quantity(milli * _MILLI)}
        if last.memory_bytes is not None:
            amounts["memory"] = Quantity(last.memory_bytes * NANO)
        found.setdefault(identity.pod_uid, {})[identity.container] = amounts
    return {uid: containers for uid, containers in found.items() if uid not in unknown}


class UsageMeter:
    """Measures now and then. `text` is the last report; empty if there is nothing to report."""

    def __init__(self, env: Env, driver: Driver) -> None:
        self._env = env
        self._driver = driver
        self._sample: Sample | None = None
        self.text = ""
        self._results = env.metrics.counter("kedge_agent_measurements_total", "Measurements of usage", ("result",))

    async def measure(self) -> None:
        """Take a sample, and compare it with the last. A driver that does not answer in time must cost no heartbeat."""
        limits, now_s = self._env.limits, self._env.monotonic()
        before = self._sample
        if before is not None and now_s - before.at_s < limits.agent_usage_s:
            return
        try:
            async with asyncio.timeout(limits.agent_measure_s):
                used = await self._driver.consumption()
                processes = await self._driver.processes() if used else ()
        except (TimeoutError, OperatingError):
            self._results.labels("failed").inc()
            self.text = ""  # what was true before may be far from it now
            return
        after = self._sample = Sample(now_s, used)
        rates = rates_of(processes, before, after) if before is not None else {}
        window_s = 0.0 if before is None else after.at_s - before.at_s
        self.text = format_usage(self._env.now(), round(window_s), rates) if rates else ""
        self._results.labels("reported" if rates else "nothing").inc()
