"""Attempt records: the wake-up, the inputs, the account of every node, and the outcome of the bind.

Made for every attempt, kept by the recorder's rules. `recheck` runs a kept attempt again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kedge.api.objects import Object
from kedge.api.requests import Binding, GangChunk, Written
from kedge.api.views import PodView
from kedge.api.wellknown import RESERVATION_KIND
from kedge.env import Env
from kedge.errors import OperatingError, to_status
from kedge.keys import NO_REVISION, Fence, Key
from kedge.observe.recording.decision_lines import log_decision
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import (
    AttemptChoice,
    CacheMark,
    Call,
    EmptyNodes,
    NearestNode,
    NodeAccount,
    SchedulingAttempt,
    ScoredNode,
    encode_intent,
)
from kedge.observe.records import Decision as Record
from kedge.runtime.cache import marks_of, pin_all
from kedge.scheduler.cycle.decide import NodeDecision
from kedge.scheduler.queue.scheduling_queue import QueuedPod
from kedge.scheduler.report.explanation import Explanation
from kedge.scheduler.state.cluster_state import ClusterState

_MOMENT_S: Final = 0.005
"""The ages in the marks of an attempt may be this much too low."""
_NO: Final = datetime.fromtimestamp(0, UTC)
"""The start time in a record that is not kept."""


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
        self._pin = self._pin_marks  # bound once: it is passed with every record
        self._scheduler = scheduler
        self._process = process
        self._fenced = fenced
        self._prefix = f"{scheduler}:{process}:"
        self._marks: tuple[CacheMark, ...] = ()
        self._marked_s = -_MOMENT_S
        self._marked_places: list[int] = []
        self.count = 0

    @property
    def latest(self) -> str:
        """The id of the last attempt: reports outside of an attempt carry it."""
        return f"{self._prefix}{self.count}"

    def begin(self, queued: QueuedPod, view: PodView, fence: Fence, began_s: float) -> Record:
        """The record of a new attempt, before the decision. Without a recorder it holds only the id."""
        self.count += 1
        if self._recorder is None:
            key = queued.key
            return Record(
                id=f"{self._prefix}{self.count}",
                controller=self._scheduler,
                process=self._process,
                key=key,
                tenant=key.namespace,
                priority=0,
                began=_NO,
            )
        record = Record(
            id=self.latest,
            controller=self._scheduler,
            process=self._process,
            key=queued.key,
            tenant=queued.key.namespace,
            priority=queued.priority,
            uid=queued.uid,
            generation=view.metadata.generation,
            fence=fence.revision,
            fenced=self._fenced,
            wakes=((queued.woken_by, "" if queued.cause is None else queued.cause.writer),),
            attempt=queued.attempts,
            place=self.count,
            waited_s=began_s - queued.since_s,
            delayed_s=queued.since_s - queued.added_s,
            began=self._env.now(),
        )
        record.marks = self._marks_at(began_s)
        record.scheduling = SchedulingAttempt(
            pod_revision=queued.pod.revision,
            local=self._cluster_state.local_state(queued.priority),
            cause=queued.cause,
        )
        return record

    def _marks_at(self, now_s: float) -> tuple[CacheMark, ...]:
        """The marks of the caches. Attempts of one moment share them, if no cache has moved between."""
        caches = self._cluster_state.caches
        places = [each.received.place for each in caches.values()]
        if now_s - self._marked_s >= _MOMENT_S or places != self._marked_places:
            self._marked_s, self._marked_places = now_s, places
            self._marks = marks_of(caches.values(), now_s)
        return self._marks

    def will_be_kept(self, record: Record) -> bool:
        """Whether a rule keeps the record however the bind ends. A record kept only because its bind failed has no
        account of nodes, and can still be run again."""
        return self._recorder is not None and bool(self._recorder.why_keep(record) or _is_canary(record))

    def decided(self, record: Record, decision: NodeDecision) -> None:
        attempt = record.scheduling
        if attempt is not None:
            attempt.draw, attempt.excluded = decision.draw, tuple(sorted(decision.inputs.excluded))
            attempt.choice = choice_of(decision)

    def reserved(self, record: Record, node: str) -> None:
        """There is nothing to decide: a reservation holds room for the pod."""
        if record.scheduling is not None:
            record.scheduling.reserved_node = node

    def nominated(self, record: Record, node: str, victims: Iterable[Object]) -> None:
        """Pods on `node` are being preempted for this one."""
        if record.scheduling is not None:
            record.scheduling.nominated_node = node
            record.scheduling.victims = tuple([str(pod.key) for pod in victims])

    def explained(self, record: Record, explanation: Explanation) -> None:
        """Record the first failing filter of every node, one byte each, and the near miss."""
        if record.scheduling is not None:
            record.scheduling.account = account_of(explanation)

    def bound(
        self, record: Record, request: Binding, reply: Written | None, error: OperatingError | None, took_s: float
    ) -> None:
        """Record the outcome of the bind."""
        if self._recorder is None:
            return
        record.result = "await change" if error is None else "failed"
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        intent = {"node": request.node, "nodeUid": request.node_uid, "decidedOn": request.decided_on}
        self._called(record, "bind", request.pod, intent, f"uid {request.pod_uid}", reply, error, took_s)

    def reserved_chunk(
        self, record: Record, chunk: GangChunk, reply: Written | None, error: OperatingError | None, took_s: float
    ) -> None:
        """Record the outcome of reserving for some members of a gang, in the record of the first member."""
        if self._recorder is None:
            return
        key = Key(RESERVATION_KIND, chunk.namespace, chunk.gang)
        intent = {"places": {each.pod: each.node for each in chunk.places}, "commit": chunk.commit}
        self._called(record, "reserve", key, intent, "", reply, error, took_s)

    def begin_release(self, gang: Object, fence: Fence) -> Record:
        """A record of its own for the deletion of a gang record: the attempts of the members have ended."""
        self.count += 1
        recorded = self._recorder is not None
        return Record(
            id=self.latest,
            controller=self._scheduler,
            process=self._process,
            key=gang.key,
            tenant=gang.key.namespace,
            priority=0,
            uid=gang.uid,
            generation=gang.metadata.generation,
            fence=fence.revision,
            fenced=self._fenced,
            place=self.count,
            began=self._env.now() if recorded else _NO,
            marks=marks_of(self._cluster_state.caches.values(), self._env.monotonic()) if recorded else (),
            scheduling=SchedulingAttempt() if recorded else None,
        )

    def released(self, record: Record, reply: Written | None, error: OperatingError | None, took_s: float) -> None:
        """Record the outcome of deleting a gang record."""
        if self._recorder is None:
            return
        record.result = "await change" if error is None else "failed"
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        self._called(record, "delete", record.key, {}, f"uid {record.uid}", reply, error, took_s)
        self.end(record)

    def _called(
        self,
        record: Record,
        verb: str,
        key: Key,
        intent: Mapping[str, Any],
        check: str,
        reply: Written | None,
        error: OperatingError | None,
        took_s: float,
    ) -> None:
        record.steps.append(
            Call(
                verb,
                key,
                encode_intent(intent),
                check,
                f"{record.id}#1",
                max(0.0, (self._env.now() - record.began).total_seconds() - took_s),
                took_s,
                type(error).__name__ if error is not None else "removed" if reply and reply.removed else "done",
                NO_REVISION if reply is None else reply.object.revision,
                None if error is None else to_status(error),
                () if reply is None else (reply.object,),
                unanswered_s=reply.unanswered_s if reply is not None else 0.0,
            )
        )

    def read_after(self, record: Record, key: Key, found: Object | None, took_s: float) -> None:
        """Record the read that settled a bind whose reply was lost."""
        if self._recorder is None:
            return
        bind = record.calls[-1]
        revision, outcome = (found.revision, "read") if found is not None else (NO_REVISION, "absent")
        reply = () if found is None else (found,)
        record.steps.append(
            Call(
                "get",
                key,
                encode_intent(None),
                "",
                "",
                bind.began_s + bind.took_s,
                took_s,
                outcome,
                revision,
                reply=reply,
            )
        )

    def abandoned(self, record: Record, why: str, error: OperatingError | None = None) -> None:
        """A node was chosen, but no bind was sent: the gang could not reserve room."""
        record.result, record.reason = "failed", why
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        self.end(record)

    def end(self, record: Record, *, unblocked_by: Sequence[str] = ()) -> None:
        """The attempt is over: count it, and keep its record if a rule requires it."""
        recorder = self._recorder
        if recorder is None:
            return
        if record.scheduling is not None:
            record.scheduling.unblocked_by = tuple(unblocked_by)
        log_decision(self._env.log, record)
        record.kept = recorder.why_keep(record) or ("policy: canary" if _is_canary(record) else "")
        recorder.take(record, self._pin, judged=True)

    def _pin_marks(self, record: Record) -> Sequence[Callable[[], None]]:
        return pin_all(self._cluster_state.caches.values(), record.marks)


def _is_canary(record: Record) -> bool:
    attempt = record.scheduling
    return attempt is not None and attempt.choice is not None and attempt.choice.canary


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
