"""Kubernetes' protobuf request bodies, decoded to the JSON that the same client would have sent.

kubectl sends them for `create deployment`, `auth can-i` and the deletes of `drain`. The decoder follows the numbers in
`api.types`. Answers are always JSON, so there is no encoder. Garbage raises `BadRequest` and never anything else.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from kedge.api.types import FieldFacts, FieldShape, TypeFacts, TypeTable, type_table
from kedge.errors import BadRequest

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_DEPTH_MAX = 40
"""Nested messages: the deepest type that kedge serves needs 12."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode_protobuf(body: bytes, table: TypeTable | None = None) -> dict[str, Any]:
    """The object in an enveloped protobuf body, with `apiVersion` and `kind`.

    Raises:
        BadRequest: it is not such a body, is cut short, or has a kind that no table describes: send JSON instead.
    """
    if not body.startswith(_MAGIC):
        raise BadRequest(f"the body is not {MEDIA_TYPE}: it must begin with the bytes 6b 38 73 00")
    types = table or type_table()
    try:
        api_version, kind, raw = _envelope(body[len(_MAGIC) :])
        # The options of a deletion are in every group: a client sends them with the version of the object.
        facts = types[_DELETE_OPTIONS] if kind == "DeleteOptions" else types.of_kind(api_version, kind)
        if facts is None or facts.json_only:
            raise BadRequest(f'kind "{kind}" in version "{api_version}" has no protobuf form here: send JSON')
        return {"apiVersion": api_version, "kind": kind, **_Decoder(types).message(raw, facts, 0)}
    except (_Damaged, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise BadRequest(f"the protobuf body is damaged or cut short ({error}): send it again, or send JSON") from error


class _Damaged(Exception):
    """The bytes are not a message. `decode_protobuf` wraps it."""


def _envelope(body: bytes) -> tuple[str, str, bytes]:
    """`runtime.Unknown`: the kind and the bytes of the object."""
    meta, raw = b"", b""
    for number, wire, value in _fields(body):
        if number == 1 and wire == _BYTES:
            meta = value
        elif number == 2 and wire == _BYTES:
            raw = value
    names = {number: value.decode() for number, wire, value in _fields(meta) if wire == _BYTES}
    return names.get(1, ""), names.get(2, ""), raw


class _Decoder:
    def __init__(self, table: TypeTable) -> None:
        self._table = table

    def message(self, body: bytes, facts: TypeFacts, depth: int) -> dict[str, Any]:
        if depth > _DEPTH_MAX:
            raise _Damaged(f"messages nest deeper than {_DEPTH_MAX}")
        found: dict[str, Any] = {}
        for number, wire, value in _fields(body):
            field = facts.by_number.get(number)
            if field is None:
                continue  # a field of a newer version: lost, as in every reader of protobuf
            if field.inline:
                found.update(self.message(_as_bytes(value), self._table[field.type], depth + 1))
            elif field.shape is FieldShape.MAP:
                name, item = self._entry(_as_bytes(value), field, depth)
                found.setdefault(field.name, {})[name] = item
            elif field.shape is FieldShape.LIST:
                found.setdefault(field.name, []).extend(self._items(wire, value, field, depth))
            else:
                found[field.name] = self._value(value, field, depth)
        return {name: value for name, value in found.items() if _is_written(value, facts.json[name])}

    def _items(self, wire: int, value: Any, field: FieldFacts, depth: int) -> Iterator[Any]:
        if wire == _BYTES and field.type in _PACKED:
            at = 0
            while at < len(value):
                number, at = _varint(value, at)
                yield _PACKED[field.type](number)
        else:
            yield self._value(value, field, depth)

    def _entry(self, body: bytes, field: FieldFacts, depth: int) -> tuple[str, Any]:
        name, item = "", _ZERO.get(field.type)
        for number, _, value in _fields(body):
            if number == 1:
                name = _as_bytes(value).decode()
            elif number == 2:
                item = self._value(value, field, depth)
        return name, {} if item is None else item

    def _value(self, value: Any, field: FieldFacts, depth: int) -> Any:
        if field.scalar:
            return _SCALARS[field.type](value)
        facts = self._table[field.type]
        body = _as_bytes(value)
        if "list" in facts.flags:
            return [_as_bytes(item).decode() for number, _, item in _fields(body) if number == 1]
        if "custom" in facts.flags:
            return _CUSTOM[facts.short](self, body, depth)
        return self.message(body, facts, depth + 1)

    def schema_or_bool(self, body: bytes, depth: int) -> Any:
        facts = self._table[f"{_SCHEMA}OrBool"]
        found = self.message(body, facts, depth + 1)
        return found.get("schema", found.get("allows", False))

    def schema_or_array(self, body: bytes, depth: int) -> Any:
        found = self.message(body, self._table[f"{_SCHEMA}OrArray"], depth + 1)
        return found.get("schema", found.get("jSONSchemas", []))

    def schema_or_strings(self, body: bytes, depth: int) -> Any:
        found = self.message(body, self._table[f"{_SCHEMA}OrStringArray"], depth + 1)
        return found.get("schema", found.get("property", []))


_SCHEMA = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"


def _is_written(value: Any, field: FieldFacts) -> bool:
    """Whether Go's JSON would have the key: protobuf carries zeros that `omitempty` leaves out."""
    if value is None:
        return False
    if field.pointer or field.always or field.shape is not FieldShape.ONE or isinstance(value, dict):
        return True
    return bool(value)


# -- wire format -------------------------------------------------------------------------------------


def _fields(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field of a message."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(body, at)
            yield number, wire, value
        elif wire == _BYTES:
            length, at = _varint(body, at)
            yield number, wire, _cut(body, at, length)
            at += length
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
            yield number, wire, _cut(body, at, length)
            at += length
        else:
            raise _Damaged(f"wire type {wire} is not in use")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(body) or shift > 63:
            raise _Damaged("a number has no end")
        byte = body[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _cut(body: bytes, at: int, length: int) -> bytes:
    if at + length > len(body):
        raise _Damaged(f"a field of {length} bytes has only {len(body) - at}")
    return body[at : at + length]


# -- scalars -----------------------------------------------------------------------------------------


def _as_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _Damaged("a number stands where bytes are expected")
    return value


def _as_number(value: Any) -> int:
    if not isinstance(value, int):
        raise _Damaged("bytes stand where a number is expected")
    return value


def _signed(value: Any) -> int:
    number = _as_number(value) & 0xFFFF_FFFF_FFFF_FFFF
    return number - (1 << 64) if number >> 63 else number


def _text(value: Any) -> str:
    return _as_bytes(value).decode()


def _numbered(value: Any) -> dict[int, Any]:
    return {number: item for number, _, item in _fields(_as_bytes(value))}


def _quantity(value: Any) -> str:
    return _text(_numbered(value).get(1, b"0"))


def _moment(value: Any) -> tuple[datetime, int] | None:
    """Date and microseconds; None for the zero time."""
    parts = _numbered(value)
    if not parts:
        return None
    try:
        return _EPOCH + timedelta(seconds=_signed(parts.get(1, 0))), _signed(parts.get(2, 0)) // 1000
    except OverflowError as error:
        raise _Damaged("a time is outside the calendar") from error


def _time(value: Any) -> str | None:
    moment = _moment(value)
    return None if moment is None else moment[0].strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(value: Any) -> str | None:
    moment = _moment(value)
    return None if moment is None else f"{moment[0].strftime('%Y-%m-%dT%H:%M:%S')}.{moment[1]:06d}Z"


def _duration(value: Any) -> str:
    nanoseconds = _signed(_numbered(value).get(1, 0))
    seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{sign}{seconds}{fraction}s"


def _int_or_string(value: Any) -> int | str:
    parts = _numbered(value)
    return _text(parts.get(3, b"")) if _signed(parts.get(1, 0)) else _signed(parts.get(2, 0))


def _raw_json(value: Any) -> Any:
    raw = _numbered(value).get(1, b"")
    return json.loads(_as_bytes(raw)) if raw else None


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "string": _text,
    "bool": lambda value: bool(_as_number(value)),
    "int32": _signed,
    "int64": _signed,
    "double": lambda value: struct.unpack("<d", _as_bytes(value))[0] if len(_as_bytes(value)) == 8 else 0.0,
    "bytes": lambda value: base64.b64encode(_as_bytes(value)).decode(),
    "quantity": _quantity,
    "time": _time,
    "microtime": _micro_time,
    "duration": _duration,
    "intorstring": _int_or_string,
    "fieldsv1": _raw_json,
    "rawextension": _raw_json,
    "any": _raw_json,
}
_PACKED: dict[str, Callable[[int], Any]] = {"int32": _signed, "int64": _signed, "bool": bool}
_ZERO: dict[str, Any] = {"string": "", "bytes": "", "int32": 0, "int64": 0, "bool": False, "quantity": "0"}
_CUSTOM: dict[str, Callable[[_Decoder, bytes, int], Any]] = {
    "JSON": lambda _, body, __: _raw_json(body),
    "JSONSchemaPropsOrBool": _Decoder.schema_or_bool,
    "JSONSchemaPropsOrArray": _Decoder.schema_or_array,
    "JSONSchemaPropsOrStringArray": _Decoder.schema_or_strings,
}
