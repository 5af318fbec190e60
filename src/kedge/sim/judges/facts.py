"""Committed state, indexed so that a check after a commit costs only as much as the commit touched.

Fed by the store itself, never by a cache: a checker that shares the cache under test shares its mistakes. The rules are
in `placement_invariants`, `lifecycle_invariants` and `endings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kedge.api import wellknown
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import AllocationEntry, NodeAllocationView, PodView
from kedge.api.wellknown import (
    AT_MOST_ONE,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGETS_KIND,
    DRAINING,
    EVENT_KIND,
    LEASE_KIND,
    NODE_KIND,
    NODE_LEASE_NAMESPACE,
    OPERATION_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    SLOT,
    ZONE_LABEL,
)
from kedge.keys import FENCE, Fence, Key, Origin, Revision
from kedge.limits import Limits
from kedge.placement.quota import object_cost
from kedge.placement.resources import to_units
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.cluster.links import Commit, WatchedStore

_UNSEEN = frozenset({FENCE, OPERATION_KIND, DISRUPTION_BUDGETS_KIND, EVENT_KIND})
_POD_KIND = KINDS.of_key_kind(POD_KIND)

Finding = tuple[str, str]
"""A broken rule: the cause to group failures by, and a message."""
LAG_S = 60.0
"""How old the state may be that a controller acts on: longer than the longest pause, outage and delay of a run."""


@dataclass(slots=True)
class Changed:
    """One object of one commit, before and after."""

    key: Key
    old: Object | None
    new: Object | None


@dataclass(slots=True)
class Step:
    """One commit, as invariants see it. `facts` is the state after it."""

    facts: ClusterFacts
    revision: Revision
    origin: Origin
    fence: Fence | None
    changes: tuple[Changed, ...]
    now_s: float

    def of(self, *kinds: str) -> Iterator[Changed]:
        return (each for each in self.changes if each.key.kind in kinds)

    @property
    def controller(self) -> str:
        """The controller that decided it; empty for a user or an agent."""
        return self.origin.decision.partition(":")[0]

    @property
    def process(self) -> str:
        """The process of that controller."""
        return self.origin.decision.rpartition(":")[0]


class ClusterFacts:
    """Committed state, indexed for the invariants. One for a cluster."""

    def __init__(
        self,
        store: WatchedStore,
        now_s: Callable[[], float],
        limits: Limits,
        drivers: Mapping[str, SimulatedDriver],
    ) -> None:
        self.limits = limits
        self._store = store
        self.now_s = now_s
        self.objects: dict[Key, Object] = {}
        """Every object but leases, fences and operation ids."""
        self.pods: dict[str, Object] = {}
        """By uid."""
        self.claims: dict[str, dict[str, AllocationEntry]] = {}
        """By pod uid, then node: the claims."""
        self.zone_use: dict[tuple[str, str], dict[str, int]] = {}
        """By tenant and zone: the sum of the claims."""
        self.pod_use: dict[str, dict[str, int]] = {}
        """By namespace: the quota cost of its pods. Only for namespaces that a rule has read."""
        self.slots: dict[tuple[str, str], dict[str, None]] = {}
        """By owner uid and slot: the uids of its pods."""
        self.owned: dict[str, dict[str, None]] = {}
        """By controller uid: the uids of its pods."""
        self.children: dict[str, dict[Key, Revision]] = {}
        """By owner uid: the objects that reference it, with the commit of the reference."""
        self.uids: dict[str, Key] = {}
        self.marked: dict[str, Revision] = {}
        """By uid: the commit that set the deletion timestamp."""
        self.intents: dict[tuple[str, int, int], dict[Key, None]] = {}
        """By workload, generation and slot: its reservations."""
        self.renewed_s: dict[str, float] = {}
        """By node: the last renewal of its lease."""
        self.wanted: dict[str, list[tuple[float, int, int]]] = {}
        """By workload uid: times, with the most replicas allowed and the replicas requested since then."""
        self.template_changed_s: dict[str, float] = {}
        """By Deployment uid: the last change of its template."""
        self.born_s: dict[str, float] = {}
        """By pod uid: its creation."""
        self.ready: dict[str, list[tuple[float, int]]] = {}
        """By workload uid: times, with the ready replicas since then."""
        self.alone_since_s: dict[str, float] = {}
        """By workload uid: since when it has fewer than two ready replicas."""
        self.fenced: dict[str, None] = {}
        """Controllers that have written under a fence."""
        self.leaders: dict[Fence, str] = {}
        """By epoch: the process that writes in it."""
        self.drivers = drivers
        """By node: its machine, which runs what the committed state describes."""
        for entry in store.entries():
            self._absorb(entry.key)

    # -- updates -----------------------------------------------------------------------------------

    def step(self, commit: Commit) -> Step:
        changes = tuple(
            changed for key in commit.keys if key.kind not in _UNSEEN and (changed := self._absorb(key)) is not None
        )
        return Step(self, commit.revision, commit.origin, commit.fence, changes, self.now_s())

    def _absorb(self, key: Key) -> Changed | None:
        if key.kind in _UNSEEN:
            return None
        entry = self._store.newest(key)
        if key.kind == LEASE_KIND:
            if key.namespace == NODE_LEASE_NAMESPACE and entry is not None:
                self.renewed_s[key.name] = self.now_s()
            return None
        old = self.objects.get(key)
        if entry is None:
            new = None
            self.objects.pop(key, None)
        else:
            kind = KINDS.of_key_kind(key.kind)
            new = Object(kind, key, entry.value, revision=entry.modified, created=entry.created, origin=entry.origin)
            if kind.view is not None:
                _ = new.view  # decode the whole view once; the metadata alone would be decoded in addition
            self.objects[key] = new
        changed = Changed(key, old, new)
        self._index_owners(changed)
        if new is not None and new.metadata.deletion_timestamp is not None:
            self.marked.setdefault(new.uid, new.revision)
        match key.kind:
            case wellknown.POD_KIND:
                self._index_pod(changed)
            case wellknown.NODE_ALLOCATION_KIND:
                self._index_claims(changed)
            case wellknown.RESERVATION_KIND:
                self._index_reservation(changed)
            case wellknown.REPLICA_SET_KIND | wellknown.DEPLOYMENT_KIND:
                self._index_replicas(changed)
        return changed

    def _index_owners(self, changed: Changed) -> None:
        old, new = changed.old, changed.new
        if old is not None and new is not None and old.uid == new.uid and _owners(old) == _owners(new):
            return
        since: dict[str, Revision] = {}
        if old is not None:
            self.uids.pop(old.uid, None)
            for ref in old.metadata.owner_references:
                named = self.children.get(ref.uid, {}).pop(changed.key, None)
                if named is not None and new is not None and new.uid == old.uid:
                    since[ref.uid] = named
        if new is not None:
            self.uids[new.uid] = changed.key
            for ref in new.metadata.owner_references:
                self.children.setdefault(ref.uid, {})[changed.key] = since.get(ref.uid, new.revision)

    def _index_pod(self, changed: Changed) -> None:
        old, new = changed.old, changed.new
        if old is not None and (new is None or new.uid != old.uid):
            self.pods.pop(old.uid, None)
            self.born_s.pop(old.uid, None)
            view = old.as_view(PodView)
            slot, owner = slot_of(view), owner_uid(view)
            if slot is not None:
                self.slots.get(slot, {}).pop(old.uid, None)
            self.owned.get(owner, {}).pop(old.uid, None)
        if new is not None:
            self.pods[new.uid] = new
            self.born_s.setdefault(new.uid, self.now_s())
            view = new.as_view(PodView)
            slot, owner = slot_of(view), owner_uid(view)
            if slot is not None:
                self.slots.setdefault(slot, {})[new.uid] = None
            if owner:
                self.owned.setdefault(owner, {})[new.uid] = None
            before = old.as_view(PodView) if old is not None else None
            if before is not None and before.uid == view.uid and owner_uid(before) != owner:
                self.owned.get(owner_uid(before), {}).pop(new.uid, None)
        self._count_ready(old, new)
        use = self.pod_use.get(changed.key.namespace)
        if use is not None:
            _move(use, pod_cost(old), -1)
            _move(use, pod_cost(new), 1)

    def _count_ready(self, old: Object | None, new: Object | None) -> None:
        was, now = (found is not None and is_healthy(found.as_view(PodView)) for found in (old, new))
        if was == now:
            return
        found = new or old
        top = self.workload_of(found.as_view(PodView)) if found is not None else None
        if top is None:
            return
        ready = sum(is_healthy(pod) for pod in self.pods_under(top))
        self.ready.setdefault(top.uid, []).append((self.now_s(), ready))
        if ready > 1:
            self.alone_since_s.pop(top.uid, None)
        else:
            self.alone_since_s.setdefault(top.uid, self.now_s())

    def _index_claims(self, changed: Changed) -> None:
        node = changed.key.name
        before, after = entries_of(changed.old), entries_of(changed.new)
        for uid, entry in before.items():
            if after.get(uid) != entry:
                held = self.claims.get(uid, {})
                held.pop(node, None)
                if not held:
                    self.claims.pop(uid, None)
                _move(self.zone_use.setdefault((entry.namespace, entry.zone), {}), to_units(entry.requests), -1)
        for uid, entry in after.items():
            if before.get(uid) != entry:
                self.claims.setdefault(uid, {})[node] = entry
                _move(self.zone_use.setdefault((entry.namespace, entry.zone), {}), to_units(entry.requests), 1)

    def _index_reservation(self, changed: Changed) -> None:
        for found, there in ((changed.old, False), (changed.new, True)):
            if found is None or not found.view.spec.workload_uid or not found.view.spec.pod.uid:
                continue
            spec = found.view.spec
            held = self.intents.setdefault((spec.workload_uid, spec.generation, spec.slot), {})
            if there:
                held[changed.key] = None
            else:
                held.pop(changed.key, None)

    def _index_replicas(self, changed: Changed) -> None:
        found = changed.new
        if found is None:
            return
        want = most = found.view.spec.replicas
        if changed.key.kind == DEPLOYMENT_KIND:
            most += surge_of(found)
            before = changed.old
            if before is not None and before.uid == found.uid and _template(before) != _template(found):
                self.template_changed_s[found.uid] = self.now_s()
        history = self.wanted.setdefault(found.uid, [])
        if not history or history[-1][1:] != (most, want):
            history.append((self.now_s(), most, want))

    # -- queries -----------------------------------------------------------------------------------

    def use_of(self, namespace: str) -> Mapping[str, int]:
        """The quota cost of the pods of a namespace, summed once and then updated."""
        use = self.pod_use.get(namespace)
        if use is None:
            use = self.pod_use[namespace] = {}
            for pod in self.pods.values():
                if pod.key.namespace == namespace:
                    _move(use, pod_cost(pod), 1)
        return use

    def most_wanted(self, uid: str, since_s: float) -> int | None:
        """The most replicas that a workload was allowed at any time since; None for an unknown workload."""
        lately = self._wanted_since(uid, since_s)
        return max(most for _, most, _ in lately) if lately else None

    def least_wanted(self, uid: str, since_s: float) -> int:
        """The fewest replicas that a workload requested at any time since."""
        return min((want for _, _, want in self._wanted_since(uid, since_s)), default=0)

    def _wanted_since(self, uid: str, since_s: float) -> list[tuple[float, int, int]]:
        history = self.wanted.get(uid, [])
        first = max((n for n, (at_s, _, _) in enumerate(history) if at_s <= since_s), default=0)
        return history[first:]

    def most_ready(self, uid: str, since_s: float) -> int:
        """The most replicas of a workload that were ready at any time since."""
        history = self.ready.get(uid, [])
        first = max((n for n, (at_s, _) in enumerate(history) if at_s <= since_s), default=0)
        return max((count for _, count in history[first:]), default=0)

    def in_contact(self, node: str) -> bool:
        """Whether the lease of a node is too young for any controller to suspect it."""
        return self.now_s() - self.renewed_s.get(node, 0.0) < self.limits.node_suspect_s

    def epoch_of(self, fence: Fence) -> Revision:
        """The current token of a fence: a write under the fence must carry it."""
        entry = self._store.newest(fence.key)
        return entry.modified if entry is not None else 0

    def is_blind(self, node: Object, now_s: float) -> bool:
        """Whether most of a node's zone has been silent for `node_lost_s`: then the zone is cut off."""
        zone = node.metadata.labels.get(ZONE_LABEL, "")
        names = [
            key.name
            for key, each in self.objects.items()
            if key.kind == NODE_KIND and each.metadata.labels.get(ZONE_LABEL, "") == zone
        ]
        silent = sum(now_s - self.renewed_s.get(name, 0.0) >= self.limits.node_lost_s for name in names)
        return silent >= max(self.limits.zone_blind_min, self.limits.zone_blind_share * len(names))

    def pods_of(self, owner: str) -> Iterator[Object]:
        return (self.pods[uid] for uid in self.owned.get(owner, ()) if uid in self.pods)

    def by_uid(self, uid: str) -> Object | None:
        key = self.uids.get(uid)
        return self.objects.get(key) if key is not None else None

    def workload_of(self, pod: PodView) -> Object | None:
        """The Deployment of a pod, or its ReplicaSet if that has no Deployment."""
        owner = self.by_uid(owner_uid(pod))
        if owner is None or owner.key.kind != REPLICA_SET_KIND:
            return None
        above = controller_of(owner.metadata)
        top = self.by_uid(above.uid) if above is not None else None
        return top if top is not None and top.key.kind == DEPLOYMENT_KIND else owner

    def pods_under(self, workload: Object) -> Iterator[PodView]:
        """Every pod of a ReplicaSet, or of all ReplicaSets of a Deployment."""
        owners = [workload.uid]
        if workload.key.kind == DEPLOYMENT_KIND:
            keys = self.children.get(workload.uid, ())
            owners = [self.objects[key].uid for key in keys if key.kind == REPLICA_SET_KIND and key in self.objects]
        return (pod.as_view(PodView) for owner in owners for pod in self.pods_of(owner))


# -- pods, read without code of the controllers --------------------------------------------------------


def slot_of(pod: PodView) -> tuple[str, str] | None:
    slot, owner = pod.metadata.annotations.get(SLOT), owner_uid(pod)
    return (owner, slot) if slot is not None and owner else None


def owner_uid(pod: PodView) -> str:
    owner = controller_of(pod)
    return owner.uid if owner is not None else ""


def requires_at_most_one(pod: PodView) -> bool:
    return pod.metadata.annotations.get(AT_MOST_ONE) == "true"


def is_ready(pod: PodView) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


def counts(pod: PodView) -> bool:
    """Whether a pod counts as a replica: it has not ended and is not being removed."""
    return not pod.finished and not pod.terminating and DRAINING not in pod.metadata.annotations


def is_healthy(pod: PodView) -> bool:
    return counts(pod) and is_ready(pod)


def pod_cost(found: Object | None) -> Mapping[str, int]:
    return object_cost(_POD_KIND, found.as_view(PodView)) if found is not None else {}


def entries_of(found: Object | None) -> Mapping[str, AllocationEntry]:
    return found.as_view(NodeAllocationView).status.entries if found is not None else {}


def surge_of(deployment: Object) -> int:
    spec = deployment.view.spec
    if spec.strategy.type == "Recreate":
        return 0
    rolling = spec.strategy.rolling_update
    surge = rolling.max_surge if rolling is not None else "25%"
    if isinstance(surge, str):
        return -(-int(spec.replicas) * int(surge.rstrip("%")) // 100)
    return int(surge)


def _template(found: Object) -> object:
    return found.view.spec.template


def _owners(found: Object) -> object:
    return found.metadata.owner_references


def _move(total: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount
