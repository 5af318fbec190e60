"""A Deployment as the target of a rollout: its next template goes to a share of its replicas at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kedge.api.objects import Object
from kedge.api.selectors import label_selector
from kedge.api.views import (
    DeploymentView,
    PodDisruptionBudgetView,
    PodView,
    ReplicaSetView,
)
from kedge.api.wellknown import (
    UPDATED_IN,
    UPDATED_MAX,
)
from kedge.controllers.deployment.plan import resolve_bounds
from kedge.controllers.deployment.status import count_replicas, is_complete
from kedge.controllers.rollout.gates import (
    CacheFact,
    GateFacts,
    pending_of,
    sampled,
)
from kedge.controllers.rollout.plan import RollbackCapacity, RolloutFacts, TargetState
from kedge.controllers.rollout.scopes import (
    share_of_replicas,
    share_of_topology,
    template_problem,
    topology_of,
)
from kedge.controllers.rollout.target import StagedTarget, _baseline, replacing
from kedge.controllers.shared.kinds import BUDGET, DEPLOYMENT, NODE, POD, REPLICA_SET
from kedge.controllers.shared.node_leases import LeaseAges
from kedge.controllers.shared.pods import is_active
from kedge.controllers.shared.templates import find_current, number_of, template_digest, template_of
from kedge.controllers.shared.topology import TopologySelector
from kedge.keys import Key
from kedge.runtime import Context
from kedge.runtime.status import status_of


class DeploymentTarget(StagedTarget):
    """A Deployment's next template, for a share of its replicas at a time."""

    def __init__(self, ctx: Context, rollout: Object, lease_ages: LeaseAges) -> None:
        super().__init__(ctx, rollout, lease_ages)
        self.object = ctx.get(Key(DEPLOYMENT.key_kind, rollout.key.namespace, self.spec.target.name))
        self._template: dict[str, Any] = rollout.edit()["spec"]["template"]
        self._wanted = template_digest(self._template)
        self._change = self._wanted[:16]
        self._there = "" if self.object is None else template_digest(template_of(self.object))
        self._sets = () if self.object is None else ctx.owned(REPLICA_SET, self.object)

    @property
    def _deployment(self) -> DeploymentView:
        return DeploymentView() if self.object is None else self.object.as_view(DeploymentView)

    def facts(self, caches: tuple[CacheFact, ...], now: datetime) -> RolloutFacts:
        target_state = self._target_state()
        every = [pod.as_view(PodView) for each in self._sets for pod in self.ctx.owned(POD, each)]
        pending = pending_of(every)
        current = None if self.object is None else find_current(self._sets, template_of(self.object), self._there)
        changed = [] if current is None else [pod.as_view(PodView) for pod in self.ctx.owned(POD, current)]
        return RolloutFacts(
            self.spec,
            self.status,
            self.view.generation,
            self._change,
            target_state,
            now,
            target_revision=0 if self.object is None else self.object.revision,
            rolled_back=target_state is TargetState.ORIGINAL and self._is_at_rest(),
            problem=self._problem(),
            gates=GateFacts(
                self.status.activation_revision,
                caches,
                sampled([self._outcome(pod) for pod in changed if not pod.finished]),
                expected=self._expected(),
                pending=pending,
                baseline=self._baseline_of_stage(),
                behind=self._behind(),
                burn=self._burn(changed, now),
            ),
            baselines=tuple(_baseline(each.name, pending) for each in self.spec.stages),
            capacity=self._capacity(),
            regress_s=self.ctx.limits.rollout_regress_s,
        )

    def _problem(self) -> str:
        namespace, name = self.rollout.key.namespace, self.spec.target.name
        labels = (self._template.get("metadata") or {}).get("labels") or {}
        for stage in self.spec.stages:
            problem = template_problem(stage.scope, namespace, name, labels)
            if problem:
                return f"stage {stage.name}: {problem}"
        shares = any(stage.scope.percent < 100 or topology_of(stage) is not None for stage in self.spec.stages)
        if shares and self._deployment.spec.strategy.type == "Recreate":
            return "its target is recreated, all replicas at once: give it one stage of 100 percent and of all zones"
        return ""

    def _target_state(self) -> TargetState:
        if self.object is None or self.object.metadata.deletion_timestamp is not None:
            return TargetState.MISSING
        status, cap, there = self.status, number_of(self.object, UPDATED_MAX), self._there
        same = status.change == self._change
        under_way = bool(status.change) and status.phase not in ("Complete", "RolledBack")
        if there == self._wanted or (same and there == status.active_digest):
            if cap is None and (not (same and under_way) or status.stage >= len(self.spec.stages)):
                return TargetState.PROMOTED
            return TargetState.STAGED if self._is_staged(cap) else TargetState.ELSEWHERE
        if not under_way:
            return TargetState.ORIGINAL if cap is None else TargetState.FOREIGN
        if there == status.active_digest:
            return TargetState.ELSEWHERE  # the template of this rollout before its spec was changed
        if there == status.previous_digest:
            return TargetState.ORIGINAL if cap is None else TargetState.ELSEWHERE
        return TargetState.FOREIGN

    def _is_staged(self, cap: int | None) -> bool:
        """Whether the target is at the current stage. The share of a stage by zones was fixed when it began."""
        topology = topology_of(self.spec.stages[self._stage_index()])
        there = "" if self.object is None else self.object.metadata.annotations.get(UPDATED_IN, "")
        if topology is not None:
            return cap is not None and there == topology.as_text()
        return cap == self._cap(self._stage_index()) and not there

    def _expected(self) -> int:
        """The number of replicas that the new template should have."""
        stage, replicas = self.spec.stages[self._stage_index()], self._deployment.spec.replicas
        if topology_of(stage) is None:
            return share_of_replicas(stage.scope, replicas)
        cap = None if self.object is None else number_of(self.object, UPDATED_MAX)
        return min(replicas, replicas if cap is None else cap)

    def _cap(self, stage: int) -> int | None:
        replicas, scope = self._deployment.spec.replicas, self.spec.stages[stage].scope
        topology = topology_of(self.spec.stages[stage])
        if topology is not None:
            return share_of_topology(scope, replicas, *self._counted(topology))
        share = share_of_replicas(scope, replicas)
        return None if share >= replicas else share

    def _counted(self, topology: TopologySelector) -> tuple[int, int]:
        """The number of replicas in the zones, and of replicas of the new template outside of them."""
        there = elsewhere = 0
        ours = self.object is not None and self._there in (self._wanted, self.status.active_digest)
        current = find_current(self._sets, template_of(self.object), self._there) if ours and self.object else None
        for each in self._sets:
            for pod in (found.as_view(PodView) for found in self.ctx.owned(POD, each)):
                node = self.ctx.get(Key(NODE.key_kind, "", pod.spec.node_name)) if pod.spec.node_name else None
                if not is_active(pod):
                    continue
                if node is not None and topology.matches(node.metadata.labels):
                    there += 1
                elif each is current:
                    elsewhere += 1
        return there, elsewhere

    def _behind(self) -> str:
        deployment = self._deployment
        if deployment.status.observed_generation < deployment.generation:
            return "the Deployment controller has not observed the change yet"
        return ""

    def _is_at_rest(self) -> bool:
        """Every replica has the current template and is available, by statuses of this generation."""
        if self.object is None or self._behind():
            return False
        views = [each.as_view(ReplicaSetView) for each in self._sets]
        current = find_current(self._sets, template_of(self.object), self._there)
        counts = count_replicas(None if current is None else current.as_view(ReplicaSetView), views)
        seen = all(each.status.observed_generation >= each.generation for each in views)
        return seen and is_complete(self._deployment, counts)

    def _capacity(self) -> RollbackCapacity:
        deployment = self._deployment
        before = changed = 0
        current = None if self.object is None else find_current(self._sets, template_of(self.object), self._there)
        for each in self._sets:
            available = each.as_view(ReplicaSetView).status.available_replicas
            if each is current:
                changed += available
            else:
                before += available
        kept = deployment.spec.replicas - resolve_bounds(deployment.spec).unavailable
        floor = max([1, *(self._budgets())])
        return RollbackCapacity(before, changed, max(0, kept), floor)

    def _budgets(self) -> list[int]:
        labels = self._deployment.spec.template.metadata.labels
        found = []
        for each in self.ctx.list(BUDGET, namespace=self.rollout.key.namespace):
            view = each.as_view(PodDisruptionBudgetView)
            if label_selector(view.spec.selector).matches(labels):
                found.append(view.status.desired_healthy)
        return found

    def before(self) -> dict[str, Any]:
        template = {} if self.object is None else template_of(self.object)
        old = status_of(self.rollout).get("previousTemplate") or {}
        return {
            "previousTemplate": replacing(old, template),
            "previousDigest": self._there,
            "activeDigest": None,
        }

    def staged(self, stage: int) -> dict[str, Any]:
        return self._patch(self._template, self._cap(stage), topology_of(self.spec.stages[stage]))

    def promoted(self) -> dict[str, Any]:
        return self._patch(self._template, None)

    def original(self) -> dict[str, Any]:
        return self._patch(status_of(self.rollout)["previousTemplate"], None)

    def _patch(
        self, template: Mapping[str, Any], cap: int | None, topology: TopologySelector | None = None
    ) -> dict[str, Any]:
        there: Any = {} if self.object is None else template_of(self.object)
        notes = {
            UPDATED_MAX: None if cap is None else str(cap),
            UPDATED_IN: None if topology is None else topology.as_text(),
        }
        return {
            "metadata": {"annotations": notes},
            "spec": {"template": replacing(there, template)},
        }
