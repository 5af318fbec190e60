"""Why a workload has the pods that it has: generations, stages, lagging pods, conditions, autoscalers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kedge.api.objects import Object
from kedge.api.views import HorizontalPodAutoscalerView
from kedge.api.wellknown import AUTOSCALER_KIND, JOB_KIND, POD_KIND, REPLICA_SET_KIND
from kedge.keys import Key
from kedge.observe.readers.object_history import history_of
from kedge.observe.readers.timeline import ACTED, timeline
from kedge.observe.readers.why.admission import admission_lines, refusal_lines
from kedge.observe.readers.why.answer import Answer, EvidenceLine, Tier
from kedge.observe.readers.why.conditions import condition_lines, conditions_of, coverage_lines, hold_lines
from kedge.observe.readers.why.controller_decisions import age_text, controller_lines
from kedge.observe.readers.why.debug_view import debug_view
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.readers.why.people import people_lines
from kedge.observe.readers.why.pod import UNPLACED, explain_pod, stage_of
from kedge.observe.records import Decision

LATEST: Final = 5
"""Decisions that an answer about a workload ends with; `kedge timeline` has all of them."""
PARTS_MAX: Final = 5
"""Pods that an answer explains one by one; the others are counted."""
_WORST_FIRST: Final = (Tier.BROKEN, Tier.MISCONFIGURED, Tier.WAITING, Tier.FINE)


def why_workload(workload: Object, evidence: ClusterEvidence) -> Answer:
    """Why a Deployment, ReplicaSet or Job has the pods that it has, with an answer for each pod that is not ready."""
    replica_sets = evidence.owned(REPLICA_SET_KIND, {workload.uid})
    owners = {workload.uid} | {each.uid for each in replica_sets}
    pods = evidence.owned(POD_KIND, owners)
    lagging = [each for each in pods if stage_of(each) not in ("ready", "ending", "succeeded")]
    parts = [explain_pod(each, evidence) for each in lagging]
    state = _job_state(workload) if workload.key.kind == JOB_KIND else _replica_state(workload)
    sentence, tier = _sentence(state, parts)
    lines = [
        EvidenceLine("tier", tier.value),
        EvidenceLine("generation", state.generations()),
        *_age_lines(workload, evidence),
        *_stage_lines(pods, evidence.listed_uids()),
        *_view_lines(workload, pods, evidence),
        *_failure_lines(workload, evidence),
        *controller_lines(workload.key, evidence, uid=workload.uid, parts=[each.key for each in replica_sets]),
        *admission_lines(workload, evidence),
        *refusal_lines(owners, evidence),
        *people_lines(workload.key, evidence),
        *condition_lines(workload, evidence),
        *_autoscaler_lines(workload.key, evidence),
        *hold_lines(workload, evidence.now),
        *_latest_lines(workload.key, evidence.decisions),
        *coverage_lines(evidence),
    ]
    if len(parts) > PARTS_MAX:
        lines.append(EvidenceLine("more", f"{len(parts) - PARTS_MAX} other pods are not ready"))
    return Answer(str(workload.key), sentence, tier, tuple(lines), tuple(parts[:PARTS_MAX]))


def why_object(found: Object, evidence: ClusterEvidence) -> Answer:
    """The state of any other object: its conditions, the last failure about it, and the latest decisions."""
    failures = [each for each in evidence.about(found.key, found.uid) if each.error]
    unmet = [each for each in conditions_of(found) if each.status == "False" and each.type in _EXPECTED]
    name = f"{found.key.kind.partition('.')[0]} {found.key.name}"
    tier = Tier.BROKEN if failures and evidence.about(found.key, found.uid)[-1].error else Tier.FINE
    sentence = f"{name} has no condition that calls for anything"
    if unmet:
        tier, first = Tier.WAITING, unmet[0]
        sentence = f"{name} is not {first.type}: {first.message or first.reason or 'it gives no reason'}"
    elif tier is Tier.BROKEN:
        sentence = f"the last decision about {name} failed: {failures[-1].error}"
    lines = [
        EvidenceLine("tier", tier.value),
        EvidenceLine("generation", f"{found.metadata.generation} desired"),
        *_age_lines(found, evidence),
        *_failure_lines(found, evidence),
        *controller_lines(found.key, evidence, uid=found.uid),
        *admission_lines(found, evidence),
        *people_lines(found.key, evidence),
        *condition_lines(found, evidence),
        *hold_lines(found, evidence.now),
        *_latest_lines(found.key, evidence.decisions),
        *coverage_lines(evidence),
    ]
    return Answer(str(found.key), sentence, tier, tuple(lines))


_EXPECTED: Final = frozenset({"Ready", "Available", "ScalingActive", "AbleToScale", "DisruptionAllowed", "Established"})
"""Conditions that are True of an object in order."""


@dataclass(frozen=True, slots=True)
class _WorkloadState:
    """How far a workload has come, in words and by tier."""

    name: str
    done: str
    """The sentence about it if nothing is left to do; else empty."""
    progress: str
    broken: bool
    desired: int
    observed: int | None
    """None for a kind whose status has none."""

    @property
    def is_behind(self) -> bool:
        return self.observed is not None and self.observed < self.desired

    def generations(self) -> str:
        observed = "" if self.observed is None else f", {self.observed} observed by its controller"
        return f"{self.desired} desired{observed}"


def _replica_state(workload: Object) -> _WorkloadState:
    document = workload.edit()
    spec, status = document.get("spec") or {}, document.get("status") or {}
    wanted, ready = spec.get("replicas", 1), status.get("readyReplicas", 0)
    name, desired = workload.key.name, workload.metadata.generation
    done = f"{name} is as declared: {ready} of {wanted} replicas are ready" if ready >= wanted else ""
    progress = f"{name} has {ready} of {wanted} replicas ready"
    return _WorkloadState(name, done, progress, False, desired, status.get("observedGeneration", 0))  # noqa: FBT003


def _job_state(workload: Object) -> _WorkloadState:
    document = workload.edit()
    spec, status = document.get("spec") or {}, document.get("status") or {}
    name, desired = workload.key.name, workload.metadata.generation
    wanted = spec.get("completions") or spec.get("parallelism", 1)
    count = f"{status.get('succeeded', 0)} of {wanted} pods have succeeded"
    ended = next((each for each in conditions_of(workload) if each.type in _ENDS and each.status == "True"), None)
    if ended is not None and ended.type == "Failed":
        why = ended.message or ended.reason
        return _WorkloadState(name, "", f"{name} has failed: {why}; {count}", True, desired, None)  # noqa: FBT003
    done = f"{name} is complete: {count}" if ended is not None else ""
    paused = " and it is suspended" if spec.get("suspend") else f", {status.get('active', 0)} are active"
    return _WorkloadState(name, done, f"{name} runs: {count}{paused}", False, desired, None)  # noqa: FBT003


_ENDS: Final = frozenset({"Complete", "Failed"})


def _sentence(state: _WorkloadState, parts: Sequence[Answer]) -> tuple[str, Tier]:
    if state.done and not parts and not state.is_behind:
        return state.done, Tier.FINE
    if state.broken:
        return state.progress, Tier.BROKEN
    tier = next((tier for tier in _WORST_FIRST if any(each.tier is tier for each in parts)), Tier.WAITING)
    sentence = state.progress
    if state.is_behind:
        sentence += f"; its controller has not seen generation {state.desired} yet"
    worst = next((each for each in parts if each.tier is tier), None)
    return (f"{sentence}; {worst.sentence}" if worst is not None else sentence), tier


def _age_lines(found: Object, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    if age := age_text(evidence.now, found.metadata.creation_timestamp):
        yield EvidenceLine("age", age)


def _stage_lines(pods: Sequence[Object], listed: Collection[str]) -> Iterator[EvidenceLine]:
    for stage, count in Counter(stage_of(each, listed) for each in pods).most_common():
        yield EvidenceLine("stages", f"{count} {stage}")


def _view_lines(workload: Object, pods: Sequence[Object], evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """The debug view, if a replica waits for a node."""
    if any(stage_of(each) in UNPLACED for each in pods):
        for name, value in debug_view(workload, evidence):
            yield EvidenceLine("debug view", f"{name}: {value}")


def _failure_lines(workload: Object, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    failed = [each for each in evidence.about(workload.key, workload.uid) if each.error]
    if failed:
        last = failed[-1]
        yield EvidenceLine("last failure", f"{last.controller} at {last.began:%H:%M:%S}: {last.error}")


def _autoscaler_lines(target: Key, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    for found in evidence.of_kind(AUTOSCALER_KIND):
        view = found.as_view(HorizontalPodAutoscalerView)
        reference, kind = view.spec.scale_target_ref, target.kind.partition(".")[0]
        if found.key.namespace != target.namespace or (reference.kind, reference.name) != (kind, target.name):
            continue
        status = view.status
        yield EvidenceLine("autoscaler", f"{view.name} wants {status.desired_replicas} of {status.current_replicas}")
        yield from condition_lines(found, evidence, "autoscaler")


def _latest_lines(key: Key, decisions: Sequence[Decision]) -> Iterator[EvidenceLine]:
    """The newest changes that controllers decided about an object and everything it owns, oldest first."""
    made = [
        each
        for each in timeline(history_of([key], decisions))
        if each.controller and not each.is_repeated and each.kind != ACTED
    ]
    for each in made[-LATEST:]:
        text = each.text.removeprefix(f"{each.controller}: ")
        yield EvidenceLine("latest", f"{each.at:%H:%M:%S} {each.controller}: {text}")
