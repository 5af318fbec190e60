"""Query parameters of the Kubernetes API, as the options of `api.requests`.

A value that cannot be read is a `BadRequest` that names the parameter. Parameters that no rule knows are ignored, as in
Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from kedge.api import http_headers
from kedge.api.requests import DeleteOptions, ListOptions, WatchOptions, WriteOptions
from kedge.caches import remembered
from kedge.errors import BadRequest
from kedge.keys import NO_REVISION, Fence, Key, Origin
from kedge.server.service.reads import invalid_option

Query = Mapping[str, str]
_O = TypeVar("_O", bound=WriteOptions)
_PARAMETERS_MAX = 100
_TRUE, _FALSE = (
    frozenset({"true", "1", "t", "T", "TRUE", "True"}),
    frozenset({"false", "0", "f", "F", "FALSE", "False"}),
)
FIELD_VALIDATIONS = ("Ignore", "Warn", "Strict")


@remembered(entries=1024, entry_bytes=16 * 1024, key_length=1024)
def parse_query(query: bytes) -> Query:
    """Parameters by name; the first counts if a name stands twice. The result is shared: it is read-only.

    Raises:
        BadRequest: it is not UTF-8, or has too many parameters.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=_PARAMETERS_MAX, errors="strict"
        )
    except ValueError as error:
        raise BadRequest(f"the query cannot be read: {_unreadable(query)}{error}") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return MappingProxyType(found)


def _unreadable(query: bytes) -> str:
    """The parameter that is not UTF-8, for the error; empty if none is."""
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        try:
            unquote_to_bytes(name).decode(), unquote_to_bytes(value).decode()
        except UnicodeDecodeError:
            return f"{name.decode('latin-1')}: "
    return ""


def flag(query: Query, name: str) -> bool | None:
    """A boolean parameter; None if it is absent or empty."""
    text = query.get(name, "")
    if not text:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadRequest(f"{name} is true or false, not {text!r}")


def is_number(text: str) -> bool:
    """Whether a text is a whole number that is not negative, and fits 64 bits."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def number(query: Query, name: str) -> int | None:
    """A whole number that is not negative; None if the parameter is absent or empty."""
    text = query.get(name, "")
    if not text:
        return None
    if not is_number(text):
        raise BadRequest(f"{name} is a whole number of at least 0, not {text!r}")
    return int(text)


def list_options(query: Query, namespace: str, field_selector: str = "", caller: str = "") -> ListOptions:
    if flag(query, "sendInitialEvents") is not None:
        raise invalid_option("sendInitialEvents", "forbidden for a list: it is an option of watches")
    return ListOptions(
        namespace=namespace,
        label_selector=query.get("labelSelector", ""),
        field_selector=_both(query.get("fieldSelector", ""), field_selector),
        limit=number(query, "limit") or 0,
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        caller=caller,
    )


def watch_options(query: Query, namespace: str, field_selector: str = "", caller: str = "") -> WatchOptions:
    timeout_s = number(query, "timeoutSeconds")
    return WatchOptions(
        namespace=namespace,
        label_selector=query.get("labelSelector", ""),
        field_selector=_both(query.get("fieldSelector", ""), field_selector),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
        allow_bookmarks=bool(flag(query, "allowWatchBookmarks")),
        send_initial_events=flag(query, "sendInitialEvents"),
        timeout_s=float(timeout_s) if timeout_s else None,
        caller=caller,
    )


def write_options(query: Query, caller: str, origin: Origin) -> WriteOptions:
    return WriteOptions(caller=caller, dry_run=dry_run(query.get("dryRun", "")), origin=origin)


def delete_options(query: Query, body: Mapping[str, Any], caller: str, origin: Origin) -> DeleteOptions:
    """Options from the body, and where it is silent from the query, as Kubernetes reads both."""
    conditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", number(query, "gracePeriodSeconds"))
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool) or grace < 0):
        raise BadRequest(f"gracePeriodSeconds is a whole number of at least 0, not {grace!r}")
    if not isinstance(conditions, Mapping):
        raise BadRequest("preconditions is an object with uid and resourceVersion")
    version = str(conditions.get("resourceVersion") or "")
    if version and not is_number(version):
        raise BadRequest(f"preconditions.resourceVersion is a number, not {version[:80]!r}")
    every = body.get("dryRun") or [query.get("dryRun", "")]
    return DeleteOptions(
        caller=caller,
        origin=origin,
        dry_run=any(dry_run(str(each)) for each in every),
        uid=str(conditions.get("uid") or ""),
        revision=int(version) if version else NO_REVISION,
        propagation=_propagation(query, body),
        grace_s=grace,
    )


def with_kedge_headers(options: _O, headers: Mapping[bytes, bytes]) -> _O:
    """Options that only kedge's own clients send: the fence, and whether the operation is recorded."""
    fence = headers.get(http_headers.FENCE)
    if fence is None and http_headers.UNRECORDED not in headers:
        return options
    return msgspec.structs.replace(
        options,
        fence=None if fence is None else _fence(fence.decode("latin-1")),
        recorded=http_headers.UNRECORDED not in headers,
    )


def _fence(text: str) -> Fence:
    key, at, revision = text.rpartition("@")
    if not at or not is_number(revision):
        raise BadRequest(f"{http_headers.FENCE.decode()} is KIND/NAMESPACE/NAME@REVISION, not {text[:80]!r}")
    return Fence(Key.parse(key), int(revision))


def dry_run(text: str) -> bool:
    if text not in ("", "All"):
        raise BadRequest(f"dryRun is All or absent, not {text!r}")
    return text == "All"


def field_validation(query: Query) -> str:
    """How to treat unknown and repeated fields; the server's default is to warn."""
    text = query.get("fieldValidation", "") or "Warn"
    if text not in FIELD_VALIDATIONS:
        raise BadRequest(f"fieldValidation is one of {', '.join(FIELD_VALIDATIONS)}, not {text!r}")
    return text


def _propagation(query: Query, body: Mapping[str, Any]) -> str:
    policy = body.get("propagationPolicy") or query.get("propagationPolicy", "")
    orphan = body.get("orphanDependents", flag(query, "orphanDependents"))
    if policy and orphan is not None:
        raise BadRequest("orphanDependents and propagationPolicy exclude each other: send the policy alone")
    if orphan is not None:
        return "Orphan" if orphan else "Background"
    if policy not in ("", "Background", "Foreground", "Orphan"):
        raise BadRequest(f"propagationPolicy is Background, Foreground or Orphan, not {policy!r}")
    return str(policy)


def _both(selector: str, more: str) -> str:
    return ",".join(each for each in (selector, more) if each)
