"""The stored form: lossless, spliced without decoding, compared by meaning."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.json_values import objects, texts, values
from tests.unit.api.manifests import manifest

from kedge.api.codec import (
    OBJECT_DEPTH_MAX,
    Draft,
    decode_json,
    encode_json,
    encode_object,
    parse_object,
    same_content,
    same_json,
    splice,
    splice_list,
)
from kedge.errors import BadRequest, InvariantBroken

stored_objects = st.builds(
    lambda metadata, rest: {**rest, "apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "name": "web"}},
    st.dictionaries(texts, values, max_size=4),
    objects,
)


class Stored(NamedTuple):
    value: bytes
    modified: int


def sorted_copy(value: Any) -> Any:
    """The same JSON with the members of every object in another order."""
    if isinstance(value, dict):
        return {name: sorted_copy(value[name]) for name in sorted(value, reverse=True)}
    return [sorted_copy(item) for item in value] if isinstance(value, list) else value


# -- lossless --------------------------------------------------------------------------------------


@given(objects)
def test_any_object_survives_encoding_and_parsing(obj: dict[str, Any]) -> None:
    assert same_json(parse_object(encode_json(obj)), obj)


@given(stored_objects)
def test_the_stored_form_keeps_everything_but_the_resource_version(obj: dict[str, Any]) -> None:
    value = encode_object(obj)
    assert list(decode_json(value))[:3] == ["apiVersion", "kind", "metadata"]
    obj["metadata"].pop("resourceVersion", None)
    assert same_json(parse_object(value), obj)


@pytest.mark.parametrize(
    "number", ["123456789012345678901234567890", "0.1000", "1E+400", "-0.0", "18446744073709551616", "1.10"]
)
def test_numbers_keep_their_digits(number: str) -> None:
    value = encode_object({"apiVersion": "v1", "kind": "X", "metadata": {}, "n": decode_json(number.encode())})
    assert value.endswith(f'"n":{number}}}'.encode())


def test_encoding_does_not_change_its_input() -> None:
    obj = {"kind": "Pod", "metadata": {"resourceVersion": "5", "name": "a"}, "apiVersion": "v1"}
    assert encode_object(obj) == b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}'
    assert obj["metadata"] == {"resourceVersion": "5", "name": "a"}


@given(stored_objects)
def test_a_draft_encodes_like_a_fully_decoded_object(obj: dict[str, Any]) -> None:
    body = encode_json(obj)
    assert same_content(Draft.parse(body).encode(), encode_object(parse_object(body)))


def test_a_draft_keeps_its_changes() -> None:
    draft = Draft.parse(encode_json(manifest("Pod")))
    draft.metadata["uid"] = "u"
    draft.get("spec")["nodeName"] = "node-1"
    draft.set("status", {"phase": "Pending"})
    expected = manifest("Pod")
    expected["metadata"]["uid"] = "u"
    expected["spec"]["nodeName"] = "node-1"
    expected["status"] = {"phase": "Pending"}
    assert same_json(parse_object(draft.encode()), expected)
    assert draft.get("nothing") is None


def test_a_draft_stores_no_resource_version() -> None:
    draft = Draft.parse(b'{"metadata":{"resourceVersion":"5","name":"a"},"kind":"Pod","apiVersion":"v1"}')
    assert draft.encode() == b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}'
    assert draft.metadata["resourceVersion"] == "5"  # a caller may still compare it


def test_a_mapping_is_copied_on_the_way_in() -> None:
    obj = {"spec": {"a": [1]}}
    parsed = parse_object(obj)
    parsed["spec"]["a"].append(2)
    assert obj == {"spec": {"a": [1]}}


# -- refusing --------------------------------------------------------------------------------------

deep = b'{"a":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{}x", "not valid JSON"),
        (b"[]", "must be a JSON object, not a list"),
        (b"null", "not null"),
        (b"true", "not a boolean"),
        (b'"x"', "not a string"),
        (b"3", "not a number"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":"\\ud800"}', "not valid Unicode"),
        (b'{"a":1e9999999999999999999999}', "exponent is out of range"),
        (b'{"a":' + b"9" * 5000 + b"}", "out of range"),
        (deep, "nested more than"),
    ],
)
def test_a_body_that_is_not_an_object_is_rejected_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_object(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a list"),
        (b'{"metadata":[]}', "metadata must be an object, not a list"),
        (b'{"kind":3}', "kind must be a string, not a number"),
        (b'{"apiVersion":null}', "apiVersion must be a string, not null"),
        (b'{"spec":"\xff"}', "not UTF-8"),
    ],
)
def test_a_draft_rejects_a_bad_envelope(body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        Draft.parse(body)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_an_object_may_nest_as_deep_as_the_bound_and_no_deeper() -> None:
    parse_object(nested(OBJECT_DEPTH_MAX))
    parse_object(b'{"a":[' + b"[]," * 500 + b"[]]}")  # wide is not deep
    with pytest.raises(BadRequest, match="nested more than"):
        parse_object(nested(OBJECT_DEPTH_MAX + 1))


def test_values_outside_json_are_rejected() -> None:
    with pytest.raises(BadRequest, match="not valid Unicode"):
        parse_object({"a": "\ud800"})
    with pytest.raises(BadRequest, match="cannot be written"):
        parse_object({"a": object()})
    with pytest.raises(BadRequest, match="has no kind"):
        encode_object({"apiVersion": "v1", "metadata": {}})
    with pytest.raises(BadRequest, match="metadata must be an object"):
        encode_object({"apiVersion": "v1", "kind": "Pod", "metadata": 3})


@given(st.binary(max_size=60) | texts.map(str.encode))
def test_no_body_raises_another_error(body: bytes) -> None:
    for parse in (parse_object, Draft.parse):
        try:
            parse(body)
        except BadRequest:
            continue


# -- splicing --------------------------------------------------------------------------------------


@given(stored_objects, st.integers(1, 2**63))
def test_splicing_equals_decoding_inserting_and_encoding(obj: dict[str, Any], revision: int) -> None:
    value = encode_object(obj)
    expected = parse_object(value)
    expected["metadata"] = {"resourceVersion": str(revision), **expected["metadata"]}
    assert splice(value, revision) == encode_json(expected)


def test_splicing_a_value_that_is_not_a_stored_object_is_a_bug() -> None:
    with pytest.raises(InvariantBroken):
        splice(b"{}", 1)


@given(st.lists(st.tuples(stored_objects, st.integers(1, 10**9)), max_size=4), st.booleans())
def test_a_spliced_list_equals_the_encoded_one(items: list[tuple[dict[str, Any], int]], more: bool) -> None:
    entries = [Stored(encode_object(obj), revision) for obj, revision in items]
    spliced = splice_list("v1", "Pod", entries, 77, "token" if more else "", 5 if more else None)
    metadata = {"resourceVersion": "77", **({"continue": "token", "remainingItemCount": 5} if more else {})}
    expected = {
        "apiVersion": "v1",
        "kind": "PodList",
        "metadata": metadata,
        "items": [parse_object(splice(entry.value, entry.modified)) for entry in entries],
    }
    assert same_json(parse_object(spliced), expected)


# -- comparing -------------------------------------------------------------------------------------


@given(objects)
def test_the_order_of_members_does_not_matter(obj: dict[str, Any]) -> None:
    assert same_content(encode_json(obj), encode_json(sorted_copy(obj)))


@given(values, values)
def test_two_values_are_equal_if_and_only_if_their_canonical_forms_are(a: Any, b: Any) -> None:
    def canonical(value: Any) -> Any:
        match value:
            case dict():
                return ("map", tuple(sorted((name, canonical(item)) for name, item in value.items())))
            case list():
                return ("list", tuple(canonical(item) for item in value))
            case bool() | None | str():
                return (type(value).__name__, str(value))
            case _:
                return ("number", str(Decimal(value).normalize()) if value else "0")

    assert same_json(a, b) == (canonical(a) == canonical(b))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (b'{"a":true}', b'{"a":1}', False),
        (b'{"a":false}', b'{"a":0}', False),
        (b'{"a":null}', b"{}", False),
        (b'{"a":null}', b'{"b":null}', False),
        (b'{"a":"1"}', b'{"a":1}', False),
        (b'{"a":[1,2]}', b'{"a":[2,1]}', False),
        (b'{"a":[]}', b'{"a":{}}', False),
        (b'{"a":1.0}', b'{"a":1}', True),
        (b'{"a": {"x":1,"y":2}}', b'{"a":{"y":2,"x":1}}', True),
    ],
)
def test_same_content_compares_meaning_not_bytes(a: bytes, b: bytes, same: bool) -> None:
    assert same_content(a, b) is same
