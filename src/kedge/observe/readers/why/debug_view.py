"""The debug view of a workload: the signals that explain its pending replicas, joined by workload and generation. Pure.

Each line is a name and a value from committed objects and decision records. A signal that a recording lacks has the
value `none recorded`; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kedge.api.conditions import TRUE
from kedge.api.objects import Object
from kedge.api.views import Condition, HorizontalPodAutoscalerView, PodView, SchedulingPolicyView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    OBEYED_PREFIX,
    POD_KIND,
    REPLICA_SET_KIND,
    SCHEDULING_POLICY_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.observe.readers.why.conditions import conditions_of
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.records import Decision

_NONE = "none recorded"


def debug_view(found: Object, evidence: ClusterEvidence) -> Iterator[tuple[str, str]]:
    """Names and values, in the order in which a reader wants them."""
    document = found.edit()
    spec, status = document.get("spec", {}), document.get("status", {})
    owners = {found.uid} | {each.uid for each in evidence.owned(REPLICA_SET_KIND, {found.uid})}
    pods = evidence.owned(POD_KIND, owners)
    pending = [each for each in pods if not each.as_view(PodView).spec.node_name]
    yield "workload", found.key.name
    yield "generation", str(found.metadata.generation)
    yield "ready replicas", f"{status.get('readyReplicas', 0)} / {spec.get('replicas', 0)}"
    yield "rollback observed by scheduler", _policy_observed(evidence.of_kind(SCHEDULING_POLICY_KIND))
    attempts = [each for each in evidence.decisions if each.scheduling is not None]
    told = ""
    for pod in pending:
        tried = [each for each in attempts if each.key == pod.key]
        last = max(tried, key=lambda each: each.began) if tried else None
        reason = _NONE if last is None else _reason(last) or _NONE
        yield "pending replica", pod.key.name + (", for the same reason" if reason == told else "")
        if reason != told:
            yield "last scheduling reason", reason
        told = reason
        yield "scheduler cache revision", _NONE if last is None else _quota_seen(last)
    # A quota holds in its namespace alone: those of other tenants explain nothing here.
    quotas = [each for each in evidence.of_kind(ZONE_QUOTA_KIND) if each.key.namespace == found.key.namespace]
    yield "quota latest revision", ", ".join(f"ZoneQuota {each.key.name}@{each.revision}" for each in quotas) or _NONE
    yield "autoscaler reason", _autoscaler(found, evidence)
    yield "repair condition", _condition_text(_condition(found, "RepairComplete"))


def _policy_observed(policies: Iterable[Object]) -> str:
    """Whether every scheduler that reports uses the newest generation of each policy."""
    seen = [
        (view.spec.version, each.observed_generation >= view.generation)
        for found in policies
        for view in (found.as_view(SchedulingPolicyView),)
        for each in view.status.conditions
        if each.type.startswith(OBEYED_PREFIX)
    ]
    if not seen:
        return _NONE
    return f"{str(all(done for _, done in seen)).lower()}, policy {', '.join(dict.fromkeys(name for name, _ in seen))}"


def _reason(decision: Decision) -> str:
    """The decisive blocker and the node that would fit without it, where the record has them, and the whole message."""
    attempt = decision.scheduling
    near = attempt.account.near_miss if attempt is not None and attempt.account is not None else None
    first = decision.reason.partition(" nodes: ")[2].partition(",")[0].partition(" ")[2]
    if near is None or near.blocker != first:
        return decision.reason
    return f"{first}, without which {near.node} would fit; {decision.reason}"


def _quota_seen(decision: Decision) -> str:
    marks = [each for each in decision.marks if each.cache.partition("[")[0] == ZONE_QUOTA_KIND]
    return ", ".join(f"ZoneQuota@{each.revision}, {each.age_s:.0f}s old" for each in marks) or _NONE


def _autoscaler(workload: Object, evidence: ClusterEvidence) -> str:
    for each in evidence.of_kind(AUTOSCALER_KIND):
        target = each.as_view(HorizontalPodAutoscalerView).spec.scale_target_ref
        if (each.key.namespace, target.name) == (workload.key.namespace, workload.key.name):
            held = _condition(each, "ScalingHeldBack")
            verdict = "holds back" if held is not None and held.status == TRUE else "does not hold back"
            return f"{_readiness(workload, each, evidence)}; {verdict}: {_condition_text(held)}"
    return _NONE


def _readiness(workload: Object, autoscaler: Object, evidence: ClusterEvidence) -> str:
    """The ready replicas that the autoscaler saw: those of the version that its last decision read."""
    reads = (read for made in reversed(evidence.about(autoscaler.key, autoscaler.uid)) for read in made.reads)
    seen = next((found for read in reads for found in read.objects if found.key == workload.key), workload)
    document = seen.edit()
    wanted, ready = document.get("spec", {}).get("replicas", 0), document.get("status", {}).get("readyReplicas", 0)
    level = "low ready replicas" if ready < wanted else "enough ready replicas"
    return f"{level}, {ready} / {wanted} at revision {seen.revision}"


def _condition(found: Object, name: str) -> Condition | None:
    return next((each for each in conditions_of(found) if each.type == name), None)


def _condition_text(condition: Condition | None) -> str:
    if condition is None:
        return _NONE
    reason = f" ({condition.reason})" if condition.reason else ""
    text = f"{condition.type}={condition.status}{reason}, observedGeneration={condition.observed_generation}"
    return f"{text}: {condition.message}" if condition.message else text
