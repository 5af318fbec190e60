"""Entries of the audit log: lines of JSON in the form of Kubernetes' audit events, with kedge's facts as annotations.

Pure data, and how it is encoded. `auditor` makes entries, `reader` reads them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from kedge.api.access import Caller
from kedge.api.wellknown import KEDGE_API_VERSION
from kedge.caches import weighed

GAP_KIND: Final = "AuditGap"
NO_BODY: Final = msgspec.Raw()
"""In place of a body that an entry does not have."""


class AuditUser(msgspec.Struct, frozen=True, omit_defaults=True):
    username: str
    groups: tuple[str, ...] = ()
    uid: str = ""


class AuditedObject(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    resource: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class ResponseStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    code: int
    reason: str = ""
    """The name of an error; empty for a request that was done."""
    message: str = ""


_NAMES: Final = {
    "api_version": "apiVersion",
    "audit_id": "auditID",
    "request_uri": "requestURI",
    "impersonated_user": "impersonatedUser",
    "source_ips": "sourceIPs",
    "user_agent": "userAgent",
    "object_ref": "objectRef",
    "response_status": "responseStatus",
    "request_object": "requestObject",
    "response_object": "responseObject",
    "received": "requestReceivedTimestamp",
    "at": "stageTimestamp",
}


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename=_NAMES):
    """One stage of one request."""

    kind: str
    api_version: str
    level: str
    audit_id: str
    """The same in both entries of a long request."""
    stage: str
    request_uri: str = ""
    """Empty for a component in the process of the server: it sends no URI."""
    verb: str
    user: AuditUser
    """The user that authentication established."""
    impersonated_user: AuditUser | None = None
    """The user that it acts as; None if it acts for itself."""
    source_ips: tuple[str, ...] = ()
    user_agent: str = ""
    object_ref: AuditedObject | None = None
    """None for a path that is no resource."""
    response_status: ResponseStatus | None = None
    request_object: msgspec.Raw = NO_BODY
    response_object: msgspec.Raw = NO_BODY
    received: datetime
    at: datetime
    annotations: dict[str, str] = {}


class AuditGap(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """Entries that were dropped before this place."""

    kind: str
    api_version: str
    dropped: int
    at: datetime


_encoder: Final = msgspec.json.Encoder()


def encode_event(event: AuditEvent) -> bytes:
    return _encoder.encode(event) + b"\n"


def encode_gap(dropped: int, at: datetime) -> bytes:
    return _encoder.encode(AuditGap(kind=GAP_KIND, api_version=KEDGE_API_VERSION, dropped=dropped, at=at)) + b"\n"


@weighed(entries=1024, bytes_max=4 << 20)
def user_of(caller: Caller) -> AuditUser:
    return AuditUser(caller.user, caller.groups, caller.uid)
