"""The last change of an object by a person, and the last refused request of one, as lines of evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.keys import Key
from kedge.observe.readers.audited_requests import AuditedRequest, last_change, last_refusal
from kedge.observe.readers.why.answer import EvidenceLine
from kedge.observe.readers.why.evidence import ClusterEvidence


def people_lines(key: Key, evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """A refusal is shown if it is newer than the change: an older one has been answered."""
    change, refusal = last_change(evidence.audited, key), last_refusal(evidence.audited, key)
    if change is not None:
        yield EvidenceLine("changed by", f"{_person(change)}: {_what(change)} at revision {change.revision}")
    if refusal is not None and (change is None or refusal.at > change.at):
        why = f": {refusal.message}" if refusal.message else ""
        yield EvidenceLine("refused", f"{_person(refusal)}: {_what(refusal)}: {refusal.code} {refusal.reason}{why}")


def _person(request: AuditedRequest) -> str:
    return f"{request.shown_user} at {request.at:%Y-%m-%d %H:%M:%S}"


def _what(request: AuditedRequest) -> str:
    return f"{request.verb} {request.subresource}".rstrip()
