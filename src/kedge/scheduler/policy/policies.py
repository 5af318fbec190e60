"""What policies settle for a pod, what it is a replica of, and what its tenant's quotas leave: read from the caches.

`picture` tells it of each version that comes; `policies` and `placement.quota` are the pure parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.scopes import Workload
from kedge.api.views import NodeAllocationView, PodView, SchedulingPolicyView, ZoneQuotaView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, REPLICA_SET_KIND
from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.placement.ledger import claim_of
from kedge.placement.quota import zone_hard, zone_used
from kedge.placement.resources import Units, add
from kedge.runtime.cache import Cache
from kedge.scheduler.policy.settings import DEFAULT_SETTINGS, Settings, settings_for
from kedge.scheduler.state.shapes import PodRequest, RequestMemo

if TYPE_CHECKING:
    from kedge.scheduler.state.cluster_state import Assumption


class Policies:
    """Policies and zone quotas as one scheduler knows them."""

    def __init__(
        self,
        env: Env,
        caches: Mapping[str, Cache],
        cached: Callable[[Key], Object | None],
        assumed: Mapping[str, Assumption],
    ) -> None:
        self._env = env
        self._caches = caches
        self._cached = cached
        self._assumed = assumed
        self.policies: dict[str, Object] = {}
        self._quotas: dict[str, dict[str, Object]] = {}
        """By tenant and name: zone quotas."""
        self._settings: dict[tuple[str, str, str, object], Settings] = {}
        self._series = RequestMemo()

    # -- policies ----------------------------------------------------------------------------------

    def put_policy(self, name: str, policy: Object | None) -> None:
        """A version of a policy, or its end."""
        if policy is None:
            self.policies.pop(name, None)
        else:
            self.policies[name] = policy
        self._settings.clear()

    def forget_settings(self) -> None:
        """What pods are replicas of is known otherwise now."""
        self._settings.clear()

    def settings_of(self, pod: PodView) -> Settings:
        """What the policies settle for a pod."""
        if not self.policies:
            return DEFAULT_SETTINGS
        workload = self.workload_of(pod)
        known = (pod.namespace, workload.uid or pod.uid, workload.name, pod.labels)
        found = self._settings.get(known)
        if found is None:
            views = [each.as_view(SchedulingPolicyView) for each in self.policies.values()]
            revisions = {each.key.name: each.revision for each in self.policies.values()}
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
            found = self._cached(Key(REPLICA_SET_KIND, pod.namespace, owner.name))
            above = controller_of(found.metadata) if found is not None and found.uid == owner.uid else None
            if above is not None:
                return Workload(above.uid, above.name)
        return Workload(owner.uid, owner.name)

    def workload_counted(self, pod: PodView) -> str | None:
        """The uid under which a pod counts as a replica; None for its controller's: without policies nobody asks."""
        return self.workload_of(pod).uid if self.policies else None

    def request_of(self, pod: PodView) -> PodRequest:
        return self._series.request_of(pod, self.workload_counted(pod))

    # -- quotas ------------------------------------------------------------------------------------

    def put_quota(self, key: Key, quota: Object | None) -> None:
        """A version of a zone quota, or its end."""
        quotas = self._quotas.setdefault(key.namespace, {})
        if quota is not None:
            quotas[key.name] = quota
            return
        quotas.pop(key.name, None)
        if not quotas:
            del self._quotas[key.namespace]

    def has_quota(self, tenant: str) -> bool:
        return tenant in self._quotas

    def room_of(self, tenant: str) -> Mapping[str, Units] | None:
        """What a tenant's quotas leave in each zone, less what was decided and is not yet in them."""
        quotas = self._quotas.get(tenant)
        if not quotas:
            return None
        room: dict[str, dict[str, int]] = {}
        for quota in quotas.values():
            view = quota.as_view(ZoneQuotaView)
            for zone in view.spec.zones:
                hard = zone_hard(view, zone) or {}
                counted = zone_used(view, zone)
                used = counted if counted is not None else self._claimed_in(tenant, zone)
                left = room.setdefault(zone, {})
                ahead = self._assumed_in(tenant, zone, quota.revision)
                for resource, amount in hard.items():
                    free = amount - used.get(resource, 0) - sum(each.get(resource, 0) for each in ahead)
                    left[resource] = min(free, left.get(resource, free))
        return room

    def _assumed_in(self, tenant: str, zone: str, seen: Revision) -> list[Units]:
        return [
            each.request.wants.requests
            for each in self._assumed.values()
            if each.key.namespace == tenant and each.zone == zone and (not each.revision or each.revision > seen)
        ]

    def _claimed_in(self, tenant: str, zone: str) -> Units:
        """What a quota that was not counted yet has used: the bind will count ledgers, and so does this."""
        claims = (
            claim_of(entry)
            for ledger in self._caches[NODE_ALLOCATION_KIND].list().value  # a leader's caches have all listed
            for entry in ledger.as_view(NodeAllocationView).status.entries.values()
        )
        return add(*(each.requests for each in claims if (each.namespace, each.zone) == (tenant, zone)))
