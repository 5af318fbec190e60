"""An environment whose clocks a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from kedge.env import Env, system_env
from kedge.limits import Limits

START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class MovedClock:
    """`env` has this time. Both of its clocks move together."""

    limits: Limits = field(default_factory=Limits)
    at_s: float = 1_000.0

    def __post_init__(self) -> None:
        self.env: Env = replace(system_env(limits=self.limits), now=self.now, monotonic=lambda: self.at_s)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def pass_s(self, seconds: float) -> None:
        self.at_s += seconds

    def metric(self, name: str, **labels: str) -> float | None:
        return self.env.metrics.registry.get_sample_value(name, labels)
