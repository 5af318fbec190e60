"""Committed state, indexed so that a check after a commit costs only as much as the commit touched.

Fed by the store itself, never by a cache: a checker that shares the cache under test shares its mistakes. The rules are
in `placement_invariants`, `lifecycle_invariants` and `endings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kedge.api import wellknown
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import AllocationEntry, NodeAllocationView, PodView
from kedge.api.wellknown import (
    AT_MOST_ONE,
    AVAILABILITY_FLOOR,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGETS_KIND,
    EVENT_KIND,
    LEASE_KIND,
    NODE_KIND,
    NODE_LEASE_NAMESPACE,
    OPERATION_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    ZONE_LABEL,
)
from kedge.keys import FENCE, Fence, Key, Origin, Revision
from kedge.limits import Limits
from kedge.placement.quota import object_cost
from kedge.placement.resources import to_units
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.cluster.links import Commit
from kedge.sim.judges.condition_histories import ConditionHistories, WrittenCondition, written_conditions
from kedge.sim.judges.node_silences import NodeSilences
from kedge.sim.judges.pod_facts import is_healthy, owner_uid, slot_of
from kedge.sim.judges.pod_histories import PodHistories
from kedge.sim.judges.replica_tallies import ReplicaTallies, tally_of
from kedge.sim.judges.workload_specs import surge_of, template_without_hash
from kedge.store import Entry

_UNSEEN = frozenset({FENCE, OPERATION_KIND, DISRUPTION_BUDGETS_KIND, EVENT_KIND})
_POD_KIND = KINDS.of_key_kind(POD_KIND)

Finding = tuple[str, str]
"""A broken rule: the cause to group failures by, and a message."""
LAG_S = 60.0
"""How old the state may be that a controller acts on: longer than the longest pause, outage and delay of a run."""

STANDING_LAGS = 2
"""After how many lags a condition must have followed a change of its subject."""


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
    _written: list[WrittenCondition] | None = None

    def conditions(self) -> Sequence[WrittenCondition]:
        """Conditions that this commit added, removed, or changed in status, reason or generation."""
        if self._written is None:
            self._written = [each for changed in self.changes for each in written_conditions(changed.old, changed.new)]
            for of, _, _ in self._written if self.controller else ():
                self.facts.conditions.writers[NODE_KIND if of.key.kind == NODE_KIND else of.uid] = self.controller
        return self._written

    @property
    def lag_begin_s(self) -> float:
        """The oldest moment whose state the writer of this commit may have acted on."""
        return self.now_s - self.facts.lag_s

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


class CommittedState(Protocol):
    """The newest version of each object: of a simulated store, or at one point of a recorded history."""

    def entries(self) -> Iterator[Entry]: ...

    def newest(self, key: Key) -> Entry | None: ...


class ClusterFacts:
    """Committed state, indexed for the invariants. One for a cluster."""

    def __init__(
        self,
        store: CommittedState,
        now_s: Callable[[], float],
        limits: Limits,
        drivers: Mapping[str, SimulatedDriver],
        lag_s: float = LAG_S,
    ) -> None:
        self.limits, self.lag_s = limits, lag_s
        self.standing_s = STANDING_LAGS * lag_s
        self._store, self.now_s = store, now_s
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
        self.deleted_by_users: dict[str, None] = {}  # by uid: no controller decided their deletion
        self.intents: dict[tuple[str, int, int], dict[Key, None]] = {}
        """By workload, generation and slot: its reservations."""
        self.renewed_s: dict[str, float] = {}
        """By node: the last renewal of its lease."""
        self.wanted: dict[str, list[tuple[float, int, int]]] = {}
        """By workload uid: times, with the most replicas allowed and the replicas requested since then."""
        self.resized_s: dict[str, float] = {}  # by Deployment uid: the last change of a ReplicaSet's size by a person
        self.rolled_out: dict[str, tuple[float, object]] = {}
        """By Deployment uid: the last change to a template that was not rolled out before, with the template."""
        self.rolled_back: dict[str, None] = {}
        """Deployments, by uid, whose template an existing ReplicaSet had when it was set."""
        self.tallies, self._silences = ReplicaTallies(lag_s), NodeSilences(lag_s)
        self.conditions, self.pod_histories = ConditionHistories(lag_s), PodHistories(lag_s)
        self.removed_s: dict[str, float] = {}
        """By namespace: the last removal of an object there."""
        self.born_s: dict[str, float] = {}
        """By pod uid: its creation."""
        self.ready: dict[str, list[tuple[float, int]]] = {}
        """By workload uid: times, with the ready replicas since then."""
        self.alone_since_s: dict[str, float] = {}
        """By workload uid: when the number of its ready replicas last became one."""
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
        return self.step_of(commit.keys, commit.revision, commit.origin, commit.fence)

    def step_of(self, keys: Sequence[Key], revision: Revision, origin: Origin, fence: Fence | None) -> Step:
        """Take in a commit that changed these keys."""
        changes = tuple(
            changed for key in keys if key.kind not in _UNSEEN and (changed := self._absorb(key)) is not None
        )
        return Step(self, revision, origin, fence, changes, self.now_s())

    def _absorb(self, key: Key) -> Changed | None:
        if key.kind in _UNSEEN:
            return None
        entry = self._store.newest(key)
        if key.kind == LEASE_KIND:
            if key.namespace == NODE_LEASE_NAMESPACE and entry is not None:
                self._silences.renewed(key.name, self.renewed_s.get(key.name, 0.0), self.now_s())
                self.renewed_s[key.name] = self.now_s()
            return None
        old = self.objects.get(key)
        if entry is None:
            new = None
            self.objects.pop(key, None)
            self.removed_s[key.namespace] = self.now_s()
        else:
            kind = KINDS.of_key_kind(key.kind)
            new = Object(kind, key, entry.value, revision=entry.modified, created=entry.created, origin=entry.origin)
            if kind.view is not None:
                _ = new.view  # decode the whole view once; the metadata alone would be decoded in addition
            self.objects[key] = new
        changed = Changed(key, old, new)
        self._index_owners(changed)
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._index_deletion(new)
        match key.kind:
            case wellknown.POD_KIND:
                self._index_pod(changed)
            case wellknown.NODE_ALLOCATION_KIND:
                self._index_claims(changed)
            case wellknown.RESERVATION_KIND:
                self._index_reservation(changed)
            case wellknown.REPLICA_SET_KIND | wellknown.DEPLOYMENT_KIND:
                self._index_replicas(changed)
                self._note_own_change(changed)
            case wellknown.RESOURCE_QUOTA_KIND:
                self.conditions.note_quota(key.namespace, key.name, old, new, self.now_s())
            case wellknown.LIMIT_RANGE_KIND | wellknown.NAMESPACE_KIND | wellknown.PRIORITY_CLASS_KIND:
                cluster_wide = key.kind == wellknown.PRIORITY_CLASS_KIND
                self.conditions.note_policy("" if cluster_wide else key.namespace or key.name, self.now_s())
            case wellknown.NODE_KIND if new is not None:
                self.conditions.judge_again(key.name, self.now_s() + self.standing_s)
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
        was, now = (each.as_view(PodView) if each is not None else None for each in (old, new))
        self.pod_histories.note(was, now, self.now_s())
        self._count_ready(old, new)
        self._tally(old, new)
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
        if ready == 1:
            self.alone_since_s[top.uid] = self.now_s()

    def _tally(self, old: Object | None, new: Object | None) -> None:
        touched: tuple[str, ...] = ()
        if old is not None and (new is None or old.uid != new.uid):
            touched = self.tallies.remove(old.uid, self.now_s())
        if new is not None:
            view = new.as_view(PodView)
            owner = self.by_uid(owner_uid(view))
            if owner is None:
                touched = (*touched, *self.tallies.remove(new.uid, self.now_s()))
            else:
                top = controller_of(owner.metadata)
                above = top.uid if top is not None else ""
                self.tallies.update(new.uid, tally_of(view), owner.uid, above, self.now_s())
                touched = (*touched, owner.uid, above)
        for uid in touched:
            if uid:
                self.conditions.judge_again(uid, self.now_s() + self.standing_s)

    def _note_own_change(self, changed: Changed) -> None:
        """A change of a ReplicaSet is one of what its Deployment is about; so is another generation of either."""
        old, new = changed.old, changed.new
        if old is not None and new is not None and old.metadata.generation != new.metadata.generation:
            self.tallies.changed_s[new.uid] = self.now_s()
        above = controller_of(new.metadata) if new is not None else None
        if above is not None:
            self.tallies.changed_s[above.uid] = self.now_s()

    def _index_deletion(self, found: Object) -> None:
        if found.uid not in self.marked:
            self.marked[found.uid] = found.revision
            if not found.origin.decision:
                self.deleted_by_users[found.uid] = None

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
        before, above = changed.old, controller_of(found.metadata)
        if changed.key.kind == DEPLOYMENT_KIND:
            if before is not None and before.uid == found.uid and _template(before) != _template(found):
                self._note_template(found)
            most += surge_of(found)
            if want == 1 and most == 1 and self.has_floor(found):
                most += 1
        elif (
            above is not None and not found.origin.decision and before is not None and before.view.spec.replicas != want
        ):
            self.resized_s[above.uid] = self.now_s()
        history = self.wanted.setdefault(found.uid, [])
        if not history or history[-1][1:] != (most, want):
            history.append((self.now_s(), most, want))

    def _note_template(self, found: Object) -> None:
        template = template_without_hash(found)
        sets = (self.objects.get(key) for key in self.children.get(found.uid, ()) if key.kind == REPLICA_SET_KIND)
        if any(each is not None and template_without_hash(each) == template for each in sets):
            self.rolled_back[found.uid] = None
        else:
            self.rolled_back.pop(found.uid, None)
            self.rolled_out[found.uid] = self.now_s(), template

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

    def has_floor(self, deployment: Object) -> bool:
        """Whether a rollback is under way or done that must keep the last available replica.

        A single replica of at-most-one cannot be kept: neither copy could go first.
        """
        spec = deployment.view.spec
        single = spec.replicas <= 1 and spec.template.metadata.annotations.get(AT_MOST_ONE) == "true"
        off = deployment.metadata.annotations.get(AVAILABILITY_FLOOR) == "off"
        return deployment.uid in self.rolled_back and not off and not single

    def most_wanted(self, uid: str, since_s: float) -> int | None:
        """The most replicas that a workload was allowed at any time since; None for an unknown workload."""
        lately = self._wanted_since(uid, since_s)
        return max(most for _, most, _ in lately) if lately else None

    def least_wanted(self, uid: str, since_s: float) -> int:
        """The fewest replicas that a workload requested at any time since."""
        return min((want for _, _, want in self._wanted_since(uid, since_s)), default=0)

    def most_requested(self, uid: str, since_s: float) -> int:
        """The most replicas that a workload requested at any time since, without surge."""
        return max((want for _, _, want in self._wanted_since(uid, since_s)), default=0)

    def _wanted_since(self, uid: str, since_s: float) -> list[tuple[float, int, int]]:
        history = self.wanted.get(uid, [])
        first = max((n for n, (at_s, _, _) in enumerate(history) if at_s <= since_s), default=0)
        return history[first:]

    def most_ready(self, uid: str, since_s: float) -> int:
        """The most replicas of a workload that were ready at any time since."""
        history = self.ready.get(uid, [])
        first = max((n for n, (at_s, _) in enumerate(history) if at_s <= since_s), default=0)
        return max((count for _, count in history[first:]), default=0)

    def longest_silence_s(self, node: str) -> float:
        """The longest time without a renewal of a node's lease that a controller may just have seen."""
        return self._silences.longest_s(node, self.renewed_s.get(node, 0.0), self.now_s())

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


# -- objects, read without code of the controllers -------------------------------------------------


def pod_cost(found: Object | None) -> Mapping[str, int]:
    return object_cost(_POD_KIND, found.as_view(PodView)) if found is not None else {}


def entries_of(found: Object | None) -> Mapping[str, AllocationEntry]:
    return found.as_view(NodeAllocationView).status.entries if found is not None else {}


def _template(found: Object) -> object:
    return found.view.spec.template


def _owners(found: Object) -> object:
    return found.metadata.owner_references


def _move(total: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount
