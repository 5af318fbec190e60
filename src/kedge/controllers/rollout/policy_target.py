"""A SchedulingPolicy as the target of a rollout: its next version is its canary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from kedge.api.objects import Object
from kedge.api.scopes import Workload, admits
from kedge.api.views import (
    ObjectMeta,
    PodView,
    SchedulingPolicyView,
    Scope,
)
from kedge.api.views.base import Labels
from kedge.api.wellknown import (
    OBEYED_PREFIX,
)
from kedge.controllers.rollout.gates import (
    CacheFact,
    GateFacts,
    pending_of,
    sampled,
)
from kedge.controllers.rollout.plan import RolloutFacts, TargetState
from kedge.controllers.rollout.scopes import (
    is_in_place,
    workload_of,
)
from kedge.controllers.rollout.target import StagedTarget, _baseline, _digest, replacing
from kedge.controllers.shared.kinds import NODE, POD, POLICY, REPLICA_SET
from kedge.controllers.shared.node_leases import LeaseAges
from kedge.keys import Key
from kedge.runtime import Context


class _GovernedPod(NamedTuple):
    pod: Object
    workload: Workload
    node_labels: Mapping[str, str] | None


class PolicyTarget(StagedTarget):
    """A policy's next version, as its canary. It changes the placement of new pods and removes none."""

    def __init__(self, ctx: Context, rollout: Object, lease_ages: LeaseAges) -> None:
        super().__init__(ctx, rollout, lease_ages)
        self.object = ctx.get(Key(POLICY.key_kind, "", self.spec.target.name))
        body = rollout.edit()["spec"]
        self._settings: dict[str, Any] = body["policy"]
        self._stages: list[dict[str, Any]] = body["stages"]
        self.version = self._settings["version"]

    def facts(self, caches: tuple[CacheFact, ...], now: datetime) -> RolloutFacts:
        pods = self._governed()
        scopes = [each.scope for each in self.spec.stages]
        pending = [pending_of(pod.as_view(PodView) for pod in self._reached(scope, pods)) for scope in scopes]
        stage = self._stage_index()
        after = self.status.activation_revision
        population = [pod for pod in self._reached(scopes[stage], pods) if pod.created > after]
        target_state = self._target_state()
        return RolloutFacts(
            self.spec,
            self.status,
            self.view.generation,
            f"{self.version}/{_digest(self._settings)}",
            target_state,
            now,
            target_revision=0 if self.object is None else self.object.revision,
            rolled_back=target_state is TargetState.ORIGINAL and self._is_observed(caches),
            gates=GateFacts(
                after,
                caches,
                sampled([self._outcome(pod.as_view(PodView)) for pod in population]),
                expected=sum(not pod.as_view(PodView).terminating for pod in population),
                pending=pending[stage],
                baseline=self._baseline_of_stage(),
                behind=self._behind(),
                burn=self._burn((pod.as_view(PodView) for pod in population), now),
            ),
            baselines=tuple(_baseline(each.name, found) for each, found in zip(self.spec.stages, pending, strict=True)),
            regress_s=self.ctx.limits.rollout_regress_s,
        )

    def _target_state(self) -> TargetState:
        if self.object is None or self.object.metadata.deletion_timestamp is not None:
            return TargetState.MISSING
        spec = self.object.as_view(SchedulingPolicyView).spec
        if spec.canary is None:
            return TargetState.PROMOTED if spec.version == self.version else TargetState.ORIGINAL
        if spec.canary.version == self.version:
            there = self.object.edit()["spec"]["canary"]
            wanted = self.staged(self._stage_index())["spec"]["canary"]
            return TargetState.STAGED if _without_nulls(wanted) == _without_nulls(there) else TargetState.ELSEWHERE
        ours_before = self.status.change.partition("/")[0] == spec.canary.version
        return TargetState.ELSEWHERE if ours_before else TargetState.FOREIGN

    def _behind(self) -> str:
        """Every scheduler that reports a generation of the policy must have the change; at least one must report."""
        if self.object is None:
            return ""
        policy = self.object.as_view(SchedulingPolicyView)
        names = policy.spec.scheduler_names
        reported = {
            each.type.removeprefix(OBEYED_PREFIX): each.observed_generation
            for each in policy.status.conditions
            if each.type.startswith(OBEYED_PREFIX)
        }
        late = [name for name, seen in reported.items() if seen < policy.generation and (not names or name in names)]
        late += [name for name in names if name not in reported]
        if late:
            schedulers = ", ".join(dict.fromkeys(late))
            return f"not seen by {schedulers}: is it running? Remove one that is gone for good from the policy's status"
        return "" if reported else "no scheduler reports that it uses the policy"

    def _is_observed(self, caches: Sequence[CacheFact]) -> bool:
        revision = 0 if self.object is None else self.object.revision
        return not self._behind() and bool(caches) and all(each.revision >= revision for each in caches)

    def _governed(self) -> list[_GovernedPod]:
        """The pods in the scope of the policy."""
        if self.object is None:
            return []
        sets: dict[str, ObjectMeta] = {each.uid: each.metadata for each in self.ctx.list(REPLICA_SET)}
        nodes = {each.key.name: each.metadata.labels for each in self.ctx.list(NODE)}
        spec = self.object.as_view(SchedulingPolicyView).spec
        found = []
        for each in self.ctx.list(POD):
            pod = each.as_view(PodView)
            workload = workload_of(pod, sets)
            named = not spec.scheduler_names or pod.spec.scheduler_name in spec.scheduler_names
            if named and admits(spec.scope, pod, workload):
                labels = nodes.get(pod.spec.node_name, Labels()) if pod.spec.node_name else None
                found.append(_GovernedPod(each, workload, labels))
        return found

    def _reached(self, scope: Scope, pods: Sequence[_GovernedPod]) -> list[Object]:
        return [
            each.pod
            for each in pods
            if admits(scope, each.pod.as_view(PodView), each.workload) and is_in_place(scope, each.node_labels)
        ]

    def before(self) -> dict[str, Any]:
        return {}

    def staged(self, stage: int) -> dict[str, Any]:
        there: Any = {} if self.object is None else self.object.edit()["spec"].get("canary") or {}
        wanted = {**self._settings, "scope": self._stages[stage].get("scope") or {}}
        return {"spec": {"canary": replacing(there, wanted)}}

    def promoted(self) -> dict[str, Any]:
        there: Any = {} if self.object is None else self.object.edit()["spec"]
        settings = {name: there.get(name) for name in ("version", "maxZoneSkew", "weights") if name in there}
        return {"spec": {**replacing(settings, self._settings), "canary": None}}

    def original(self) -> dict[str, Any]:
        return {"spec": {"canary": None}}


def _without_nulls(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {name: _without_nulls(value) for name, value in document.items() if value not in (None, {}, [])}
    return document
