"""OpenAPI v2 as protobuf, byte by byte."""

from __future__ import annotations

from typing import Any

from kedge.server.http.openapi_protobuf import encode_document


def document(schema: dict[str, Any]) -> bytes:
    """A document whose only definition is `S`."""
    head = {"swagger": "2.0", "info": {"title": "t", "version": "v"}}
    return encode_document({**head, "definitions": {"S": schema}})


def test_a_document_has_version_info_and_definitions() -> None:
    assert document({}) == b"\x0a\x032.0" + b"\x12\x06\x0a\x01t\x12\x01v" + b"\x4a\x07\x0a\x05\x0a\x01S\x12\x00"


def test_a_schema_has_type_properties_items_and_references() -> None:
    item = {"type": "array", "items": {"$ref": "#/definitions/T"}}
    encoded = document({"type": "object", "required": ["a"], "properties": {"a": item}})
    assert b"\x9a\x01\x01a" in encoded  # required
    assert b"\xb2\x01\x08\x0a\x06object" in encoded
    assert b"\xba\x01\x13\x0a\x11\x0a\x0f#/definitions/T" in encoded  # items


def test_an_extension_is_json_text_and_a_long_field_has_a_longer_length() -> None:
    encoded = document({"x-a": [1], "description": "d" * 200, "additionalProperties": {"type": "string"}})
    assert b"\xfa\x01\x0c\x0a\x03x-a\x12\x05\x12\x03[1]" in encoded
    assert b"\x22\xc8\x01" + b"d" * 200 in encoded
    assert b"\xaa\x01\x0d\x0a\x0b\xb2\x01\x08\x0a\x06string" in encoded
