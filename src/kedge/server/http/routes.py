"""The parts of a path: group, version, resource, namespace, name and subresource, as Kubernetes spells them.

Pure. It does not know which kinds exist; `resources` looks them up and answers 404 where there is none.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from kedge.api.access import Attributes
from kedge.caches import remembered
from kedge.errors import BadRequest, MethodNotAllowed


class ResourcePath(NamedTuple):
    """The parts of a path below `/api` or `/apis`. Parts that are not in the path are empty."""

    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


_METHOD_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTION_VERBS = {"GET": "list", "HEAD": "list", "POST": "create", "DELETE": "deletecollection"}
PATH_BYTES_REMEMBERED: Final = 256
"""Longer paths are read each time."""
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})


def resource_path(path: bytes) -> ResourcePath | None:
    """The resource behind a path; None for discovery, health and every other path that is not a resource.

    Clients ask for the same objects again and again, so the answers for short paths are remembered.

    Raises:
        BadRequest: the path is not UTF-8, has a part that is no name, or too many parts for a resource.
    """
    return _remembered(path) if len(path) <= PATH_BYTES_REMEMBERED else _parse(path)


def _parse(path: bytes) -> ResourcePath | None:
    parts = _parts(path)
    if len(parts) >= 3 and parts[0] == "api":
        group, (version, *rest) = "", parts[1:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, *rest = parts[1:]
    else:
        return None
    if (
        rest[0] == "namespaces"
        and len(rest) >= 3
        and not (group == "" and len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES)
    ):
        namespace, rest = rest[1], rest[2:]
    else:
        namespace = ""
    if len(rest) > 3:
        raise BadRequest(f"/{'/'.join(parts)} has more parts than a resource: RESOURCE/NAME/SUBRESOURCE")
    resource, name, subresource = (*rest, "", "")[:3]
    return ResourcePath(group, version, resource, namespace, name, subresource)


def verb_of(path: ResourcePath, method: str, *, watches: bool) -> str:
    """The verb of a request; `watches` is its parameter `watch`.

    Raises:
        MethodNotAllowed: there is none.
    """
    if path.name:
        found = _METHOD_VERBS.get(method)
    else:
        found = _COLLECTION_VERBS.get(method)
        if found == "list" and watches and method != "HEAD":
            found = "watch"
    if found is None:
        raise MethodNotAllowed(f"{method} is not allowed on {'an object' if path.name else 'a collection'}")
    return found


def attributes_of(path: ResourcePath, verb: str, field_selector: str = "") -> Attributes:
    """The request as authorization sees it. A namespace is in itself, and a selector of one name is that name, as in
    Kubernetes."""
    group, _, resource, namespace, name, subresource = path
    if resource == "namespaces" and not group:
        namespace = name
    if field_selector and not name and verb != "create":
        name = _selected_name(field_selector)
    return Attributes(verb, group, resource, subresource, namespace, name, field_selector)


def _selected_name(field_selector: str) -> str:
    for part in field_selector.split(","):
        field, _, value = part.partition("=")
        if field == "metadata.name":
            return value.removeprefix("=")
    return ""


_remembered = remembered(entries=4096, entry_bytes=8 * PATH_BYTES_REMEMBERED)(_parse)


def _parts(path: bytes) -> list[str]:
    try:
        if b"%" not in path:
            parts = [part for part in path.decode().split("/") if part]
        else:
            parts = [unquote_to_bytes(part).decode() for part in path.split(b"/") if part]
    except UnicodeDecodeError as error:
        raise BadRequest("the path is not UTF-8") from error
    if b"%" in path or b"/." in path:
        for part in parts:
            _check_part(part)
    return parts


def _check_part(part: str) -> None:
    """Refuse parts that are no name of any object, and that a store or a proxy could read as another path."""
    if part in (".", "..") or "/" in part or "%" in part or not part.isprintable():
        raise BadRequest(
            f"{part!r} in the path is no name: a name is not . or .., and has no /, % or control character"
        )
