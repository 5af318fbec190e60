"""The audit log of an API server: a policy of levels, entries, files that rotate, and a reader."""

from kedge.server.audit.auditor import AuditedCall, Auditor, done_code
from kedge.server.audit.events import AuditEvent, AuditGap, encode_event, encode_gap
from kedge.server.audit.log import AuditLog
from kedge.server.audit.policy import READ_VERBS, STARTED, WRITES_POLICY, AuditPolicy, parse_policy
from kedge.server.audit.reader import AuditQuery, AuditReader

__all__ = [
    "READ_VERBS",
    "STARTED",
    "WRITES_POLICY",
    "AuditEvent",
    "AuditGap",
    "AuditLog",
    "AuditPolicy",
    "AuditQuery",
    "AuditReader",
    "AuditedCall",
    "Auditor",
    "done_code",
    "encode_event",
    "encode_gap",
    "parse_policy",
]
