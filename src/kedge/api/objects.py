"""One version of one object, as service, client and caches pass it around.

It holds the stored bytes and decodes them at most once: the typed view is shared by every reader of this
version. It never changes; whoever wants to edit takes a copy with `edit`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from kedge.api.codec import parse_object, splice
from kedge.api.kinds import Kind
from kedge.api.views import ObjectMeta, decode_metadata, decode_view
from kedge.errors import InvariantBroken
from kedge.keys import NO_ORIGIN, NO_REVISION, Key, Origin, Revision

_V = TypeVar("_V")


class Object:
    """Bytes with their key and revisions. Frozen by habit: nothing here has a setter."""

    __slots__ = ("_metadata", "_view", "created", "key", "kind", "origin", "revision", "value")

    def __init__(
        self,
        kind: Kind,
        key: Key,
        value: bytes,
        *,
        revision: Revision,
        created: Revision = NO_REVISION,
        origin: Origin = NO_ORIGIN,
        view: Any = None,
    ) -> None:
        self.kind = kind
        self.key = key
        self.value = value
        self.revision = revision
        """`NO_REVISION` for the answer to a dry run, which was never stored."""
        self.created = created
        self.origin = origin
        self._view = view
        self._metadata: ObjectMeta | None = None

    def __repr__(self) -> str:
        return f"<{self.key} at {self.revision}>"

    @property
    def modified(self) -> Revision:
        """As the store calls `revision`."""
        return self.revision

    @property
    def known_view(self) -> Any:
        """The view if it was decoded already, else None."""
        return self._view

    @property
    def view(self) -> Any:
        """The typed view of this kind, decoded once."""
        if self._view is None:
            self._view = decode_view(self.kind, self.value)
        return self._view

    def as_view(self, view: type[_V]) -> _V:
        """`view`, for callers who know the kind and want the type checker to know it too."""
        found = self.view
        if not isinstance(found, view):
            raise InvariantBroken(f"{self.key} has a {type(found).__name__}, not a {view.__name__}")
        return found

    @property
    def metadata(self) -> ObjectMeta:
        """The metadata alone: cheaper than the whole view, and there for kinds that have none."""
        if self._view is not None:
            metadata: ObjectMeta = self._view.metadata
            return metadata
        if self._metadata is None:
            self._metadata = decode_metadata(self.value)
        return self._metadata

    @property
    def uid(self) -> str:
        return self.metadata.uid

    def edit(self) -> dict[str, Any]:
        """A fresh, mutable copy of the whole object, without its resource version."""
        return parse_object(self.value)

    def json(self) -> bytes:
        """What a client sees: the stored bytes with the resource version spliced in."""
        return splice(self.value, self.revision) if self.revision else self.value
