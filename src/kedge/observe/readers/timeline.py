"""The timeline of a recording: commits, refusals and failed attempts between the events from outside. Pure.

It reads commits, decisions and outside events, and nothing else: a live cluster and a simulation give the same lines.
Commits carry the time of the store; a decision carries the time of its own process, whose clock may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import (
    DISRUPTION_BUDGET_KIND,
    FENCE_KIND,
    LEASE_KIND,
    NAMESPACE_KIND,
    NODE_KIND,
    OPERATION_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
)
from kedge.keys import NO_REVISION, NODE_USER_PREFIX, Key, Revision
from kedge.observe.readers.object_changes import QUOTA_KINDS, describe_change
from kedge.observe.readers.recording import Recording
from kedge.observe.records import (
    CUT_OFF,
    PROCESS_ENDED,
    RECORDING_ENDED,
    UNDER_WAY,
    AdmissionAct,
    CacheMark,
    Call,
    CommitRecord,
    Decision,
    PodAct,
    ReceivedPart,
    SchedulingAttempt,
    StoreState,
)

COMMITTED, REFUSED, FAILED, UNSCHEDULABLE, DECIDED, UNKNOWN, READ, RECEIVED, ACTED, REQUESTED = (
    "committed",
    "refused",
    "failed",
    "pending",
    "decided",
    "unknown",
    "read",
    "received",
    "acted",
    "requested",
)
"""Kinds of lines that come from records. A line of an outside event has the kind of the event."""
_FOLDED = frozenset({REFUSED, FAILED, UNSCHEDULABLE, ACTED})
_NOT_SHOWN = frozenset({FENCE_KIND, OPERATION_KIND})
_FAILURES = {"Refused": REFUSED, "Conflict": REFUSED, "Unavailable": FAILED, "OutcomeUnknown": UNKNOWN}
_READS = frozenset({"read", "absent"})
_BACKGROUND = frozenset({NAMESPACE_KIND, REPLICA_SET_KIND, DISRUPTION_BUDGET_KIND})
"""Kinds in the snapshot of a scheduler that seldom decide a placement."""
_LIST = "list"
"""The source of an entry of a received log."""
_NAMED_MAX = 3
"""Objects of one list that a line names."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line."""

    at: datetime
    kind: str
    text: str
    controller: str = ""
    """The controller or scheduler behind it; empty for the outside world and for writers that keep no records."""
    actor: str = ""
    """The controller, or the node whose agent wrote it, or `user`; empty if no record names it."""
    decision: str = ""
    revision: Revision = NO_REVISION
    more: str = ""
    """The generation and message of a condition."""
    inputs: tuple[CacheMark, ...] = ()
    """The caches that its decision read, with their revisions."""
    detail: bool = False
    """A short story leaves it out."""
    is_condition: bool = False
    count: int = 1
    """How many equal lines in a row it stands for: retries with the same outcome."""
    by_person: bool = False
    """The audit log shows that a person requested it."""

    @property
    def is_repeated(self) -> bool:
        """A decision that its own commit shows too, or that runs again at once."""
        return self.detail and self.kind != COMMITTED


def timeline(recording: Recording, *, since: datetime | None = None) -> list[TimelineEntry]:
    """Every line from `since` on, in order of time."""
    made = {each.id: each for each in recording.decisions}
    lines = [
        *(TimelineEntry(each.at, each.kind, each.text) for each in recording.outside),
        *_committed(recording.states, recording.commits, made),
        *_decided(recording.decisions),
        *_received(recording.received, recording.decisions),
    ]
    # A step or a verdict at the time of a commit follows from it.
    lines.sort(key=lambda each: (each.at, each.revision == NO_REVISION and not each.controller))
    return list(_folded(each for each in lines if since is None or each.at >= since))


# -- commits ---------------------------------------------------------------------------------------


def _committed(
    states: Iterable[StoreState], commits: Iterable[CommitRecord], made: Mapping[str, Decision]
) -> Iterator[TimelineEntry]:
    known: dict[Key, Object] = {}
    for state in states:
        known.update((each.key, each) for each in state.objects)
    removed = _removals(made.values())
    for commit in commits:
        before = {each.key: known.get(each.key) for each in commit.written}
        for new in sorted(commit.written, key=lambda each: each.key.kind in QUOTA_KINDS):
            if new.key.kind in _NOT_SHOWN:
                continue
            old = known.get(new.key)
            known[new.key] = new
            # A quota or a reservation changes in the commit of the pod that it pays for, and has the actor of that.
            pod = next((each for each in commit.written if each.key.kind == POD_KIND), None)
            cause = (pod.key, before.get(pod.key), pod) if new.key.kind in QUOTA_KINDS and pod is not None else None
            yield from _lines(commit, new.key, old, new, made, new.origin.decision, cause)
        for key in commit.deleted:
            if (old := known.pop(key, None)) is not None:
                # A bind deletes the reservation that it uses: the versions of the same commit name the decision.
                beside = next((each.origin.decision for each in commit.written if each.origin.decision), "")
                lines = _lines(commit, key, old, None, made, removed.get((key, commit.revision), beside))
                use = _use(old, commit, before) if key.kind == RESERVATION_KIND else ""
                yield from (replace(each, text=each.text + use) for each in lines)


def _use(reservation: Object, commit: CommitRecord, before: Mapping[Key, Object | None]) -> str:
    """The bind that a reservation was for, if its commit is the one that deletes the reservation."""
    spec = reservation.edit().get("spec", {})
    for pod in commit.written:
        was = before[pod.key]
        if pod.key.kind == POD_KIND and pod.key.name == (spec.get("pod") or {}).get("name"):
            node, earlier = (each.as_view(PodView).spec.node_name if each else "" for each in (pod, was))
            if node == spec.get("nodeName") and node != earlier:
                return f": used by the bind of {pod.key.name}"
    return ""


def _removals(decisions: Iterable[Decision]) -> dict[tuple[Key, Revision], str]:
    """The decision behind each deletion. A deletion leaves no version that could name it."""
    return {
        (call.key, call.revision): decision.id
        for decision in decisions
        for call in decision.calls
        if call.outcome == "removed" and call.key is not None
    }


def _lines(
    commit: CommitRecord,
    key: Key,
    old: Object | None,
    new: Object | None,
    made: Mapping[str, Decision],
    decision: str,
    cause: tuple[Key, Object | None, Object | None] | None = None,
) -> Iterator[TimelineEntry]:
    controller = controller_of(decision)
    caller = "" if new is None else new.origin.caller.removeprefix(NODE_USER_PREFIX)
    inputs = _inputs(made[decision]) if decision in made else ()
    for change in describe_change(key, old, new):
        yield TimelineEntry(
            commit.at,
            COMMITTED,
            change.text,
            controller=controller,
            actor=controller or caller or _writer(*(cause or (key, old, new))),
            decision=decision,
            revision=commit.revision,
            more=change.more,
            inputs=inputs,
            detail=change.detail,
            is_condition=change.is_condition,
        )


def controller_of(decision: str) -> str:
    """The controller that made a decision: a decision id begins with its name."""
    return decision.partition(":")[0]


def _writer(key: Key, old: Object | None, new: Object | None) -> str:
    """The writer of a version that no decision led to: a node's agent, the holder of a lease, or a user."""
    found = new if new is not None else old
    assert found is not None
    match key.kind:
        case _ if key.kind == LEASE_KIND:
            return str(found.view.spec.holder_identity or "").rpartition("-")[0]
        case _ if key.kind == NODE_KIND:
            return key.name if new is not None and _differs(old, new, "status") else "user"
        case _ if key.kind == POD_KIND:
            node = found.as_view(PodView).spec.node_name
            return node if node and (new is None or _differs(old, new, "status")) else "user"
    return "" if new is None else "user"


def _differs(old: Object | None, new: Object, part: str) -> bool:
    return old is None or old.edit().get(part) != new.edit().get(part)


# -- decisions -------------------------------------------------------------------------------------


def _inputs(decision: Decision) -> tuple[CacheMark, ...]:
    """The caches that it read. A scheduling attempt reads all that it follows, through its snapshot."""
    if decision.scheduling is not None:
        return tuple(each for each in decision.marks if each.cache.partition("[")[0] not in _BACKGROUND)
    read = {each.cache for each in decision.reads}
    return tuple(each for each in decision.marks if each.cache in read)


def _decided(decisions: Iterable[Decision]) -> Iterator[TimelineEntry]:
    for decision in decisions:
        yield from _attempted(decision)
        for step in decision.steps:
            if isinstance(step, PodAct):
                yield _by(decision, decision.began, ACTED, f"{decision.key}: {step}")
            elif isinstance(step, AdmissionAct):
                refused_or_done = REFUSED if decision.error else ACTED
                yield _by(decision, decision.began, refused_or_done, f"{step} ({decision.key})")
        unknown = False
        for call in decision.calls:
            if call.outcome == UNDER_WAY:
                yield _unanswered(decision, call)
            elif kind := _FAILURES.get(call.outcome):
                message = (call.error or {}).get("message", call.outcome)
                yield _called(decision, call, kind, f"{call.verb} {call.key or decision.key}: {message}")
                unknown = kind == UNKNOWN
            elif unknown and call.outcome in _READS:
                yield _called(decision, call, READ, _finding(call))
            elif call.unanswered_s:
                lost = f"{call.verb} {call.key or decision.key}: no answer within {call.unanswered_s:.1f}s"
                at = decision.began + timedelta(seconds=call.began_s + call.unanswered_s)
                yield _by(decision, at, UNKNOWN, lost)
                yield _called(decision, call, READ, _finding(call))


def _called(decision: Decision, call: Call, kind: str, text: str) -> TimelineEntry:
    at = decision.began + timedelta(seconds=call.began_s + call.took_s)
    # A conflict is routine: the object moved on, and the key runs again.
    return _by(decision, at, kind, text, revision=call.revision, detail=call.outcome == "Conflict")


def _unanswered(decision: Decision, call: Call) -> TimelineEntry:
    """A request at the time when it was sent. One that only the end of the recording cut off is no news."""
    text = f"{call.verb} {call.key or decision.key} was sent; {decision.cut_off or PROCESS_ENDED} before the reply"
    at = decision.began + timedelta(seconds=call.began_s)
    return _by(decision, at, CUT_OFF, text, detail=decision.cut_off == RECORDING_ENDED)


def _finding(call: Call) -> str:
    """The outcome of a write with a lost reply, as the read after it found it."""
    found = call.reply[0] if call.reply else None
    if found is None:
        return f"{call.key} after the lost reply: it does not exist"
    node = found.as_view(PodView).spec.node_name if found.key.kind == POD_KIND else ""
    state = (f"bound to {node}" if node else "not bound") if found.key.kind == POD_KIND else "it exists"
    return f"{call.key} after the lost reply: {state}, at revision {found.revision}"


def _attempted(decision: Decision) -> Iterator[TimelineEntry]:
    """The choice of a scheduling attempt, unless its commit shows it."""
    attempt = decision.scheduling
    if attempt is None:
        return
    if attempt.choice is not None and attempt.choice.node is None:
        text = f"no node for {decision.key}: {decision.reason}"
        yield _by(decision, decision.began, UNSCHEDULABLE, text)
    elif attempt.node:
        done = any(call.outcome == "done" for call in decision.calls)
        yield _by(decision, decision.began, DECIDED, f"{_choice(attempt)} for {decision.key}", detail=done)


def _choice(attempt: SchedulingAttempt) -> str:
    choice = attempt.choice
    if attempt.reserved_node or choice is None:
        return f"{attempt.reserved_node} is reserved"
    policy = f" by policy {choice.policy_version}" if choice.policy else ""
    return f"chose {choice.node} of {choice.feasible} feasible nodes{policy}"


def _by(
    decision: Decision,
    at: datetime,
    kind: str,
    text: str,
    *,
    revision: Revision = NO_REVISION,
    detail: bool = False,
) -> TimelineEntry:
    return TimelineEntry(
        at,
        kind,
        f"{decision.controller}: {text}",
        controller=decision.controller,
        actor=decision.controller,
        decision=decision.id,
        revision=revision,
        inputs=_inputs(decision),
        detail=detail,
    )


# -- caches ----------------------------------------------------------------------------------------


def _received(parts: Iterable[ReceivedPart], decisions: Sequence[Decision]) -> Iterator[TimelineEntry]:
    """Changes that a watch did not deliver and a list brought, at the first decision that could read them.

    A received log has no times.
    """
    for part in parts:
        missed = {
            each: [change.key for change in each.changes if change.missed]
            for each in part.entries
            if each.source == _LIST and any(change.missed for change in each.changes)
        }
        readers = sorted((each for each in decisions if each.process in part.deciders), key=lambda each: each.began)
        for entry, keys in missed.items():
            first = next((each for each in readers if _has_read(each, part.cache, entry.place)), None)
            if first is not None:
                names = ", ".join(map(str, keys[:_NAMED_MAX])) + (" and others" if len(keys) > _NAMED_MAX else "")
                text = f"{names} by a list at revision {entry.revision}: the watch had not delivered it"
                yield _by(first, first.began, RECEIVED, text, revision=entry.revision)


def _has_read(decision: Decision, cache: str, place: int) -> bool:
    return any(each.cache == cache and each.place >= place for each in decision.marks)


def _folded(lines: Iterable[TimelineEntry]) -> Iterator[TimelineEntry]:
    """One line for a run of equal ones, at the time of the first."""
    last: TimelineEntry | None = None
    for each in lines:
        if last is not None and (each.kind, each.text) == (last.kind, last.text) and each.kind in _FOLDED:
            last = replace(last, count=last.count + 1)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
