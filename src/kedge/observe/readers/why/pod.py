"""Why a pod is where it is, or nowhere: its stage, the last attempt to place it, and what that attempt knew. Pure.

The objects give the state, the decision records give the reasons. A record that was not kept, or that its process did
not live to write, is reported as missing; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kedge.api.objects import Object
from kedge.api.views import ContainerStatus, PodView
from kedge.api.wellknown import BIND_ANNOTATION
from kedge.keys import Key
from kedge.observe.readers.why.admission import admission_lines
from kedge.observe.readers.why.answer import Answer, EvidenceLine, Tier
from kedge.observe.readers.why.conditions import condition_lines, coverage_lines, hold_lines
from kedge.observe.readers.why.controller_decisions import age_text, decision_text, refused_lines
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.readers.why.inputs import input_lines, stale_input
from kedge.observe.readers.why.people import people_lines
from kedge.observe.readers.why.placement import (
    choice_lines,
    held_back,
    node_lines,
    people_have_to_act,
    preemptions,
    reasons_text,
)
from kedge.observe.records import Decision, PodAct, SchedulingAttempt

ACTS_MAX: Final = 5
"""The latest acts of its agent that an answer about a pod lists; `kedge timeline` has all of them."""
_BROKEN: Final = frozenset({"CrashLoopBackOff", "RunContainerError", "StartError", "Error"})


def why_pod(pod: Object, evidence: ClusterEvidence) -> Answer:
    """Why a pod is where it is, or nowhere."""
    answer = explain_pod(pod, evidence)
    return replace(answer, evidence=(*answer.evidence, *coverage_lines(evidence)))


def explain_pod(pod: Object, evidence: ClusterEvidence) -> Answer:
    """The same as a part of another answer, which states the coverage."""
    view = pod.as_view(PodView)
    attempts = [each for each in evidence.about(pod.key, view.uid) if each.scheduling is not None]
    last = attempts[-1] if attempts else None
    preempted = preemptions(str(pod.key), evidence.decisions)
    if view.spec.node_name:
        sentence, tier = _without_node(view, evidence) or _placed(view, preempted)
    else:
        sentence, tier = _pending(pod, view, last, evidence)
    lines = [
        EvidenceLine("tier", tier.value),
        EvidenceLine("stage", _stage_line(pod, attempts, evidence)),
        *_decision_lines(view, attempts, evidence),
        *_gang_lines(pod, evidence),
        *_preempted_lines(preempted),
        *admission_lines(pod, evidence),
        *_agent_lines(pod, evidence),
        *([] if last is None else input_lines(last, evidence, later=not view.spec.node_name)),
        *people_lines(pod.key, evidence),
        *condition_lines(pod, evidence),
        *hold_lines(pod, evidence.now),
        *_wake_lines(view, last),
    ]
    return Answer(str(pod.key), sentence, tier, tuple(lines))


def why_gone(key: Key, evidence: ClusterEvidence) -> Answer | None:
    """The answer about a pod that was preempted and is gone; None if no record shows that."""
    preempted = preemptions(str(key), evidence.decisions)
    if not preempted:
        return None
    by = preempted[-1]
    attempt = by.scheduling
    node = "" if attempt is None else attempt.nominated_node
    sentence = f"{key.name} is gone: {by.key} preempted it on {node} at {by.began:%H:%M:%S}"
    lines = [EvidenceLine("tier", Tier.FINE.value), *_preempted_lines(preempted), *coverage_lines(evidence)]
    return Answer(str(key), sentence, Tier.FINE, tuple(lines))


def stage_of(pod: Object, listed: Collection[str] = ()) -> str:
    """The stage that a pod has reached, as `status.progress` counts it; else `ending`, or its last phase.

    `listed` are the uids of pods that receive work: a ready pod among these is `serving`.
    """
    view = pod.as_view(PodView)
    if view.terminating:
        return "ending"
    if not view.spec.node_name:
        if view.status.nominated_node_name:
            return "scheduled"
        return "admitted" if view.spec.scheduling_gates else "queued"
    if is_ready(pod):
        return "serving" if view.uid in listed else "ready"
    if view.finished:
        return view.status.phase.lower()
    return "starting" if view.status.container_statuses or view.status.init_container_statuses else "bound"


UNPLACED: Final = frozenset({"admitted", "queued", "scheduled"})
"""The stages of a pod without a node."""


def is_ready(pod: Object) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.as_view(PodView).status.conditions)


# -- the sentence --------------------------------------------------------------------------------------


def _without_node(view: PodView, evidence: ClusterEvidence) -> tuple[str, Tier] | None:
    """The answer about a pod whose node does not exist; None if the node does, or if the pod has ended."""
    node = view.spec.node_name
    if evidence.node_names is None or node in evidence.node_names or view.finished:
        return None
    sentence = f"{view.name} names the node {node}, which does not exist"
    if BIND_ANNOTATION in view.metadata.annotations:
        return f"{sentence}: it was bound there, and the node is gone", Tier.BROKEN
    return f"{sentence}: register that node, or create the pod again without spec.nodeName", Tier.MISCONFIGURED


def _placed(view: PodView, preempted: Sequence[Decision]) -> tuple[str, Tier]:
    node, waiting = view.spec.node_name, _waiting(view)
    if preempted and view.terminating:
        return f"{view.name} is ending on {node}: {preempted[-1].key} preempted it", Tier.WAITING
    if waiting is not None and waiting.state.waiting is not None:
        state = waiting.state.waiting
        detail = f" ({state.message})" if state.message else ""
        tier = Tier.BROKEN if state.reason in _BROKEN else Tier.MISCONFIGURED
        sentence = f"{view.name} is on {node} and does not run: container {waiting.name}: {state.reason}{detail}"
        return sentence, Tier.WAITING if state.reason in ("ContainerCreating", "PodInitializing") else tier
    restarts = sum(each.restart_count for each in view.status.container_statuses)
    again = f"; it was restarted {'once' if restarts == 1 else f'{restarts} times'}" if restarts else ""
    phase = view.status.phase.lower() or "starting"
    if phase == "failed":
        why = view.status.message or view.status.reason
        return f"{view.name} has failed on {node}{f': {why}' if why else ''}{again}", Tier.BROKEN
    ready = any(each.type == "Ready" and each.status == "True" for each in view.status.conditions)
    return f"{view.name} is {phase} on {node}{again}", Tier.FINE if ready or view.finished else Tier.WAITING


def _pending(pod: Object, view: PodView, last: Decision | None, evidence: ClusterEvidence) -> tuple[str, Tier]:
    if view.spec.scheduling_gates:
        gates = ", ".join(each.name for each in view.spec.scheduling_gates)
        return f"{view.name} is pending: its scheduling gates are closed: {gates}", Tier.WAITING
    held = held_back(pod, evidence)
    if held is not None and held.member != view.name:
        return f"{view.name} is pending: {held.member} holds gang {held.gang} back: {held.reasons}", Tier.WAITING
    attempt = None if last is None else last.scheduling
    if last is None or attempt is None or attempt.choice is None:
        return _unattempted(view), Tier.WAITING
    if attempt.choice.node is not None:
        cut_off = f"{last.cut_off} before the outcome was known" if last.cut_off else ""
        outcome = last.error or last.reason or cut_off or "the outcome of its bind is not visible yet"
        return f"{view.name} is pending: {attempt.choice.node} was chosen, and then: {outcome}", Tier.WAITING
    return _unplaceable(view, last, attempt, evidence)


def _unattempted(view: PodView) -> str:
    """Without a record the scheduler's condition, if it wrote one, has the reason."""
    condition = next((each for each in view.status.conditions if each.type == "PodScheduled" and each.message), None)
    if condition is not None and condition.status == "False":
        return f"{view.name} is pending: {condition.message}"
    return f"{view.name} waits for its first attempt to be scheduled"


def _unplaceable(
    view: PodView, last: Decision, attempt: SchedulingAttempt, evidence: ClusterEvidence
) -> tuple[str, Tier]:
    account, choice = attempt.account, attempt.choice
    assert choice is not None
    if not choice.nodes:
        return f"{view.name} is pending: there are no nodes", Tier.WAITING
    # The scheduler's message has the decisive blocker first.
    reasons = last.reason.partition(" nodes: ")[2] or reasons_text(account)
    sentence = f"{view.name} is pending: none of {choice.nodes} nodes fits: {reasons}"
    if account is None:
        return sentence, Tier.WAITING
    for reason in dict.fromkeys(map(account.reason_of, account.counts)):
        stale = stale_input(last, reason, evidence)
        if stale is not None:
            advice = "wait for the scheduler to catch up before adding capacity or rolling back"
            return f"{sentence}; {stale}; {advice}", Tier.WAITING
    if people_have_to_act(account):
        return f"{sentence}; no node can take it until the pod or the nodes change", Tier.MISCONFIGURED
    return sentence, Tier.WAITING


# -- the evidence --------------------------------------------------------------------------------------


def _stage_line(pod: Object, attempts: Sequence[Decision], evidence: ClusterEvidence) -> str:
    view = pod.as_view(PodView)
    stage = stage_of(pod, evidence.listed_uids() if is_ready(pod) else ())
    if stage == "ending":
        return stage
    parts = [stage]
    if view.spec.node_name:
        phase = view.status.phase.lower() or "starting"
        parts = [*({stage} - {"bound", phase}), f"bound to {view.spec.node_name}", phase]
    elif attempts:
        parts.append("1 attempt" if attempts[-1].attempt == 1 else f"{attempts[-1].attempt} attempts")
    elif stage != "admitted":
        parts.append("no attempt was kept")
    return ", ".join(filter(None, (*parts, age_text(evidence.now, view.metadata.creation_timestamp))))


def _decision_lines(view: PodView, attempts: Sequence[Decision], evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    if not attempts:
        if view.spec.node_name:
            by_scheduler = BIND_ANNOTATION in view.metadata.annotations
            kept = "the decision that placed it has no record here: it was cut off, or counted and not kept"
            yield EvidenceLine("decision", kept if by_scheduler else "it was created with the name of its node")
        return
    last = attempts[-1]
    attempt = last.scheduling
    assert attempt is not None
    yield EvidenceLine("decision", decision_text(last))
    if attempt.choice is not None and attempt.choice.policy:
        canary = ", as a canary" if attempt.choice.canary else ""
        yield EvidenceLine("policy", f"{attempt.choice.policy} version {attempt.choice.policy_version}{canary}")
    yield from choice_lines(attempt)
    yield from node_lines(last, evidence)
    if attempt.nominated_node:
        victims = ", ".join(attempt.victims)
        yield EvidenceLine("nominated", f"{attempt.nominated_node}, where it preempts {victims}")
    yield from refused_lines(last)


def _agent_lines(pod: Object, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """The run of the pod that its agent decided about last, and the agent's latest acts."""
    made = [each for each in evidence.about(pod.key, pod.uid) if each.pod_run is not None]
    if not made:
        return
    run = made[-1].pod_run
    assert run is not None
    bound = f"bind proved at revision {run.bind_revision}" if run.bind_revision else "no bind of a scheduler"
    yield EvidenceLine("run", f"on {run.node}, incarnation {run.node_uid[:8]}, {bound}")
    acts = [(each, step) for each in made for step in each.steps if isinstance(step, PodAct)]
    for decision, act in acts[-ACTS_MAX:]:
        yield EvidenceLine("agent", f"{decision.began:%H:%M:%S} {act}, decision {decision.id}")


def _gang_lines(pod: Object, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    held = held_back(pod, evidence)
    if held is not None:
        yield EvidenceLine("gang", f"{held.gang}: {held.member} holds {held.others} other members back: {held.reasons}")


def _preempted_lines(preempted: Sequence[Decision]) -> Iterator[EvidenceLine]:
    for decision in preempted:
        yield EvidenceLine("preempted", f"by {decision.key} at {decision.began:%H:%M:%S}, decision {decision.id}")


def _wake_lines(view: PodView, last: Decision | None) -> Iterator[EvidenceLine]:
    if view.spec.node_name or last is None or last.scheduling is None:
        return
    for what, writer in last.wakes:
        cause = last.scheduling.cause
        about = "" if cause is None else f": {cause.key} at revision {cause.revision}"
        yield EvidenceLine("woken by", f"{what}{about}{f', by {writer}' if writer else ''}")
    if last.scheduling.unblocked_by:
        yield EvidenceLine("tried again on", ", ".join(last.scheduling.unblocked_by))


def _waiting(view: PodView) -> ContainerStatus | None:
    for each in (*view.status.init_container_statuses, *view.status.container_statuses):
        if each.state.waiting is not None and each.state.waiting.reason:
            return each
    return None
