"""Pods that waited for a node lately, and pods that have succeeded: history that committed state no longer has."""

from __future__ import annotations

import math
from typing import NamedTuple

from kedge.api.views import PodView
from kedge.sim.judges.pod_facts import owner_uid


class _Wait(NamedTuple):
    scheduler: str
    priority: int
    until_s: float


class PodHistories:
    """Fed with every version of every pod."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._waits: dict[str, _Wait] = {}
        """By pod uid: those that wait for a node, or did within the lag."""
        self._succeeded: dict[str, dict[str, None]] = {}
        """By owner uid: the uids of its pods that have succeeded. They stay after the pods are removed."""
        self.schedulers: dict[str, None] = {}
        """Every scheduler that a pod has named."""

    def note(self, old: PodView | None, new: PodView | None, now_s: float) -> None:
        if old is not None and old.uid in self._waits and (new is None or new.uid != old.uid):
            self._end(old.uid, now_s)
        if new is None:
            return
        self.schedulers[new.spec.scheduler_name] = None
        if new.status.phase == "Succeeded" and (owner := owner_uid(new)):
            self._succeeded.setdefault(owner, {})[new.uid] = None
        if not new.spec.node_name and not new.finished:
            self._waits[new.uid] = _Wait(new.spec.scheduler_name, new.spec.priority or 0, math.inf)
        elif new.uid in self._waits:
            self._end(new.uid, now_s)

    def _end(self, uid: str, now_s: float) -> None:
        wait = self._waits[uid]
        if math.isinf(wait.until_s):
            self._waits[uid] = wait._replace(until_s=now_s)

    def highest_waiting(self, scheduler: str, now_s: float) -> int | None:
        """The highest priority of the pods that wait for this scheduler, or did within the lag."""
        begin_s = now_s - self._lag_s
        return max(
            (each.priority for each in self._waits.values() if each.scheduler == scheduler and each.until_s >= begin_s),
            default=None,
        )

    def succeeded(self, owner: str) -> int:
        """How many pods of an owner have ever succeeded."""
        return len(self._succeeded.get(owner, ()))
