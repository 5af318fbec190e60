"""The outcome of one request of a decision, as its record holds it. Pure; `runtime.context` sends the requests."""

from __future__ import annotations

from typing import Any, NamedTuple

from kedge.api.objects import Object
from kedge.api.requests import Written
from kedge.keys import NO_REVISION, Revision


class CallReply(NamedTuple):
    """The outcome of a request."""

    outcome: str
    objects: tuple[Object, ...] = ()
    revision: Revision = NO_REVISION
    certain: bool = True
    unanswered_s: float = 0.0


NO_REPLY = CallReply("failed")


def write_reply(written: Written, operation: str) -> CallReply:
    found = written.object
    ours = found.origin.operation == operation
    outcome = "removed" if written.removed else "done" if ours else "unchanged"
    return CallReply(outcome, (found,), found.revision, ours, written.unanswered_s)


def get_reply(found: Object | None, _: str) -> CallReply:
    return CallReply("absent") if found is None else CallReply("read", (found,), found.revision)


def list_reply(found: Any, _: str) -> CallReply:
    return CallReply("read", tuple(found.objects), found.revision)
