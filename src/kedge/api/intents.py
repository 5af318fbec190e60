"""How a decision record describes a request: its verb, its key, its body and the condition it was sent under.

`runtime.context` records an intent for each call; `runtime.recheck` compares it with that of the repeated run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kedge.api.requests import (
    Bind,
    ConfirmEnded,
    Create,
    Delete,
    DeleteCollection,
    DeleteOptions,
    Evict,
    List,
    ListOptions,
    OpenWatch,
    Patch,
    Request,
    Reserve,
    Update,
    WatchOptions,
)
from kedge.keys import Key


class Intent(NamedTuple):
    """A request before it is sent."""

    verb: str
    key: Key | None
    """None for a collection, and for a name that the server generates."""
    body: Any = None
    check: str = ""
    """The condition under which the request takes effect."""


def intent_of(request: Request[Any], *, ensures: bool = False) -> Intent:
    """Describe a request; with `ensures`, a create that `Client.ensure` makes. Pure."""
    match request:
        case List() | OpenWatch():
            return Intent(request.label, None, _selection(request.target.kind, request.options))
        case Create():
            verb, check = ("ensure", "absent or ours") if ensures else ("create", "absent")
            return Intent(verb, request.written_key, request.body, check)
        case Update() | Patch():
            return Intent(
                _verb(request.label, request.subresource), request.key, request.body, _body_check(request.body)
            )
        case Delete() | Evict():
            return Intent(request.label, request.key, _deletion(request.options), _delete_check(request.options))
        case DeleteCollection():
            return Intent("delete collection", None, _selection(request.target.kind, request.selection))
        case Bind(binding):
            body = {"node": binding.node, "nodeUid": binding.node_uid, "decidedOn": dict(binding.decided_on)}
            return Intent("bind", binding.pod, body, f"uid {binding.pod_uid}")
        case Reserve():
            return Intent("reserve", request.target, request.chunk)
        case ConfirmEnded():
            return Intent("confirm ended", request.target, {"podUid": request.pod_uid}, f"node {request.node_uid}")
        case _:
            return Intent(request.label.replace("_", " "), request.written_key)


def _verb(verb: str, subresource: str) -> str:
    return f"{verb} {subresource}" if subresource else verb


def _selection(kind: str, options: ListOptions | WatchOptions) -> dict[str, Any]:
    return {"kind": kind, "namespace": options.namespace, "labelSelector": options.label_selector}


def _body_check(body: Any) -> str:
    """The version or the incarnation that a body names in its metadata."""
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    if not isinstance(metadata, Mapping):
        return ""
    if metadata.get("resourceVersion"):
        return f"revision {metadata['resourceVersion']}"
    return f"uid {metadata['uid']}" if metadata.get("uid") else ""


def _delete_check(options: DeleteOptions) -> str:
    uid = f"uid {options.uid}" if options.uid else ""
    revision = f"revision {options.revision}" if options.revision else ""
    return ", ".join(filter(None, (uid, revision)))


def _deletion(options: DeleteOptions) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if options.grace_s is not None:
        body["graceS"] = options.grace_s
    if options.propagation:
        body["propagation"] = options.propagation
    return body
