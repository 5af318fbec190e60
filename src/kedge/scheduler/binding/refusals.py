"""Refused binds, by pod and node, until the scheduler's cache shows the version that caused the refusal.

A bind proves its choice on committed state. If that is newer than the cache, the same decision would be refused again,
so the node is excluded for the pod until the cache has caught up. A pair that is refused too often is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kedge.api.wellknown import NODE_KIND
from kedge.env import Env
from kedge.errors import Refused
from kedge.keys import NO_REVISION, Key, Revision
from kedge.placement.reasons import Reason

ABOUT_THE_POD = frozenset(
    {
        Reason.POD_GONE,
        Reason.POD_REPLACED,
        Reason.POD_TERMINATING,
        Reason.POD_ENDED,
        Reason.POD_BOUND,
        Reason.POD_GATED,
        Reason.RESERVED_ELSEWHERE,
        Reason.SUPERSEDED,
        Reason.NOT_RESERVED,
        Reason.GANG_NOT_COMMITTED,
        Reason.GANG_INCOMPLETE,
        Reason.GANG_ABORTED,
        Reason.GANG_GONE,
    }
)
"""Refusals that concern the pod, whatever the node."""


@dataclass(slots=True)
class _Pair:
    """One pod and one node that refused it."""

    about: Key
    revision: Revision
    stale: Revision = NO_REVISION
    """If the object was deleted, there is no revision to wait for: the cached version, which must disappear."""
    times: int = 0
    quarantined_until_s: float = 0.0


class Refusals:
    """By pod uid and node. The scheduler calls `forget` for pods that are gone."""

    def __init__(self, env: Env, reached: Callable[[Key, Revision], bool], version: Callable[[Key], Revision]) -> None:
        self._env = env
        self._reached = reached
        """Whether the scheduler's caches have reached a revision of an object."""
        self._version = version
        """The revision of an object in the cache; none if it is not there."""
        self._pairs: dict[str, dict[str, _Pair]] = {}
        env.metrics.gauge("kedge_scheduler_quarantined", "Pairs of pod and node not tried for a while").set_function(
            self.quarantined
        )
        self._refused = env.metrics.counter("kedge_scheduler_refusals_total", "Binds refused, by reason", ("reason",))

    def record(self, uid: str, node: str, refused: Refused) -> bool:
        """Record a refusal. True if it puts the pair into quarantine."""
        self._refused.labels(refused.refusal).inc()
        if refused.refusal in ABOUT_THE_POD:
            return False
        pairs = self._pairs.setdefault(uid, {})
        pair = pairs.get(node)
        if pair is None:
            for gone in [each for each in pairs if not self._version(Key(NODE_KIND, "", each))]:
                del pairs[gone]  # a pod may be pending longer than nodes exist
            pair = pairs[node] = _Pair(refused.key or Key(NODE_KIND, "", node), refused.revision)
        pair.about, pair.revision = refused.key or pair.about, refused.revision
        pair.stale = NO_REVISION if pair.revision else self._version(pair.about)
        pair.times += 1
        limits = self._env.limits
        if pair.times < limits.scheduler_refusals_max:
            return False
        pair.times = 0
        pair.quarantined_until_s = self._env.monotonic() + limits.scheduler_quarantine_s
        return True

    def excluded(self, uid: str) -> tuple[str, ...]:
        """The nodes not to try for a pod now: the cache is behind a refusal, or the pair is in quarantine."""
        pairs = self._pairs.get(uid)
        if not pairs:
            return ()
        now_s = self._env.monotonic()
        return tuple(node for node, pair in pairs.items() if pair.quarantined_until_s > now_s or not self._seen(pair))

    def unseen(self, uid: str) -> list[tuple[Key, Revision]]:
        """The revisions that the caches must reach before a pod's excluded nodes are tried again."""
        pairs = self._pairs.get(uid, {})
        return [(p.about, p.revision) for p in pairs.values() if p.revision and not self._seen(p)]

    def _seen(self, pair: _Pair) -> bool:
        if pair.revision:
            return self._reached(pair.about, pair.revision)
        return not pair.stale or self._version(pair.about) != pair.stale

    def __len__(self) -> int:
        """The pods with a recorded refusal."""
        return len(self._pairs)

    def quarantined_until_s(self, uid: str) -> float | None:
        """When the first of a pod's quarantines ends; None if there is none."""
        now_s = self._env.monotonic()
        ends = (pair.quarantined_until_s for pair in self._pairs.get(uid, {}).values())
        return min((end_s for end_s in ends if end_s > now_s), default=None)

    def forget(self, uid: str) -> None:
        self._pairs.pop(uid, None)

    def quarantined(self) -> int:
        now_s = self._env.monotonic()
        return sum(pair.quarantined_until_s > now_s for pairs in self._pairs.values() for pair in pairs.values())
