"""The scheduler's picture, kept in step with its caches: nodes, claims, who waits, quotas and policies.

Each change of a cache becomes a small step of the `Snapshot` and, where it may help somebody, a word to `Pending`. What
the scheduler itself has decided and not yet seen is held here too, as assumptions: they end by evidence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kedge.api.kinds import Kind, Registry
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.selectors import label_selector
from kedge.api.views import (
    NodeAllocationView,
    NodeView,
    PodDisruptionBudgetView,
    PodView,
    ReservationView,
    SchedulingPolicyView,
    ZoneQuotaView,
)
from kedge.env import Env
from kedge.keys import NO_REVISION, Key, Revision
from kedge.placement.ledger import claim_of
from kedge.placement.quota import zone_hard, zone_used
from kedge.placement.resources import Units
from kedge.runtime.cache import BY_NAMESPACE, BY_NODE, Cache, CacheChange, CacheSet, ChangeType, by_label
from kedge.scheduler.pending import Change, Pending, Waiting
from kedge.scheduler.policies import DEFAULT_SETTINGS, Settings, Workload, settings_for
from kedge.scheduler.preemption import Lodgers, Nomination, nominated_claim
from kedge.scheduler.shapes import NO_LABELS, PodRequest, bare_request, request_of
from kedge.scheduler.snapshot import Snapshot

ZONE_LABEL = "topology.kubernetes.io/zone"
GANG_LABEL = "kedge.dev/gang"
GANG_SIZE = "kedge.dev/gang-size"
"""An annotation: how many members a gang has, all of which are bound or none."""
BY_GANG = by_label(GANG_LABEL)
READ = (
    "Node", "Pod", "NodeAllocation.kedge.dev", "Namespace", "ZoneQuota.kedge.dev", "SchedulingPolicy.kedge.dev",
    "Reservation.kedge.dev", "ReplicaSet.apps", "PodDisruptionBudget.policy",
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


class Picture:
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
        self._lingering: dict[str, dict[str, None]] = {}
        """By node: claims of pods that are gone, and that the node's ledger still holds."""
        self._reserved: dict[str, str] = {}
        """By pod uid: the node on which a reservation holds a place."""
        self.nominated: dict[str, Nomination] = {}
        """By pod uid: places that are being made."""
        self._policies: dict[str, Object] = {}
        self._settings: dict[tuple[str, str, str, object], Settings] = {}
        self._quotas: dict[str, dict[str, Object]] = {}
        """By tenant and name: zone quotas."""
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
            "Node": self._node_changed,
            "Pod": self._pod_changed,
            "NodeAllocation.kedge.dev": self._ledger_changed,
            "Namespace": self._namespace_changed,
            "ZoneQuota.kedge.dev": self._quota_changed,
            "SchedulingPolicy.kedge.dev": self._policy_changed,
            "Reservation.kedge.dev": self._reservation_changed,
        }
        for name in READ:
            self.caches[name] = self._caches.cache(self._kind(name))
        self.caches["Pod"].add_index(BY_NODE)
        self.caches["Pod"].add_index(BY_GANG)
        self.caches["PodDisruptionBudget.policy"].add_index(BY_NAMESPACE)
        for name, handler in handlers.items():
            self.caches[name].subscribe(handler, name=self._scheduler)

    def _kind(self, name: str) -> Kind:
        return self._kinds.of_key_kind(name)

    # -- what the decision asks --------------------------------------------------------------------

    def settings_of(self, pod: PodView) -> Settings:
        """What the policies settle for a pod."""
        if not self._policies:
            return DEFAULT_SETTINGS
        workload = self.workload_of(pod)
        known = (pod.namespace, workload.uid or pod.uid, workload.name, pod.labels)
        found = self._settings.get(known)
        if found is None:
            views = [each.as_view(SchedulingPolicyView) for each in self._policies.values()]
            revisions = {each.key.name: each.revision for each in self._policies.values()}
            found = settings_for(views, pod, workload, revisions=revisions)
            if len(self._settings) >= self._env.limits.scheduler_shapes_max:
                self._settings.clear()
            self._settings[known] = found
        return found

    def workload_of(self, pod: PodView) -> Workload:
        """What the pod is a replica of: its controller, or what controls that."""
        owner = controller_of(pod.metadata)
        if owner is None:
            return Workload()
        if owner.kind == "ReplicaSet":
            found = self.caches["ReplicaSet.apps"].get(Key("ReplicaSet.apps", pod.namespace, owner.name)).value
            above = controller_of(found.metadata) if found is not None and found.uid == owner.uid else None
            if above is not None:
                return Workload(above.uid, above.name)
        return Workload(owner.uid, owner.name)

    def request_of(self, pod: PodView) -> PodRequest:
        return request_of(pod, workload=self.workload_of(pod).uid if self._policies else None)

    def room_of(self, tenant: str) -> Mapping[str, Units] | None:
        """What a tenant's quotas leave in each zone, less what was decided and is not yet in them."""
        quotas = self._quotas.get(tenant)
        if not quotas:
            return None
        room: dict[str, dict[str, int]] = {}
        for quota in quotas.values():
            view = quota.as_view(ZoneQuotaView)
            for zone in view.spec.zones:
                hard, used = zone_hard(view, zone) or {}, zone_used(view, zone) or {}
                left = room.setdefault(zone, {})
                ahead = self._assumed_in(tenant, zone, quota.revision)
                for resource, amount in hard.items():
                    free = amount - used.get(resource, 0) - sum(each.get(resource, 0) for each in ahead)
                    left[resource] = min(free, left.get(resource, free))
        return room

    def _assumed_in(self, tenant: str, zone: str, seen: Revision) -> list[Units]:
        return [
            each.request.wants.requests
            for each in self.assumed.values()
            if each.key.namespace == tenant and each.zone == zone and (not each.revision or each.revision > seen)
        ]

    def zone_of(self, node: str) -> str:
        found = self.snapshot.find(node)
        return found.labels.get(ZONE_LABEL, "") if found is not None else ""

    # -- assumptions -------------------------------------------------------------------------------

    def assume(self, pod: Object, node: str, request: PodRequest) -> Assumption:
        """Count a pod on a node from now on: the bind is on its way."""
        made = Assumption(pod.key, pod.uid, node, self.zone_of(node), request, self._env.monotonic())
        self.assumed[pod.uid] = made
        self.snapshot.add_claim(pod.uid, node, request)
        return made

    def made(self, assumption: Assumption, revision: Revision) -> None:
        """Its bind was committed at `revision`: the cache will show it."""
        assumption.revision = revision
        self._pending.happened(Change.POD_PLACED, "a pod was placed or changed")

    def found(self, assumption: Assumption, pod: Object | None) -> None:
        """What the authority has of an assumed pod. Bound, it is counted there until the cache shows it too."""
        node = pod.as_view(PodView).spec.node_name if pod is not None and pod.uid == assumption.uid else ""
        if pod is None or not node:
            self.forget(assumption.uid)
            return
        self.snapshot.add_claim(assumption.uid, node, assumption.request)
        assumption.node, assumption.zone = node, self.zone_of(node)
        assumption.revision, assumption.since_s = pod.revision, self._env.monotonic()
        self._pending.remove(assumption.uid)

    def forget(self, uid: str) -> None:
        """It is known that no bind was made, or that another decides: count the pod where the cache has it."""
        assumption = self.assumed.pop(uid, None)
        if assumption is None:
            return
        found = self.caches["Pod"].get(assumption.key).value
        if found is not None and found.uid == uid:
            self._place(found)
        else:
            self._drop_claim(uid)

    def forget_all(self) -> None:
        """Another leads: what was under way is not ours any more."""
        for uid in tuple(self.assumed):
            self.forget(uid)

    # -- places that are being made ----------------------------------------------------------------

    def nominate(self, uid: str, nomination: Nomination) -> None:
        """Keep a place for a pod while those in its way leave."""
        self.nominated[uid] = nomination
        self.snapshot.add_claim(nominated_claim(uid), nomination.node, nomination.request)

    def drop_nomination(self, uid: str) -> Nomination | None:
        self.snapshot.remove_claim(nominated_claim(uid))
        return self.nominated.pop(uid, None)

    def is_being_made(self, nomination: Nomination) -> bool:
        """Whether somebody still has to leave the node."""
        return any(pod.metadata.deletion_timestamp is not None for pod in self.pods_on(nomination.node))

    def lodgers(self) -> Lodgers:
        return Lodgers(self.pods_on, self._may_leave, self.nominated)

    def pods_on(self, node: str) -> tuple[Object, ...]:
        """Pods that are bound to a node and have not ended."""
        return tuple(pod for pod in self.caches["Pod"].by_index(BY_NODE, node).value if not pod.view.finished)

    def _may_leave(self, pods: Sequence[Object]) -> list[Object]:
        """Those whose budgets let them go together. A pod with no budget always may."""
        left: dict[Key, int] = {}
        going = []
        for pod in pods:
            budgets = self.caches["PodDisruptionBudget.policy"].by_index(BY_NAMESPACE, pod.key.namespace).value
            covering = [
                each
                for each in budgets
                if label_selector(each.as_view(PodDisruptionBudgetView).spec.selector).matches(pod.metadata.labels)
            ]
            for each in covering:
                left.setdefault(each.key, each.as_view(PodDisruptionBudgetView).status.disruptions_allowed)
            if all(left[each.key] > 0 for each in covering):
                going.append(pod)
                for each in covering:
                    left[each.key] -= 1
        return going

    # -- changes of the caches ---------------------------------------------------------------------

    def _pod_changed(self, change: CacheChange) -> None:
        old, new = change.old, change.new
        if old is not None and (new is None or new.uid != old.uid):
            self._pod_gone(old)
        if new is not None:
            self._place(new, old if old is not None and old.uid == new.uid else None)

    def _place(self, pod: Object, old: Object | None = None) -> None:
        """Count a pod where it is, or let it wait for a node."""
        view = pod.as_view(PodView)
        uid = pod.uid
        if view.finished:
            self._pending.remove(uid)
            self.assumed.pop(uid, None)
            self._drop_claim(uid)
        elif view.spec.node_name:
            assumption = self.assumed.pop(uid, None)
            self._pending.remove(uid)
            if uid in self.nominated:
                self.drop_nomination(uid)
            request = assumption.request if assumption is not None and not view.terminating else None
            if request is None:
                workload = self.workload_of(view).uid if self._policies else None
                request = request_of(view, workload=workload, placed=True)
            had = self.snapshot.claim(uid)
            self.snapshot.add_claim(uid, view.spec.node_name, request)
            if had is None or had.request.labels != request.labels or had.request.terminating != request.terminating:
                self._pending.happened(Change.POD_PLACED, "a pod was placed or changed")
        else:
            if uid not in self.assumed and uid not in self._reserved:
                self._drop_claim(uid)
            self._wait(pod, view, old)

    def _wait(self, pod: Object, view: PodView, old: Object | None) -> None:
        if view.spec.scheduler_name != self._scheduler:
            return
        if view.terminating or view.spec.scheduling_gates:
            self._pending.remove(pod.uid)
            return
        waiting = self._pending.get(pod.uid)
        if waiting is None:
            self._pending.put(pod, view.spec.priority or 0, gang=view.labels.get(GANG_LABEL, ""))
            return
        before = old.as_view(PodView) if old is not None else None
        if before is None or before.spec != view.spec or before.metadata.labels != view.metadata.labels:
            self._pending.put(pod, view.spec.priority or 0)
        else:
            self._pending.refresh(pod)  # its status, such as our own condition, is no news

    def _pod_gone(self, pod: Object) -> None:
        self._pending.remove(pod.uid)
        self.drop_nomination(pod.uid)
        self.assumed.pop(pod.uid, None)
        claim = self.snapshot.claim(pod.uid)
        if claim is None:
            return
        if pod.uid in self._entries(claim.node):
            # Removed by force, and perhaps still running: its place is not free before the ledger says so.
            self._lingering.setdefault(claim.node, {})[pod.uid] = None
            self.snapshot.add_claim(pod.uid, claim.node, claim.request._replace(labels=NO_LABELS, terminating=True))
            self._pending.happened(Change.POD_GONE, "a pod is gone")
            return
        self._drop_claim(pod.uid)

    def _drop_claim(self, uid: str) -> None:
        claim = self.snapshot.claim(uid)
        if claim is None or not self.snapshot.remove_claim(uid):
            return
        self._pending.happened(Change.ROOM | Change.POD_GONE, "a claim was released", self._helps_on(claim.node))

    def _helps_on(self, node: str) -> Callable[[Waiting], bool]:
        """Whether what a node has now is enough for a pod; of pods that wait for something else, always."""

        def helps(waiting: Waiting) -> bool:
            row = self.snapshot.find(node)
            if row is None:
                return False
            if waiting.helped_by & (Change.POD_GONE | Change.POD_PLACED):
                return True
            offered = row.offered or {}
            requests = self.request_of(waiting.pod.as_view(PodView)).wants.requests
            columns = self.snapshot.resources
            return all(
                amount <= 0 or amount <= offered.get(r, 0) - row.claimed.get(columns.get(r, -1), 0)
                for r, amount in requests.items()
            )

        return helps

    def _node_changed(self, change: CacheChange) -> None:
        if change.new is None:
            self.snapshot.remove_node(change.key.name)
            return
        if self.snapshot.put_node(change.new.as_view(NodeView), change.new.revision):
            what = Change.NODE | Change.ROOM
            why = "a node came" if change.type is ChangeType.ADDED else "a node changed"
            self._pending.happened(what, why, self._could_go_to(change.new.as_view(NodeView)))

    def _could_go_to(self, node: NodeView) -> Callable[[Waiting], bool] | None:
        if node.spec.unschedulable or node.terminating:
            return lambda _: False
        return self._big_enough(node.name)

    def _big_enough(self, node: str) -> Callable[[Waiting], bool]:
        """Whether a node, were it empty, could hold the pod."""

        def helps(waiting: Waiting) -> bool:
            row = self.snapshot.find(node)
            requests = self.request_of(waiting.pod.as_view(PodView)).wants.requests
            return row is not None and all(amount <= (row.offered or {}).get(r, 0) for r, amount in requests.items())

        return helps

    def _ledger_changed(self, change: CacheChange) -> None:
        node = change.key.name
        lingering = self._lingering.get(node)
        if not lingering:
            return
        held = self._entries(node)
        for uid in tuple(lingering):
            if uid not in held:
                del lingering[uid]
                self._drop_claim(uid)
        if not lingering:
            del self._lingering[node]

    def _entries(self, node: str) -> Mapping[str, object]:
        found = self.caches["NodeAllocation.kedge.dev"].get(Key("NodeAllocation.kedge.dev", "", node)).value
        return found.as_view(NodeAllocationView).status.entries if found is not None else {}

    def adopt_ledgers(self) -> None:
        """Count what ledgers hold for pods that nobody knows any more: at the start of a term."""
        pods = self.caches["Pod"].list().value
        known = {pod.uid for pod in pods}
        for ledger in self.caches["NodeAllocation.kedge.dev"].list().value:
            for uid, entry in ledger.as_view(NodeAllocationView).status.entries.items():
                if uid in known or self.snapshot.claim(uid) is not None:
                    continue
                claim = claim_of(entry)
                self.snapshot.add_claim(
                    uid, ledger.key.name, bare_request(claim.namespace, claim.requests, claim.ports)
                )
                self._lingering.setdefault(ledger.key.name, {})[uid] = None

    def _reservation_changed(self, change: CacheChange) -> None:
        for found, here in ((change.old, False), (change.new, True)):
            if found is None:
                continue
            spec = found.as_view(ReservationView).spec
            uid = spec.pod.uid
            if not uid:
                self._pending.happened(Change.GANG, "a gang changed")
                continue
            if here:
                self._reserved[uid] = spec.node_name
                pod = self.caches["Pod"].get(Key("Pod", found.key.namespace, spec.pod.name)).value
                if pod is not None and pod.uid == uid and uid not in self.assumed and not pod.view.spec.node_name:
                    self.snapshot.add_claim(uid, spec.node_name, self.request_of(pod.as_view(PodView)))
            elif change.new is None:
                self._reserved.pop(uid, None)
                pod = self.caches["Pod"].get(Key("Pod", found.key.namespace, spec.pod.name)).value
                bound = pod is not None and pod.uid == uid and bool(pod.view.spec.node_name)
                if not bound and uid not in self.assumed:
                    self._drop_claim(uid)

    def _namespace_changed(self, change: CacheChange) -> None:
        if change.new is None:
            self.snapshot.remove_namespace(change.key.name)
        elif change.old is None or change.old.metadata.labels != change.new.metadata.labels:
            self.snapshot.put_namespace(change.key.name, change.new.metadata.labels)
            self._pending.happened(Change.NAMESPACE, "a namespace changed")

    def _quota_changed(self, change: CacheChange) -> None:
        tenant = change.key.namespace
        quotas = self._quotas.setdefault(tenant, {})
        if change.new is None:
            quotas.pop(change.key.name, None)
            if not quotas:
                del self._quotas[tenant]
        else:
            quotas[change.key.name] = change.new
        self._pending.happened(Change.QUOTA, "a quota changed", lambda waiting: waiting.key.namespace == tenant)

    def _policy_changed(self, change: CacheChange) -> None:
        if change.new is None:
            self._policies.pop(change.key.name, None)
        else:
            self._policies[change.key.name] = change.new
        self._settings.clear()
        self._pending.happened(Change.POLICY, "a policy changed")

    # -- the caches themselves ---------------------------------------------------------------------

    def revisions(self) -> Iterable[tuple[str, Revision]]:
        return [(name, cache.revision) for name, cache in self.caches.items()]
