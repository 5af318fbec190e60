"""How many bytes a list will have: as many as the last one of the same resource, namespace, limit and form had."""

from __future__ import annotations

from typing import NamedTuple

from kedge.errors import NotAcceptable
from kedge.server.http.negotiation import ReplyForm, reply_form
from kedge.server.http.parameters import Query
from kedge.server.http.routes import ResourcePath


class ListShape(NamedTuple):
    """Lists that are about equally long."""

    group: str
    resource: str
    namespace: str
    limit: str
    form: str = ReplyForm.OBJECT.value
    """A Table has a few columns of each object, so its size does not show that of the objects."""
    selects: bool = False
    """Whether it has a selector. Then it costs as much as without: every object is examined."""

    @classmethod
    def of(cls, path: ResourcePath, query: Query, accept: bytes = b"") -> ListShape:
        selects = bool(query.get("labelSelector") or query.get("fieldSelector"))
        return cls(path.group, path.resource, path.namespace, query.get("limit", ""), _form(query, accept), selects)


def _form(query: Query, accept: bytes) -> str:
    try:
        form = reply_form(accept)
    except NotAcceptable:
        return ReplyForm.OBJECT.value  # the request is refused when it begins
    if form is ReplyForm.TABLE and query.get("includeObject") in ("None", "Object"):
        return f"{form.value} {query['includeObject']}"
    return form.value


_LENGTH_REMEMBERED = 512
"""Longer names of namespaces and limits are not remembered, so that they cannot fill memory."""


class ListCosts:
    """The sizes of recent lists."""

    def __init__(self, remembered_max: int, unknown_bytes: int) -> None:
        self._remembered_max = remembered_max
        self._unknown_bytes = unknown_bytes
        self._sizes: dict[ListShape, int] = {}

    def estimate(self, shape: ListShape) -> int:
        return self._sizes.get(shape._replace(selects=False), self._unknown_bytes)

    def observe(self, shape: ListShape, size: int) -> None:
        """A list of this shape had so many bytes. The oldest size is forgotten when there are too many."""
        if shape.selects or len(shape.namespace) + len(shape.limit) > _LENGTH_REMEMBERED:
            return
        self._sizes.pop(shape, None)
        if len(self._sizes) >= self._remembered_max:
            del self._sizes[next(iter(self._sizes))]
        self._sizes[shape] = size

    def __len__(self) -> int:
        return len(self._sizes)
