"""A cache of decoded ledgers, so that a bind decodes no claim but its own.

A ledger is a function of its bytes and is used only for those bytes, so the cache can be stale but never wrong. A
staged ledger whose commit fails does no harm.
"""

from __future__ import annotations

from kedge.env import Env
from kedge.keys import Key
from kedge.placement.stored_ledger import StoredLedger


class Ledgers:
    """The cache of one server."""

    def __init__(self, env: Env) -> None:
        self._entries: dict[Key, StoredLedger] = {}
        self._entries_max = env.limits.ledger_cache_max
        gauge = env.metrics.gauge("kedge_service_ledger_cache", "Decoded ledgers in the cache")
        gauge.set_function(lambda: len(self._entries))

    def decoded(self, key: Key, value: bytes) -> StoredLedger:
        """The ledger decoded from these bytes."""
        known = self._entries.get(key)
        if known is not None and known.value == value:
            return known
        found = StoredLedger.read(value)
        self.keep(key, found)
        return found

    def keep(self, key: Key, ledger: StoredLedger) -> None:
        if len(self._entries) >= self._entries_max and key not in self._entries:
            for old in list(self._entries)[: len(self._entries) // 8 + 1]:
                del self._entries[old]
        self._entries[key] = ledger
