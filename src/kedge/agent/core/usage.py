"""Resource usage of the pods of a node: a rate is the difference of two samples of each process.

The driver counts, `rates_of` compares, and `node` sends the report with the heartbeat. A pod with a process that is
missing in one of the samples is left out: a part of its usage would look like an idle pod.
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
"""Usage of each resource, by pod uid and container."""
_MILLI = NANO // 1000
SHORTEST_S = 0.001
"""Samples closer than this make no rate: with a clock that did not move it would be any number of cores."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The consumption at one moment of the node's monotonic clock."""

    at_s: float
    used: Mapping[Identity, Consumption] = field(default_factory=dict)


def rates_of(processes: Sequence[ContainerProcess], before: Sample, after: Sample) -> PodRates:
    """The cores that each pod used between two samples, and the memory that it holds. Pure."""
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
    """Measures periodically. `text` is the last report; empty if there is none."""

    def __init__(self, env: Env, driver: Driver) -> None:
        self._env = env
        self._driver = driver
        self._sample: Sample | None = None
        self.text = ""
        self._results = env.metrics.counter("kedge_agent_measurements_total", "Measurements of usage", ("result",))

    async def measure(self) -> None:
        """Take a sample, and compare it with the last. A slow driver must not delay the heartbeat."""
        limits, now_s = self._env.limits, self._env.monotonic()
        before = self._sample
        if before is not None and now_s - before.at_s < limits.agent_usage_s:
            return
        try:
            async with asyncio.timeout(limits.agent_measure_s):
                used = await self._driver.consumption()
                processes = await self._driver.processes()
        except (TimeoutError, OperatingError):
            self._results.labels("failed").inc()
            self.text = ""  # the last report may be far from true now
            return
        after = self._sample = Sample(now_s, used)
        rates = rates_of(processes, before, after) if before is not None else {}
        window_s = 0.0 if before is None else after.at_s - before.at_s
        idle = before is not None and not any(each.running for each in processes)
        self.text = format_usage(self._env.now(), round(window_s), rates) if rates or idle else ""
        self._results.labels("reported" if self.text else "nothing").inc()
