"""Conditions of a store that need an operator: logged once, counted, and listed in its statistics."""

from __future__ import annotations

import logging

from kedge.env import Env

_log = logging.getLogger("kedge.store")


class Alarms:
    """Conditions by name. One that does not recur is dropped after `Limits.alarm_s`."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._raised: dict[str, tuple[float, str]] = {}
        self._total = env.metrics.counter("kedge_store_alarms_total", "Alarms that a store has raised", ("alarm",))

    def raise_alarm(self, name: str, text: str) -> None:
        if name not in self._current():
            _log.warning("%s", text)
        self._raised[name] = (self._env.monotonic(), text)
        self._total.labels(name).inc()

    def texts(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._current().values())

    def _current(self) -> dict[str, tuple[float, str]]:
        oldest = self._env.monotonic() - self._env.limits.alarm_s
        self._raised = {name: each for name, each in self._raised.items() if each[0] >= oldest}
        return self._raised
