"""The table of types: whole, consistent, and described in our own words."""

from __future__ import annotations

import pytest

from kedge.api.kinds import KINDS
from kedge.api.types import FieldShape, TypeTable, type_table
from kedge.errors import InvariantBroken

TABLE = type_table()
NAMED = [(facts.name, field) for facts in TABLE for field in facts.fields.values()]


def test_every_kubernetes_kind_that_is_served_has_a_type() -> None:
    missing = [
        kind.kind for kind in KINDS if kind.group != "kedge.dev" and not TABLE.of_kind(kind.api_version, kind.kind)
    ]
    assert missing == []


def test_every_type_and_field_has_a_sentence() -> None:
    for facts in TABLE:
        assert facts.description.endswith("."), facts.name
    for name, field in NAMED:
        assert field.description.endswith("."), f"{name}.{field.name}"


def test_numbers_are_unique_in_a_type() -> None:
    for facts in TABLE:
        numbers = [field.number for field in facts.fields.values()]
        assert len(numbers) == len(set(numbers)), facts.name


def test_keys_of_lists_are_fields_of_their_items() -> None:
    for name, field in NAMED:
        child = TABLE.child(field)
        for key in (*field.keys, *([field.merge_key] if field.merge_key else ())):
            assert child is not None, f"{name}.{field.name}"
            assert key in child.json, f"{name}.{field.name} has no key {key}"
        if field.list_type == "map":
            assert field.shape is FieldShape.LIST
            assert field.keys


def test_inline_types_are_opened_in_json_and_nested_in_protobuf() -> None:
    volume = TABLE["io.k8s.api.core.v1.Volume"]
    assert "emptyDir" in volume.json
    assert "volumeSource" not in volume.json
    assert volume.by_number[2].inline


def test_a_table_that_is_damaged_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="no table defines"):
        TypeTable(["@package a.v1 a.v1 a/v1\nThing: A thing.\n  part#1:Missing  A part.\n"])
    with pytest.raises(InvariantBroken, match="not a field"):
        TypeTable(["@package a.v1 a.v1 a/v1\nThing: A thing.\n  part\n"])
    with pytest.raises(InvariantBroken, match="@package"):
        TypeTable(["Thing: A thing.\n"])
