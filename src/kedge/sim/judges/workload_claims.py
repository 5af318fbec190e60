"""The claims of the conditions of Deployments, ReplicaSets and Jobs, held against their pods and their namespace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf

from kedge.api.conditions import is_true
from kedge.api.quantity import parse_quantity, units
from kedge.api.views import ResourceQuotaView
from kedge.api.wellknown import (
    AT_MOST_ONE,
    DEPLOYMENT_KIND,
    DEPLOYMENT_REVISION_HISTORY,
    DISRUPTION_TARGET,
    HOLD_PREFIX,
    JOB_KIND,
    NAMESPACE_KIND,
    REPLICA_SET_KIND,
)
from kedge.placement.resources import to_units
from kedge.sim.judges.condition_evidence import Claims, ConditionEvidence

_REPLICATED = (DEPLOYMENT_KIND, REPLICA_SET_KIND)
_WORKLOADS = (*_REPLICATED, JOB_KIND)
_QUOTA_FULL = "exceeded quota: "
_EXCEEDED = re.compile(r"exceeded quota: (?P<name>[^,]++), requested: (?P<asked>\S+), used: ")
"""A refusal as the service writes it."""


# -- nodes and replicas ----------------------------------------------------------------------------


def _bound(found: ConditionEvidence) -> str:
    current = found.current()
    if current is None:  # a person may have deleted the ReplicaSet of the template since
        return "" if found.most().placed >= found.least_wanted else "it has no replica of its template"
    placed, waiting = current.most.placed, current.least.waiting
    if found.of.key.kind != JOB_KIND and placed < found.least_wanted:
        return f"{placed} of {found.least_wanted} replicas have a node"
    return f"{waiting} of its replicas have no node" if waiting else ""


def _unbound(found: ConditionEvidence) -> str:
    current = found.current()
    if current is None or current.most.waiting or found.of.key.kind == JOB_KIND:
        return ""  # the number of pods that a Job requests depends on its progress
    if found.is_current_set_deleted:
        return ""  # the Deployment replaces it, and its pods no longer count
    want = found.most_wanted
    return "" if current.least.placed < want else f"all of {want} replicas have a node"


def _repaired(found: ConditionEvidence) -> str:
    active, want = found.most().active, found.least_wanted
    return f"{active} of {want} replicas exist" if active < want else ""


def _unrepaired(found: ConditionEvidence) -> str:
    if any(is_true(pod.status.conditions, DISRUPTION_TARGET) for pod in found.facts.pods_under(found.of)):
        return ""  # a pod of a lost node waits for its release, though it counts for nothing any more
    least, most, want = found.least(), found.most(), found.most_wanted
    return "" if least.ready < max(most.active, want) else f"all of {least.ready} replicas are ready"


def _retrying(found: ConditionEvidence) -> str:
    return "" if found.most().refused else "the scheduler has refused no pod"


def _not_retrying(found: ConditionEvidence) -> str:
    refused = found.least().refused
    return f"the scheduler has refused {refused} of its pods" if refused else ""


# -- availability and rollouts ---------------------------------------------------------------------


def _unavailable_max(found: ConditionEvidence, want: int) -> int:
    spec = found.of.view.spec
    if spec.strategy.type == "Recreate":
        return want
    rolling = spec.strategy.rolling_update
    least = rolling.max_unavailable if rolling is not None else "25%"
    return want * int(least.rstrip("%")) // 100 if isinstance(least, str) else int(least)


def _available(found: ConditionEvidence) -> str:
    if not found.is_current:
        return ""
    want = found.least_wanted
    needed = want - max(1, _unavailable_max(found, want))  # one may be missing where no step would be possible
    ready = found.most().ready
    return f"{ready} replicas are ready, and {needed} must be" if ready < needed else ""


def _unavailable(found: ConditionEvidence) -> str:
    if found.of.view.spec.min_ready_seconds or not found.is_current:
        return ""  # a ready replica becomes available by time alone
    want = found.most_wanted
    needed, ready = want - _unavailable_max(found, want), found.least().ready
    return "" if ready < needed else f"{ready} replicas are ready, and {needed} are enough"


def _progressing(found: ConditionEvidence) -> str:
    if found.condition.reason != "NewReplicaSetAvailable":
        return "it is paused" if found.is_current and found.of.view.spec.paused else ""
    current = found.current()
    # A person may have deleted the ReplicaSet of the template since: then any that it had counts.
    ready, want = (found.most() if current is None else current.most).ready, found.least_wanted
    return f"{ready} of {want} replicas of its template are ready" if ready < want else ""


def _progress_returns(found: ConditionEvidence) -> str:
    changed_s = found.facts.tallies.changed_s.get(found.of.uid, -inf)
    return "" if changed_s >= found.since_s else "no replica of it has changed"


def _rolled_back(found: ConditionEvidence) -> str:
    children = (found.facts.objects.get(key) for key in found.facts.children.get(found.of.uid, ()))
    earlier = any(each is not None and DEPLOYMENT_REVISION_HISTORY in each.metadata.annotations for each in children)
    return "" if earlier else "no ReplicaSet of it had an earlier revision"


def _same_object(_: ConditionEvidence) -> str:
    """A return is explained by a change of the object alone, and that begins a new history."""
    return "the object is the same"


def _floored(found: ConditionEvidence) -> str:
    return "" if found.most().ready else "no replica of it is ready"


def _floor_returns(found: ConditionEvidence) -> str:
    moved = any(each.most.ready != each.least.ready for each in found.sets())
    return "" if moved else "the same replicas are ready"


# -- refusals --------------------------------------------------------------------------------------


def _refused(found: ConditionEvidence) -> str:
    """A pod that is gone is no failure: only a missing namespace is one that is not found."""
    reason, of = found.condition.reason, found.of
    if reason == "NotFound":
        key = of.key._replace(kind=NAMESPACE_KIND, namespace="", name=of.key.namespace)
        namespace = found.facts.objects.get(key)
        gone = namespace is None or namespace.metadata.deletion_timestamp is not None
        return "" if gone else "its namespace exists"
    message = found.condition.message
    full = _EXCEEDED.match(message, max(0, message.find(_QUOTA_FULL))) if reason == "Forbidden" else None
    if full is None:
        return ""  # its own template, or a policy that is no object
    asked = {name: amount for name, _, amount in (each.partition("=") for each in full["asked"].split(","))}
    for quotas in _quotas(found):
        quota = quotas.get(full["name"])
        if quota is not None and _lacks_room(quota, asked):
            return ""
    return f"quota {full['name']} has had room for {full['asked']}"


def _quotas(found: ConditionEvidence) -> list[Mapping[str, ResourceQuotaView]]:
    return list(found.facts.conditions.quotas_between(found.of.key.namespace, found.since_s, found.until_s))


def _lacks_room(quota: ResourceQuotaView, asked: Mapping[str, str]) -> bool:
    hard, used = to_units(quota.spec.hard), to_units(quota.status.used)
    return any(
        units(name, parse_quantity(amount)) + used.get(name, 0) > hard[name]
        for name, amount in asked.items()
        if name in hard
    )


def _refusal_returns(found: ConditionEvidence) -> str:
    """The subject of a refusal: the rules of the namespace, the use of its quotas, and whether a pod is missing."""
    facts, of = found.facts, found.of
    if facts.conditions.policy_changed_s(of.key.namespace) >= found.since_s:
        return ""
    quotas = _quotas(found)
    if any(each != quotas[0] for each in quotas):
        return ""
    sets = found.sets()
    if quotas and any(each.most.active != each.least.active for each in sets):
        return ""  # while a quota refuses pods, whether one is missing depends on the pods
    if any(name.startswith(HOLD_PREFIX) for name in of.metadata.annotations):
        return ""
    if of.view.spec.template.metadata.annotations.get(AT_MOST_ONE) == "true":
        return ""  # a pod is not created while another copy may run
    return "neither the rules of its namespace nor their use have changed"


# -- Jobs ------------------------------------------------------------------------------------------


def _succeeded(found: ConditionEvidence) -> str:
    spec, status = found.of.view.spec, found.of.view.status
    succeeded = status.succeeded + len(status.uncounted_terminated_pods.succeeded)
    short = spec.completions is not None and succeeded < spec.completions
    return f"{succeeded} of {spec.completions} have succeeded" if short else ""


def _complete(found: ConditionEvidence) -> str:
    return _succeeded(found) or _ended(found)


def _ended(found: ConditionEvidence) -> str:
    active = found.of.view.status.active
    return f"{active} of its pods run" if active else ""


def _failing(found: ConditionEvidence) -> str:
    status, by_policy = found.of.view.status, found.condition.reason == "PodFailurePolicy"
    failed = status.failed + len(status.uncounted_terminated_pods.failed)
    return "no pod of it has failed" if by_policy and not failed else ""


def _over(found: ConditionEvidence) -> str:
    return f"it had {found.condition.type}, which is final"


def _suspended(found: ConditionEvidence) -> str:
    return "its spec is not suspended" if found.is_current and not found.of.view.spec.suspend else ""


def _resumed(found: ConditionEvidence) -> str:
    return "its spec is suspended" if found.is_current and found.of.view.spec.suspend else ""


WORKLOAD_CLAIMS: Mapping[tuple[str, str], Claims] = {
    **{(kind, "Bound"): Claims(_bound, _unbound, moves=True) for kind in _WORKLOADS},
    **{(kind, "RepairComplete"): Claims(_repaired, _unrepaired, moves=True) for kind in _REPLICATED},
    **{(kind, "SchedulingRetrying"): Claims(_retrying, _not_retrying, moves=True) for kind in _WORKLOADS},
    **{(kind, "ReplicaFailure"): Claims(_refused, back=_refusal_returns) for kind in _WORKLOADS},
    (DEPLOYMENT_KIND, "Available"): Claims(_available, _unavailable, moves=True),
    (DEPLOYMENT_KIND, "Progressing"): Claims(_progressing, back=_progress_returns, moves=True),
    (DEPLOYMENT_KIND, "RollbackObserved"): Claims(_rolled_back, back=_same_object),
    (DEPLOYMENT_KIND, "AvailabilityFloor"): Claims(_floored, back=_floor_returns, moves=True),
    (JOB_KIND, "Complete"): Claims(_complete, _over, own=True),
    (JOB_KIND, "SuccessCriteriaMet"): Claims(_succeeded, _over, own=True),
    (JOB_KIND, "Failed"): Claims(_ended, _over, own=True),
    (JOB_KIND, "FailureTarget"): Claims(_failing, _over, own=True),
    (JOB_KIND, "Suspended"): Claims(_suspended, _resumed, own=True),
}
"""By kind and type."""
