"""What a person should know about a store: said once in the log, counted, and shown in its statistics."""

from __future__ import annotations

import logging

from kedge.env import Env

_log = logging.getLogger("kedge.store")


class Alarms:
    """Conditions by name. One that does not come back is dropped after `Limits.alarm_s`."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._raised: dict[str, tuple[float, str]] = {}
        self._total = env.metrics.counter("kedge_store_alarms_total", "Alarms a store has raised", ("alarm",))

    def sound(self, name: str, text: str) -> None:
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
