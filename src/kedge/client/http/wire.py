"""Requests of the API as HTTP, and replies as objects: pure functions, the mirror of `server.http.resources`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode

import msgspec

from kedge.api import http_headers
from kedge.api.codec import encode_json, encode_object, parse_object
from kedge.api.kinds import Kind, Registry
from kedge.api.objects import Object
from kedge.api.requests import (
    Bind,
    Body,
    ConfirmEnded,
    Create,
    Delete,
    DeleteCollection,
    DeleteOptions,
    Evict,
    Get,
    GetScale,
    IssuedToken,
    List,
    ListOptions,
    ObjectList,
    OpenWatch,
    Patch,
    Request,
    RequestOptions,
    RequestToken,
    Reserve,
    Update,
    WriteOptions,
    Written,
)
from kedge.api.timestamps import parse_time
from kedge.api.wellknown import AUTHENTICATION_GROUP
from kedge.errors import BadRequest, InvariantBroken
from kedge.keys import NO_ORIGIN, NO_REVISION, Key, Origin, Revision

Headers = list[tuple[bytes, bytes]]
_JSON = (b"Content-Type", b"application/json")
_HEADER_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_DECODED_AT_ONCE = 500
"""Objects of a list that are decoded in one step of the event loop."""
_SPLICED = b'"metadata":{"resourceVersion":"'


class HttpCall(NamedTuple):
    """One request on the wire."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""


# -- requests ----------------------------------------------------------------------------------------


def http_call(request: Request[Any], kinds: Registry) -> HttpCall:
    """How a request is sent.

    Raises:
        BadRequest: it has a value that JSON, a URL or a header cannot carry. Nothing was sent.
    """
    try:
        call = _http_call(request, kinds)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(
            f"the request cannot be sent, because a part of it has no HTTP form: {str(error)!a}"
        ) from error
    for name, value in call.headers:
        if not _HEADER_VALUE.fullmatch(value):
            raise BadRequest(f"the value of the header {name.decode()} has control characters: leave them out")
    return call


def _http_call(request: Request[Any], kinds: Registry) -> HttpCall:
    headers = _headers(request.options)
    headers.append((http_headers.ORIGINS, b"1"))
    match request:
        case Get():
            return HttpCall(
                "GET", _object(kinds, request.key, resourceVersion=request.options.resource_version), headers
            )
        case GetScale():
            return HttpCall("GET", _object(kinds, request.key, "scale"), headers)
        case List():
            return HttpCall("GET", _collection(request.kind, request.options), headers)
        case OpenWatch():
            return HttpCall("GET", _watch(request), headers)
        case Create():
            target = _path(request.kind, request.target.namespace)
            return _with_body("POST", target, headers, request.body, request.options)
        case Update():
            target = _object(kinds, request.key, request.subresource)
            return _with_body("PUT", target, headers, request.body, request.options)
        case Patch():
            body = request.body if isinstance(request.body, bytes) else encode_json(request.body)
            headers.append((b"Content-Type", request.patch_type.value.encode()))
            target = _object(kinds, request.key, request.subresource, **_dry(request.options))
            return HttpCall("PATCH", target, headers, body)
        case Delete():
            return _with_json("DELETE", _object(kinds, request.key), headers, _delete_options(request.options))
        case DeleteCollection():
            target = _collection(request.kind, request.selection)
            return _with_json("DELETE", target, headers, _delete_options(request.options))
        case _:
            name, posted = _posted(request)
            return _with_json("POST", _object(kinds, request.target, name), headers, posted)


def _posted(request: Request[Any]) -> tuple[str, dict[str, Any]]:
    """The subresource to which a request is posted, and its body."""
    match request:
        case Evict():
            return "eviction", _eviction(request)
        case Bind():
            return "binding", _binding(request)
        case Reserve():
            return "gang", _chunk(request)
        case ConfirmEnded():
            return "ended", {"nodeUID": request.node_uid, "podUID": request.pod_uid}
        case RequestToken():
            return "token", _token_request(request)
    raise InvariantBroken(f"no HTTP form of {type(request).__name__}: add it here")


def _headers(options: RequestOptions) -> Headers:
    headers: Headers = []
    if options.acting_as:
        headers.append(_header(http_headers.ACTING_AS, options.acting_as, "utf-8"))
    if options.origin.operation:
        headers.append(_header(http_headers.OPERATION, options.origin.operation))
    if options.origin.decision:
        headers.append(_header(http_headers.DECISION, options.origin.decision))
    if isinstance(options, WriteOptions):
        if options.fence is not None:
            headers.append(_header(http_headers.FENCE, f"{options.fence.key}@{options.fence.revision}"))
        if not options.recorded:
            headers.append((http_headers.UNRECORDED, b"1"))
    return headers


def _header(name: bytes, text: str, encoding: str = "latin-1") -> tuple[bytes, bytes]:
    """A header, in the encoding in which the server reads it."""
    try:
        value = text.encode(encoding)
    except UnicodeEncodeError as error:
        raise BadRequest(f"the header {name.decode()} cannot carry {text!r}: use ASCII") from error
    if not text.isprintable() and any(byte < 32 or byte == 127 for byte in value):  # a line break begins a new header
        raise BadRequest(f"the header {name.decode()} cannot carry control characters: {text!r} has one")
    return name, value


def _with_body(method: str, target: str, headers: Headers, body: Body, options: WriteOptions) -> HttpCall:
    text = body if isinstance(body, bytes) else encode_json(_plain(body))
    query = {"fieldValidation": "Ignore", **_dry(options)}
    return HttpCall(method, f"{target}?{urlencode(query)}", [*headers, _JSON], text)


def _with_json(method: str, target: str, headers: Headers, body: Mapping[str, Any]) -> HttpCall:
    return HttpCall(method, target, [*headers, _JSON], encode_json(body))


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    return body if isinstance(body, dict) else dict(body)


def _dry(options: WriteOptions) -> dict[str, str]:
    return {"dryRun": "All"} if options.dry_run else {}


def _path(kind: Kind, namespace: str) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    place = f"/namespaces/{quote(namespace, safe='')}" if namespace and kind.namespaced else ""
    return f"{root}{place}/{kind.plural}"


def object_path(kinds: Registry, key: Key) -> str:
    """The path of an object."""
    return _object(kinds, key)


def _object(kinds: Registry, key: Key, subresource: str = "", **query: str) -> str:
    kind = kinds.of_key_kind(key.kind)
    parameters = {name: value for name, value in query.items() if value}
    tail = f"/{subresource}" if subresource else ""
    suffix = f"?{urlencode(parameters)}" if parameters else ""
    return f"{_path(kind, key.namespace)}/{quote(key.name, safe='')}{tail}{suffix}"


def _selection(options: Any) -> dict[str, str]:
    query = {
        "labelSelector": options.label_selector,
        "fieldSelector": options.field_selector,
        "resourceVersion": options.resource_version,
        "resourceVersionMatch": options.resource_version_match,
    }
    return {name: value for name, value in query.items() if value}


def _collection(kind: Kind, options: ListOptions) -> str:
    query = _selection(options)
    if options.limit:
        query["limit"] = str(options.limit)
    if options.continue_token:
        query["continue"] = options.continue_token
    return f"{_path(kind, options.namespace)}?{urlencode(query)}"


def _watch(request: OpenWatch) -> str:
    options = request.options
    query = {"watch": "true", **_selection(options)}
    if options.allow_bookmarks:
        query["allowWatchBookmarks"] = "true"
    if options.send_initial_events is not None:
        query["sendInitialEvents"] = "true" if options.send_initial_events else "false"
    if options.timeout_s:
        query["timeoutSeconds"] = str(max(1, round(options.timeout_s)))
    return f"{_path(request.kind, options.namespace)}?{urlencode(query)}"


def _delete_options(options: DeleteOptions) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if options.propagation:
        body["propagationPolicy"] = options.propagation
    if options.grace_s is not None:
        body["gracePeriodSeconds"] = options.grace_s
    if options.dry_run:
        body["dryRun"] = ["All"]
    conditions = {}
    if options.uid:
        conditions["uid"] = options.uid
    if options.revision != NO_REVISION:
        conditions["resourceVersion"] = str(options.revision)
    if conditions:
        body["preconditions"] = conditions
    return body


def _eviction(request: Evict) -> dict[str, Any]:
    metadata = {"name": request.key.name, "namespace": request.key.namespace}
    options = _delete_options(request.options)
    return {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": metadata, "deleteOptions": options}


def _binding(request: Bind) -> dict[str, Any]:
    binding = request.binding
    metadata = {"name": binding.pod.name, "namespace": binding.pod.namespace, "uid": binding.pod_uid}
    return {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": metadata,
        "target": {"kind": "Node", "name": binding.node, "uid": binding.node_uid},
        http_headers.ORIGINS_MEMBER: {"decidedOn": dict(binding.decided_on)},
    }


def _chunk(request: Reserve) -> dict[str, Any]:
    return {"chunk": msgspec.to_builtins(request.chunk)}


def _token_request(request: RequestToken) -> dict[str, Any]:
    spec: dict[str, Any] = {"audiences": list(request.audiences), "expirationSeconds": request.expiration_s}
    if request.bound is not None:
        bound = request.bound
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": bound.kind, "name": bound.name, "uid": bound.uid}
    return {"kind": "TokenRequest", "apiVersion": f"{AUTHENTICATION_GROUP}/v1", "spec": spec}


# -- replies -----------------------------------------------------------------------------------------


class _Origins(NamedTuple):
    """The member `kedge` of an item. A server of before sends no groups."""

    created: Revision = NO_REVISION
    operation: str = ""
    decision: str = ""
    caller: str = ""
    groups: tuple[str, ...] = ()


_NO_ORIGINS = _Origins()


class _RawList(msgspec.Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] | None = None
    kedge: list[_Origins] = []
    kedgeRemoved: list[bool] = []  # noqa: N815  # as on the wire


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw
    kedge: _Origins = _NO_ORIGINS


decode_list = msgspec.json.Decoder(_RawList).decode
decode_event = msgspec.json.Decoder(_RawEvent).decode
_decode_metadata = msgspec.json.Decoder(dict[str, Any]).decode


def object_of(data: bytes, kind: Kind, created: Revision = NO_REVISION, origin: Origin = NO_ORIGIN) -> Object:
    """An object as a server sent it: the stored form, with the version beside it."""
    value, revision = _without_version(data, kind)
    document = _decode_names(value)
    key = Key(kind.key_kind, document.metadata.namespace, document.metadata.name)
    return Object(kind, key, value, revision=revision, created=created, origin=origin)


class _Names(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Named(msgspec.Struct):
    metadata: _Names


_decode_names = msgspec.json.Decoder(_Named).decode


def _without_version(data: bytes, kind: Kind) -> tuple[bytes, Revision]:
    """The stored form and the revision. kedge's servers splice the version in, so it is cut out again."""
    at = data.find(_SPLICED, 0, 200)
    if at >= 0:
        first = at + len(_SPLICED)
        end = data.find(b'"', first)
        head = data[: at + len(b'"metadata":{')]
        after = end + 1 + (data[end + 1 : end + 2] == b",")
        return head + data[after:], int(data[first:end])
    document = parse_object(data)
    document.setdefault("apiVersion", kind.api_version)
    document.setdefault("kind", kind.kind)
    text = str((document.get("metadata") or {}).get("resourceVersion") or "0")
    if not text.isdigit():
        raise BadRequest(f"the server's resourceVersion {text!r} is not a number: kedge cannot compare it")
    return encode_object(document), int(text)


def origin_of(parts: Sequence[Any]) -> tuple[Revision, Origin]:
    created, *origin = parts
    return created, Origin(*origin) if any(origin) else NO_ORIGIN


async def object_list(data: bytes, kind: Kind) -> ObjectList:
    return await _object_list(decode_list(data), kind)


async def _object_list(found: _RawList, kind: Kind) -> ObjectList:
    """The objects of a list. Other tasks run while a long one is decoded."""
    items = found.items or []
    origins = found.kedge or [_NO_ORIGINS] * len(items)
    objects: list[Object] = []
    for item, parts in zip(items, origins, strict=True):
        objects.append(object_of(bytes(item), kind, *origin_of(parts)))
        if len(objects) % _DECODED_AT_ONCE == 0:
            await asyncio.sleep(0)
    metadata = found.metadata
    return ObjectList(
        kind=kind,
        objects=objects,
        revision=int(metadata.get("resourceVersion") or 0),
        continue_token=str(metadata.get("continue") or ""),
        remaining=metadata.get("remainingItemCount"),
    )


async def deleted(data: bytes, kind: Kind) -> list[Written]:
    """The objects of a deletecollection. A server that is not kedge does not send which of them are gone: an object
    that is not marked as being deleted is."""
    found = decode_list(data)
    gone, objects = found.kedgeRemoved, (await _object_list(found, kind)).objects
    removals = gone or (each.metadata.deletion_timestamp is None for each in objects)
    written: list[Written] = []
    for each, removed in zip(objects, removals, strict=True):
        written.append(Written(each, removed=removed))
        if len(written) % _DECODED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return written


def success_status(data: bytes) -> Mapping[str, Any] | None:
    """The `Status` of a success, if the reply is one instead of an object."""
    if b'"Status"' not in data[:200] and b'"Success"' not in data:
        return None
    found = msgspec.json.decode(data)
    return found if isinstance(found, Mapping) and found.get("kind") == "Status" else None


def name_only(kind: Kind, key: Key, uid: str) -> Object:
    """An object of which only the name is known."""
    metadata = {"name": key.name, **({"namespace": key.namespace} if key.namespace else {}), "uid": uid}
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return Object(kind, key, encode_object(body), revision=NO_REVISION)


def single(data: bytes, kind: Kind, headers: Mapping[bytes, bytes]) -> Object:
    created = int(headers.get(http_headers.CREATED, b"0"))
    origin = Origin(
        headers.get(http_headers.OPERATION, b"").decode("latin-1"),
        headers.get(http_headers.DECISION, b"").decode("latin-1"),
        unquote(headers.get(http_headers.CALLER, b"").decode("latin-1")),
        _groups(headers.get(http_headers.GROUPS, b"")),
    )
    return object_of(data, kind, created, origin if any(origin) else NO_ORIGIN)


def _groups(header: bytes) -> tuple[str, ...]:
    return tuple(unquote(each.decode("latin-1")) for each in header.split(b",")) if header else ()


def issued_token(data: bytes) -> IssuedToken:
    status = msgspec.json.decode(data)["status"]
    return IssuedToken(status["token"], parse_time(status["expirationTimestamp"]))
