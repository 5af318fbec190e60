"""The facts that an audit record needs, from a request and its reply: the one place that derives them. Pure.

`server.http` logs them with each request. A reader joins them with decision records by the decision id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kedge.api.intents import intent_of
from kedge.api.requests import Delete, DeleteCollection, Evict, Patch, Request, Update, Written
from kedge.errors import OperatingError, to_status
from kedge.keys import NO_REVISION, Key, Revision


class AuditFacts(NamedTuple):
    """One request: the user and the decision behind it, its object, and its outcome."""

    user: str
    """As authentication established it; empty in process."""
    decision: str
    operation: str
    verb: str
    key: Key
    """The object; without a name for a collection, or if the server generates it and refused the request."""
    outcome: str
    """`done`, or the name of an error."""
    code: int
    revision_before: Revision
    """The version that the request replaced; of a refused one, the version that it named. Else 0."""
    revision: Revision
    """The version that it wrote or read; 0 if it failed."""
    removed: bool = False
    objects: int = 0
    """Objects that a `deletecollection` deleted or marked, also if it failed after that; `deleted_objects` has them."""

    def fields(self) -> dict[str, Any]:
        """For a log line, without what is empty."""
        found = {**self._asdict(), "key": str(self.key) if self.key.name else self.key.kind}
        return {name: value for name, value in found.items() if value not in ("", 0, False)}


def audit_facts(request: Request[Any], reply: Any, error: OperatingError | None = None) -> AuditFacts:
    """`reply` is None if the request failed with `error`."""
    origin, options = request.options.origin, request.options
    written = reply if isinstance(reply, Written) else None
    found = written.object if written is not None else reply
    return AuditFacts(
        user=options.caller or origin.caller,
        decision=origin.decision,
        operation=origin.operation,
        verb=intent_of(request).verb,
        key=getattr(found, "key", request.target),
        outcome="done" if error is None else type(error).__name__,
        code=200 if error is None else int(to_status(error)["code"]),
        revision_before=(written.replaced if written is not None else NO_REVISION) or _named(request),
        revision=getattr(found, "revision", NO_REVISION),
        removed=written is not None and written.removed,
        objects=len(deleted_objects(request, reply, error)),
    )


class DeletedObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """One object of a `deletecollection`, as the audit log has it."""

    name: str
    namespace: str = ""
    before: Revision = NO_REVISION
    """The version that was replaced or removed."""
    revision: Revision = NO_REVISION
    """The version after it."""
    removed: bool = False
    """Whether it is gone; false while it waits for its grace period or its finalizers."""


def deleted_objects(request: Request[Any], reply: Any, error: OperatingError | None = None) -> Sequence[Written]:
    """The objects that a `deletecollection` wrote, also those before its failure. Empty for other requests."""
    if not isinstance(request, DeleteCollection):
        return ()
    return reply or () if error is None else error.written


def as_deleted(written: Written) -> DeletedObject:
    key, after = written.object.key, written.object.revision
    return DeletedObject(key.name, key.namespace, written.replaced, after, written.removed)


class _BodyMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _BodyVersion(msgspec.Struct, frozen=True):
    """The version in a body, without the rest of it."""

    metadata: _BodyMetadata = _BodyMetadata()


_decoder: Final = msgspec.json.Decoder(_BodyVersion)
_DIGITS_MAX: Final = 19
"""A longer number is no revision. Python converts no number of thousands of digits."""


def _named(request: Request[Any]) -> Revision:
    match request:
        case Delete() | Evict():
            return request.options.revision
        case Update() | Patch():
            try:
                body = request.body
                found = _decoder.decode(body) if isinstance(body, bytes) else msgspec.convert(body, _BodyVersion)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return NO_REVISION  # a JSON patch, or a body that the service refuses
            named = found.metadata.resource_version
            return int(named) if named.isdecimal() and len(named) <= _DIGITS_MAX else NO_REVISION
        case _:
            return NO_REVISION
