"""Gets of one object in the version that is stored, known by their paths alone: the most frequent requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kedge.api.access import Attributes
from kedge.api.kinds import Kind
from kedge.api.wellknown import METRICS_GROUP
from kedge.caches import remembered
from kedge.keys import Key
from kedge.server.http.routes import PATH_BYTES_REMEMBERED, ResourcePath, attributes_of, resource_path
from kedge.server.http.versions import served_version

REMEMBERED_MAX: Final = 4_096
"""Paths that are remembered, each of at most `PATH_BYTES_REMEMBERED`: clients ask for the same objects again."""


class PlainGet(NamedTuple):
    """The path, the object, and the request as authorization sees it."""

    path: ResourcePath
    key: Key
    attributes: Attributes


FindPlainGet = Callable[[bytes], PlainGet | None]
"""From a path to the get that it asks for; None for every other request. Raises `NotFound` for an unknown kind."""


def remembered_plain_gets(kind_of: Callable[[ResourcePath], Kind]) -> FindPlainGet:
    """`kind_of` returns the kind behind a path, or raises `NotFound`."""

    @remembered(entries=REMEMBERED_MAX, entry_bytes=16 * PATH_BYTES_REMEMBERED)
    def find(path: bytes) -> PlainGet | None:
        found = resource_path(path)
        if found is None or not found.name or found.subresource or found.group == METRICS_GROUP:
            return None
        if served_version(found) is not None:
            return None
        kind = kind_of(found)
        if kind.namespaced and not found.namespace:
            return None
        return PlainGet(found, Key(kind.key_kind, found.namespace, found.name), attributes_of(found, "get"))

    return find
