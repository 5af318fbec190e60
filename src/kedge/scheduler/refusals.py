"""What nodes and the service have refused, remembered until the scheduler has seen why.

A bind proves its placement on committed state. Where that is newer than the cache, the same decision would be refused
again: so the pair is left out until the cache shows the version that refused. One refused too often is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kedge.env import Env
from kedge.errors import Refused
from kedge.keys import Key, Revision
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
"""Refusals that no other node would change."""


@dataclass(slots=True)
class _Pair:
    """One pod and one node that refused it."""

    about: Key
    revision: Revision
    times: int = 0
    quarantined_until_s: float = 0.0


class Refusals:
    """By pod uid and node. Pods that are gone are forgotten by whoever knows that they are."""

    def __init__(self, env: Env, seen: Callable[[Key, Revision], bool]) -> None:
        self._env = env
        self._seen = seen
        """Whether the scheduler's caches show what an object was at a revision."""
        self._pairs: dict[str, dict[str, _Pair]] = {}
        env.metrics.gauge("kedge_scheduler_quarantined", "Pairs of pod and node not tried for a while").set_function(
            self.quarantined
        )
        self._refused = env.metrics.counter("kedge_scheduler_refusals_total", "Binds refused, by why", ("reason",))

    def note(self, uid: str, node: str, refused: Refused) -> bool:
        """Remember a refusal. True if the pair is quarantined by it."""
        self._refused.labels(refused.refusal).inc()
        if refused.refusal in ABOUT_THE_POD:
            return False
        pairs = self._pairs.setdefault(uid, {})
        pair = pairs.get(node)
        if pair is None:
            pair = pairs[node] = _Pair(refused.key or Key("Node", "", node), refused.revision)
        pair.about, pair.revision = refused.key or pair.about, refused.revision
        pair.times += 1
        limits = self._env.limits
        if pair.times < limits.scheduler_refusals_max:
            return False
        pair.times = 0
        pair.quarantined_until_s = self._env.monotonic() + limits.scheduler_quarantine_s
        return True

    def excluded(self, uid: str) -> tuple[str, ...]:
        """The nodes not to try for a pod now: their refusals are not yet seen, or came too often."""
        pairs = self._pairs.get(uid)
        if not pairs:
            return ()
        now_s = self._env.monotonic()
        return tuple(
            node
            for node, pair in pairs.items()
            if pair.quarantined_until_s > now_s or not self._seen(pair.about, pair.revision)
        )

    def unseen(self, uid: str) -> list[tuple[Key, Revision]]:
        """What has to be seen before a pod's excluded nodes are tried again."""
        pairs = self._pairs.get(uid, {})
        return [(p.about, p.revision) for p in pairs.values() if not self._seen(p.about, p.revision)]

    def forget(self, uid: str) -> None:
        self._pairs.pop(uid, None)

    def quarantined(self) -> int:
        now_s = self._env.monotonic()
        return sum(pair.quarantined_until_s > now_s for pairs in self._pairs.values() for pair in pairs.values())
