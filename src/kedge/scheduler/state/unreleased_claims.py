"""Unreleased claims: a node's ledger holds them, but their pods are gone, or no cache shows the pods yet.

Room is free once the node's ledger has released it: a pod that was force-deleted, or lost with its node, may still run.
`cluster_state` calls `keep` before it drops a claim; `cache_follower` reports each change of a ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kedge.api.objects import Object
from kedge.api.views import AllocationEntry, NodeAllocationView
from kedge.api.wellknown import NODE_ALLOCATION_KIND
from kedge.keys import NO_REVISION, Key, Revision
from kedge.placement.ledger import claim_of
from kedge.runtime.cache import Cache
from kedge.scheduler.state.shapes import bare_request
from kedge.scheduler.state.snapshot import Snapshot, SnapshotClaim


class UnreleasedClaims:
    """Claims of one snapshot whose only evidence is a ledger."""

    def __init__(
        self,
        snapshot: Snapshot,
        caches: Mapping[str, Cache],
        cached: Callable[[Key], Object | None],
        drop: Callable[[str], None],
    ) -> None:
        self._snapshot = snapshot
        self._caches = caches
        self._cached = cached
        self._drop = drop
        """Removes a claim, and notifies the queue."""
        self.by_node: dict[str, dict[str, Revision]] = {}
        """By node and pod uid: the ledger holds the claim, or may hold it until its cache reaches the revision.
        Others only read it."""
        self._refused_by: dict[str, Revision] = {}
        """By node: the revision of its ledger that refused a bind. It holds claims that are not counted here."""

    def __iter__(self) -> Iterator[tuple[str, SnapshotClaim]]:
        """Every unreleased claim, with its uid."""
        for uids in self.by_node.values():
            for uid in uids:
                claim = self._snapshot.claim(uid)
                if claim is not None:
                    yield uid, claim

    def has(self, uid: str, node: str) -> bool:
        return uid in self.by_node.get(node, {})

    def keep(self, uid: str, claim: SnapshotClaim, revision: Revision) -> bool:
        """A pod ended or was removed at `revision`. True if its claim stays, for its room only: a ledger holds it."""
        node = claim.node
        if uid not in self._held(node) and self._known_to(node) >= revision:
            return False
        self.by_node.setdefault(node, {})[uid] = revision
        requirements = claim.request.requirements
        self._snapshot.add_claim(
            uid, node, bare_request(claim.request.namespace, requirements.requests, requirements.ports)
        )
        return True

    def forget(self, uid: str, node: str) -> None:
        """The claim has other evidence now, or was removed."""
        unreleased = self.by_node.get(node)
        if unreleased is not None and unreleased.pop(uid, None) is not None and not unreleased:
            del self.by_node[node]

    # -- ledgers -----------------------------------------------------------------------------------

    def ledger_changed(self, node: str, revision: Revision) -> None:
        if node in self.by_node:
            self.review(node)
        doubted = self._refused_by.get(node)
        if doubted is not None and revision >= doubted:
            self.adopt(node)

    def review(self, node: str) -> None:
        """Drop the claims on a node that its ledger has released."""
        held, known = self._held(node), self._known_to(node)
        for uid, revision in tuple(self.by_node.get(node, {}).items()):
            if uid not in held and known >= revision:
                claim = self._snapshot.claim(uid)
                if claim is not None and claim.node == node:
                    self._drop(uid)
                self.forget(uid, node)  # an attempt may have assumed the pod elsewhere, and taken its claim along

    def review_all(self) -> None:
        """The safety net: a cache may advance without a change."""
        for node in tuple(self.by_node):
            self.review(node)

    def ledger_refused(self, node: str, revision: Revision) -> None:
        """A revision of a node's ledger refused a bind: once the cache shows it, count what it holds."""
        found = self._cached(Key(NODE_ALLOCATION_KIND, "", node))
        # Without a ledger here the cache is behind, or the ledger was deleted: then no change of it will come.
        if (found.revision if found is not None else self._known_to(node)) >= revision:
            self.adopt(node)
        else:
            self._refused_by[node] = max(revision, self._refused_by.get(node, NO_REVISION))

    def adopt(self, node: str) -> None:
        """Count the claims of a node's ledger whose pods are not counted: they are gone, or not in a cache yet."""
        self._refused_by.pop(node, None)
        for uid, entry in self._held(node).items():
            counted = self._snapshot.claim(uid)
            if counted is None:
                held = claim_of(entry)
                self._snapshot.add_claim(uid, node, bare_request(held.namespace, held.requests, held.ports))
                self.by_node.setdefault(node, {})[uid] = NO_REVISION

    def adopt_all(self) -> None:
        """At the start of a term: for events before this process started, ledgers are the only evidence."""
        self.review_all()
        for ledger in self._caches[NODE_ALLOCATION_KIND].list().value:
            self.adopt(ledger.key.name)

    def _held(self, node: str) -> Mapping[str, AllocationEntry]:
        """By pod uid: the entries of a node's ledger. The ledger of an earlier incarnation does not count."""
        found = self._cached(Key(NODE_ALLOCATION_KIND, "", node))
        owner = self._snapshot.find(node)
        if found is None or (owner is not None and owner.uid != found.as_view(NodeAllocationView).spec.node_uid):
            return {}
        return found.as_view(NodeAllocationView).status.entries

    def _known_to(self, node: str) -> Revision:
        """The revision up to which the ledger of a node is known."""
        found = self._cached(Key(NODE_ALLOCATION_KIND, "", node))
        return max(self._caches[NODE_ALLOCATION_KIND].revision, found.revision if found is not None else NO_REVISION)
