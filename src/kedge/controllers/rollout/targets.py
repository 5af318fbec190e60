"""What a rollout changes, and how its effect is seen: a SchedulingPolicy by its canary, a Deployment by its template.

Each says where its target stands (`Place`), gathers the facts that `rollout` plans on, and words the patches. They read
through the context of one look and write nothing: `rollouts` does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.scopes import Workload, admits
from kedge.api.selectors import label_selector
from kedge.api.views import (
    DeploymentView,
    ObjectMeta,
    PodDisruptionBudgetView,
    PodView,
    ReplicaSetView,
    RolloutView,
    SchedulingPolicyView,
    Scope,
)
from kedge.api.views.base import Labels
from kedge.api.views.own import PendingCount, RolloutBaseline
from kedge.api.wellknown import (
    DISRUPTION_BUDGET_KIND,
    NODE_KIND,
    OBEYED_PREFIX,
    SCHEDULING_POLICY_KIND,
    UPDATED_IN,
    UPDATED_MAX,
)
from kedge.controllers.deployment.plan import resolve_bounds
from kedge.controllers.deployment.status import count_replicas, is_complete
from kedge.controllers.node.heartbeats import lease_key
from kedge.controllers.rollout.gates import (
    CacheFact,
    GateFacts,
    Heartbeat,
    Outcome,
    Pending,
    pending_of,
    sample,
    sampled,
)
from kedge.controllers.rollout.plan import Capacity, Place, RolloutFacts
from kedge.controllers.rollout.scopes import (
    is_in_place,
    share_of_place,
    share_of_replicas,
    template_problem,
    where_of,
    workload_of,
)
from kedge.controllers.shared.node_reports import Listener
from kedge.controllers.shared.pods import is_active
from kedge.controllers.shared.reconcile import DEPLOYMENT, POD, REPLICA_SET
from kedge.controllers.shared.templates import find_current, number_of, template_digest, template_of
from kedge.controllers.shared.topology import Where
from kedge.keys import Key
from kedge.runtime import Context
from kedge.runtime.status import status_of

POLICY = KINDS.of_key_kind(SCHEDULING_POLICY_KIND)
NODE = KINDS.of_key_kind(NODE_KIND)
BUDGET = KINDS.of_key_kind(DISRUPTION_BUDGET_KIND)


def _baseline(name: str, pending: Pending) -> RolloutBaseline:
    counts = [PendingCount(stage=stage, reason=reason, count=n) for (stage, reason), n in sorted(pending.items())]
    return RolloutBaseline(name=name, pending=tuple(counts))


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


class _Change:
    """What both kinds of change share: the rollout, and how its pods are looked at."""

    def __init__(self, ctx: Context, found: Object, listener: Listener) -> None:
        self.ctx = ctx
        self._listener = listener
        self._heartbeats: dict[str, Heartbeat | None] = {}
        self.view = found.as_view(RolloutView)
        self.spec, self.status = self.view.spec, self.view.status
        self.found = found
        self.target: Object | None = None

    def _stage_index(self) -> int:
        return min(self.status.stage, len(self.spec.stages) - 1)

    def _baseline_of_stage(self) -> dict[tuple[str, str], int]:
        name = self.spec.stages[self._stage_index()].name
        found = next((each for each in self.status.baselines if each.name == name), None)
        return {} if found is None else {(each.stage, each.reason): each.count for each in found.pending}

    def _outcome(self, pod: PodView) -> Outcome | None:
        heartbeat = self._heartbeat(pod.spec.node_name) if pod.spec.node_name else None
        age_s_max = self.spec.gates.sample_age_seconds_max
        return sample(pod, heartbeat, after=self.status.activation_revision, age_s_max=age_s_max)

    def _heartbeat(self, node: str) -> Heartbeat | None:
        if node not in self._heartbeats:
            lease = self.ctx.get(lease_key(node))
            silence_s = self.ctx.measured(f"the silence of {node}", lambda: self._listener.silence_s(node))
            self._heartbeats[node] = None if lease is None else Heartbeat(lease.revision, silence_s)
        return self._heartbeats[node]


# -- a SchedulingPolicy ----------------------------------------------------------------------------


class _Governed(NamedTuple):
    pod: Object
    workload: Workload
    node_labels: Mapping[str, str] | None


class PolicyChange(_Change):
    """A policy's next version, as its canary. What it touches is who is placed how: it removes nothing."""

    def __init__(self, ctx: Context, found: Object, listener: Listener) -> None:
        super().__init__(ctx, found, listener)
        self.target = ctx.get(Key(POLICY.key_kind, "", self.spec.target.name))
        body = found.edit()["spec"]
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
        place = self._place()
        return RolloutFacts(
            self.spec,
            self.status,
            self.view.generation,
            f"{self.version}/{_digest(self._settings)}",
            place,
            now,
            target_revision=0 if self.target is None else self.target.revision,
            rolled_back=place is Place.ORIGINAL and self._is_observed(caches),
            gates=GateFacts(
                after,
                caches,
                sampled([self._outcome(pod.as_view(PodView)) for pod in population]),
                expected=sum(not pod.as_view(PodView).terminating for pod in population),
                pending=pending[stage],
                baseline=self._baseline_of_stage(),
                behind=self._behind(),
            ),
            baselines=tuple(_baseline(each.name, found) for each, found in zip(self.spec.stages, pending, strict=True)),
            regress_s=self.ctx.limits.rollout_regress_s,
        )

    def _place(self) -> Place:
        if self.target is None or self.target.metadata.deletion_timestamp is not None:
            return Place.MISSING
        spec = self.target.as_view(SchedulingPolicyView).spec
        if spec.canary is None:
            return Place.PROMOTED if spec.version == self.version else Place.ORIGINAL
        if spec.canary.version == self.version:
            there = self.target.edit()["spec"]["canary"]
            wanted = self.staged(self._stage_index())["spec"]["canary"]
            return Place.STAGED if _without_nulls(wanted) == _without_nulls(there) else Place.ELSEWHERE
        ours_before = self.status.change.partition("/")[0] == spec.canary.version
        return Place.ELSEWHERE if ours_before else Place.FOREIGN

    def _behind(self) -> str:
        """Every scheduler that says what it goes by must have seen the change, and one at least must say so."""
        if self.target is None:
            return ""
        policy = self.target.as_view(SchedulingPolicyView)
        names = policy.spec.scheduler_names
        told = {
            each.type.removeprefix(OBEYED_PREFIX): each.observed_generation
            for each in policy.status.conditions
            if each.type.startswith(OBEYED_PREFIX)
        }
        late = [name for name, seen in told.items() if seen < policy.generation and (not names or name in names)]
        late += [name for name in names if name not in told]
        if late:
            words = "not seen by " + ", ".join(dict.fromkeys(late))
            return f"{words}: is it running? One that is gone for good is to be taken out of the policy's status"
        return "" if told else "no scheduler says that it goes by the policy"

    def _is_observed(self, caches: Sequence[CacheFact]) -> bool:
        revision = 0 if self.target is None else self.target.revision
        return not self._behind() and bool(caches) and all(each.revision >= revision for each in caches)

    def _governed(self) -> list[_Governed]:
        """The pods that the policy speaks of at all."""
        if self.target is None:
            return []
        sets: dict[str, ObjectMeta] = {each.uid: each.metadata for each in self.ctx.list(REPLICA_SET)}
        nodes = {each.key.name: each.metadata.labels for each in self.ctx.list(NODE)}
        spec = self.target.as_view(SchedulingPolicyView).spec
        found = []
        for each in self.ctx.list(POD):
            pod = each.as_view(PodView)
            workload = workload_of(pod, sets)
            named = not spec.scheduler_names or pod.spec.scheduler_name in spec.scheduler_names
            if named and admits(spec.scope, pod, workload):
                labels = nodes.get(pod.spec.node_name, Labels()) if pod.spec.node_name else None
                found.append(_Governed(each, workload, labels))
        return found

    def _reached(self, scope: Scope, pods: Sequence[_Governed]) -> list[Object]:
        return [
            each.pod
            for each in pods
            if admits(scope, each.pod.as_view(PodView), each.workload) and is_in_place(scope, each.node_labels)
        ]

    def before(self) -> dict[str, Any]:
        return {}

    def staged(self, stage: int) -> dict[str, Any]:
        there: Any = {} if self.target is None else self.target.edit()["spec"].get("canary") or {}
        wanted = {**self._settings, "scope": self._stages[stage].get("scope") or {}}
        return {"spec": {"canary": replacing(there, wanted)}}

    def promoted(self) -> dict[str, Any]:
        there: Any = {} if self.target is None else self.target.edit()["spec"]
        settings = {name: there.get(name) for name in ("version", "maxZoneSkew", "weights") if name in there}
        return {"spec": {**replacing(settings, self._settings), "canary": None}}

    def original(self) -> dict[str, Any]:
        return {"spec": {"canary": None}}


def _without_nulls(document: Any) -> Any:
    if isinstance(document, Mapping):
        return {name: _without_nulls(value) for name, value in document.items() if value not in (None, {}, [])}
    return document


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


# -- a Deployment's template -----------------------------------------------------------------------


class TemplateChange(_Change):
    """A Deployment's next template, given to a share of its replicas at a time."""

    def __init__(self, ctx: Context, found: Object, listener: Listener) -> None:
        super().__init__(ctx, found, listener)
        self.target = ctx.get(Key(DEPLOYMENT.key_kind, found.key.namespace, self.spec.target.name))
        self._template: dict[str, Any] = found.edit()["spec"]["template"]
        self._wanted = template_digest(self._template)
        self._change = self._wanted[:16]
        self._there = "" if self.target is None else template_digest(template_of(self.target))
        self._sets = () if self.target is None else ctx.owned(REPLICA_SET, self.target)

    @property
    def _deployment(self) -> DeploymentView:
        return DeploymentView() if self.target is None else self.target.as_view(DeploymentView)

    def facts(self, caches: tuple[CacheFact, ...], now: datetime) -> RolloutFacts:
        place = self._place()
        every = [pod.as_view(PodView) for each in self._sets for pod in self.ctx.owned(POD, each)]
        pending = pending_of(every)
        current = None if self.target is None else find_current(self._sets, template_of(self.target), self._there)
        changed = [] if current is None else [pod.as_view(PodView) for pod in self.ctx.owned(POD, current)]
        return RolloutFacts(
            self.spec,
            self.status,
            self.view.generation,
            self._change,
            place,
            now,
            target_revision=0 if self.target is None else self.target.revision,
            rolled_back=place is Place.ORIGINAL and self._is_at_rest(),
            problem=self._problem(),
            gates=GateFacts(
                self.status.activation_revision,
                caches,
                sampled([self._outcome(pod) for pod in changed if not pod.finished]),
                expected=self._expected(),
                pending=pending,
                baseline=self._baseline_of_stage(),
                behind=self._behind(),
            ),
            baselines=tuple(_baseline(each.name, pending) for each in self.spec.stages),
            capacity=self._capacity(),
            regress_s=self.ctx.limits.rollout_regress_s,
        )

    def _problem(self) -> str:
        namespace, name = self.found.key.namespace, self.spec.target.name
        labels = (self._template.get("metadata") or {}).get("labels") or {}
        for stage in self.spec.stages:
            problem = template_problem(stage.scope, namespace, name, labels)
            if problem:
                return f"stage {stage.name}: {problem}"
        shares = any(stage.scope.percent < 100 or where_of(stage) is not None for stage in self.spec.stages)
        if shares and self._deployment.spec.strategy.type == "Recreate":
            return "its target is recreated, all replicas at once: give it one stage of 100 percent and of all zones"
        return ""

    def _place(self) -> Place:
        if self.target is None or self.target.metadata.deletion_timestamp is not None:
            return Place.MISSING
        status, cap, there = self.status, number_of(self.target, UPDATED_MAX), self._there
        same = status.change == self._change
        under_way = bool(status.change) and status.phase not in ("Complete", "RolledBack")
        if there == self._wanted or (same and there == status.active_digest):
            if cap is None and (not (same and under_way) or status.stage >= len(self.spec.stages)):
                return Place.PROMOTED
            return Place.STAGED if self._is_staged(cap) else Place.ELSEWHERE
        if not under_way:
            return Place.ORIGINAL if cap is None else Place.FOREIGN
        if there == status.active_digest:
            return Place.ELSEWHERE  # what this rollout was about before it was changed
        if there == status.previous_digest:
            return Place.ORIGINAL if cap is None else Place.ELSEWHERE
        return Place.FOREIGN

    def _is_staged(self, cap: int | None) -> bool:
        """Whether the target is as the present stage says. What a stage by zones came to was settled when it began."""
        where = where_of(self.spec.stages[self._stage_index()])
        there = "" if self.target is None else self.target.metadata.annotations.get(UPDATED_IN, "")
        if where is not None:
            return cap is not None and there == where.as_text()
        return cap == self._cap(self._stage_index()) and not there

    def _expected(self) -> int:
        """How many replicas of the new template there should be."""
        stage, replicas = self.spec.stages[self._stage_index()], self._deployment.spec.replicas
        if where_of(stage) is None:
            return share_of_replicas(stage.scope, replicas)
        cap = None if self.target is None else number_of(self.target, UPDATED_MAX)
        return min(replicas, replicas if cap is None else cap)

    def _cap(self, stage: int) -> int | None:
        replicas, scope = self._deployment.spec.replicas, self.spec.stages[stage].scope
        where = where_of(self.spec.stages[stage])
        if where is not None:
            return share_of_place(scope, replicas, *self._counted(where))
        share = share_of_replicas(scope, replicas)
        return None if share >= replicas else share

    def _counted(self, where: Where) -> tuple[int, int]:
        """How many replicas are there now, and how many of the new template are elsewhere."""
        there = elsewhere = 0
        ours = self.target is not None and self._there in (self._wanted, self.status.active_digest)
        current = find_current(self._sets, template_of(self.target), self._there) if ours and self.target else None
        for each in self._sets:
            for pod in (found.as_view(PodView) for found in self.ctx.owned(POD, each)):
                node = self.ctx.get(Key(NODE.key_kind, "", pod.spec.node_name)) if pod.spec.node_name else None
                if not is_active(pod):
                    continue
                if node is not None and where.has(node.metadata.labels):
                    there += 1
                elif each is current:
                    elsewhere += 1
        return there, elsewhere

    def _behind(self) -> str:
        deployment = self._deployment
        if deployment.status.observed_generation < deployment.generation:
            return "the Deployment has not acted on the change yet"
        return ""

    def _is_at_rest(self) -> bool:
        """Every replica is of the template it has, available, and reported so of this generation."""
        if self.target is None or self._behind():
            return False
        views = [each.as_view(ReplicaSetView) for each in self._sets]
        current = find_current(self._sets, template_of(self.target), self._there)
        counts = count_replicas(None if current is None else current.as_view(ReplicaSetView), views)
        seen = all(each.status.observed_generation >= each.generation for each in views)
        return seen and is_complete(self._deployment, counts)

    def _capacity(self) -> Capacity:
        deployment = self._deployment
        before = changed = 0
        current = None if self.target is None else find_current(self._sets, template_of(self.target), self._there)
        for each in self._sets:
            available = each.as_view(ReplicaSetView).status.available_replicas
            if each is current:
                changed += available
            else:
                before += available
        kept = deployment.spec.replicas - resolve_bounds(deployment.spec).unavailable
        floor = max([1, *(self._budgets())])
        return Capacity(before, changed, max(0, kept), floor)

    def _budgets(self) -> list[int]:
        labels = self._deployment.spec.template.metadata.labels
        found = []
        for each in self.ctx.list(BUDGET, namespace=self.found.key.namespace):
            view = each.as_view(PodDisruptionBudgetView)
            if label_selector(view.spec.selector).matches(labels):
                found.append(view.status.desired_healthy)
        return found

    def before(self) -> dict[str, Any]:
        template = {} if self.target is None else template_of(self.target)
        old = status_of(self.found).get("previousTemplate") or {}
        return {
            "previousTemplate": replacing(old, template),
            "previousDigest": self._there,
            "activeDigest": None,
        }

    def staged(self, stage: int) -> dict[str, Any]:
        return self._patch(self._template, self._cap(stage), where_of(self.spec.stages[stage]))

    def promoted(self) -> dict[str, Any]:
        return self._patch(self._template, None)

    def original(self) -> dict[str, Any]:
        return self._patch(status_of(self.found)["previousTemplate"], None)

    def _patch(self, template: Mapping[str, Any], cap: int | None, where: Where | None = None) -> dict[str, Any]:
        there: Any = {} if self.target is None else template_of(self.target)
        notes = {
            UPDATED_MAX: None if cap is None else str(cap),
            UPDATED_IN: None if where is None else where.as_text(),
        }
        return {
            "metadata": {"annotations": notes},
            "spec": {"template": replacing(there, template)},
        }
