"""The cluster as one scheduler sees it: a snapshot, and the assumptions, nominations, policies and quotas beside it.

Its methods are small steps: each changes the snapshot and, if a pending pod may be unblocked by it, notifies the queue.
`cache_follower` calls them for each change of a cache, the scheduling cycle and the binder for their own decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kedge.api.holds import active_hold
from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import DISRUPTION_BUDGET_KIND, GANG_LABEL, GANG_SIZE, HOLD_PREFIX, ZONE_LABEL
from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.metrics import Metrics
from kedge.observe.records import LocalState, UnreleasedClaim
from kedge.runtime.cache import BY_NAMESPACE, Cache, Index, NotSynced, by_label
from kedge.scheduler.policy.policies import Policies
from kedge.scheduler.policy.zone_quotas import ZoneQuotas
from kedge.scheduler.queue.events import NOTHING, ClusterEvent
from kedge.scheduler.queue.hints import QueueingHints, of_tenant
from kedge.scheduler.queue.scheduling_queue import SchedulingQueue
from kedge.scheduler.state.assumptions import Assumption, Assumptions
from kedge.scheduler.state.disruption_budgets import evictable
from kedge.scheduler.state.nominations import Nomination, Nominations
from kedge.scheduler.state.shapes import PodRequest, request_of
from kedge.scheduler.state.snapshot import Snapshot, SnapshotClaim
from kedge.scheduler.state.unreleased_claims import UnreleasedClaims

BY_GANG = by_label(GANG_LABEL)
LocalInputs = int | LocalState
"""The inputs of an attempt that no cache holds: themselves, or usually the number of changes of the assumptions, which
is enough to restore them soon after."""


class ClusterState:
    """One scheduler's view of the cluster."""

    def __init__(
        self,
        env: Env,
        queue: SchedulingQueue,
        *,
        scheduler: str,
        on_gone: Callable[[str], None] = lambda _: None,
        on_gated: Callable[[Object], None] = lambda _: None,
    ) -> None:
        self._env = env
        self._queue = queue
        self._scheduler = scheduler
        self._on_gone = on_gone
        """Called with the uid of a pod that ended or was removed."""
        self._on_gated = on_gated
        """Called with each version of a pod of this scheduler that has scheduling gates."""
        self.snapshot = Snapshot(env.limits)
        self.caches: dict[str, Cache] = {}
        """By key kind. Empty until `CacheFollower.start`."""
        self.assumed = Assumptions(changes_max=env.limits.scheduler_assumption_changes_max)
        self.policies = Policies(env, self.cached)
        self.quotas = ZoneQuotas(self.caches, self.assumed)
        self.unreleased = UnreleasedClaims(self.snapshot, self.caches, self.cached, self._drop_claim)
        self.nominated = Nominations(self.snapshot)
        self.hints = QueueingHints(self.snapshot, self.policies, self.nominated)
        self._placed: dict[str, Key] = {}
        """By pod uid: the keys of pods that have a node and have not ended."""
        self.gated: dict[str, Object] = {}
        """By uid: pods of this scheduler that have scheduling gates."""
        self._reserved: dict[str, str] = {}
        """By pod uid: the node on which a reservation holds room."""
        self._binds_awaited = False
        """Whether a preemption failed while pods were assumed that it could evict once they are bound."""
        self._show(env.metrics)

    def _show(self, metrics: Metrics) -> None:
        for series, help_text, count in (
            ("kedge_scheduler_assumed", "Pods given a node and not yet seen there", lambda: len(self.assumed)),
            (
                "kedge_scheduler_assumption_changes",
                "Changes of assumptions that can be undone",
                lambda: self.assumed.undoable,
            ),
        ):
            metrics.gauge(series, help_text).set_function(count)
        read = self.snapshot.statistics
        for series, help_text in (
            ("kedge_scheduler_nodes", "Nodes in the scheduler's snapshot"),
            ("kedge_scheduler_claims", "Claims on nodes in the scheduler's snapshot"),
            ("kedge_scheduler_shapes", "Equivalence classes of pods with kept filters and scores"),
            ("kedge_scheduler_tallies", "Counts of pods by topology that filters and scores keep"),
            ("kedge_scheduler_label_keys", "Label keys that pods have named, in the table of nodes and in its counts"),
        ):
            metrics.gauge(series, help_text).set_function(partial(_one_of, read, series))
        for series, help_text in (
            ("kedge_scheduler_changes_total", "Changes of nodes and claims in the scheduler's snapshot"),
            ("kedge_scheduler_repairs_total", "Kept filters and scores brought up to date row by row"),
            ("kedge_scheduler_explanations_total", "Explanations that accounted for every node"),
        ):
            metrics.counter(series, help_text).set_function(partial(_one_of, read, series))

    def cached(self, key: Key) -> Object | None:
        """An object, if its cache has it. Caches sync one after another: a handler may run before another's list."""
        try:
            return self.caches[key.kind].get(key).value
        except NotSynced:
            return None

    def found_by(self, kind: str, index: Index, value: str) -> tuple[Object, ...]:
        """Objects by an index that is kept from its first use on: most clusters need few of them."""
        cache = self.caches[kind]
        cache.add_index(index)
        return cache.by_index(index, value).value

    def local_inputs(self, priority: int) -> LocalInputs:
        """The inputs of a decision that no cache holds, as a reference for `local_state`."""
        places = self.nominated.places
        if not places and not self.unreleased.by_node:
            return self.assumed.changes
        return LocalState(
            self.assumed.recorded(),
            {uid: each.node for uid, each in places.items() if each.priority >= priority},
            {
                uid: UnreleasedClaim(
                    claim.node,
                    claim.request.namespace,
                    dict(claim.request.requirements.requests),
                    claim.request.requirements.ports,
                )
                for uid, claim in self.unreleased
            },
        )

    def local_state(self, inputs: LocalInputs) -> LocalState | None:
        """These inputs for a record; None if it is too late. A recheck adds them to what the caches held."""
        if isinstance(inputs, LocalState):
            return inputs
        assumed = self.assumed.recorded_at(inputs)
        return None if assumed is None else LocalState(assumed)

    def zone_of(self, node: str) -> str:
        found = self.snapshot.find(node)
        return found.labels.get(ZONE_LABEL, "") if found is not None else ""

    # -- assumptions -------------------------------------------------------------------------------

    def assume(self, pod: Object, node: str, request: PodRequest) -> Assumption:
        """Count a pod on a node: its bind is in flight."""
        uid = pod.uid
        made = Assumption(pod.key, uid, node, self.zone_of(node), request, self._env.monotonic())
        self.assumed.put(made)
        self.snapshot.add_claim(uid, node, request)
        return made

    def bind_committed(self, assumption: Assumption, revision: Revision) -> None:
        """Its bind was committed at `revision`: the cache will show it."""
        assumption.revision = revision
        if assumption.uid in self.assumed:  # the cache may have shown it already
            self.assumed.put(assumption)
            self._notify_quota(assumption)
        self._queue.notify(ClusterEvent.POD_PLACED, "a pod was placed or changed")

    def settle(self, assumption: Assumption, pod: Object | None) -> None:
        """A read of an assumed pod. If it is bound, count it on that node until the cache shows it too."""
        node = pod.as_view(PodView).spec.node_name if pod is not None and pod.uid == assumption.uid else ""
        if pod is None or not node:
            self.forget(assumption.uid)
            return
        self._claim(assumption.uid, node, assumption.request)
        assumption.node, assumption.zone = node, self.zone_of(node)
        assumption.revision, assumption.since_s = pod.revision, self._env.monotonic()
        self.assumed.put(assumption)
        self._notify_quota(assumption)
        self._queue.remove(assumption.uid)

    def forget(self, uid: str) -> None:
        """No bind was made, or another scheduler leads: count the pod where the cache has it."""
        assumption = self.assumed.pop(uid)
        if assumption is None:
            return
        self._notify_quota(assumption)
        found = self.cached(assumption.key)
        if found is not None and found.uid == uid:
            self.place(found)
        else:
            self._drop_claim(uid)

    def _notify_quota(self, assumption: Assumption | None) -> None:
        """The assumption takes less of its tenant's quotas now, without a change of a quota object.

        Either the pod was not bound, or a quota that counted it before its assumption ended had counted it twice.
        """
        if assumption is not None and self.quotas.has(assumption.key.namespace):
            hint = of_tenant(assumption.key.namespace)
            self._queue.notify(ClusterEvent.QUOTA, "a quota is used otherwise than was assumed", hint)

    def undo_assume(self, assumption: Assumption) -> None:
        """Nothing was sent, and nothing happened since `assume`. No pod is woken."""
        self.assumed.pop(assumption.uid)
        self.snapshot.remove_claim(assumption.uid)

    def forget_all(self) -> None:
        """The term is over. A pod that was nominated is tried again in the next one: it waits for its victims only, and
        another pod may take its room."""
        for assumption in tuple(self.assumed.values()):
            self.forget(assumption.uid)
        for uid in tuple(self.nominated.places):
            self.drop_nomination(uid)
            self._queue.wake(uid, "its nomination ended with the term")

    # -- preemption --------------------------------------------------------------------------------

    def drop_nomination(self, uid: str) -> Nomination | None:
        """Free the room that was held for a pod."""
        nomination = self.nominated.take(uid)
        if nomination is not None:
            self.notify_room(nomination.node, "a nomination was dropped")
        return nomination

    def pods_on(self, node: str) -> tuple[Object, ...]:
        """Pods that are bound to a node and have not ended."""
        keys = sorted(self._placed[uid] for uid in self.snapshot.claims_on(node) if uid in self._placed)
        found = (self.cached(key) for key in keys)
        return tuple(pod for pod in found if pod is not None and pod.view.spec.node_name == node)

    def evictable(self, pods: Sequence[Object]) -> list[Object]:
        """The pods that may be evicted together: no hold on this scheduler, and their budgets allow it."""
        now = self._env.now()
        return evictable(
            [pod for pod in pods if active_hold(pod.metadata, self._scheduler, now) is None],
            lambda namespace: self.found_by(DISRUPTION_BUDGET_KIND, BY_NAMESPACE, namespace),
        )

    def await_binds_below(self, priority: int) -> bool:
        """Whether a pod of a lower priority is assumed. It cannot be evicted before the cache shows it on its node.

        Then `place` notifies pods that wait for `ClusterEvent.BUDGET`.
        """
        found = (self.cached(each.key) for each in self.assumed.values())
        awaited = any(pod is not None and (pod.as_view(PodView).spec.priority or 0) < priority for pod in found)
        self._binds_awaited = self._binds_awaited or awaited
        return awaited

    # -- pods --------------------------------------------------------------------------------------

    def place(self, pod: Object, old: Object | None = None) -> None:
        """Count a pod on its node, or queue it."""
        view = pod.as_view(PodView)
        uid = view.metadata.uid
        if self.gated:
            self.gated.pop(uid, None)
        if view.finished:
            self._placed.pop(uid, None)
            self._queue.remove(uid)
            self._notify_quota(self.assumed.pop(uid))
            self.drop_nomination(uid)
            self._on_gone(uid)
            self._release(uid, pod.revision)
        elif view.spec.node_name:
            assumption = self.assumed.pop(uid)
            if assumption is not None and not assumption.revision:  # the cache shows it before the reply
                self._notify_quota(assumption)
            self._placed[uid] = pod.key
            self._queue.remove(uid)
            if uid in self.nominated:
                self.drop_nomination(uid)
            request = assumption.request if assumption is not None and not view.terminating else None
            # A pod of a later generation may have been resized while its bind was in flight.
            if request is None or request.labels != view.labels or view.metadata.generation > 1:
                request = request_of(view, workload=self.policies.workload_counted(view), placed=True)
            before = None if old is None else old.as_view(PodView)
            if before is not None and before.spec.node_name and _holds(before) != _holds(view):
                self._queue.notify(ClusterEvent.BUDGET, "a hold changed")
            had = self._claim(uid, view.spec.node_name, request)
            self._notify_counted(had.request if had is not None else None, request)
            if had is not None and had.node == view.spec.node_name and _is_less(request, had.request):
                self.notify_room(had.node, "a pod was resized")
            if had is None and GANG_LABEL in request.labels:  # bound by another scheduler; it needs no node
                gang = (pod.key.namespace, request.labels[GANG_LABEL])
                self._queue.notify(ClusterEvent.GANG, "a member of its gang was added", lambda each: each.gang == gang)
            if assumption is not None and self._binds_awaited:
                self._binds_awaited = len(self.assumed) > 0
                priority = view.spec.priority or 0
                why = "a pod that may be evicted was bound"
                self._queue.notify(ClusterEvent.BUDGET, why, lambda each: each.priority > priority)
        else:
            assumption = self.assumed.get(uid)
            if assumption is None:
                self._count_reserved(uid, view)
            else:
                self._recount_assumed(assumption, view)
            if uid in self.nominated:
                self._recount_nominated(uid, view)
            self._enqueue(pod, uid, view, old)

    def _recount_assumed(self, assumption: Assumption, view: PodView) -> None:
        """A pod may be relabelled, resized or deleted while its bind is in flight: count its latest version."""
        had, now = assumption.request, self.policies.request_of(view)
        if had[:3] == now[:3] and had.terminating == now.terminating:
            return
        assumption.request = now._replace(workload=had.workload)
        self.snapshot.add_claim(assumption.uid, assumption.node, assumption.request)
        self._notify_counted(had, assumption.request)

    def _recount_nominated(self, uid: str, view: PodView) -> None:
        """The same for a nominated pod: rules about pods count it on its nominated node."""
        had, request = self.nominated.places[uid].request, self.policies.request_of(view)
        if had[:3] != request[:3]:
            self.nominated.recount(uid, request)
            self._notify_counted(had, request)

    def _notify_counted(self, had: PodRequest | None, request: PodRequest) -> None:
        """A pod is counted on a node, or its labels there changed."""
        if had is not None and had.labels != request.labels:  # to some rules a pod was added, to others one is gone
            self._queue.notify(ClusterEvent.POD_PLACED | ClusterEvent.POD_GONE, "a pod has other labels")
        elif had is None or had.terminating != request.terminating:
            self._queue.notify(ClusterEvent.POD_PLACED, "a pod was placed or changed")

    def _claim(self, uid: str, node: str, request: PodRequest) -> SnapshotClaim | None:
        """Count a pod on a node, and notify if it moved from another. Returns its claim before."""
        had = self.snapshot.claim(uid)
        if had is None or had.request is not request or had.node != node:  # an assumption already counts it
            self.snapshot.add_claim(uid, node, request)
        if had is not None:
            self.unreleased.forget(uid, had.node)
            if had.node != node:
                self.notify_room(had.node, "a claim was released", always=ClusterEvent.POD_GONE)
        return had

    def _count_reserved(self, uid: str, view: PodView) -> None:
        """An unbound pod holds its reservation, or an unreleased claim that only a ledger shows."""
        reserved = self._reserved.get(uid)
        if reserved is not None:
            self._claim(uid, reserved, self.policies.request_of(view))
            return
        claim = self.snapshot.claim(uid)
        if claim is not None and not self.unreleased.has(uid, claim.node):
            self._drop_claim(uid)

    def _enqueue(self, pod: Object, uid: str, view: PodView, old: Object | None) -> None:
        if view.spec.scheduler_name != self._scheduler:
            return
        if view.terminating or view.spec.scheduling_gates:
            self._queue.remove(uid)
            self.drop_nomination(uid)
            if not view.terminating:
                self.gated[uid] = pod
                self._on_gated(pod)
            return
        queued = self._queue.get(uid)
        if queued is None:
            if uid in self.assumed:
                return  # it was bound meanwhile; the cache does not show it yet
            self._queue.put(pod, view.spec.priority or 0, gang=view.labels.get(GANG_LABEL, ""))
            return
        before = old.as_view(PodView) if old is not None else None
        if before is None or not _same_request(before, view):
            self._queue.put(pod, view.spec.priority or 0, gang=view.labels.get(GANG_LABEL, ""))
        else:
            self._queue.refresh(pod)  # only its status changed, such as our own condition

    def pod_gone(self, pod: Object, revision: Revision) -> None:
        self._placed.pop(pod.uid, None)
        self.gated.pop(pod.uid, None)
        self._queue.remove(pod.uid)
        self.drop_nomination(pod.uid)
        self._notify_quota(self.assumed.pop(pod.uid))
        self._on_gone(pod.uid)
        self._release(pod.uid, revision)

    def _release(self, uid: str, revision: Revision) -> None:
        """A pod ended or was removed at `revision`. Its room is free once its node's ledger has released it."""
        claim = self.snapshot.claim(uid)
        if claim is None:
            return
        if self.unreleased.keep(uid, claim, revision):
            self._queue.notify(ClusterEvent.POD_GONE, "a pod is gone")
        else:
            self._drop_claim(uid)

    def _drop_claim(self, uid: str) -> None:
        claim = self.snapshot.claim(uid)
        if claim is None or not self.snapshot.remove_claim(uid):
            return
        self.unreleased.forget(uid, claim.node)
        self.notify_room(claim.node, "a claim was released", always=ClusterEvent.POD_GONE)

    def notify_room(self, node: str, why: str, *, always: ClusterEvent = NOTHING) -> None:
        """A node has more free resources: wake the pods that they are enough for, and the nominated pods."""
        for uid, nomination in self.nominated.on(node) if self.nominated else ():
            if not self.nominated.waits_for_victims(nomination):
                self._queue.wake(uid, "room was made for it")
        self._queue.notify(ClusterEvent.ROOM, why, self.hints.room_on(node), always=always)

    def wake_nominees(self, node: str) -> None:
        """A node changed or was deleted: pods nominated to it may need another node."""
        for uid, _ in self.nominated.on(node) if self.nominated else ():
            self._queue.wake(uid, "its nominated node changed")

    # -- reservations and workloads ----------------------------------------------------------------

    def reserved_node(self, uid: str) -> str:
        """The node on which a reservation holds room for a pod; empty if there is none."""
        return self._reserved.get(uid, "")

    def reserve(self, uid: str, node: str | None, pod: Object | None) -> None:
        """A reservation for a pod is on `node`; None if it was deleted. `pod` is the pod, if its cache has it."""
        if node is not None:
            self._reserved[uid] = node
        else:
            self._reserved.pop(uid, None)
        if pod is not None and pod.uid == uid and uid not in self.assumed:
            view = pod.as_view(PodView)
            if not view.spec.node_name and not view.finished:
                self._count_reserved(uid, view)
                self._queue.wake(uid, "its reservation changed")

    def recount(self, pods: Iterable[Object]) -> None:
        """The workload of these pods is another now: count those again that have a claim or a nomination."""
        for pod in pods:
            if pod.uid in self.nominated:
                self.nominated.recount(pod.uid, self.policies.request_of(pod.as_view(PodView)))
            claim = self.snapshot.claim(pod.uid)
            if claim is None or self.unreleased.has(pod.uid, claim.node):
                continue  # not counted, or only because a ledger holds it
            request = claim.request._replace(workload=self.policies.request_of(pod.as_view(PodView)).workload)
            self.snapshot.add_claim(pod.uid, claim.node, request)
            assumption = self.assumed.get(pod.uid)
            if assumption is not None:
                assumption.request = request
                self.assumed.put(assumption)


def _same_request(one: PodView, other: PodView) -> bool:
    """Whether an attempt would decide the same for both versions."""
    mine, theirs = one.metadata, other.metadata
    return (
        one.spec == other.spec
        and mine.labels == theirs.labels
        and mine.annotations.get(GANG_SIZE) == theirs.annotations.get(GANG_SIZE)
        and _holds(one) == _holds(other)
    )


def _is_less(request: PodRequest, had: PodRequest) -> bool:
    """Whether a pod counts with less of any resource than before."""
    now, before = request.requirements.requests, had.requirements.requests
    return now is not before and any(now.get(resource, 0) < amount for resource, amount in before.items())


def _holds(pod: PodView) -> list[tuple[str, str]]:
    return [item for item in pod.metadata.annotations.items() if item[0].startswith(HOLD_PREFIX)]


def _one_of(read: Callable[[], dict[str, int]], name: str) -> int:
    return read()[name]
