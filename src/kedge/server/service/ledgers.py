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
        self._bytes = 0
        """The bytes of the ledgers as they are stored."""
        self._entries_max = env.limits.ledger_cache_max
        self._bytes_max = env.limits.ledger_cache_bytes_max
        gauge = env.metrics.gauge("kedge_service_ledger_cache", "Decoded ledgers in the cache")
        gauge.set_function(lambda: len(self._entries))
        size = env.metrics.gauge("kedge_service_ledger_cache_bytes", "Stored bytes of the decoded ledgers in the cache")
        size.set_function(lambda: self._bytes)

    def decoded(self, key: Key, value: bytes) -> StoredLedger:
        """The ledger decoded from these bytes."""
        known = self._entries.get(key)
        if known is not None and known.value == value:
            return known
        found = StoredLedger.read(value)
        self.keep(key, found)
        return found

    def keep(self, key: Key, ledger: StoredLedger) -> None:
        entries = self._entries
        before = entries.get(key)
        self._bytes += len(ledger.value) - (0 if before is None else len(before.value))
        entries[key] = ledger
        if len(entries) > self._entries_max or self._bytes > self._bytes_max:
            for old in list(entries)[: len(entries) // 8 + 1]:
                self._bytes -= len(entries.pop(old).value)
