"""The join of an audit log with decision logs: each write of a component with the call that a decision recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.kit.audit import entries

from kedge.api.kinds import KINDS
from kedge.api.wellknown import AUDIT_OUTCOME, AUDIT_REVISION, DECISION_ANNOTATION
from kedge.cli.controller_identities import USER_PREFIX
from kedge.cli.live import logged_records
from kedge.errors import Forbidden
from kedge.keys import AGENT_PREFIX, NODE_USER_PREFIX, Key
from kedge.observe.records import Call, Decision
from kedge.server.audit import READ_VERBS, AuditEvent

KEEP_ALL: Final = {"decisions_sample_every": 1, "decisions_quiet_per_s": 1e6, "audit_sync_s": 0.2}
"""Limits with which every decision is kept, however many there are."""
WROTE: Final = frozenset({"done", "removed"})
FAILED: Final = 400


class NoDecision(NamedTuple):
    """Writes of components that no decision is behind."""

    resource: str
    users: tuple[str, ...]
    """Prefixes of the users that make them."""
    why: str


EVENTS: Final = "events"
"""An Event is written after its decision has ended: it carries the id, and is no call of the record."""
NO_DECISION: Final = (
    NoDecision("leases", ("",), "heartbeats and elections: they decide nothing about an object"),
    NoDecision("nodes", (NODE_USER_PREFIX,), "an agent registers and reports its own node"),
    NoDecision("namespaces", ("system:kedge-server", "system:kedge-up"), "objects that a server makes when it starts"),
    NoDecision("certificatesigningrequests", (NODE_USER_PREFIX,), "an agent requests its own certificates"),
    NoDecision("serviceaccounts/token", (NODE_USER_PREFIX,), "a token for a volume: no object is written"),
)
SCHEDULER: Final = "default-scheduler"


class Join(NamedTuple):
    """A run: writes that join, and a line for each that does not."""

    joined: int
    unjoined: list[str]
    """Writes of components in the audit log that are in no decision of that component."""
    unlogged: list[str]
    """Writes of decisions that are not in the audit log."""


def join(state: Path, person: str) -> Join:
    """The audit log and every decision log below the state folder of a cluster that has ended.

    Every user but `person` is a component.
    """
    records = logged_records(state)
    assert not records.undecoded, records.undecoded
    return join_entries(writes_in(entries(state / "audit")), records.decisions, person)


def writes_in(events: Iterable[AuditEvent]) -> list[AuditEvent]:
    """The writes of objects. A log of all requests has reads too, and requests for paths that are no resources."""
    return [each for each in events if each.object_ref is not None and each.verb not in READ_VERBS]


def join_entries(events: Sequence[AuditEvent], decisions: Iterable[Decision], person: str) -> Join:
    calls: dict[str, list[Call]] = defaultdict(list)
    controllers: dict[str, str] = {}
    for decision in decisions:
        controllers[decision.id] = decision.controller
        calls[decision.part_of or decision.id] += decision.calls
    logged = {(decision_of(each), key_of(each), revision_of(each)) for each in events}
    joined, unjoined = 0, []
    for event in (each for each in events if each.user.username != person):
        found = decision_of(event)
        if not found:
            why = "" if _needs_none(event) else "it carries no decision"
        elif found not in controllers:
            why = "its decision is in no log"
        elif controllers[found] != controller_of(event):
            why = f"its decision is of {controllers[found]}"
        else:
            why = "" if is_call(event, calls[found]) else "its decision has no such call"
            joined += not why
        if why:
            unjoined.append(f"{line_of(event)}: {why}")
    unlogged = [
        f"{decision_id}: {call.verb} {call.key} at revision {call.revision}, {call.outcome}"
        for decision_id, made in calls.items()
        for call in made
        if call.outcome in WROTE and (decision_id, call.key, call.revision) not in logged
    ]
    return Join(joined, unjoined, unlogged)


def _needs_none(event: AuditEvent) -> bool:
    return any(resource_of(event) == each.resource and user_of(event).startswith(each.users) for each in NO_DECISION)


def is_call(event: AuditEvent, calls: Sequence[Call]) -> bool:
    """The same object, and the same version after it; of a write that failed, the same error. One that was forbidden
    is no call of a component: it has every right that it needs."""
    if event.annotations[AUDIT_OUTCOME] == Forbidden.__name__:
        return False
    if resource_of(event) == EVENTS:
        return True
    key, revision = key_of(event), revision_of(event)
    if event.response_status is None or event.response_status.code >= FAILED:
        return any(call.key == key and call.outcome == event.annotations[AUDIT_OUTCOME] for call in calls)
    return any(call.key == key and call.revision == revision for call in calls)


def controller_of(event: AuditEvent) -> str:
    """The name in the decisions of a component."""
    user = user_of(event)
    if user.startswith(USER_PREFIX):
        return user.removeprefix(USER_PREFIX)
    return AGENT_PREFIX + user.removeprefix(NODE_USER_PREFIX) if user.startswith(NODE_USER_PREFIX) else SCHEDULER


def user_of(event: AuditEvent) -> str:
    """The user that the request acts as."""
    return (event.impersonated_user or event.user).username


def resource_of(event: AuditEvent) -> str:
    ref = event.object_ref
    assert ref is not None
    return f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource


def key_of(event: AuditEvent) -> Key:
    ref = event.object_ref
    assert ref is not None
    return Key(KINDS.of_plural(ref.api_group, ref.api_version, ref.resource).key_kind, ref.namespace, ref.name)


def revision_of(event: AuditEvent) -> int:
    return int(event.annotations.get(AUDIT_REVISION, "0"))


def decision_of(event: AuditEvent) -> str:
    return event.annotations.get(DECISION_ANNOTATION, "")


def line_of(event: AuditEvent) -> str:
    code = event.response_status.code if event.response_status is not None else "no code"
    about = f"{user_of(event)} {event.verb} {resource_of(event)} {key_of(event)}"
    return f"{about}, {code} at revision {revision_of(event)}, decision {decision_of(event) or 'none'}"
