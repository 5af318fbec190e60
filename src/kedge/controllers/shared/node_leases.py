"""How lately this process has heard of each node, and of what its pods use: by its own clock, not by the nodes'.

A wall clock that is wrong, here or there, must make neither old news fresh nor fresh news old. It is strict where
`heartbeats` is lenient: what this process has not seen change itself is silent. Asked through `Context.measured`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kedge.api.wellknown import LEASE_KIND, NODE_LEASE_NAMESPACE, USAGE
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet

SILENT_S = 1e9
"""The silence of a node that was not heard at all."""


@dataclass(slots=True)
class _LeaseTimes:
    renewed_s: float | None = None
    reported_s: float | None = None


class LeaseAges:
    """Fed by the watch of node leases, in standbys too."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._nodes: dict[str, _LeaseTimes] = {}

    def observe(self, change: CacheChange, _: CacheSet) -> tuple[Key, ...]:
        """Note a lease that changed. Wakes nobody."""
        old, new, name = change.old, change.new, change.key.name
        if new is None:
            self._nodes.pop(name, None)
        elif old is not None and old.uid == new.uid:
            heard, now_s = self._nodes.setdefault(name, _LeaseTimes()), self._env.monotonic()
            heard.renewed_s = now_s
            if old.metadata.annotations.get(USAGE) != new.metadata.annotations.get(USAGE):
                heard.reported_s = now_s
        return ()

    def silence_s(self, node: str) -> float:
        """Since its lease was last seen to change."""
        heard = self._nodes.get(node)
        return self._since(None if heard is None else heard.renewed_s)

    def report_age_s(self, node: str) -> float:
        """Since its report of usage was last seen to change."""
        heard = self._nodes.get(node)
        return self._since(None if heard is None else heard.reported_s)

    def _since(self, moment_s: float | None) -> float:
        return SILENT_S if moment_s is None else self._env.monotonic() - moment_s


def lease_key(node: str) -> Key:
    return Key(LEASE_KIND, NODE_LEASE_NAMESPACE, node)
