"""Attempt records: the wake-up, the inputs, the account of every node, and the outcome of the bind.

An attempt notes only references while it runs. Its record is made at its end if a rule keeps it, or later if a kept
decision read what it wrote: most are never made. `recheck` runs a kept attempt again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from kedge.api.objects import Object
from kedge.api.requests import Binding, GangChunk, Written
from kedge.api.wellknown import RESERVATION_KIND
from kedge.env import Env
from kedge.errors import OperatingError, to_status
from kedge.keys import NO_REVISION, Fence, Key, Revision
from kedge.logs import INFO
from kedge.observe.recording.decision_lines import log_decision
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import (
    UNDER_WAY,
    AttemptChoice,
    CacheMark,
    Call,
    Decision,
    DecisionStep,
    EmptyNodes,
    LocalState,
    NearestNode,
    NodeAccount,
    SchedulingAttempt,
    ScoredNode,
    WakeCause,
    encode_intent,
)
from kedge.runtime.cache import CurrentMarks, marks_of, pin_all
from kedge.scheduler.cycle.decide import NodeDecision
from kedge.scheduler.queue.scheduling_queue import QueuedPod
from kedge.scheduler.report.explanation import Explanation
from kedge.scheduler.state.cluster_state import ClusterState, LocalInputs

_BOUND: Final = "await change"
_CANARY: Final = "policy: canary"


SentRequest = Binding | GangChunk | Object
"""A request of an attempt: a bind, a reservation, or the object to delete."""


class SchedulingStep(NamedTuple):
    """A step of the event loop in which attempts are made: no cache moves before its end."""

    at: datetime
    at_s: float
    marks: tuple[CacheMark, ...]


_NOT_RECORDED: Final = SchedulingStep(datetime.fromtimestamp(0, UTC), 0.0, ())


class OpenAttempt(msgspec.Struct, gc=False):
    """An attempt without its record. Objects in it do not change."""

    id: str
    number: int
    key: Key
    pod: Object
    priority: int
    attempt: int
    wake: tuple[str, str]
    cause: WakeCause | None
    waited_s: float
    delayed_s: float
    fence: Revision
    step: SchedulingStep
    began_s: float
    local: LocalInputs | None
    """None for a record about a gang record, which nothing was decided for."""
    kept: str | None = None
    """The rule that keeps it, if it ends well; None before it was asked for."""
    decision: NodeDecision | None = None
    account: NodeAccount | None = None
    reserved_node: str = ""
    nominated_node: str = ""
    victims: tuple[str, ...] = ()
    steps: tuple[Call, ...] = ()
    sent: SentRequest | None = None
    """The request under way, or the bind if `bound` is set. None after a bind that was decided here: it is made again
    from the decision, because attempts are held for minutes, and its parts would be most of their memory."""
    sent_s: float = 0.0
    """When it was sent, since the attempt began."""
    bound: Object | None = None
    """The pod in the reply of a bind that succeeded: the last step."""
    unanswered_s: float = 0.0
    """`Written.unanswered_s` of that reply."""
    revision: Revision = NO_REVISION
    """The revision that its bind wrote."""
    took_s: float = 0.0
    """The time until that reply."""
    result: str = ""
    condition: str = ""
    reason: str = ""
    error: str = ""
    unblocked_by: tuple[str, ...] = ()

    @property
    def tenant(self) -> str:
        return self.pod.key.namespace

    @property
    def began(self) -> datetime:
        return self.step.at + timedelta(seconds=self.began_s - self.step.at_s)

    @property
    def marks(self) -> tuple[CacheMark, ...]:
        return self.step.marks


class AttemptRecords:
    """Numbers attempts and makes their records."""

    def __init__(
        self,
        env: Env,
        cluster_state: ClusterState,
        recorder: Recorder | None,
        *,
        scheduler: str,
        process: str,
        fenced: bool = True,
    ) -> None:
        self._env = env
        self._cluster_state = cluster_state
        self._recorder = recorder
        self.controller = scheduler
        self.process = process
        self._fenced = fenced
        self._prefix = f"{scheduler}:{process}:"
        self._marks = CurrentMarks(cluster_state.caches)
        self._step = _NOT_RECORDED
        self._logged = False
        """Whether attempts are log lines too, at the begin of the step."""
        self.count = 0
        self._open: dict[str, OpenAttempt] = {}
        """By id: attempts that have not ended, if they are recorded. Bounded by the binds in flight."""
        if recorder is not None:
            recorder.add_unfinished(lambda: [self._so_far(each) for each in self._open.values()])

    @property
    def latest(self) -> str:
        """The id of the last attempt: reports outside of an attempt carry it."""
        return f"{self._prefix}{self.count}"

    def begin_step(self) -> None:
        """Call this before the first attempt of a step of the event loop: all attempts of the step share its marks."""
        if self._recorder is not None:
            now_s = self._env.monotonic()
            self._step = SchedulingStep(self._env.now(), now_s, self._marks.at(now_s))
            self._logged = self._env.log.enabled(INFO)

    def begin(self, queued: QueuedPod, fence: Fence, began_s: float) -> OpenAttempt:
        """A new attempt, before the decision. Without a recorder it holds little more than its id."""
        self.count += 1
        cause = queued.cause
        recorded = self._recorder is not None
        attempt = OpenAttempt(
            f"{self._prefix}{self.count}",
            self.count,
            queued.key,
            queued.pod,
            queued.priority,
            queued.attempts,
            (queued.woken_by, "" if cause is None else cause.writer),
            cause,
            began_s - queued.since_s,
            queued.since_s - queued.added_s,
            fence.revision,
            self._step,
            began_s,
            self._cluster_state.local_inputs(queued.priority) if recorded else None,
        )
        if recorded:
            self._open[attempt.id] = attempt
        return attempt

    def will_be_kept(self, attempt: OpenAttempt) -> bool:
        """Whether a rule keeps the record however the bind ends. A record kept only because its bind failed has no
        account of nodes, and can still be run again."""
        if self._recorder is None:
            return False
        attempt.kept = self._recorder.why_keep_begun(attempt) or _why_keep_chosen(attempt)
        return bool(attempt.kept)

    def decided(self, attempt: OpenAttempt, decision: NodeDecision) -> None:
        attempt.decision = decision

    def reserved(self, attempt: OpenAttempt, node: str) -> None:
        """There is nothing to decide: a reservation holds room for the pod."""
        attempt.reserved_node = node

    def nominated(self, attempt: OpenAttempt, node: str, victims: Iterable[Object]) -> None:
        """Pods on `node` are being preempted for this one."""
        attempt.nominated_node = node
        attempt.victims = tuple([str(pod.key) for pod in victims])

    def explained(self, attempt: OpenAttempt, explanation: Explanation) -> None:
        """Record the first failing filter of every node, one byte each, and the near miss."""
        if self._recorder is not None:
            attempt.account = account_of(explanation)

    def binding(self, attempt: OpenAttempt, request: Binding) -> None:
        """The bind is sent."""
        self._send(attempt, request)

    def bound(self, attempt: OpenAttempt, reply: Written | None, error: OperatingError | None) -> None:
        """Note the outcome of the bind."""
        if self._recorder is None or attempt.sent is None:
            return
        if reply is not None:
            attempt.result, attempt.bound, attempt.revision = _BOUND, reply.object, reply.object.revision
            if reply.unanswered_s:
                attempt.unanswered_s = reply.unanswered_s
            attempt.took_s = self._env.monotonic() - attempt.began_s - attempt.sent_s
            return
        self._failed(attempt, error)
        self._called(attempt, None, error)

    def reserving_chunk(self, attempt: OpenAttempt, chunk: GangChunk) -> None:
        """A request to reserve for some members of a gang is sent; it is in the record of the first member."""
        self._send(attempt, chunk)

    def reserved_chunk(self, attempt: OpenAttempt, reply: Written | None, error: OperatingError | None) -> None:
        """Record the outcome of reserving."""
        self._called(attempt, reply, error)

    def begin_release(self, gang: Object, fence: Fence) -> OpenAttempt:
        """A record of its own for the deletion of a gang record: the attempts of the members have ended."""
        self.count += 1
        now_s, recorded = self._env.monotonic(), self._recorder is not None
        step = _NOT_RECORDED
        if recorded:
            step = SchedulingStep(self._env.now(), now_s, marks_of(self._cluster_state.caches.values(), now_s))
        attempt = OpenAttempt(
            self.latest,
            self.count,
            gang.key,
            gang,
            0,
            1,
            ("", ""),
            None,
            0.0,
            0.0,
            fence.revision,
            step,
            now_s,
            None,
        )
        if recorded:
            self._open[attempt.id] = attempt
            self._send(attempt, gang)
        return attempt

    def released(self, attempt: OpenAttempt, reply: Written | None, error: OperatingError | None) -> None:
        """Record the outcome of deleting a gang record."""
        attempt.result = _BOUND
        if error is not None:
            self._failed(attempt, error)
        self._called(attempt, reply, error)
        self.end(attempt)

    def _failed(self, attempt: OpenAttempt, error: OperatingError | None) -> None:
        attempt.result = "failed"
        attempt.error = "" if error is None else f"{type(error).__name__}: {error}"

    def _send(self, attempt: OpenAttempt, request: SentRequest) -> None:
        if self._recorder is not None:
            attempt.sent, attempt.sent_s = request, self._env.monotonic() - attempt.began_s

    def _called(self, attempt: OpenAttempt, reply: Written | None, error: OperatingError | None) -> None:
        """The request under way has ended."""
        sent, attempt.sent = attempt.sent, None
        if sent is not None:
            took_s = self._env.monotonic() - attempt.began_s - attempt.sent_s
            outcome = type(error).__name__ if error is not None else "removed" if reply and reply.removed else "done"
            attempt.steps += (_call(attempt, sent, took_s, outcome, reply, error),)

    def _so_far(self, attempt: OpenAttempt) -> Decision:
        record = self.record_of(attempt)
        if attempt.sent is not None and attempt.bound is None:
            record.steps.append(_call(attempt, attempt.sent, 0.0, UNDER_WAY))
        return record

    def end_term(self) -> None:
        """The term is over: end the attempts that were cancelled with it. Their last requests may have been committed,
        and the versions that these wrote carry the ids of the attempts."""
        for attempt in tuple(self._open.values()):
            if attempt.sent is not None and attempt.bound is None:
                attempt.steps += (_call(attempt, attempt.sent, 0.0, "cancelled"),)
                attempt.sent = None
            attempt.result = attempt.result or "cancelled"
            self.end(attempt)

    def read_after(self, attempt: OpenAttempt, key: Key, found: Object | None, took_s: float) -> None:
        """Record the read that settled a bind whose reply was lost."""
        if self._recorder is None:
            return
        bind = attempt.steps[-1]
        revision, outcome = (found.revision, "read") if found is not None else (NO_REVISION, "absent")
        reply = () if found is None else (found,)
        began_s = bind.began_s + bind.took_s
        call = Call("get", key, encode_intent(None), "", "", began_s, took_s, outcome, revision, reply=reply)
        attempt.steps += (call,)

    def abandoned(self, attempt: OpenAttempt, why: str, error: OperatingError | None = None) -> None:
        """A node was chosen, but no bind was sent: the gang could not reserve room."""
        self._failed(attempt, error)
        attempt.reason = why
        self.end(attempt)

    def end(self, attempt: OpenAttempt, *, unblocked_by: Sequence[str] = ()) -> None:
        """The attempt is over: count it, and keep its record if a rule requires it."""
        recorder = self._recorder
        if recorder is None:
            return
        self._open.pop(attempt.id, None)
        if unblocked_by:
            attempt.unblocked_by = tuple(unblocked_by)
        brief = attempt.bound is not None and not attempt.steps
        if brief and not recorder.open_windows and not self._logged:
            kept = self.will_be_kept(attempt) if attempt.kept is None else attempt.kept
            if not kept:
                if attempt.decision is not None:
                    attempt.sent = None
                recorder.take_brief(attempt, self)
                return
        record = self.record_of(attempt)
        log_decision(self._env.log, record)
        record.kept = recorder.why_keep(record, begun=attempt.kept or "") or _why_keep_chosen(attempt)
        recorder.take(record, self.pin, judged=True)

    def record_of(self, attempt: OpenAttempt) -> Decision:
        local = LocalState() if attempt.local is None else self._cluster_state.local_state(attempt.local)
        return self._record(attempt, local)

    def records_of(self, attempts: Iterable[OpenAttempt]) -> Iterator[Decision]:
        """The records of attempts that have ended, those that began last first."""
        past = self._cluster_state.assumed.past()
        for attempt in sorted(attempts, key=lambda each: each.number, reverse=True):
            local = attempt.local
            if isinstance(local, int):
                assumed = past.at(local)
                yield self._record(attempt, None if assumed is None else LocalState(assumed))
            else:
                yield self._record(attempt, LocalState() if local is None else local)

    def _record(self, attempt: OpenAttempt, local: LocalState | None) -> Decision:
        decision, pod = attempt.decision, attempt.pod
        steps: list[DecisionStep] = [*attempt.steps]
        if attempt.bound is not None:
            reply = Written(attempt.bound, unanswered_s=attempt.unanswered_s)
            steps.append(_call(attempt, attempt.sent or _sent_by(attempt), attempt.took_s, "done", reply))
        scheduling = SchedulingAttempt(
            pod_revision=pod.revision if attempt.local is not None else NO_REVISION,
            local=LocalState() if local is None else local,
            local_lost=local is None,
            cause=attempt.cause,
            draw=None if decision is None else decision.draw,
            excluded=() if decision is None else tuple(sorted(decision.inputs.excluded)),
            choice=None if decision is None else choice_of(decision),
            account=attempt.account,
            reserved_node=attempt.reserved_node,
            nominated_node=attempt.nominated_node,
            victims=attempt.victims,
            unblocked_by=attempt.unblocked_by,
        )
        return Decision(
            id=attempt.id,
            controller=self.controller,
            process=self.process,
            key=attempt.key,
            tenant=attempt.tenant,
            priority=attempt.priority,
            uid=pod.uid,
            generation=pod.metadata.generation,
            fence=attempt.fence,
            fenced=self._fenced,
            wakes=() if attempt.local is None else (attempt.wake,),
            attempt=attempt.attempt,
            place=attempt.number,
            waited_s=attempt.waited_s,
            delayed_s=attempt.delayed_s,
            began=attempt.began,
            marks=attempt.marks,
            steps=steps,
            result=attempt.result,
            condition=attempt.condition,
            reason=attempt.reason,
            error=attempt.error,
            scheduling=scheduling,
        )

    def pin(self, record: Decision) -> Sequence[Callable[[], None]]:
        return pin_all(self._cluster_state.caches.values(), record.marks)


def bind_request(pod: Object, node: str, node_uid: str, node_revision: Revision) -> Binding:
    """The bind of a pod to a node that was decided on at these versions of both."""
    key = pod.key
    return Binding(
        pod=key,
        pod_uid=pod.uid,
        node=node,
        node_uid=node_uid,
        decided_on={str(key): pod.revision, f"Node/{node}": node_revision},
    )


def _sent_by(attempt: OpenAttempt) -> Binding:
    """The bind of an attempt that has decided."""
    decision = attempt.decision
    assert decision is not None and decision.node is not None, f"{attempt.id} sent a bind without a node"  # noqa: PT018
    return bind_request(attempt.pod, decision.node, decision.node_uid, decision.node_revision)


def _why_keep_chosen(attempt: OpenAttempt) -> str:
    """The rule about the choice of an attempt: that of a canary is kept."""
    decision = attempt.decision
    return _CANARY if decision is not None and decision.settings.canary else ""


def _call(
    attempt: OpenAttempt,
    sent: SentRequest,
    took_s: float,
    outcome: str,
    reply: Written | None = None,
    error: OperatingError | None = None,
) -> Call:
    intent: dict[str, Any] = {}
    match sent:
        case Binding():
            verb, key, uid = "bind", sent.pod, sent.pod_uid
            intent = {"node": sent.node, "nodeUid": sent.node_uid, "decidedOn": sent.decided_on}
        case GangChunk():
            verb, key, uid = "reserve", Key(RESERVATION_KIND, sent.namespace, sent.gang), ""
            intent = {"places": {each.pod: each.node for each in sent.places}, "commit": sent.commit}
        case Object():
            verb, key, uid = "delete", sent.key, sent.uid
    return Call(
        verb,
        key,
        encode_intent(intent),
        f"uid {uid}" if uid else "",
        f"{attempt.id}#1",
        attempt.sent_s,
        took_s,
        outcome,
        NO_REVISION if reply is None else reply.object.revision,
        None if error is None else to_status(error),
        () if reply is None else (reply.object,),
        unanswered_s=reply.unanswered_s if reply is not None else 0.0,
    )


def choice_of(decision: NodeDecision) -> AttemptChoice:
    settings = decision.settings
    return AttemptChoice(
        decision.node,
        decision.score,
        decision.feasible,
        decision.nodes,
        settings.policy,
        settings.version,
        settings.canary,
        decision.inputs.blocked_zones,
    )


def account_of(explanation: Explanation) -> NodeAccount:
    near, if_empty = explanation.near_miss, explanation.if_empty
    return NodeAccount(
        first_failing=explanation.first_failing,
        legend=tuple([str(blocker) for blocker in explanation.legend]),
        counts={str(blocker): count for blocker, count in explanation.counts.items()},
        top=tuple([ScoredNode(each.node, each.total, dict(each.parts)) for each in explanation.top]),
        near_miss=None if near is None else NearestNode(near.node, str(near.blocker), near.total),
        reasons=tuple([blocker.reason for blocker in explanation.legend]),
        empty=None
        if if_empty is None
        else EmptyNodes(
            len(explanation.names) - sum(if_empty.values()),
            {str(blocker): count for blocker, count in if_empty.items()},
            tuple([blocker.reason for blocker in if_empty]),
        ),
    )
