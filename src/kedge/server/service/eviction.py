"""Eviction: a deletion that a disruption budget must allow, and is charged for in the same commit."""

from __future__ import annotations

from kedge.api.codec import encode_object
from kedge.api.conditions import condition, set_condition
from kedge.api.objects import Object
from kedge.api.requests import Evict, Written
from kedge.api.views import PodDisruptionBudgetView, PodView
from kedge.api.wellknown import DISRUPTION_ALLOWED
from kedge.errors import MethodNotAllowed, NotFound, TooManyRequests
from kedge.server.service import operations
from kedge.server.service.budgets import budget_of
from kedge.server.service.core import Core, Proof, Staged, part
from kedge.server.service.deletion import check_delete_preconditions, check_propagation, stage_deletion

_RETRY_AFTER_S = 10.0


async def evict(core: Core, request: Evict) -> Written:
    """Delete a pod if its disruption budget allows.

    Raises:
        TooManyRequests: the budget is exhausted, or its status lags its spec. Wait and retry.
    """
    key, options = request.key, request.options
    if not core.kind_of(key).has("eviction"):
        raise MethodNotAllowed(f"{key} cannot be evicted: only a pod can", key=key)
    check_propagation(key, options)

    async def attempt(proof: Proof) -> Staged | Written:
        repeat = await operations.first_outcome(core, proof, "evict", key, options, reads=(key,))
        if repeat is not None:
            return repeat
        pod = await proof.object(key)
        if pod is None:
            raise NotFound(f'pods "{key.name}" not found', key=key)
        check_delete_preconditions(pod.kind, pod, options)
        view = pod.as_view(PodView)
        if view.spec.node_name and not view.finished and not view.terminating:
            await _charge_budget(core, proof, pod)
        staged = await stage_deletion(core, proof, pod, options)
        if proof.writes:
            operations.record(core, proof, "evict", key, options)
        return staged

    return await core.prove(attempt, options)


async def _charge_budget(core: Core, proof: Proof, pod: Object) -> None:
    budget = await budget_of(core, proof, pod)
    if budget is None:
        return
    view = budget.as_view(PodDisruptionBudgetView)
    if view.status.observed_generation < view.metadata.generation:
        raise TooManyRequests(
            f"cannot evict {pod.key}: the disruption budget {budget.key.name} is being processed by its controller",
            key=pod.key,
            retry_after_s=_RETRY_AFTER_S,
        )
    if view.status.disruptions_allowed <= 0:
        raise TooManyRequests(
            f"cannot evict {pod.key}: it would violate the disruption budget {budget.key.name}, which needs"
            f" {view.status.desired_healthy} healthy pods and has {view.status.current_healthy}",
            key=pod.key,
            retry_after_s=_RETRY_AFTER_S,
        )
    document = budget.edit()
    status = part(document, "status")
    allowed = view.status.disruptions_allowed - 1
    status["disruptionsAllowed"] = allowed
    if not allowed:  # in the same commit: the condition must not outlive what it claims
        spent = condition(
            DISRUPTION_ALLOWED, status=False, reason="InsufficientPods", observed_generation=view.metadata.generation
        )
        status["conditions"] = set_condition(status.get("conditions") or (), spent, core.timestamp())
    status["disruptedPods"] = {**part(status, "disruptedPods"), pod.key.name: core.timestamp()}
    proof.put(budget.key, encode_object(document))
