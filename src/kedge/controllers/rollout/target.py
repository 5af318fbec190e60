"""The target of a rollout: what policy and template targets share. It reads through a `Context` and writes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kedge.api.objects import Object
from kedge.api.views import (
    PodView,
    RolloutView,
)
from kedge.api.views.kedge_dev import PendingCount, RolloutBaseline
from kedge.controllers.rollout.burn import MeasuredBurn, measure_burn
from kedge.controllers.rollout.gates import (
    Heartbeat,
    Pending,
    SampleOutcome,
    sample,
)
from kedge.controllers.shared.node_leases import LeaseAges, lease_key
from kedge.runtime import Context


def _baseline(name: str, pending: Pending) -> RolloutBaseline:
    counts = [PendingCount(stage=stage, reason=reason, count=n) for (stage, reason), n in sorted(pending.items())]
    return RolloutBaseline(name=name, pending=tuple(counts))


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


class StagedTarget:
    """Base of both targets: the rollout, and the samples of its pods."""

    def __init__(self, ctx: Context, rollout: Object, lease_ages: LeaseAges) -> None:
        self.ctx = ctx
        self._lease_ages = lease_ages
        self._heartbeats: dict[str, Heartbeat | None] = {}
        self.view = rollout.as_view(RolloutView)
        self.spec, self.status = self.view.spec, self.view.status
        self.rollout = rollout
        self.object: Object | None = None

    def _stage_index(self) -> int:
        return min(self.status.stage, len(self.spec.stages) - 1)

    def _baseline_of_stage(self) -> dict[tuple[str, str], int]:
        name = self.spec.stages[self._stage_index()].name
        found = next((each for each in self.status.baselines if each.name == name), None)
        return {} if found is None else {(each.stage, each.reason): each.count for each in found.pending}

    def _burn(self, pods: Iterable[PodView], now: datetime) -> MeasuredBurn | None:
        rules = self.spec.gates.burn
        return None if rules is None else measure_burn(rules, pods, now)

    def _outcome(self, pod: PodView) -> SampleOutcome | None:
        heartbeat = self._heartbeat(pod.spec.node_name) if pod.spec.node_name else None
        age_s_max = self.spec.gates.sample_age_seconds_max
        return sample(pod, heartbeat, after=self.status.activation_revision, age_s_max=age_s_max)

    def _heartbeat(self, node: str) -> Heartbeat | None:
        if node not in self._heartbeats:
            lease = self.ctx.get(lease_key(node))
            silence_s = self.ctx.measured(f"the silence of {node}", lambda: self._lease_ages.silence_s(node))
            self._heartbeats[node] = None if lease is None else Heartbeat(lease.revision, silence_s)
        return self._heartbeats[node]


def replacing(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that turns `there` into `wanted`: a merge leaves alone what it does not name."""
    patch: dict[str, Any] = {name: None for name in there if name not in wanted}
    for name, value in wanted.items():
        old = there.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            patch[name] = replacing(old, value)
        else:
            patch[name] = value
    return patch
