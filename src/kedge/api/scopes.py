"""Scope matching: whether a policy or a stage of a rollout applies to a pod. Pure.

The scheduler and the rollout controller both use this, so a gate samples the very pods that the policy governs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kedge.api.selectors import label_selector
from kedge.api.views import PodView, Scope


@dataclass(frozen=True, slots=True)
class Workload:
    """The top-level controller of a pod: a Deployment, not one of its ReplicaSets. Empty for a pod without one."""

    uid: str = ""
    name: str = ""


def admits(scope: Scope, pod: PodView, workload: Workload) -> bool:
    """Whether every field of the scope that is set, and that is about pods, matches this pod."""
    if scope.tenants and pod.namespace not in scope.tenants:
        return False
    if scope.workloads and not {workload.name, f"{pod.namespace}/{workload.name}"}.intersection(scope.workloads):
        return False
    if scope.pod_selector is not None and not label_selector(scope.pod_selector).matches(pod.labels):
        return False
    return _percentile(workload.uid or pod.uid) < scope.percent


def _percentile(uid: str) -> int:
    """A fixed number from 0 to 99 for each workload, so that a larger percentage only adds workloads."""
    return int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=8).digest(), "big") % 100
