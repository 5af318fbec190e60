"""What only nodes' ledgers know of: claims of pods that are gone, or that no cache shows yet.

A place is free when its node's ledger says so, and not before: a pod that was removed by force, or given up with its
node, may still run. `picture` asks before it lets go of a claim, and tells of each change of a ledger.
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
    """Claims of one snapshot that rest on ledgers alone."""

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
        """Lets go of a claim, and tells those whom it may help."""
        self._claims: dict[str, dict[str, Revision]] = {}
        """By node: claims of pods that no cache shows there, and that the node's ledger holds, or may hold up to a
        revision that its cache has not reached."""
        self._doubted: dict[str, Revision] = {}
        """By node: the version of its ledger that refused a bind, and so holds what is not counted here."""

    def __iter__(self) -> Iterator[tuple[str, SnapshotClaim]]:
        """Every claim that lingers, with its uid."""
        for uids in self._claims.values():
            for uid in uids:
                claim = self._snapshot.claim(uid)
                if claim is not None:
                    yield uid, claim

    def has(self, uid: str, node: str) -> bool:
        return uid in self._claims.get(node, {})

    def keep(self, uid: str, claim: SnapshotClaim, revision: Revision) -> bool:
        """A pod ended or went at `revision`. True if its claim stays, for its room alone, as its ledger may hold it."""
        node = claim.node
        if uid not in self._held(node) and self._known_to(node) >= revision:
            return False
        self._claims.setdefault(node, {})[uid] = revision
        wants = claim.request.wants
        self._snapshot.add_claim(uid, node, bare_request(claim.request.namespace, wants.requests, wants.ports))
        return True

    def forget(self, uid: str, node: str) -> None:
        """It is counted by other evidence now, or not at all."""
        unreleased = self._claims.get(node)
        if unreleased is not None and unreleased.pop(uid, None) is not None and not unreleased:
            del self._claims[node]

    # -- ledgers -----------------------------------------------------------------------------------

    def ledger_changed(self, node: str, revision: Revision) -> None:
        if node in self._claims:
            self.review(node)
        doubted = self._doubted.get(node)
        if doubted is not None and revision >= doubted:
            self.adopt(node)

    def review(self, node: str) -> None:
        """Let go of what lingers on a node, as far as its ledger is known not to hold it any more."""
        held, known = self._held(node), self._known_to(node)
        for uid, revision in tuple(self._claims.get(node, {}).items()):
            if uid not in held and known >= revision:
                self._drop(uid)

    def review_all(self) -> None:
        """The net below: a cache may get further without any change."""
        for node in tuple(self._claims):
            self.review(node)

    def doubt(self, node: str, revision: Revision) -> None:
        """A version of a node's ledger refused what this picture allowed: learn from it what is not counted here."""
        found = self._cached(Key(NODE_ALLOCATION_KIND, "", node))
        if found is not None and found.revision >= revision:
            self.adopt(node)
        else:
            self._doubted[node] = max(revision, self._doubted.get(node, NO_REVISION))

    def adopt(self, node: str) -> None:
        """Count what a node's ledger holds for pods that are not counted on it: gone, or seen nowhere yet."""
        self._doubted.pop(node, None)
        for uid, entry in self._held(node).items():
            counted = self._snapshot.claim(uid)
            if counted is None:
                held = claim_of(entry)
                self._snapshot.add_claim(uid, node, bare_request(held.namespace, held.requests, held.ports))
                self._claims.setdefault(node, {})[uid] = NO_REVISION

    def adopt_all(self) -> None:
        """At the start of a term: what happened before this process came is known from ledgers alone."""
        self.review_all()
        for ledger in self._caches[NODE_ALLOCATION_KIND].list().value:
            self.adopt(ledger.key.name)

    def _held(self, node: str) -> Mapping[str, AllocationEntry]:
        """What a node's ledger holds, by pod uid. That of an earlier incarnation says nothing of this one."""
        found = self._cached(Key(NODE_ALLOCATION_KIND, "", node))
        owner = self._snapshot.find(node)
        if found is None or (owner is not None and owner.uid != found.as_view(NodeAllocationView).spec.node_uid):
            return {}
        return found.as_view(NodeAllocationView).status.entries

    def _known_to(self, node: str) -> Revision:
        """Up to which revision the ledger of a node is known."""
        found = self._cached(Key(NODE_ALLOCATION_KIND, "", node))
        return max(self._caches[NODE_ALLOCATION_KIND].revision, found.revision if found is not None else NO_REVISION)
