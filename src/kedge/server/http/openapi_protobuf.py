"""An OpenAPI v2 document as protobuf, in the message types of gnostic, which kubectl reads before it sends a `List`.

Only the parts that `openapi` writes: references, types, properties, items, required names and extensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_SWAGGER, _INFO, _DEFINITIONS = 1, 2, 9
"""Field numbers of `Document`."""
_TEXTS = {"$ref": 1, "format": 2, "description": 4}
_REQUIRED, _ADDITIONAL, _TYPE, _ITEMS, _ALL_OF, _PROPERTIES, _EXTENSION = 19, 21, 22, 23, 24, 25, 31
"""Field numbers of `Schema`."""


def encode_document(document: Mapping[str, Any]) -> bytes:
    """The document with its definitions; paths are left out, because no client reads them."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    definitions = _named_schemas(document["definitions"])
    return _text(_SWAGGER, document["swagger"]) + _field(_INFO, info) + _field(_DEFINITIONS, definitions)


def _named_schemas(schemas: Mapping[str, Any]) -> bytes:
    return b"".join([_field(1, _text(1, name) + _field(2, _schema(schema))) for name, schema in schemas.items()])


def _schema(schema: Mapping[str, Any]) -> bytes:
    parts = [_text(number, schema[name]) for name, number in _TEXTS.items() if name in schema]
    parts.extend(_text(_REQUIRED, name) for name in schema.get("required", ()))
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        parts.append(_field(_ADDITIONAL, _field(1, _schema(additional))))
    if "type" in schema:
        parts.append(_field(_TYPE, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_field(_ITEMS, _field(1, _schema(schema["items"]))))
    parts.extend(_field(_ALL_OF, _schema(each)) for each in schema.get("allOf", ()))
    if "properties" in schema:
        parts.append(_field(_PROPERTIES, _named_schemas(schema["properties"])))
    for name, value in schema.items():
        if name.startswith("x-"):
            # An extension is YAML text, and JSON is YAML.
            parts.append(_field(_EXTENSION, _text(1, name) + _field(2, _field(2, msgspec.json.encode(value)))))
    return b"".join(parts)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes: strings and messages have the same form."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
