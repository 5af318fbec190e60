"""Follows the scheduler's caches: each change of an object becomes a step of `ClusterState`.

Nothing is decided here. A handler notifies the queue of the event that the change may be to pending pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kedge.api.kinds import Registry
from kedge.api.objects import Object
from kedge.api.views import NodeView, ReservationView
from kedge.api.wellknown import (
    DISRUPTION_BUDGET_KIND,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    SCHEDULING_POLICY_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.keys import Key
from kedge.runtime.cache import BY_CONTROLLER, CacheChange, CacheSet, ChangeType, NotSynced
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.queue.hints import of_tenant
from kedge.scheduler.queue.scheduling_queue import SchedulingQueue
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.scheduler.state.disruption_budgets import allowed_by

FOLLOWED = (
    NODE_KIND, POD_KIND, NODE_ALLOCATION_KIND, NAMESPACE_KIND, ZONE_QUOTA_KIND, SCHEDULING_POLICY_KIND,
    RESERVATION_KIND, REPLICA_SET_KIND, DISRUPTION_BUDGET_KIND,
)  # fmt: skip
"""The kinds that a decision depends on. Their caches sync in this order."""


class CacheFollower:
    """Keeps one `ClusterState` in step with its caches."""

    def __init__(
        self,
        caches: CacheSet,
        kinds: Registry,
        state: ClusterState,
        queue: SchedulingQueue,
        *,
        name: str,
        on_policy: Callable[[Object], None] = lambda _: None,
    ) -> None:
        self._caches = caches
        self._kinds = kinds
        self._state = state
        self._queue = queue
        self._name = name
        self._on_policy = on_policy
        """Called with each version of a policy, once decisions use it."""

    def start(self) -> None:
        """Subscribe to the caches. Must be called on the event loop."""
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
        caches = self._state.caches
        for kind in FOLLOWED:
            caches[kind] = self._caches.cache(self._kinds.of_key_kind(kind))
        for kind, handler in handlers.items():
            caches[kind].subscribe(self._as_cause(handler), name=self._name)

    def _as_cause(self, handler: Callable[[CacheChange], None]) -> Callable[[CacheChange], None]:
        """Let the queue know which change causes the wake-ups of a handler: they go to the records."""
        queue = self._queue

        def follow(change: CacheChange) -> None:
            queue.change = change
            try:
                handler(change)
            finally:
                queue.change = None

        return follow

    def _pod_changed(self, change: CacheChange) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.uid != old.uid):
            self._state.pod_gone(old, change.revision)
            old = None
        if new is not None:
            self._state.place(new, old)

    def _node_changed(self, change: CacheChange) -> None:
        if change.new is None:
            self._state.snapshot.remove_node(change.key.name)
            self._queue.notify(ClusterEvent.TOPOLOGY, "a node went")
            self._state.wake_nominees(change.key.name)
            return
        if change.old is not None and change.old.uid != change.new.uid:
            self._state.unreleased.review(change.key.name)  # another incarnation: the claims of the last one are free
        if self._state.snapshot.put_node(change.new.as_view(NodeView), change.new.revision):
            what = ClusterEvent.NODE | ClusterEvent.ROOM
            why = "a node came" if change.type is ChangeType.ADDED else "a node changed"
            hint = self._state.hints.could_fit_on(change.new.as_view(NodeView))
            self._queue.notify(what, why, hint, always=ClusterEvent.TOPOLOGY)
            self._state.wake_nominees(change.key.name)

    def _ledger_changed(self, change: CacheChange) -> None:
        self._state.unreleased.ledger_changed(change.key.name, change.revision)

    def _budget_changed(self, change: CacheChange) -> None:
        if change.new is None or (change.old is not None and allowed_by(change.new) > allowed_by(change.old)):
            self._queue.notify(ClusterEvent.BUDGET, "a budget lets pods go")

    def _reservation_changed(self, change: CacheChange) -> None:
        spec = change.object.as_view(ReservationView).spec
        if not spec.pod.uid:
            gang = (change.key.namespace, change.key.name)
            self._queue.notify(ClusterEvent.GANG, "its gang's record changed", lambda each: each.gang == gang)
            return
        node = spec.node_name if change.new is not None else None
        pod = self._state.cached(Key(POD_KIND, change.key.namespace, spec.pod.name))
        self._state.reserve(spec.pod.uid, node, pod)

    def _namespace_changed(self, change: CacheChange) -> None:
        snapshot = self._state.snapshot
        if change.new is None:
            snapshot.remove_namespace(change.key.name)
        elif change.old is None or change.old.metadata.labels != change.new.metadata.labels:
            snapshot.put_namespace(change.key.name, change.new.metadata.labels)
            self._queue.notify(ClusterEvent.NAMESPACE, "a namespace changed")

    def _quota_changed(self, change: CacheChange) -> None:
        self._state.quotas.put(change.key, change.new)
        self._queue.notify(ClusterEvent.QUOTA, "a quota changed", of_tenant(change.key.namespace))

    def _policy_changed(self, change: CacheChange) -> None:
        policies, old, new = self._state.policies, change.old, change.new
        had = bool(policies.objects)
        policies.put(change.key.name, new)
        if new is not None:
            self._on_policy(new)
        if old is not None and new is not None and _same_generation(old, new):
            return  # only its status changed, as when this scheduler wrote it
        if bool(policies.objects) != had:  # with policies, pods count for the workload above their ReplicaSet
            self._recount(lambda: self._state.caches[POD_KIND].list().value)
        self._queue.notify(ClusterEvent.POLICY, "a policy changed")

    def _replica_set_changed(self, change: CacheChange) -> None:
        if self._state.policies.objects and change.type is ChangeType.ADDED:
            self._state.policies.forget_settings()
            self._recount(lambda: self._state.found_by(POD_KIND, BY_CONTROLLER, change.object.uid))
            self._queue.notify(ClusterEvent.POLICY, "what pods are replicas of is known now")

    def _recount(self, find_pods: Callable[[], Iterable[Object]]) -> None:
        try:
            pods = find_pods()
        except NotSynced:
            return
        self._state.recount(pods)


def _same_generation(old: Object, new: Object) -> bool:
    return old.uid == new.uid and old.metadata.generation == new.metadata.generation
