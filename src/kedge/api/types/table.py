"""Reads the tables beside this file. One file is one API package, one line is one field.

    @package apps.v1 io.k8s.api.apps.v1 apps/v1          alias, OpenAPI prefix, apiVersion
    Deployment (kind): The purpose of the type.
      replicas#1*:int32  The purpose of the field.       name, protobuf number, marks, type, attributes, text

Marks: `!` required, `*` absent differs from zero, `+` written even when zero. Types: a scalar, a name of the same
package, or `alias.Name`; `[T]` is a list and `{T}` a map with string keys. A damaged table raises `InvariantBroken`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files

from kedge.errors import InvariantBroken

SCALARS = frozenset({
    "string", "bool", "int32", "int64", "double", "bytes", "quantity", "time", "microtime", "duration", "intorstring",
    "fieldsv1", "rawextension", "any",
})  # fmt: skip

_FIELD = re.compile(r"  ([^\s#!*+:()]+)(?:#(\d+))?([!*+]*):([\[{]?)([\w.]+)[\]}]?(?:\(([^)]*)\))?  (.+)$")
_TYPE = re.compile(r"(\w+)(?: \(([^)]*)\))?: (.+)$")
_LIST_TYPES = ("atomic", "set", "map")
_OPAQUE = frozenset({"custom", "list"})
"""Types whose JSON form is not that of their fields."""


class FieldShape(Enum):
    """How many values of its type a field holds."""

    ONE = ""
    LIST = "["
    MAP = "{"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFacts:
    """One field of a type."""

    name: str
    """As in JSON. An inline field has only a protobuf name: JSON has the fields of its type instead."""
    number: int | None
    """The protobuf number; None for a type that has no protobuf form."""
    shape: FieldShape
    type: str
    """A scalar, or the full name of a type in the same table."""
    description: str
    required: bool = False
    pointer: bool = False
    """An absent value differs from zero."""
    always: bool = False
    """Go writes the key even when the value is zero."""
    inline: bool = False
    list_type: str = ""
    """`atomic`, `set` or `map`, for server-side apply."""
    keys: tuple[str, ...] = ()
    """The fields that identify an item of a `map` list."""
    atomic: bool = False
    """Server-side apply replaces the whole struct or map."""
    merges: bool = False
    """A strategic merge patch merges this list instead of replacing it."""
    replaces: bool = False
    """A strategic merge patch replaces this map instead of merging it."""
    retain_keys: bool = False
    merge_key: str = ""
    """The field that identifies an item of a merged list; empty for a list of scalars."""
    default: str = ""
    """As JSON; empty for none."""
    enum: tuple[str, ...] = ()

    @property
    def scalar(self) -> bool:
        return self.type in SCALARS


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """One type: its own fields, and the fields that its JSON form has."""

    name: str
    """The full name, as OpenAPI has it."""
    flags: frozenset[str]
    description: str
    fields: Mapping[str, FieldFacts]
    json: dict[str, FieldFacts] = field(default_factory=dict, repr=False)
    """Fields by JSON name, with inline types opened and `apiVersion` and `kind` added to kinds."""
    by_number: dict[int, FieldFacts] = field(default_factory=dict, repr=False)

    @property
    def json_only(self) -> bool:
        """Whether it has neither a protobuf form nor a strategic merge: a kind of kedge's own."""
        return "json" in self.flags

    @property
    def short(self) -> str:
        """The name without its package: `PodSpec`."""
        return self.name.rpartition(".")[2]


class TypeTable:
    """Types by full name, and the kinds among them by apiVersion and kind."""

    def __init__(self, packages: Iterable[str]) -> None:
        """Read the texts of all packages together: they name each other's types."""
        texts = [_Package.of(text) for text in packages]
        prefixes = {package.alias: package.prefix for package in texts}
        self._types: dict[str, TypeFacts] = {}
        self._kinds: dict[tuple[str, str], TypeFacts] = {}
        self._parts: dict[str, dict[str, tuple[FieldShape, TypeFacts] | None]] = {}
        for package in texts:
            for each in package.types(prefixes):
                self._types[each.name] = each
                if "kind" in each.flags:
                    self._kinds[package.api_version, each.short] = each
        for each in self._types.values():
            self._open(each)

    def __iter__(self) -> Iterator[TypeFacts]:
        return iter(self._types.values())

    def __getitem__(self, name: str) -> TypeFacts:
        return self._types[name]

    def of_kind(self, api_version: str, kind: str) -> TypeFacts | None:
        """The type behind a manifest's `apiVersion` and `kind`; None for a kind that has no table."""
        return self._kinds.get((api_version, kind))

    def child(self, facts: FieldFacts) -> TypeFacts | None:
        """The type of a field's value or items; None for scalars."""
        return None if facts.scalar else self._types[facts.type]

    def parts(self, facts: TypeFacts) -> Mapping[str, tuple[FieldShape, TypeFacts] | None]:
        """Each field of the JSON form: the type of its parts, or None if no field of them is known by name."""
        found = self._parts.get(facts.name)
        if found is None:
            found = self._parts[facts.name] = {name: self._part(each) for name, each in facts.json.items()}
        return found

    def _part(self, each: FieldFacts) -> tuple[FieldShape, TypeFacts] | None:
        child = self.child(each)
        return None if child is None or child.flags & _OPAQUE else (each.shape, child)

    def _open(self, facts: TypeFacts) -> None:
        if "kind" in facts.flags:
            for name, text in _TYPE_META.items():
                facts.json[name] = FieldFacts(
                    name=name, number=None, shape=FieldShape.ONE, type="string", description=text
                )
        for each in self._json_fields(facts):
            facts.json[each.name] = each
        for each in facts.fields.values():
            if not each.scalar and each.type not in self._types:
                raise InvariantBroken(f"{facts.name}.{each.name} has the type {each.type}, which no table defines")
            if each.number is not None:
                facts.by_number[each.number] = each

    def _json_fields(self, facts: TypeFacts) -> Iterator[FieldFacts]:
        for each in facts.fields.values():
            if each.inline:
                yield from self._json_fields(self._types[each.type])
            else:
                yield each


_TYPE_META = {
    "apiVersion": "Group and version of this representation, such as apps/v1.",
    "kind": "Kind of this object, such as Deployment.",
}


@dataclass(frozen=True, slots=True)
class _Package:
    alias: str
    prefix: str
    api_version: str
    lines: list[str]

    @classmethod
    def of(cls, text: str) -> _Package:
        head, *lines = text.splitlines()
        words = head.split()
        if len(words) != 4 or words[0] != "@package":
            raise InvariantBroken(f"a table of types begins with {head!r}, not with @package and three names")
        return cls(words[1], words[2], words[3], lines)

    def types(self, prefixes: Mapping[str, str]) -> Iterator[TypeFacts]:
        current: dict[str, FieldFacts] = {}
        for line in self.lines:
            if not line:
                continue
            if line.startswith("  "):
                parsed = self._field(line, prefixes)
                current[parsed.name] = parsed
                continue
            found = _TYPE.match(line)
            if found is None:
                raise InvariantBroken(f"the table of {self.alias} has a line that is not a type: {line!r}")
            name, flags, description = found.groups()
            current = {}
            yield TypeFacts(f"{self.prefix}.{name}", frozenset((flags or "").split("; ")) - {""}, description, current)

    def _field(self, line: str, prefixes: Mapping[str, str]) -> FieldFacts:
        found = _FIELD.match(line)
        if found is None:
            raise InvariantBroken(f"the table of {self.alias} has a line that is not a field: {line!r}")
        name, number, marks, shape, type_name, written, description = found.groups()
        alias, dot, short = type_name.rpartition(".")
        attributes = dict(_attribute(each) for each in written.split("; ")) if written else {}
        strategy, _, merge_key = attributes.get("patch", "").partition(" ")
        strategies = strategy.split(",")
        return FieldFacts(
            name=name,
            number=int(number) if number else None,
            shape=FieldShape(shape),
            type=type_name if type_name in SCALARS else f"{prefixes[alias] if dot else self.prefix}.{short}",
            description=description,
            required="!" in marks,
            pointer="*" in marks,
            always="+" in marks,
            inline="inline" in attributes,
            list_type=next((each for each in _LIST_TYPES if each in attributes), ""),
            keys=tuple(attributes["map"].split(",")) if attributes.get("map") else (),
            atomic="struct" in attributes,
            merges="merge" in strategies,
            replaces="replace" in strategies,
            retain_keys="retainKeys" in strategies,
            merge_key=merge_key,
            default=attributes.get("default", ""),
            enum=tuple(attributes["enum"].split("|")) if "enum" in attributes else (),
        )


def _attribute(text: str) -> tuple[str, str]:
    """`map a,b`, `default="x"` and `atomic` as a name with a value."""
    found = re.match(r"([\w-]+)[ =]?(.*)", text)
    assert found is not None
    return found[1], found[2]


@cache
def type_table() -> TypeTable:
    """The table of everything that kedge serves. Read once a process, at first use."""
    folder = files(__package__)
    return TypeTable(
        each.read_text(encoding="utf-8")
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".txt")
    )
