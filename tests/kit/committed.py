"""The contents of a store after a commit, decoded from its bytes, for invariants about accounts."""

from __future__ import annotations

from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.placement.ledger import Ledger, ledger_of


class State:
    """The contents of a store after a commit."""

    def __init__(self, store: Any) -> None:
        self.objects: dict[str, dict[str, Object]] = {}
        for entry in store.entries():
            if entry.key.kind.startswith(("Operation", "Fence", "Lease", "Event")):
                continue
            kind = KINDS.of_key_kind(entry.key.kind)
            found = Object(kind, entry.key, entry.value, revision=entry.modified, created=entry.created)
            self.objects.setdefault(entry.key.kind, {})[entry.key.name] = found

    def of(self, kind: str) -> dict[str, Object]:
        return self.objects.get(kind, {})

    def ledgers(self) -> dict[str, Ledger]:
        return {name: ledger_of(found.view) for name, found in self.of("NodeAllocation.kedge.dev").items()}

    def live_ledgers(self) -> dict[str, Ledger]:
        """The ledgers of current incarnations of nodes."""
        nodes = self.of("Node")
        return {n: each for n, each in self.ledgers().items() if n in nodes and nodes[n].uid == each.node_uid}
