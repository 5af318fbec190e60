"""The scheduler's picture, kept in step with its caches: nodes, claims, who waits, quotas and policies.

Each change of a cache becomes a small step of the `Snapshot` and, where it may help somebody, a word to `Pending`. What
the scheduler itself has decided and not yet seen is held here too, as assumptions: they end by evidence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kedge.api.holds import active_hold
from kedge.api.kinds import Kind, Registry
from kedge.api.objects import Object
from kedge.api.views import (
    NodeView,
    PodView,
    ReservationView,
)
from kedge.api.wellknown import (
    DISRUPTION_BUDGET_KIND,
    GANG_LABEL,
    GANG_SIZE,
    HOLD_PREFIX,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    SCHEDULING_POLICY_KIND,
    ZONE_LABEL,
    ZONE_QUOTA_KIND,
)
from kedge.env import Env
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.records import AssumedBind, LocalState, UnreleasedClaim
from kedge.runtime.cache import (
    BY_CONTROLLER,
    BY_NAMESPACE,
    Cache,
    CacheChange,
    CacheSet,
    ChangeType,
    Index,
    NotSynced,
    by_label,
)
from kedge.scheduler.cycle.preemption import Nomination, PreemptionInputs, allowed_by, may_leave
from kedge.scheduler.policy.policies import Policies
from kedge.scheduler.queue.events import NOTHING, ClusterEvent
from kedge.scheduler.queue.hints import QueueingHints, of_tenant
from kedge.scheduler.queue.pending import Pending
from kedge.scheduler.state.nominations import Nominations
from kedge.scheduler.state.shapes import PodRequest, request_of
from kedge.scheduler.state.snapshot import Snapshot, SnapshotClaim
from kedge.scheduler.state.unreleased_claims import UnreleasedClaims

BY_GANG = by_label(GANG_LABEL)
READ = (
    NODE_KIND, POD_KIND, NODE_ALLOCATION_KIND, NAMESPACE_KIND, ZONE_QUOTA_KIND, SCHEDULING_POLICY_KIND,
    RESERVATION_KIND, REPLICA_SET_KIND, DISRUPTION_BUDGET_KIND,
)  # fmt: skip
"""The kinds that a decision looks at."""


@dataclass(slots=True)
class Assumption:
    """A pod that was given a node, and has not been seen there yet."""

    key: Key
    uid: str
    node: str
    zone: str
    request: PodRequest
    since_s: float
    revision: Revision = NO_REVISION
    """Of the bind; none while it is under way."""


class ClusterState:
    """One scheduler's view of the cluster."""

    def __init__(self, caches: CacheSet, kinds: Registry, env: Env, pending: Pending, *, scheduler: str) -> None:
        self._caches = caches
        self._kinds = kinds
        self._env = env
        self._pending = pending
        self._scheduler = scheduler
        self.snapshot = Snapshot(env.limits)
        self.caches: dict[str, Cache] = {}
        self.assumed: dict[str, Assumption] = {}
        """By pod uid: binds under way, and binds made that no cache shows yet."""
        self._told: dict[str, AssumedBind] = {}
        """The same as records have it: each gets a copy, which must cost little."""
        self.governance = Policies(env, self.caches, self._cached, self.assumed)
        self.unreleased = UnreleasedClaims(self.snapshot, self.caches, self._cached, self._drop_claim)
        self.nominated = Nominations(self.snapshot)
        self._hints = QueueingHints(self.snapshot, self.governance, self.nominated)
        self._placed: dict[str, Key] = {}
        """By pod uid: the names of those that have a node and have not ended."""
        self.gated: dict[str, Object] = {}
        """By uid: pods of this scheduler that wait for their gates to be removed."""
        self.on_gated: Callable[[Object], None] = lambda _: None
        """Called with each version of such a pod."""
        self._reserved: dict[str, str] = {}
        """By pod uid: the node on which a reservation holds a place."""
        self.on_gone: Callable[[str], None] = lambda _: None
        """Called with the uid of a pod that is no more."""
        self.on_policy: Callable[[Object], None] = lambda _: None
        """Called with each version of a policy, once decisions go by it."""
        env.metrics.gauge("kedge_scheduler_assumed", "Pods given a node and not yet seen there").set_function(
            lambda: len(self.assumed)
        )
        for series in self.snapshot.statistics():
            env.metrics.gauge(series, "Of the scheduler's snapshot").set_function(
                lambda series=series: self.snapshot.statistics()[series]  # type: ignore[misc]
            )

    def follow(self) -> None:
        """Begin to follow the caches. Must be called on the event loop."""
        handlers: dict[str, Callable[[CacheChange], None]] = {
            NODE_KIND: self._node_changed,
            POD_KIND: self._pod_changed,
            NODE_ALLOCATION_KIND: self._ledger_changed,
            NAMESPACE_KIND: self._namespace_changed,
            ZONE_QUOTA_KIND: self._quota_changed,
            SCHEDULING_POLICY_KIND: self._policy_changed,
            RESERVATION_KIND: self._reservation_changed,
            REPLICA_SET_KIND: self._replica_set_changed,
            DISRUPTION_BUDGET_KIND: self._budget_changed,
        }
        for name in READ:
            self.caches[name] = self._caches.cache(self._kind(name))
        for name, handler in handlers.items():
            self.caches[name].subscribe(handler, name=self._scheduler)

    def _kind(self, name: str) -> Kind:
        return self._kinds.of_key_kind(name)

    def _cached(self, key: Key) -> Object | None:
        """An object, if its cache has it. Caches list one after another: a handler may run before another's list."""
        try:
            return self.caches[key.kind].get(key).value
        except NotSynced:
            return None

    def found_by(self, kind: str, index: Index, value: str) -> tuple[Object, ...]:
        """Objects by an index that is kept from its first use on: most clusters need few of them."""
        cache = self.caches[kind]
        cache.add_index(index)
        return cache.by_index(index, value).value

    # -- what the decision asks --------------------------------------------------------------------

    def local_state(self, priority: int) -> LocalState:
        """The inputs of a decision that no cache holds, for its record. A recheck adds them to what the caches held."""
        return LocalState(
            self._told.copy(),
            {uid: each.node for uid, each in self.nominated.places.items() if each.priority >= priority},
            {
                uid: UnreleasedClaim(
                    claim.node, claim.request.namespace, dict(claim.request.wants.requests), claim.request.wants.ports
                )
                for uid, claim in self.unreleased
            },
        )

    def zone_of(self, node: str) -> str:
        found = self.snapshot.find(node)
        return found.labels.get(ZONE_LABEL, "") if found is not None else ""

    # -- assumptions -------------------------------------------------------------------------------

    def assume(self, pod: Object, node: str, request: PodRequest) -> Assumption:
        """Count a pod on a node from now on: the bind is on its way."""
        uid = pod.uid
        made = self.assumed[uid] = Assumption(pod.key, uid, node, self.zone_of(node), request, self._env.monotonic())
        self._tell(made)
        self.snapshot.add_claim(uid, node, request)
        return made

    def _tell(self, assumption: Assumption) -> None:
        self._told[assumption.uid] = AssumedBind(
            assumption.node, assumption.revision, assumption.request.workload, assumption.zone
        )

    def _end_assumption(self, uid: str) -> Assumption | None:
        self._told.pop(uid, None)
        return self.assumed.pop(uid, None)

    def made(self, assumption: Assumption, revision: Revision) -> None:
        """Its bind was committed at `revision`: the cache will show it."""
        assumption.revision = revision
        if assumption.uid in self.assumed:  # the cache may have shown it already
            self._tell(assumption)
            self._tell_quota(assumption)
        self._pending.happened(ClusterEvent.POD_PLACED, "a pod was placed or changed")

    def found(self, assumption: Assumption, pod: Object | None) -> None:
        """What the authority has of an assumed pod. Bound, it is counted there until the cache shows it too."""
        node = pod.as_view(PodView).spec.node_name if pod is not None and pod.uid == assumption.uid else ""
        if pod is None or not node:
            self.forget(assumption.uid)
            return
        self._claim(assumption.uid, node, assumption.request)
        assumption.node, assumption.zone = node, self.zone_of(node)
        assumption.revision, assumption.since_s = pod.revision, self._env.monotonic()
        self._tell(assumption)
        self._tell_quota(assumption)
        self._pending.remove(assumption.uid)

    def forget(self, uid: str) -> None:
        """It is known that no bind was made, or that another decides: count the pod where the cache has it."""
        assumption = self._end_assumption(uid)
        if assumption is None:
            return
        self._tell_quota(assumption)
        found = self._cached(assumption.key)
        if found is not None and found.uid == uid:
            self._place(found)
        else:
            self._drop_claim(uid)

    def _tell_quota(self, assumption: Assumption | None) -> None:
        """What was assumed takes less of its tenant's quotas now, and no quota that changes says so.

        It is not used in the end; or it is, and a quota that showed it before anybody else did counted it twice.
        """
        if assumption is not None and self.governance.has_quota(assumption.key.namespace):
            helps = of_tenant(assumption.key.namespace)
            self._pending.happened(ClusterEvent.QUOTA, "a quota is used otherwise than was assumed", helps)

    def take_back(self, assumption: Assumption) -> None:
        """Nothing was sent, and nothing else happened since it was assumed: as if it had not been. Nobody is woken."""
        self._end_assumption(assumption.uid)
        self.snapshot.remove_claim(assumption.uid)

    def forget_all(self) -> None:
        """Another leads: what was under way is not ours any more."""
        for uid in tuple(self.assumed):
            self.forget(uid)
        for uid in tuple(self.nominated.places):
            self.drop_nomination(uid)

    # -- places that are being made ----------------------------------------------------------------

    def drop_nomination(self, uid: str) -> Nomination | None:
        """The place is not kept any more; others may have it."""
        nomination = self.nominated.take(uid)
        if nomination is not None:
            self.tell_room(nomination.node, "a place was given up")
        return nomination

    def lodgers(self) -> PreemptionInputs:
        return PreemptionInputs(self.pods_on, self._may_leave, self.nominated.places)

    def pods_on(self, node: str) -> tuple[Object, ...]:
        """Pods that are bound to a node and have not ended."""
        keys = sorted(self._placed[uid] for uid in self.snapshot.claims_on(node) if uid in self._placed)
        found = (self._cached(key) for key in keys)
        return tuple(pod for pod in found if pod is not None and pod.view.spec.node_name == node)

    def _may_leave(self, pods: Sequence[Object]) -> list[Object]:
        now = self._env.now()
        return may_leave(
            [pod for pod in pods if active_hold(pod.metadata, self._scheduler, now) is None],  # a person's word
            lambda namespace: self.found_by(DISRUPTION_BUDGET_KIND, BY_NAMESPACE, namespace),
        )

    # -- changes of the caches ---------------------------------------------------------------------

    def _pod_changed(self, change: CacheChange) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.uid != old.uid):
            self._pod_gone(old, change.revision)
            old = None
        if new is not None:
            self._place(new, old)

    def _place(self, pod: Object, old: Object | None = None) -> None:
        """Count a pod where it is, or let it wait for a node."""
        view = pod.as_view(PodView)
        uid = view.metadata.uid
        if self.gated:
            self.gated.pop(uid, None)
        if view.finished:
            self._placed.pop(uid, None)
            self._pending.remove(uid)
            self._tell_quota(self._end_assumption(uid))
            self.drop_nomination(uid)
            self.on_gone(uid)
            self._release(uid, pod.revision)
        elif view.spec.node_name:
            assumption = self._end_assumption(uid)
            if assumption is not None and not assumption.revision:  # before its reply
                self._tell_quota(assumption)
            self._placed[uid] = pod.key
            self._pending.remove(uid)
            if uid in self.nominated:
                self.drop_nomination(uid)
            request = assumption.request if assumption is not None and not view.terminating else None
            if request is None or request.labels != view.labels:
                request = request_of(view, workload=self.governance.workload_counted(view), placed=True)
            before = None if old is None else old.as_view(PodView)
            if before is not None and before.spec.node_name and _holds(before) != _holds(view):
                self._pending.happened(ClusterEvent.BUDGET, "a hold changed")
            had = self._claim(uid, view.spec.node_name, request)
            self._tell_counted(had.request if had is not None else None, request)
            if had is None and GANG_LABEL in request.labels:  # by another hand: it is here, and needs no place
                gang = (pod.key.namespace, request.labels[GANG_LABEL])
                self._pending.happened(ClusterEvent.GANG, "a member of its gang came", lambda each: each.gang == gang)
        else:
            assumption = self.assumed.get(uid)
            if assumption is None:
                self._count_reserved(uid, view)
            else:
                self._recount_assumed(assumption, view)
            if uid in self.nominated:
                self._recount_nominated(uid, view)
            self._wait(pod, uid, view, old)

    def _recount_assumed(self, assumption: Assumption, view: PodView) -> None:
        """While its bind is under way a pod may get other labels, or be asked to leave: it counts as it is now."""
        had = assumption.request
        if had.labels == view.labels and had.terminating == view.terminating:
            return
        assumption.request = self.governance.request_of(view)._replace(workload=had.workload)
        self.snapshot.add_claim(assumption.uid, assumption.node, assumption.request)
        self._tell_counted(had, assumption.request)

    def _recount_nominated(self, uid: str, view: PodView) -> None:
        """The same for one that has no place yet: rules about pods mean it where a place is made for it."""
        had = self.nominated.places[uid].request
        if had.labels != view.labels:
            request = self.governance.request_of(view)
            self.nominated.recount(uid, request)
            self._tell_counted(had, request)

    def _tell_counted(self, had: PodRequest | None, request: PodRequest) -> None:
        """A pod is counted on a node, or counts there as another than before."""
        if had is not None and had.labels != request.labels:  # one that came, to some rules; one that went, to others
            self._pending.happened(ClusterEvent.POD_PLACED | ClusterEvent.POD_GONE, "a pod has other labels")
        elif had is None or had.terminating != request.terminating:
            self._pending.happened(ClusterEvent.POD_PLACED, "a pod was placed or changed")

    def _claim(self, uid: str, node: str, request: PodRequest) -> SnapshotClaim | None:
        """Count a pod on a node, and tell if it has left another for it. Returns how it was counted before."""
        had = self.snapshot.claim(uid)
        if had is None or had.request is not request or had.node != node:  # an assumption that came true is counted
            self.snapshot.add_claim(uid, node, request)
        if had is not None:
            self.unreleased.forget(uid, had.node)
            if had.node != node:
                self.tell_room(had.node, "a claim was released", always=ClusterEvent.POD_GONE)
        return had

    def _count_reserved(self, uid: str, view: PodView) -> None:
        """An unbound pod holds what is reserved for it, or what only a ledger knows of."""
        reserved = self._reserved.get(uid)
        if reserved is not None:
            self._claim(uid, reserved, self.governance.request_of(view))
            return
        claim = self.snapshot.claim(uid)
        if claim is not None and not self.unreleased.has(uid, claim.node):
            self._drop_claim(uid)

    def _wait(self, pod: Object, uid: str, view: PodView, old: Object | None) -> None:
        if view.spec.scheduler_name != self._scheduler:
            return
        if view.terminating or view.spec.scheduling_gates:
            self._pending.remove(uid)
            self.drop_nomination(uid)
            if not view.terminating:
                self.gated[uid] = pod
                self.on_gated(pod)
            return
        waiting = self._pending.get(uid)
        if waiting is None:
            if uid in self.assumed:
                return  # it was bound since: the cache has yet to show it
            self._pending.put(pod, view.spec.priority or 0, gang=view.labels.get(GANG_LABEL, ""))
            return
        before = old.as_view(PodView) if old is not None else None
        if before is None or not _asks_alike(before, view):
            self._pending.put(pod, view.spec.priority or 0, gang=view.labels.get(GANG_LABEL, ""))
        else:
            self._pending.refresh(pod)  # its status, such as our own condition, is no news

    def _pod_gone(self, pod: Object, revision: Revision) -> None:
        self._placed.pop(pod.uid, None)
        self.gated.pop(pod.uid, None)
        self._pending.remove(pod.uid)
        self.drop_nomination(pod.uid)
        self._tell_quota(self._end_assumption(pod.uid))
        self.on_gone(pod.uid)
        self._release(pod.uid, revision)

    def _release(self, uid: str, revision: Revision) -> None:
        """A pod ended or went at `revision`. Its place is free when its node's ledger says so, and not before."""
        claim = self.snapshot.claim(uid)
        if claim is None:
            return
        if self.unreleased.keep(uid, claim, revision):
            self._pending.happened(ClusterEvent.POD_GONE, "a pod is gone")
        else:
            self._drop_claim(uid)

    def _drop_claim(self, uid: str) -> None:
        claim = self.snapshot.claim(uid)
        if claim is None or not self.snapshot.remove_claim(uid):
            return
        self.unreleased.forget(uid, claim.node)
        self.tell_room(claim.node, "a claim was released", always=ClusterEvent.POD_GONE)

    def tell_room(self, node: str, why: str, *, always: ClusterEvent = NOTHING) -> None:
        """A node has more left than before: those it is enough for may be tried, and whom it was made for."""
        for uid, nomination in self.nominated.on(node) if self.nominated else ():
            if not self.nominated.is_being_made(nomination):
                self._pending.wake(uid, "room was made for it")
        self._pending.happened(ClusterEvent.ROOM, why, self._hints.room_on(node), always=always)

    def _node_changed(self, change: CacheChange) -> None:
        if change.new is None:
            self.snapshot.remove_node(change.key.name)
            self._pending.happened(ClusterEvent.TOPOLOGY, "a node went")
            self._wake_nominees(change.key.name)
            return
        if change.old is not None and change.old.uid != change.new.uid:
            self.unreleased.review(change.key.name)  # another incarnation: what the last one held is free
        if self.snapshot.put_node(change.new.as_view(NodeView), change.new.revision):
            what = ClusterEvent.NODE | ClusterEvent.ROOM
            why = "a node came" if change.type is ChangeType.ADDED else "a node changed"
            helps = self._hints.could_go_to(change.new.as_view(NodeView))
            self._pending.happened(what, why, helps, always=ClusterEvent.TOPOLOGY)
            self._wake_nominees(change.key.name)

    def _wake_nominees(self, node: str) -> None:
        """A node is another, or no more: those for whom a place is made there may need one elsewhere."""
        for uid, _ in self.nominated.on(node) if self.nominated else ():
            self._pending.wake(uid, "the node changed on which a place is made for it")

    def _ledger_changed(self, change: CacheChange) -> None:
        self.unreleased.ledger_changed(change.key.name, change.revision)

    def _budget_changed(self, change: CacheChange) -> None:
        if change.new is None or (change.old is not None and allowed_by(change.new) > allowed_by(change.old)):
            self._pending.happened(ClusterEvent.BUDGET, "a budget lets pods go")

    # -- reservations, namespaces, quotas, policies ------------------------------------------------

    def reserved_node(self, uid: str) -> str:
        """Where a reservation holds a place for a pod; empty if none does."""
        return self._reserved.get(uid, "")

    def _reservation_changed(self, change: CacheChange) -> None:
        spec = change.object.as_view(ReservationView).spec
        uid = spec.pod.uid
        if not uid:
            gang = (change.key.namespace, change.key.name)
            self._pending.happened(ClusterEvent.GANG, "its gang's record changed", lambda each: each.gang == gang)
            return
        if change.new is not None:
            self._reserved[uid] = spec.node_name
        else:
            self._reserved.pop(uid, None)
        pod = self._cached(Key(POD_KIND, change.key.namespace, spec.pod.name))
        if pod is not None and pod.uid == uid and uid not in self.assumed:
            view = pod.as_view(PodView)
            if not view.spec.node_name and not view.finished:
                self._count_reserved(uid, view)
                self._pending.wake(uid, "its reservation changed")

    def _namespace_changed(self, change: CacheChange) -> None:
        if change.new is None:
            self.snapshot.remove_namespace(change.key.name)
        elif change.old is None or change.old.metadata.labels != change.new.metadata.labels:
            self.snapshot.put_namespace(change.key.name, change.new.metadata.labels)
            self._pending.happened(ClusterEvent.NAMESPACE, "a namespace changed")

    def _quota_changed(self, change: CacheChange) -> None:
        self.governance.put_quota(change.key, change.new)
        self._pending.happened(ClusterEvent.QUOTA, "a quota changed", of_tenant(change.key.namespace))

    def _policy_changed(self, change: CacheChange) -> None:
        policies, old, new = self.governance.policies, change.old, change.new
        had = bool(policies)
        self.governance.put_policy(change.key.name, new)
        if new is not None:
            self.on_policy(new)
        if old is not None and new is not None and _asks_the_same(old, new):
            return  # what is said of it, such as our own word, settles nothing
        if bool(policies) != had:  # pods count by what is above their ReplicaSet, or no more
            self._recount(lambda: self.caches[POD_KIND].list().value)
        self._pending.happened(ClusterEvent.POLICY, "a policy changed")

    def _replica_set_changed(self, change: CacheChange) -> None:
        if self.governance.policies and change.type is ChangeType.ADDED:
            self.governance.forget_settings()
            self._recount(lambda: self.found_by(POD_KIND, BY_CONTROLLER, change.object.uid))
            self._pending.happened(ClusterEvent.POLICY, "what pods are replicas of is known now")

    def _recount(self, which: Callable[[], Iterable[Object]]) -> None:
        """Count pods again that have a place, or get one: what they are replicas of is known otherwise now."""
        try:
            pods = which()
        except NotSynced:
            return
        for pod in pods:
            if pod.uid in self.nominated:
                self.nominated.recount(pod.uid, self.governance.request_of(pod.as_view(PodView)))
            claim = self.snapshot.claim(pod.uid)
            if claim is None or self.unreleased.has(pod.uid, claim.node):
                continue  # not counted, or only because a ledger holds it
            request = claim.request._replace(workload=self.governance.request_of(pod.as_view(PodView)).workload)
            self.snapshot.add_claim(pod.uid, claim.node, request)
            assumption = self.assumed.get(pod.uid)
            if assumption is not None:
                assumption.request = request
                self._tell(assumption)


def _asks_alike(one: PodView, other: PodView) -> bool:
    """Whether nothing that decides is another: an attempt would come to the same."""
    mine, theirs = one.metadata, other.metadata
    return (
        one.spec == other.spec
        and mine.labels == theirs.labels
        and mine.annotations.get(GANG_SIZE) == theirs.annotations.get(GANG_SIZE)
        and _holds(one) == _holds(other)
    )


def _holds(pod: PodView) -> list[tuple[str, str]]:
    return [item for item in pod.metadata.annotations.items() if item[0].startswith(HOLD_PREFIX)]


def _asks_the_same(old: Object, new: Object) -> bool:
    return old.uid == new.uid and old.metadata.generation == new.metadata.generation
