"""Objects whose status describes an older generation than their spec: how many, and for how long. Writes nothing."""

from __future__ import annotations

from functools import partial

from kedge.controllers.shared.kinds import BUDGET, DEPLOYMENT, REPLICA_SET, ROLLOUT
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet

_KINDS = (DEPLOYMENT, REPLICA_SET, ROLLOUT, BUDGET)
"""Kinds whose controllers write `status.observedGeneration`."""


class GenerationSignals:
    """Follows the caches of workloads: the times are since this process saw the newer generation."""

    def __init__(self, env: Env, caches: CacheSet) -> None:
        self._env = env
        count = env.metrics.gauge(
            "kedge_generations_ahead", "Objects whose status is of an older generation than their spec", ("kind",)
        )
        oldest = env.metrics.gauge(
            "kedge_generation_ahead_seconds",
            "Time for which the status of the object that is furthest behind has been of an older generation",
            ("kind",),
        )
        self._ahead: dict[str, dict[Key, float]] = {}
        """By kind: the objects, in the order in which they came, and since when."""
        for kind in _KINDS:
            ahead = self._ahead[kind.key_kind] = {}
            count.labels(kind.kind).set_function(ahead.__len__)
            oldest.labels(kind.kind).set_function(partial(self._oldest_s, ahead))
            caches.cache(kind).subscribe(partial(self._changed, ahead), name="generation signals")

    def _oldest_s(self, ahead: dict[Key, float]) -> float:
        return self._env.monotonic() - min(ahead.values()) if ahead else 0.0

    def _changed(self, ahead: dict[Key, float], change: CacheChange) -> None:
        found = change.new
        if found is None or found.metadata.generation <= found.view.status.observed_generation:
            ahead.pop(change.key, None)
        else:
            ahead.setdefault(change.key, self._env.monotonic())
