"""The age of each node's lease and of its usage report, by the monotonic clock of this process.

A wrong wall clock, here or on the node, must not change what counts as fresh. This is strict where `node.heartbeats` is
lenient: a lease that this process has not seen change counts as silent. Read it through `Context.measured`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kedge.api.wellknown import LEASE_KIND, NODE_LEASE_NAMESPACE, USAGE
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet

SILENT_S = 1e9
"""The age of a lease that was never seen to change."""


@dataclass(slots=True)
class _LeaseTimes:
    renewed_s: float | None = None
    reported_s: float | None = None


class LeaseAges:
    """Updated by the watch of node leases, in standbys too."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._nodes: dict[str, _LeaseTimes] = {}

    def observe(self, change: CacheChange, _: CacheSet) -> tuple[Key, ...]:
        """Note a lease that changed. Wakes no key."""
        old, new, name = change.old, change.new, change.key.name
        if new is None:
            self._nodes.pop(name, None)
        elif old is not None and old.uid == new.uid:
            times, now_s = self._nodes.setdefault(name, _LeaseTimes()), self._env.monotonic()
            times.renewed_s = now_s
            if old.metadata.annotations.get(USAGE) != new.metadata.annotations.get(USAGE):
                times.reported_s = now_s
        return ()

    def silence_s(self, node: str) -> float:
        """Seconds since its lease was last seen to change."""
        times = self._nodes.get(node)
        return self._since(None if times is None else times.renewed_s)

    def report_age_s(self, node: str) -> float:
        """Seconds since its usage report was last seen to change."""
        times = self._nodes.get(node)
        return self._since(None if times is None else times.reported_s)

    def _since(self, moment_s: float | None) -> float:
        return SILENT_S if moment_s is None else self._env.monotonic() - moment_s


def lease_key(node: str) -> Key:
    return Key(LEASE_KIND, NODE_LEASE_NAMESPACE, node)
