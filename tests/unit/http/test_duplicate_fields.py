"""Fields that stand twice: warnings or errors as `fieldValidation` asks, in JSON and YAML, in creates and patches."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.api_server import local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, create_config_map, sent

from kedge.api.codec import decode_json
from kedge.server.http.duplicates import duplicates_in_json

TWICE = b'{"metadata":{"name":"b"},"data":{"x":"1","x":"2"}}'
YAML = b"metadata:\n  name: b\ndata:\n  x: '1'\n  x: '2'\n"
JSON_PATCH = "application/json-patch+json"
FOUND = 'duplicate field "data.x"'


@on_loop
async def test_a_create_reports_fields_that_stand_twice() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, _, status = await sent(port, "POST", f"{CONFIG_MAPS}?fieldValidation=Strict", TWICE)
        assert (code, status["message"]) == (400, f"strict decoding error: {FOUND}")
        code, head, made = await sent(port, "POST", CONFIG_MAPS, TWICE)
        assert (code, made["data"]) == (201, {"x": "2"})
        assert r'Warning: 299 - "duplicate field \"data.x\""' in head
        code, head, _ = await sent(port, "PUT", f"{CONFIG_MAPS}/b?fieldValidation=Ignore", TWICE)
        assert code == 200
        assert "Warning" not in head
        code, _, status = await sent(port, "PUT", f"{CONFIG_MAPS}/b?fieldValidation=Strict", TWICE)
        assert (code, status["message"]) == (400, f"strict decoding error: {FOUND}")


@on_loop
async def test_a_yaml_body_reports_keys_that_stand_twice_with_their_line() -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        arguments = (YAML, "application/yaml")
        code, _, status = await sent(port, "POST", f"{CONFIG_MAPS}?fieldValidation=Strict", *arguments)
        assert code == 400
        assert 'yaml: unmarshal errors: line 5: key "x" already set in map' in status["message"]
        code, head, made = await sent(port, "POST", CONFIG_MAPS, *arguments)
        assert (code, made["data"]) == (201, {"x": "2"})
        assert "already set in map" in head


@pytest.mark.parametrize(
    ("content_type", "patch", "path"),
    [
        (MERGE, b'{"data":{"x":"1","x":"2"}}', "data.x"),
        (JSON_PATCH, b'[{"op":"add","path":"/data","path":"/data","value":{}}]', "[0].path"),
    ],
)
@on_loop
async def test_a_patch_reports_fields_that_stand_twice(content_type: str, patch: bytes, path: str) -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        code, _, status = await sent(port, "PATCH", f"{CONFIG_MAPS}/a?fieldValidation=Strict", patch, content_type)
        assert (code, status["message"]) == (400, f'strict decoding error: duplicate field "{path}"')
        code, _, _ = await sent(port, "PATCH", f"{CONFIG_MAPS}/a", patch, content_type)
        assert code == 200


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"a: &a [x]\nb: *a\n", "aliases"),
        (b"a: " + b"x" * 300_000, "at most 262144 bytes"),
        (b"", "empty"),
        (b"[" * 5_000, "nested more than 100 deep"),
        (b"{[]: 1}", "not YAML"),
    ],
)
@on_loop
async def test_a_yaml_body_that_costs_too_much_is_refused(body: bytes, why: str) -> None:
    async with local_api() as (_, port):
        code, _, status = await sent(port, "POST", CONFIG_MAPS, body, "application/yaml")
    assert code == 400
    assert why in status["message"]


names = st.sampled_from(["a", "b", ":", 'c"d', "\u00e9", "\\"])


class Members(list[Any]):
    """The members of an object, some perhaps twice."""


members: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(0, 9) | st.sampled_from(["", ":", "::", '":']),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=4).map(Members),
    max_leaves=10,
)


def as_text(value: Any, space: str, *, ascii_only: bool) -> str:
    if isinstance(value, Members):
        pairs = (
            f"{json.dumps(name, ensure_ascii=ascii_only)}{space}:{space}{as_text(item, space, ascii_only=ascii_only)}"
            for name, item in value
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(as_text(item, space, ascii_only=ascii_only) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def has_duplicates(value: Any) -> bool:
    if isinstance(value, Members):
        own = [name for name, _ in value]
        return len(own) != len(set(own)) or any(has_duplicates(item) for _, item in value)
    return isinstance(value, list) and any(has_duplicates(item) for item in value)


@given(members, st.sampled_from(["", " ", "\n"]), st.booleans())
def test_duplicates_are_found_exactly_where_they_are(value: Any, space: str, ascii_only: bool) -> None:
    body = as_text(value, space, ascii_only=ascii_only).encode()
    assert bool(list(duplicates_in_json(body, decode_json(body)))) == has_duplicates(value)


def test_a_field_that_stands_three_times_is_named_once_with_its_whole_path() -> None:
    body = b'{"a":[{"b":1},{"b":{"c":1,"c":2,"c":3}}]}'
    assert list(duplicates_in_json(body, decode_json(body))) == ['duplicate field "a[1].b.c"']


POD_SPEC = b'{"containers":[{"name":"a","image":"b:1"}]}'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            b'{"metadata":{"name":"b","name":"a","annotations":{"k":"\\u003a"}},"spec":%b}' % POD_SPEC,
            'duplicate field "metadata.name"',
        ),
        (b'{"metadata":{"name":"a"},"spec":%b}' % POD_SPEC, ""),
        (b'{"metadata":{"name":"a"},"spec":{"a":1},"spec":%b}' % POD_SPEC, 'duplicate field "spec"'),
        (b'{"metadata":{"name":"b","name":"a"},"spec":%b}' % POD_SPEC, 'duplicate field "metadata.name"'),
        (b'{"metadata":{"name":"a"},"sp\\u0065c":1,"spec":%b}' % POD_SPEC, 'duplicate field "spec"'),
        (b'{"metadata":{"name":"a"},"spec":%b,"more":1}' % POD_SPEC, 'unknown field "more"'),
        (b'{"metadata":{"name":"a","more":1},"spec":%b}' % POD_SPEC, 'unknown field "metadata.more"'),
        (b'{"metadata":{"name":"a"},"spec":%b}' % POD_SPEC.replace(b'"b:1"', b'"b","image":"b:1"'), "duplicate field"),
        (b'{"metadata":{"name":"a"},"spec":%b}' % POD_SPEC.replace(b"image", b"more"), "unknown field"),
        (b'{"metadata":{"name":"a"},"spec":[]}', "spec"),
    ],
)
@on_loop
async def test_a_spec_that_was_read_before_hides_no_field_around_it(body: bytes, problem: str) -> None:
    async with local_api() as (_, port):
        await create_config_map(port, "a")
        pods = f"{CONFIG_MAPS.rpartition('/')[0]}/pods"
        good = b'{"metadata":{"name":"first"},"spec":%b}' % POD_SPEC
        assert (await sent(port, "POST", f"{pods}?fieldValidation=Strict", good))[0] == 201
        for _ in range(2):  # the second time all parts of it are known
            code, _, status = await sent(port, "POST", f"{pods}?fieldValidation=Strict&dryRun=All", body)
            assert (code < 400) == (not problem)
            assert problem in status.get("message", "")
