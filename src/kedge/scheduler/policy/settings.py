"""The SchedulingPolicy that applies to a pod, and its settings: the weights of scores, and `maxZoneSkew`.

Pure. The pod selects the policy (tenant, workload, labels, share of workloads); the zones and regions of its scope are
the nodes that its skew rule applies to. Inside a canary's scope the canary's settings replace the policy's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kedge.api.scopes import Workload, admits
from kedge.api.views import PodView, SchedulingPolicyView


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that one version of one policy gives a pod. Hashable: they are a part of the pod's shape."""

    policy: str = ""
    """Empty when no policy applies to the pod."""
    version: str = ""
    canary: bool = False
    revision: int = field(default=0, compare=False)
    """The revision of the policy object, for the record: it does not change the shape."""
    zone_skew_max: int | None = None
    zones: frozenset[str] = frozenset()
    """The zones that the skew rule applies to; empty for all."""
    regions: frozenset[str] = frozenset()
    weights: tuple[tuple[str, int], ...] = ()
    """The weights of the scores that the policy names; the others have their default weights."""

    def __hash__(self) -> int:
        return hash((self.policy, self.version, self.canary))  # cheap: every decision looks up its shape


DEFAULT_SETTINGS: Final = Settings()


def settings_for(
    policies: Iterable[SchedulingPolicyView], pod: PodView, workload: Workload, *, revisions: Mapping[str, int] = {}
) -> Settings:
    """The settings of the policy that applies to `pod`: by scope, then the highest rank, then name."""
    admitting = [
        policy
        for policy in policies
        if policy.spec.active
        and (not policy.spec.scheduler_names or pod.spec.scheduler_name in policy.spec.scheduler_names)
        and admits(policy.spec.scope, pod, workload)
    ]
    if not admitting:
        return DEFAULT_SETTINGS
    policy = min(admitting, key=lambda policy: (-policy.spec.rank, policy.name))
    spec, canary = policy.spec, policy.spec.canary
    revision = revisions.get(policy.name, 0)
    if canary is not None and admits(canary.scope, pod, workload):
        return Settings(
            policy=policy.name,
            version=canary.version,
            canary=True,
            revision=revision,
            zone_skew_max=canary.max_zone_skew,
            zones=frozenset(canary.scope.zones or spec.scope.zones),
            regions=frozenset(canary.scope.regions or spec.scope.regions),
            weights=tuple(sorted(canary.weights.items())),
        )
    return Settings(
        policy=policy.name,
        version=spec.version,
        revision=revision,
        zone_skew_max=spec.max_zone_skew,
        zones=frozenset(spec.scope.zones),
        regions=frozenset(spec.scope.regions),
        weights=tuple(sorted(spec.weights.items())),
    )
