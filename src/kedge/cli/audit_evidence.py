"""The audit log of a state folder as evidence of `kedge why` and `kedge timeline`.

A missing log is no error: the views state that there is none, and go on with the decision logs.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from kedge.api.kinds import KINDS
from kedge.api.wellknown import AUDIT_REVISION, AUDIT_REVISION_BEFORE, DECISION_ANNOTATION
from kedge.cli.state_folder import AUDIT
from kedge.errors import NotFound
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.readers.audited_requests import AuditedRequest
from kedge.server.audit import READ_VERBS, STARTED, AuditEvent, AuditGap, AuditQuery, AuditReader

NO_LOG: Final = (
    "no audit log: refused requests are not known, and people's changes only from versions; `kedge server"
    " --audit-policy writes` keeps one"
)
_DRY_RUN: Final = "dryRun="


class AuditEvidence(NamedTuple):
    """Requests about some objects, oldest first, and the coverage of the log."""

    requests: tuple[AuditedRequest, ...]
    coverage: str


def audit_evidence(state: Path, keys: Collection[Key], *, changed: Collection[Key] = ()) -> AuditEvidence:
    """The writes and refused requests about `keys` in the audit log of a state folder, and people's changes of
    `changed`."""
    reader = AuditReader(state / AUDIT)
    found: list[AuditedRequest] = []
    dropped = 0
    names = frozenset(key.name for key in (*keys, *changed))
    try:
        since = reader.first_time()
        for each in reader.read(AuditQuery(names=names)):
            if isinstance(each, AuditGap):
                dropped += each.dropped
            elif (request := audited_request(each)) is not None:
                by_person = request.is_by_person and request.changed
                if request.key in keys or (by_person and request.key in changed):
                    found.append(request)
    except NotFound:
        since = None
    if since is None:
        return AuditEvidence((), NO_LOG)
    coverage = f"the audit log has requests since {since:%Y-%m-%d %H:%M:%S}"
    if dropped or reader.unreadable:
        coverage += f", without {dropped} that were dropped and {reader.unreadable} that cannot be read"
    return AuditEvidence(tuple(sorted(found, key=lambda each: each.at)), coverage)


def audited_request(event: AuditEvent) -> AuditedRequest | None:
    """The request of an entry; None for a read, a dry run, the start of a stream, or an object without a name."""
    ref, status, notes = event.object_ref, event.response_status, event.annotations
    if ref is None or status is None or not ref.name or event.verb in READ_VERBS or event.stage == STARTED:
        return None
    if _DRY_RUN in event.request_uri:
        return None
    try:
        kind = KINDS.of_plural(ref.api_group, ref.api_version, ref.resource)
    except NotFound:
        return None
    acting = event.impersonated_user
    return AuditedRequest(
        at=event.at,
        user=(acting or event.user).username,
        by=event.user.username if acting is not None else "",
        groups=(acting or event.user).groups,
        verb=event.verb,
        subresource=ref.subresource,
        key=Key(kind.key_kind, ref.namespace if kind.namespaced else "", ref.name),
        code=status.code,
        reason=status.reason,
        message=status.message,
        decision=notes.get(DECISION_ANNOTATION, ""),
        revision_before=_revision(notes.get(AUDIT_REVISION_BEFORE, "")),
        revision=_revision(notes.get(AUDIT_REVISION, "")),
    )


def _revision(text: str) -> Revision:
    return int(text) if text.isdecimal() else NO_REVISION
