"""The audit log of an API server: a policy of levels, entries, files that rotate, and a reader."""

from kedge.server.audit.auditor import OK, AuditedCall, Auditor
from kedge.server.audit.events import AuditEvent, AuditGap, encode_event, encode_gap
from kedge.server.audit.log import AuditLog
from kedge.server.audit.policy import STARTED, WRITES_POLICY, AuditPolicy, parse_policy
from kedge.server.audit.reader import AuditQuery, AuditReader

__all__ = [
    "OK",
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
    "encode_event",
    "encode_gap",
    "parse_policy",
]
