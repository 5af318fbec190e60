"""Field notes: objects whose views note which fields are read, two levels deep, labels and annotations by key.

`runtime.context` passes such objects to a decision that is noted; `observe.recording` counts the fields. A noted object
equals the plain one in every other respect, so a noted decision decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import msgspec

from kedge.api.objects import Object, checked_view
from kedge.api.views import ObjectMeta
from kedge.api.views.base import ApiStruct, FrozenMap, View

_V = TypeVar("_V")

WHOLE: Final = "*"
"""The field of a reader that took the whole object, as bytes."""
IDENTITY_FIELDS: Final = frozenset(
    f"metadata.{name}"
    for name in (
        "name", "generateName", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink",
    )
) | {"apiVersion", "kind"}  # fmt: skip
"""Fields that are never noted: they identify the object, follow other fields, or are its creation and deletion, which
every read depends on."""
KEYED_FIELDS: Final = frozenset({"metadata.labels", "metadata.annotations"})
"""Maps whose members are noted by key: each member is a field of its own."""
OPEN_MAPS: Final = frozenset({"data", "binaryData", "stringData"})
"""Members of these have names chosen by users, without a bound: each map is one field."""


class FieldNotes:
    """The fields that one decision touched, by kind."""

    def __init__(self, objects_max: int) -> None:
        """At most `objects_max` objects of each read are noted: the fields of further ones are the same."""
        self._objects_max = objects_max
        self._fields: dict[str, dict[str, None]] = {}
        self._wrapped: dict[int, tuple[Object, Object]] = {}
        """By identity: an object that is read twice stays one object. The plain one is held, so no identity repeats."""

    def wrap(self, found: Object) -> Object:
        known = self._wrapped.get(id(found))
        if known is None:
            known = self._wrapped[id(found)] = (found, _noted_object(found, self))
        return known[1]

    def wrap_all(self, found: tuple[Object, ...]) -> tuple[Object, ...]:
        most, wrapped = self._objects_max, self._wrapped
        made = [self.wrap(each) for each in found[:most]]
        for each in found[most:]:
            made.append(wrapped.setdefault(id(each), (each, each))[1])
        return tuple(made)

    def note(self, kind: str, field: str) -> None:
        if field in IDENTITY_FIELDS:
            return
        try:
            self._fields[kind][field] = None
        except KeyError:
            self._fields[kind] = {field: None}

    def touched(self) -> dict[str, tuple[str, ...]]:
        """The fields by kind, in order."""
        return {kind: tuple(sorted(fields)) for kind, fields in sorted(self._fields.items())}

    def close(self) -> None:
        """The decision has ended: let its objects go."""
        self._wrapped.clear()


def plain_object(found: Object) -> Object:
    """The object without notes: for parts that read it on behalf of no decision."""
    return found.plain if isinstance(found, NotedObject) else found


class NotedObject(Object, frozen=True, eq=False, kw_only=True, gc=True):
    """An object whose view, metadata and bytes note their readers."""

    plain: Object
    note: Callable[[str], None]
    """Part of the decision's notes, not of this object: a cycle of views and objects would not be collected."""

    @property
    def view(self) -> Any:
        noted = self.known_view
        if noted is None:
            noted = _noted_view(self.plain.view, self.note)
            msgspec.structs.force_setattr(self, "known_view", noted)
        return noted

    def as_view(self, view: type[_V]) -> _V:
        return checked_view(self.view, view, self.key)

    @property
    def metadata(self) -> ObjectMeta:
        if self.known_view is not None:
            found: ObjectMeta = self.known_view.metadata
            return found
        metadata = self.known_metadata
        if metadata is None:
            metadata = cast("ObjectMeta", _noted_struct(self.plain.metadata, "metadata", self.note))
            msgspec.structs.force_setattr(self, "known_metadata", metadata)
        return metadata

    @property
    def uid(self) -> str:
        return self.plain.uid

    def edit(self) -> dict[str, Any]:
        return _NotedDict(self.plain.edit(), "", self.note)

    def json(self) -> bytes:
        self.note(WHOLE)
        return self.plain.json()


def _noted_object(found: Object, notes: FieldNotes) -> NotedObject:
    return NotedObject(
        found.kind,
        found.key,
        found.value,
        revision=found.revision,
        created=found.created,
        origin=found.origin,
        plain=found,
        note=partial(notes.note, found.key.kind),
    )


# -- typed views -----------------------------------------------------------------------------------

_Note = Callable[[str], None]
_NOTE: Final = "noted by"
_PREFIX: Final = "noted as"
"""Members of a noted struct's `__dict__`, which only noted structs have."""
_Values = Callable[[Any], tuple[Any, ...]]
_TYPES: dict[tuple[type[ApiStruct], bool], tuple[type[ApiStruct], _Values]] = {}
"""By struct, and whether its members are noted structs: the noted type, and the values of a plain one."""
_NOTED: set[type] = set()


def _noted_view(view: View, note: _Note) -> View:
    return cast("View", _copy(view, _noted_type(type(view), nested=True), "", note))


def _noted_struct(struct: ApiStruct, prefix: str, note: _Note) -> ApiStruct:
    return _copy(struct, _noted_type(type(struct), nested=False), prefix, note)


def _copy(struct: ApiStruct, noted: tuple[type[ApiStruct], _Values], prefix: str, note: _Note) -> ApiStruct:
    kind, values_of = noted
    made = kind(**dict(zip(struct.__struct_fields__, values_of(struct), strict=True)))
    held = made.__dict__
    held[_NOTE], held[_PREFIX] = note, prefix
    return made


def _noted_type(struct: type[ApiStruct], *, nested: bool) -> tuple[type[ApiStruct], _Values]:
    """A subclass whose fields are properties. Encoding and comparing use the slots below, which have the values."""
    found = _TYPES.get((struct, nested))
    if found is None:
        members: dict[str, Any] = {"__eq__": _equals, "__hash__": _hash_of}
        for name, json_name in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
            members[name] = _noted_property(getattr(struct, name).__get__, json_name, nested=nested)
        name = f"Noted{struct.__name__}"
        made: Any = msgspec.defstruct(name, [], bases=(struct,), namespace=members, frozen=True, dict=True, gc=True)
        _NOTED.add(made)
        found = _TYPES[struct, nested] = (made, _values_getter(struct.__struct_fields__))
    return found


def _values_getter(names: tuple[str, ...]) -> _Values:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda struct: tuple(getattr(struct, name) for name in names)


def _noted_property(value_of: Callable[[Any], Any], name: str, *, nested: bool) -> property:
    def read(self: Any) -> Any:
        held = self.__dict__
        if name in held:
            return held[name]  # a noted part, made once
        value = value_of(self)
        note = held.get(_NOTE)
        if note is None:
            return value  # a copy with other values, which belongs to no decision
        field = f"{held[_PREFIX]}.{name}" if held[_PREFIX] else name
        if nested and isinstance(value, ApiStruct):
            value = held[name] = _noted_struct(value, field, note)
        elif field in KEYED_FIELDS:
            value = held[name] = _NotedMap(value, field, note)
        else:
            note(field)
        return value

    return property(read)


def _plain_values(struct: Any) -> tuple[Any, ...]:
    base: Any = type(struct).__mro__[1] if _is_noted(struct) else type(struct)
    return (base, *(getattr(base, name).__get__(struct) for name in base.__struct_fields__))


def _is_noted(struct: Any) -> bool:
    return type(struct) in _NOTED


def _equals(self: Any, other: object) -> Any:
    """As between plain structs, whichever of the two are noted. It touches every field."""
    if not isinstance(other, ApiStruct):
        return NotImplemented
    for struct in (self, other):
        _note_all(struct)
    return _plain_values(self) == _plain_values(other)


def _note_all(struct: Any) -> None:
    if _is_noted(struct):
        for name in struct.__struct_fields__:
            getattr(struct, name)


def _hash_of(self: Any) -> int:
    _note_all(self)
    base, *values = _plain_values(self)
    return hash(base(**dict(zip(base.__struct_fields__, values, strict=True))))


# -- maps ------------------------------------------------------------------------------------------


class _NotedMap(FrozenMap[str, str]):
    """Labels or annotations. A lookup notes its key; a walk over all notes the whole map."""

    __slots__ = ("_field", "_note")

    def __init__(self, values: dict[str, str], field: str, note: _Note) -> None:
        super().__init__(values)
        self._field = field
        self._note = note

    def __getitem__(self, key: str) -> str:
        self._note(f"{self._field}.{key}")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._note(f"{self._field}.{key}")
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(f"{self._field}.{key}")
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._note(f"{self._field}.{WHOLE}")
        return super().__iter__()

    def keys(self) -> Any:
        self._note(f"{self._field}.{WHOLE}")
        return super().keys()

    def values(self) -> Any:
        self._note(f"{self._field}.{WHOLE}")
        return super().values()

    def items(self) -> Any:
        self._note(f"{self._field}.{WHOLE}")
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._note(f"{self._field}.{WHOLE}")
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return super().__hash__()

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenMap, (dict(self.items()),))


class _NotedDict(dict[str, Any]):
    """The document of `edit`, or a member of it. A lookup notes its field; a walk over all notes every field."""

    __slots__ = ("_note", "_prefix")

    def __init__(self, values: dict[str, Any], prefix: str, note: _Note) -> None:
        made = values
        if prefix.count(".") == 0:
            made = {
                name: _NotedDict(value, f"{prefix}.{name}" if prefix else name, note)
                if type(value) is dict and name not in OPEN_MAPS and (not prefix or f"{prefix}.{name}" in KEYED_FIELDS)
                else value
                for name, value in values.items()
            }
        super().__init__(made)
        self._prefix = prefix
        self._note = note

    def _noted(self, name: object) -> None:
        if not isinstance(super().get(str(name)), _NotedDict):
            field = f"{self._prefix}.{name}" if self._prefix else str(name)
            self._note(f"{field}.{WHOLE}" if field in KEYED_FIELDS else field)

    def _note_all(self) -> None:
        for name in super().__iter__():
            self._noted(name)

    def __getitem__(self, name: str) -> Any:
        self._noted(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._noted(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self._noted(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        self._noted(name)
        return super().setdefault(name, default)

    def __contains__(self, name: object) -> bool:
        self._noted(name)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        self._note_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._note_all()
        return super().keys()

    def values(self) -> Any:
        self._note_all()
        return super().values()

    def items(self) -> Any:
        self._note_all()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._note_all()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self.items()),))
