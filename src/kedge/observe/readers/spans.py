"""Decisions as OpenTelemetry spans, with the timestamps of their records. Pure.

A decision is a trace of its own: its root span has one child for each request. Causes are links to the decisions that
wrote the versions which woke it or which it read. Ids are digests of decision ids, so a link to a decision of another
process needs no lookup. `otlp` encodes spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from kedge.keys import Key, Revision
from kedge.observe.records import CacheRead, Call, Decision

LINKS_MAX: Final = 128
"""Links of one span, as OpenTelemetry's default limit has it; the others are counted."""
WOKE, READ = "woke", "read"
"""Values of `kedge.link`: the version of the other decision woke this one, or was read by it."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

AttributeValue: TypeAlias = str | int | float | bool
WriterOf: TypeAlias = Callable[[Key, Revision], str | None]
"""The id of the decision that wrote a version; None if it is not known."""


class SpanLink(NamedTuple):
    """A reference to the root span of another decision."""

    trace_id: bytes
    span_id: bytes
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span. Times are nanoseconds since the epoch."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes = b""
    """Empty for the root of a trace."""
    name: str
    is_call: bool = False
    """A request to the API server, and not the decision itself."""
    start_ns: int
    end_ns: int
    service: str
    """The controller or scheduler."""
    process: str
    """The run of its process."""
    attributes: Mapping[str, AttributeValue]
    links: tuple[SpanLink, ...] = ()
    links_dropped: int = 0
    error: str = ""
    """The error message; empty if it succeeded."""


def trace_id_of(decision_id: str) -> bytes:
    return blake2b(decision_id.encode(), digest_size=16, person=b"kedge trace").digest()


def span_id_of(name: str) -> bytes:
    """The id of the root span of a decision by its id, or of a request by its operation id."""
    return blake2b(name.encode(), digest_size=8, person=b"kedge span").digest()


def _no_writer(_key: Key, _revision: Revision) -> None:
    return None


def spans_of(
    decision: Decision, writer_of: WriterOf = _no_writer, cause: tuple[Key, Revision] | None = None
) -> list[Span]:
    """The root span of a decision, then one span for each of its requests.

    `cause` is the version that woke it, if a reader of more records than this one has found it.
    """
    trace_id, root_id = trace_id_of(decision.id), span_id_of(decision.id)
    start_ns = _ns(decision.began)
    links, dropped = _links(decision, writer_of, cause)
    made = [
        Span(
            trace_id=trace_id,
            span_id=root_id,
            name=f"{decision.controller} {_short(decision.key.kind)}",
            start_ns=start_ns,
            end_ns=start_ns + _duration_ns(decision.took_s),
            service=decision.controller,
            process=decision.process,
            attributes=_attributes(decision),
            links=links,
            links_dropped=dropped,
            error=_error_of(decision),
        )
    ]
    for call in decision.calls:
        began_ns = start_ns + _duration_ns(call.began_s)
        made.append(
            Span(
                trace_id=trace_id,
                span_id=span_id_of(call.operation),
                parent_id=root_id,
                name=f"{call.verb} {_short(_call_key(call).kind)}".rstrip(),
                is_call=True,
                start_ns=began_ns,
                end_ns=began_ns + _duration_ns(call.took_s),
                service=decision.controller,
                process=decision.process,
                attributes=_call_attributes(call, decision),
                error="" if call.error is None else str(call.error.get("message") or call.outcome),
            )
        )
    return made


# -- links -----------------------------------------------------------------------------------------


def _links(
    decision: Decision, writer_of: WriterOf, cause: tuple[Key, Revision] | None
) -> tuple[tuple[SpanLink, ...], int]:
    found: dict[str, tuple[str, Key, Revision]] = {}
    for relation, key, revision, writer in _versions(decision, writer_of, cause):
        if writer and writer != decision.id:
            known = found.get(writer)
            if known is None or (known[0] == READ and relation == WOKE):
                found[writer] = relation, key, revision
    ordered = sorted(found.items(), key=lambda each: each[1][0] != WOKE)  # stable: causes first
    links = tuple(
        SpanLink(
            trace_id_of(writer),
            span_id_of(writer),
            {"kedge.link": relation, "kedge.decision": writer, "kedge.key": str(key), "kedge.revision": revision},
        )
        for writer, (relation, key, revision) in ordered[:LINKS_MAX]
    )
    return links, len(found) - len(links)


def _versions(
    decision: Decision, writer_of: WriterOf, cause: tuple[Key, Revision] | None
) -> Iterator[tuple[str, Key, Revision, str | None]]:
    """Each version that woke the decision or that it read, with the decision that wrote it."""
    attempt = decision.scheduling
    if cause is None and attempt is not None and attempt.cause is not None:
        cause = attempt.cause.key, attempt.cause.revision
    if cause is not None and cause[1]:
        yield WOKE, *cause, writer_of(*cause)
    if attempt is not None and attempt.pod_revision:
        yield READ, decision.key, attempt.pod_revision, writer_of(decision.key, attempt.pod_revision)
    woken_by = {what for what, _ in decision.wakes}
    for step in decision.steps:
        if type(step) is CacheRead:
            for each in step.objects:
                relation = WOKE if cause is None and str(each.key) in woken_by else READ
                yield relation, each.key, each.revision, each.origin.decision


# -- attributes ------------------------------------------------------------------------------------


def _attributes(decision: Decision) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "kedge.decision": decision.id,
        "kedge.controller": decision.controller,
        "kedge.key": str(decision.key),
        "kedge.uid": decision.uid,
        "kedge.generation": decision.generation,
        "kedge.tenant": decision.tenant,
        "kedge.priority": decision.priority,
        "kedge.attempt": decision.attempt,
        "kedge.outcome": decision.result,
        "kedge.condition": decision.condition,
        "kedge.reason": decision.reason,
        "kedge.waited_s": decision.waited_s,
        "kedge.delayed_s": decision.delayed_s,
        "kedge.kept": decision.kept,
        "kedge.woken_by": ", ".join(dict.fromkeys(what for what, _ in decision.wakes)),
        "kedge.cache_age_s": max((mark.age_s for mark in decision.marks), default=0.0),
    }
    attempt = decision.scheduling
    if attempt is not None:
        found["kedge.node"] = attempt.node
        if attempt.choice is not None:
            found["kedge.nodes"] = attempt.choice.nodes
            found["kedge.feasible"] = attempt.choice.feasible
            found["kedge.policy"] = attempt.choice.policy
            found["kedge.policy_version"] = attempt.choice.policy_version
        if attempt.account is not None:
            found["kedge.blockers"] = ", ".join(f"{what}: {count}" for what, count in attempt.account.counts.items())
    return {name: value for name, value in found.items() if value != ""}


def _call_attributes(call: Call, decision: Decision) -> dict[str, AttributeValue]:
    key = _call_key(call)
    found: dict[str, AttributeValue] = {
        "kedge.decision": decision.id,
        "kedge.operation": call.operation,
        "kedge.verb": call.verb,
        "kedge.key": str(key) if key.name else "",
        "kedge.check": call.check,
        "kedge.outcome": call.outcome,
        "kedge.reason": str(call.error.get("reason") or "") if call.error is not None else "",
        "kedge.unanswered_s": call.unanswered_s,
    }
    if call.revision:
        found["kedge.revision"] = call.revision
    return {name: value for name, value in found.items() if value != ""}


def _call_key(call: Call) -> Key:
    """The object of a request; without a name where the server generates it and the reply is missing."""
    if call.key is not None:
        return call.key
    return call.reply[0].key if call.reply else Key("", "", "")


def _error_of(decision: Decision) -> str:
    if decision.error:
        return decision.error
    return decision.reason or decision.result if decision.result in ("failed", "terminal") else ""


def _short(kind: str) -> str:
    return kind.partition(".")[0]


def _ns(at: datetime) -> int:
    since = at - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def _duration_ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
