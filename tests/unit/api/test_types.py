"""The table of types: whole, consistent, and described in our own words."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from kedge.api.kinds import KINDS
from kedge.api.types import FieldShape, TypeFacts, TypeTable, type_table
from kedge.api.views.base import Condition
from kedge.errors import InvariantBroken

TABLE = type_table()
SOME_CONDITIONS = frozenset({"lastHeartbeatTime", "lastProbeTime", "lastUpdateTime"})
"""Times that conditions of some kinds have. One view serves all."""
SHARED_VIEWS = frozenset({
    "CertificateSigningRequestCondition.observedGeneration", "NodeCondition.observedGeneration",
    "ResourceMetricStatus.container",
})  # fmt: skip
"""Fields of a view that serves several types, and that kedge does not write into this one."""
VOLUMES = frozenset({
    "ConfigMapVolumeSource", "SecretVolumeSource", "ConfigMapProjection", "SecretProjection", "DownwardAPIProjection",
})  # fmt: skip
"""Types of volumes, whose views serve several of them."""
NAMED = [(facts.name, field) for facts in TABLE for field in facts.fields.values()]


def test_every_kind_that_is_served_has_a_type() -> None:
    assert [kind.kind for kind in KINDS if not TABLE.of_kind(kind.api_version, kind.kind)] == []


def test_kinds_of_kedges_own_have_every_field_that_kedge_reads() -> None:
    """Fields that are only stored, such as the template before a rollout, are in the table alone."""
    for kind in KINDS:
        if kind.group == "kedge.dev":
            facts = TABLE.of_kind(kind.api_version, kind.kind)
            assert facts is not None
            assert kind.view is not None
            assert [each for each in _missing(kind.view, facts) if each.partition(".")[0] not in VOLUMES] == []


def test_every_kind_has_the_fields_of_a_status_that_kedge_writes() -> None:
    """Else a strict `kubectl replace` refuses an object that was just read, for a field that kedge wrote into it."""
    for kind in KINDS:
        facts = TABLE.of_kind(kind.api_version, kind.kind)
        assert facts is not None
        status = (
            None if kind.view is None else {each.name: each for each in msgspec.structs.fields(kind.view)}.get("status")
        )
        part = None if status is None else _struct_in(status.type)
        if part is not None and part is not msgspec.Struct:
            assert set(_missing(part, TABLE[facts.json["status"].type])) <= SHARED_VIEWS, kind.kind


def _missing(view: type[msgspec.Struct], facts: TypeFacts) -> list[str]:
    """Fields of a view that its type does not have, the fields of its parts included."""
    found = []
    for each in msgspec.structs.fields(view):
        field = facts.json.get(each.encode_name)
        if field is None and view is Condition and each.encode_name in SOME_CONDITIONS:
            continue
        if field is None:
            found.append(f"{facts.short}.{each.encode_name}")
            continue
        child, part = TABLE.child(field), _struct_in(each.type)
        if part is not None and child is not None:
            found += _missing(part, child)
    return found


def _struct_in(wanted: Any) -> type[msgspec.Struct] | None:
    """The struct in a type such as `tuple[Part, ...]` or `Part | None`."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return wanted
    return next((found for each in get_args(wanted) if (found := _struct_in(each)) is not None), None)


def test_every_type_and_field_has_a_sentence() -> None:
    for facts in TABLE:
        assert facts.description.endswith("."), facts.name
    for name, field in NAMED:
        assert field.description.endswith("."), f"{name}.{field.name}"


def test_numbers_are_unique_in_a_type() -> None:
    for facts in TABLE:
        numbers = [field.number for field in facts.fields.values() if field.number is not None]
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
