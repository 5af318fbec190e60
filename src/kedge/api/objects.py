"""One version of one object, as service, client and caches use it.

It holds the stored bytes and decodes them at most once: the typed view is shared by every reader of this
version. It is immutable; `edit` returns a mutable copy.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from kedge.api.codec import parse_object, splice
from kedge.api.kinds import Kind
from kedge.api.views import ObjectMeta, decode_metadata, decode_view
from kedge.errors import InvariantBroken
from kedge.keys import NO_ORIGIN, NO_REVISION, Key, Origin, Revision

_V = TypeVar("_V")


class _StoredObject(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The positional fields of `Object`; its other fields are keyword-only."""

    kind: Kind
    key: Key
    value: bytes


def checked_view(found: Any, view: type[_V], key: Key) -> _V:
    """A view, once its type is checked."""
    if not isinstance(found, view):
        raise InvariantBroken(f"{key} has a {type(found).__name__}, not a {view.__name__}")
    return found


class Object(_StoredObject, frozen=True, eq=False, gc=False, kw_only=True):
    """Bytes with their key and revisions. Shared by every reader, so frozen."""

    revision: Revision
    """`NO_REVISION` for the result of a dry run, which was never stored."""
    created: Revision = NO_REVISION
    origin: Origin = NO_ORIGIN
    known_view: Any = None
    """The view if it was decoded already, else None."""
    known_metadata: ObjectMeta | None = None
    """The metadata if it was decoded without the rest."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.kind, self.key, self.value, self.revision, self.created, self.origin)

    def __repr__(self) -> str:
        return f"<{self.key} at {self.revision}>"

    @property
    def modified(self) -> Revision:
        """The store's name for `revision`."""
        return self.revision

    @property
    def view(self) -> Any:
        """The typed view of this kind, decoded once."""
        view = self.known_view
        if view is None:
            view = decode_view(self.kind, self.value)
            force_setattr(self, "known_view", view)  # a cache: every reader gets the same view
        return view

    def as_view(self, view: type[_V]) -> _V:
        """`view`, with its type checked, for callers that know the kind."""
        found = self.known_view
        return checked_view(self.view if found is None else found, view, self.key)

    @property
    def metadata(self) -> ObjectMeta:
        """The metadata alone: cheaper than the whole view, and available for kinds without a view."""
        if self.known_view is not None:
            found: ObjectMeta = self.known_view.metadata
            return found
        metadata = self.known_metadata
        if metadata is None:
            metadata = decode_metadata(self.value)
            force_setattr(self, "known_metadata", metadata)
        return metadata

    @property
    def uid(self) -> str:
        view = self.known_view
        if view is None:
            return self.metadata.uid
        uid: str = view.metadata.uid
        return uid

    def edit(self) -> dict[str, Any]:
        """A fresh, mutable copy of the whole object, without its resource version."""
        return parse_object(self.value)

    def json(self) -> bytes:
        """The object for a client: the stored bytes with the resource version spliced in."""
        return splice(self.value, self.revision) if self.revision else self.value


def _unpickled(kind: Kind, key: Key, value: bytes, revision: Revision, created: Revision, origin: Origin) -> Object:
    return Object(kind, key, value, revision=revision, created=created, origin=origin)
