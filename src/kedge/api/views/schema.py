"""Decoding by schema: read-only maps and quantities, with bad and unknown fields named by path.

`decode` and `validation` use it. The common path is one msgspec decode; `examine` walks an object field by field and
is called only when that decode failed, to report every bad field at once instead of the first.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from kedge.api.quantity import Quantity, parse_quantity
from kedge.api.views.base import EMPTY_MAP, Annotations, FrozenMap, Labels, ResourceList, View
from kedge.caches import remembered
from kedge.errors import FieldError

_MISSING: Final = object()


def dec_hook(wanted: Any, value: Any) -> Any:
    """Decode the types that msgspec does not have: read-only maps and quantities."""
    if wanted is Quantity:
        return parse_quantity(value)
    if type(value) is not dict:
        if value is None:
            return _EMPTY.get(wanted, EMPTY_MAP)
        raise ValueError("Expected `object`")
    if not value:
        return _EMPTY.get(wanted, EMPTY_MAP)
    if wanted is ResourceList:
        for name, amount in value.items():
            if type(amount) is not str or len(name) + len(amount) > _SHARED_LENGTH_MAX:
                return ResourceList({each: parse_quantity(value[each]) for each in value})
        if len(value) > _SHARED_ITEMS_MAX:
            return ResourceList({name: parse_quantity(amount) for name, amount in value.items()})
        return _resource_list(tuple(value.items()))
    if wanted is Labels or wanted is Annotations:
        shared = wanted is Labels and len(value) <= _SHARED_ITEMS_MAX
        for name, text in value.items():
            if type(text) is not str:
                raise ValueError("Expected `str`")
            if len(name) + len(text) > _SHARED_LENGTH_MAX:
                shared = False
        return _labels(tuple(value.items())) if shared else wanted(value)
    return FrozenMap(msgspec.convert(value, dict[str, wanted.__args__[1]], dec_hook=dec_hook))


_SHARED_ITEMS_MAX = 32
_SHARED_LENGTH_MAX = 128
"""Larger maps, and maps with longer strings, are not shared, so that the cache stays bounded."""

_EMPTY: dict[Any, FrozenMap[str, Any]] = {Labels: Labels(), Annotations: Annotations(), ResourceList: ResourceList()}


@remembered(entries=8192, entry_bytes=16 * 1024)  # `_SHARED_ITEMS_MAX` pairs of `_SHARED_LENGTH_MAX`
def _resource_list(amounts: tuple[tuple[str, str], ...]) -> ResourceList:
    return ResourceList({name: parse_quantity(amount) for name, amount in amounts})


@remembered(entries=8192, entry_bytes=16 * 1024)  # `_SHARED_ITEMS_MAX` pairs of `_SHARED_LENGTH_MAX`
def _labels(labels: tuple[tuple[str, str], ...]) -> Labels:
    return Labels(labels)


@cache
def decoder_of(schema: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(schema, dec_hook=dec_hook, float_hook=Decimal)


@cache
def strict_twin(schema: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct with the same member names at every depth that rejects any other. Only the view decodes values."""
    members: list[tuple[str, Any, Any]] = [
        (f"m_{member.name}", _strict_type(member.type), msgspec.field(name=member.encode_name, default=None))
        for member in msgspec.structs.fields(schema)
    ]
    if issubclass(schema, View):
        members += [
            (f"m_{name}", msgspec.Raw, msgspec.field(name=name, default=None)) for name in ("apiVersion", "kind")
        ]
    return msgspec.defstruct(f"Strict{schema.__name__}", members, gc=False, forbid_unknown_fields=True)


def _strict_type(wanted: Any) -> Any:
    """The strict twin of a nested struct; raw bytes for everything else."""
    rule = _rule(wanted)
    if isinstance(rule, _Members):
        return strict_twin(rule.schema) | None
    if isinstance(rule, _Items) and isinstance(rule.item, _Members):
        twin = strict_twin(rule.item.schema)
        return (dict[str, twin] if rule.keyed else list[twin]) | None  # type: ignore[valid-type]
    return msgspec.Raw


# -- reporting every bad field ---------------------------------------------------------------------


@dataclass(slots=True)
class Findings:
    """The result of `examine` for one object."""

    cleaned: Any = None
    """The object without nulls, unknown and bad fields: it always converts to the schema."""
    errors: list[FieldError] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Paths of fields that the schema does not have."""


def examine(schema: type[msgspec.Struct], value: Any) -> Findings:
    """Compare a decoded object with a schema and report every field that does not fit."""
    findings = Findings()
    cleaned = _examine(_rule(schema), value, "", findings)
    if isinstance(cleaned, dict) and issubclass(schema, View):
        findings.unknown = [path for path in findings.unknown if path not in _ENVELOPE]
    findings.cleaned = {} if cleaned is _MISSING else cleaned
    return findings


_ENVELOPE = frozenset({"apiVersion", "kind", "metadata.managedFields", "metadata.selfLink", "metadata.resourceVersion"})
"""Fields that the server writes, or that are read before the view is decoded."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    type: Any
    demand: str
    zero: Any


@dataclass(frozen=True, slots=True)
class _Items:
    item: Any
    keyed: bool
    zero: Any


@dataclass(frozen=True, slots=True)
class _Members:
    schema: type[msgspec.Struct]
    zero: Any = field(default_factory=dict)


@cache
def _members(schema: type[msgspec.Struct]) -> dict[str, Any]:
    return {member.encode_name: _rule(member.type) for member in msgspec.structs.fields(schema)}


def _rule(wanted: Any) -> _Leaf | _Items | _Members:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not types.NoneType]
        if len(inner) == 1:
            return _rule(inner[0])
        return _Leaf(wanted, "must be an integer or a string", "")
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return _Members(wanted)
    if origin is tuple:
        return _Items(_rule(arguments[0]), keyed=False, zero=[])
    if wanted in _MAPS:
        return _Items(_rule(_MAPS[wanted]), keyed=True, zero={})
    if origin is FrozenMap:
        return _Items(_rule(arguments[1]), keyed=True, zero={})
    bare = arguments[0] if origin is Annotated else wanted
    demand, zero = _DEMANDS[bare]
    return _Leaf(wanted, demand, zero)


_MAPS: dict[Any, Any] = {Labels: str, Annotations: str, ResourceList: Quantity}
_DEMANDS: dict[Any, tuple[str, Any]] = {
    str: ("must be a string", ""),
    int: ("must be an integer", 0),
    bool: ("must be true or false", False),
    datetime: ("must be a time in RFC 3339, such as 2006-01-02T15:04:05Z", "1970-01-01T00:00:00Z"),
    Quantity: ("must be a quantity, such as 100m or 1Gi", "0"),
}


def _examine(rule: Any, value: Any, path: str, findings: Findings) -> Any:
    """The part of `value` that fits, or `_MISSING`."""
    match rule:
        case _Leaf():
            return _examine_leaf(rule, value, path, findings)
        case _Members():
            if not isinstance(value, dict):
                return _reject(findings, path, value, "must be an object")
            return _examine_members(rule, value, path, findings)
        case _Items(keyed=True):
            if not isinstance(value, dict):
                return _reject(findings, path, value, "must be a map")
            named: dict[str, Any] = {}
            for name, item in value.items():
                fitting = _examine(rule.item, item, f"{path}[{name}]", findings)
                if fitting is not _MISSING:
                    named[name] = fitting
            return named
        case _:
            if not isinstance(value, list):
                return _reject(findings, path, value, "must be a list")
            # A bad item is replaced by a zero value, so that the others keep their index.
            fitting_items = [_examine(rule.item, item, f"{path}[{i}]", findings) for i, item in enumerate(value)]
            return [rule.item.zero if item is _MISSING else item for item in fitting_items]


def _examine_members(rule: _Members, value: dict[str, Any], path: str, findings: Findings) -> dict[str, Any]:
    known = _members(rule.schema)
    fitting: dict[str, Any] = {}
    for name, item in value.items():
        place = f"{path}.{name}" if path else name
        member = known.get(name)
        if member is None:
            findings.unknown.append(place)
        elif item is not None:  # null means unset, as in Kubernetes
            kept = _examine(member, item, place, findings)
            if kept is not _MISSING:
                fitting[name] = kept
    return fitting


def _examine_leaf(rule: _Leaf, value: Any, path: str, findings: Findings) -> Any:
    plain = float(value) if isinstance(value, Decimal) and rule.type is not Quantity else value
    try:
        msgspec.convert(plain, rule.type, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        demand = rule.demand
        if rule.type is Quantity and isinstance(value, str):
            demand = str(error.__cause__ or error)
        elif isinstance(value, int) and not isinstance(value, bool) and "must be an integer" in demand:
            demand = "is out of range"
        return _reject(findings, path, value, demand)
    return plain


def _reject(findings: Findings, path: str, value: Any, demand: str) -> Any:
    kind = "FieldValueInvalid" if isinstance(value, str) and "quantit" in demand else "FieldValueTypeInvalid"
    findings.errors.append(FieldError(path, kind, f"Invalid value: {quote(value)}: {demand}"))
    return _MISSING


_QUOTED_LENGTH_MAX = 256
"""Longest value in an error: it must not repeat a whole object."""
_QUOTER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def quote(value: object) -> str:
    """A value as Kubernetes quotes it in a field error, truncated if it is long."""
    try:
        text = _QUOTER.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _QUOTED_LENGTH_MAX else f"{text[:_QUOTED_LENGTH_MAX]}..."
