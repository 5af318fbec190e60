"""How many replicas of each workload were active, placed, ready or refused, now and lately, from committed pods.

`condition_invariants` compares conditions with it. A controller acts on a state that may be some time old, its lag: a
condition is wrong only if its claim held at no time in that window. A pod whose counts stay the same costs one
comparison.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kedge.api.views import PodView
from kedge.api.wellknown import DRAINING


class ReplicaTally(NamedTuple):
    """The replicas of one workload, or the part of one pod in it."""

    active: int = 0
    placed: int = 0
    ready: int = 0
    refused: int = 0
    """The scheduler tried them and gave a reason."""
    waiting: int = 0
    """They have no node."""


NO_REPLICA = ReplicaTally()


class TallyRange(NamedTuple):
    """The highest and the lowest of each count in a span of time."""

    most: ReplicaTally = NO_REPLICA
    least: ReplicaTally = NO_REPLICA


def tally_of(pod: PodView) -> ReplicaTally:
    """The part of one pod. Read without code of the controllers."""
    if pod.finished or pod.terminating or DRAINING in pod.metadata.annotations:
        return NO_REPLICA
    ready = refused = 0
    for each in pod.status.conditions:
        if each.type == "Ready":
            ready = int(each.status == "True")
        elif each.type == "PodScheduled":
            refused = int(each.status == "False" and bool(each.reason) and not pod.spec.scheduling_gates)
    if pod.spec.node_name:
        return ReplicaTally(1, 1, ready, 0, 0)
    return ReplicaTally(1, 0, ready, refused, 1)


class ReplicaTallies:
    """Counts by the uid of the owner of pods, with those of the last `lag_s`."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        """The history begins with the count at the start of this window."""
        self._parts: dict[str, tuple[ReplicaTally, str, str]] = {}
        """By pod uid: its part, the owner that it counts for, and the owner of that."""
        self._history: dict[str, deque[tuple[float, ReplicaTally]]] = {}
        self._sets: dict[str, dict[str, None]] = {}
        """By Deployment uid: the uids of the ReplicaSets that it has or had."""
        self.changed_s: dict[str, float] = {}
        """By workload uid: the last change of a pod of it, or of its own spec or metadata."""

    def update(self, pod: str, part: ReplicaTally, owner: str, above: str, now_s: float) -> None:
        """A pod of this owner has changed. `above` is the owner of that, if it has one."""
        self.changed_s[owner] = now_s
        if above:
            self.changed_s[above] = now_s
        before, of, _ = known = self._parts.get(pod, (NO_REPLICA, owner, ""))
        if known == (part, owner, above):
            return
        self._parts[pod] = part, owner, above
        if above:
            self._sets.setdefault(above, {})[owner] = None
        if of != owner:
            self._move(of, before, NO_REPLICA, now_s)
            before = NO_REPLICA
        self._move(owner, before, part, now_s)

    def remove(self, pod: str, now_s: float) -> tuple[str, str]:
        """A pod is gone. Returns the owner that it counted for, and the owner of that."""
        part, owner, above = self._parts.pop(pod, (NO_REPLICA, "", ""))
        for uid in (owner, above):
            if uid:
                self.changed_s[uid] = now_s
        self._move(owner, part, NO_REPLICA, now_s)
        return owner, above

    def _move(self, owner: str, before: ReplicaTally, after: ReplicaTally, now_s: float) -> None:
        if before == after:
            return
        history = self._history.setdefault(owner, deque([(now_s - self._lag_s, NO_REPLICA)]))
        counts = zip(history[-1][1], before, after, strict=True)
        history.append((now_s, ReplicaTally(*(total - old + new for total, old, new in counts))))
        while len(history) > 1 and history[1][0] <= now_s - self._lag_s:
            history.popleft()

    def sets_of(self, workload: str) -> tuple[str, ...]:
        """The owners whose pods count for a workload: the ReplicaSets of a Deployment, or the workload itself."""
        return tuple(self._sets.get(workload, (workload,)))

    def between(self, owner: str, since_s: float, until_s: float) -> TallyRange:
        """The highest and the lowest of each count of one owner in a span of time, both ends included."""
        found: list[ReplicaTally] = []
        for at_s, tally in reversed(self._history.get(owner, ())):
            if at_s <= until_s:
                found.append(tally)
            if at_s <= since_s:
                break
        if not found:
            return TallyRange()
        if len(found) == 1:
            return TallyRange(found[0], found[0])
        return TallyRange(ReplicaTally(*map(max, *found)), ReplicaTally(*map(min, *found)))

    def moments(self, workload: str, since_s: float) -> Iterator[float]:
        """When counts of a workload have changed since."""
        for owner in self.sets_of(workload):
            for at_s, _ in self._history.get(owner, ()):
                if at_s > since_s:
                    yield at_s
