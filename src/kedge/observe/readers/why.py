"""Why a pod or a workload is as it is: one sentence first, then the evidence. Pure functions over objects and records.

The objects give the state, the decision records give the reasons. A record that was counted and not kept is reported
as missing; nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kedge.api.objects import Object
from kedge.api.views import DeploymentView, PodView
from kedge.keys import Key
from kedge.observe.records import Decision, SchedulingAttempt


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    sentence: str
    evidence: tuple[str, ...] = ()

    def text(self) -> str:
        return "\n".join([self.sentence, *(f"  {line}" for line in self.evidence)])


def why_pod(pod: Object, decisions: Iterable[Decision]) -> Answer:
    """Why a pod is where it is, or nowhere."""
    view = pod.as_view(PodView)
    about = [each for each in decisions if each.key == pod.key and each.uid in ("", view.uid)]
    attempts = [each for each in about if each.scheduling is not None]
    evidence = [_decided(attempts[-1])] if attempts else []
    if not view.spec.node_name:
        return _pending(view, attempts, evidence)
    waiting = _waiting(view)
    if waiting:
        return Answer(f"{view.name} is on {view.spec.node_name} and does not run: {waiting}", tuple(evidence))
    restarts = sum(each.restart_count for each in view.status.container_statuses)
    state = view.status.phase.lower() or "starting"
    again = f"; it was restarted {restarts} times" if restarts else ""
    if attempts and (attempt := attempts[-1].scheduling) is not None:
        evidence += _choice(attempt)
    elif not attempts:
        evidence.append("the record of its placement was counted and not kept")
    return Answer(f"{view.name} is {state} on {view.spec.node_name}{again}", tuple(evidence))


def why_workload(workload: Object, pods: Sequence[Object], decisions: Sequence[Decision]) -> Answer:
    """Why a Deployment has the replicas that it has: the stage of each pod, and the reasons of those that lag."""
    view = workload.as_view(DeploymentView)
    wanted, ready = view.spec.replicas, view.status.ready_replicas
    if ready >= wanted:
        sentence = f"{view.name} is as declared: {ready} of {wanted} replicas are ready"
    else:
        sentence = f"{view.name} has {ready} of {wanted} replicas ready"
    evidence = [f"{count} {stage}" for stage, count in Counter(_stage(each) for each in pods).most_common()]
    lagging = [each for each in pods if not _is_ready(each)]
    evidence += [why_pod(each, decisions).text().replace("\n", "\n  ") for each in lagging]
    failed = [each for each in decisions if each.key == workload.key and each.error]
    if failed:
        evidence.append(f"last failure: {failed[-1].controller} at {failed[-1].began:%H:%M:%S}: {failed[-1].error}")
    return Answer(sentence, tuple(evidence))


def decisions_about(keys: Iterable[Key], decisions: Iterable[Decision]) -> list[Decision]:
    """Decisions of any of these keys, oldest first."""
    wanted = set(keys)
    return [each for each in decisions if each.key in wanted]


def _pending(view: PodView, attempts: Sequence[Decision], evidence: list[str]) -> Answer:
    attempt = attempts[-1].scheduling if attempts else None
    if attempt is None or attempt.choice is None:
        return Answer(f"{view.name} waits for its first attempt to be scheduled", tuple(evidence))
    reasons = attempts[-1].reason or "no node is feasible"
    sentence = f"{view.name} is pending: {attempt.choice.feasible} of {attempt.choice.nodes} nodes fit: {reasons}"
    account = attempt.account
    if account is not None:
        evidence += [f"{count} nodes: {blocker}" for blocker, count in account.counts.items()]
        if account.near_miss is not None:
            evidence.append(f"nearest: {account.near_miss.node}, but for {account.near_miss.blocker}")
    if attempt.helped_by:
        evidence.append(f"tried again on: {', '.join(attempt.helped_by)}")
    return Answer(sentence, tuple(evidence))


def _decided(decision: Decision) -> str:
    return f"decision {decision.id} of {decision.controller} at {decision.began:%H:%M:%S}, attempt {decision.attempt}"


def _choice(attempt: SchedulingAttempt) -> list[str]:
    if attempt.choice is None:
        return [f"the node was reserved: {attempt.reserved_node}"] if attempt.reserved_node else []
    choice = attempt.choice
    lines = [f"chosen with score {choice.score} of {choice.feasible} feasible nodes, {choice.nodes} in all"]
    if choice.policy:
        lines.append(f"policy {choice.policy} version {choice.policy_version}")
    return lines


def _waiting(view: PodView) -> str:
    for each in (*view.status.init_container_statuses, *view.status.container_statuses):
        if each.state.waiting is not None and each.state.waiting.reason:
            return f"container {each.name}: {each.state.waiting.reason}"
    return ""


def _stage(pod: Object) -> str:
    view = pod.as_view(PodView)
    if view.terminating:
        return "ending"
    if not view.spec.node_name:
        return "pending"
    return "ready" if _is_ready(pod) else view.status.phase.lower() or "starting"


def _is_ready(pod: Object) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.as_view(PodView).status.conditions)
