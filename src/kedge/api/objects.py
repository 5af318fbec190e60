"""One version of one object, as service, client and caches pass it around.

It holds the stored bytes and decodes them at most once: the typed view is shared by every reader of this
version. It never changes; whoever wants to edit takes a copy with `edit`.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from kedge.api.codec import parse_object, splice
from kedge.api.kinds import Kind
from kedge.api.views import ObjectMeta, decode_metadata, decode_view
from kedge.errors import InvariantBroken
from kedge.keys import NO_ORIGIN, NO_REVISION, Key, Origin, Revision

_V = TypeVar("_V")


class Object:
    """Bytes with their key and revisions. Shared by every reader, so an assignment is refused."""

    __slots__ = ("_metadata", "_view", "created", "key", "kind", "origin", "revision", "value")
    kind: Kind
    key: Key
    value: bytes
    revision: Revision
    """`NO_REVISION` for the answer to a dry run, which was never stored."""
    created: Revision
    origin: Origin
    _view: Any
    _metadata: ObjectMeta | None

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
        _set_kind(self, kind)
        _set_key(self, key)
        _set_value(self, value)
        _set_revision(self, revision)
        _set_created(self, created)
        _set_origin(self, origin)
        _set_view(self, view)
        _set_metadata(self, None)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TypeError(f"{self!r} is shared by every reader and cannot be changed: take a copy with edit()")

    def __delattr__(self, name: str) -> NoReturn:
        raise TypeError(f"{self!r} is shared by every reader and cannot be changed: take a copy with edit()")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.kind, self.key, self.value, self.revision, self.created, self.origin)

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
            _set_view(self, decode_view(self.kind, self.value))
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
        metadata: ObjectMeta | None
        if self._view is not None:
            metadata = self._view.metadata
            return metadata
        metadata = self._metadata
        if metadata is None:
            metadata = decode_metadata(self.value)
            _set_metadata(self, metadata)
        return metadata

    @property
    def uid(self) -> str:
        return self.metadata.uid

    def edit(self) -> dict[str, Any]:
        """A fresh, mutable copy of the whole object, without its resource version."""
        return parse_object(self.value)

    def json(self) -> bytes:
        """What a client sees: the stored bytes with the resource version spliced in."""
        return splice(self.value, self.revision) if self.revision else self.value


# The slots themselves, for the two moments at which an object may set them: its birth, and its first decoding.
_slots: Any = Object
_set_kind, _set_key, _set_value = _slots.kind.__set__, _slots.key.__set__, _slots.value.__set__
_set_revision, _set_created, _set_origin = _slots.revision.__set__, _slots.created.__set__, _slots.origin.__set__
_set_view, _set_metadata = _slots._view.__set__, _slots._metadata.__set__


def _unpickled(kind: Kind, key: Key, value: bytes, revision: Revision, created: Revision, origin: Origin) -> Object:
    return Object(kind, key, value, revision=revision, created=created, origin=origin)
