"""JSON Patch and JSON Merge Patch, by the examples and rules of their RFCs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.json_values import objects, values

from kedge.api import patch as patch_module
from kedge.api.block_list import BLOCK_ITEMS, BlockList
from kedge.api.codec import OBJECT_DEPTH_MAX, encode_json, same_json
from kedge.api.patch import (
    JSON_PATCH_MOVED_MAX,
    JSON_PATCH_OPERATIONS_MAX,
    apply_json_patch,
    apply_merge_patch,
)
from kedge.errors import Invalid, TooLarge


def pointer(*parts: str) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": "qux"}, {"foo": "bar", "baz": "qux"}),
        ({"foo": [1, 3]}, {"op": "add", "path": "/foo/1", "value": 2}, {"foo": [1, 2, 3]}),
        ({"foo": [1]}, {"op": "add", "path": "/foo/-", "value": [2]}, {"foo": [1, [2]]}),
        ({"foo": [1]}, {"op": "add", "path": "/foo/1", "value": 2}, {"foo": [1, 2]}),
        ({"a": 1, "b": 2}, {"op": "remove", "path": "/a"}, {"b": 2}),
        ({"a": [1, 2, 3]}, {"op": "remove", "path": "/a/1"}, {"a": [1, 3]}),
        ({"a": {"b": {"c": 1}}}, {"op": "remove", "path": "/a/b/c"}, {"a": {"b": {}}}),
        ({"a": [{"b": 1}]}, {"op": "replace", "path": "/a/0/b", "value": 2}, {"a": [{"b": 2}]}),
        ({"a": {"x": 1}, "b": {}}, {"op": "move", "from": "/a/x", "path": "/b/y"}, {"a": {}, "b": {"y": 1}}),
        ({"a": ["x", "y", "z"]}, {"op": "move", "from": "/a/0", "path": "/a/2"}, {"a": ["y", "z", "x"]}),
        ({"a": [1]}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": [1], "b": [1]}),
        ({"a/b": 1, "m~n": 2}, {"op": "replace", "path": "/a~1b", "value": 3}, {"a/b": 3, "m~n": 2}),
        ({"m~n": 2}, {"op": "test", "path": "/m~0n", "value": 2}, {"m~n": 2}),
        ({"a": None}, {"op": "replace", "path": "/a", "value": 1}, {"a": 1}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"": 1}, {"op": "remove", "path": "/"}, {}),
    ],
)
def test_each_operation_follows_its_rfc(document: Any, operation: Any, expected: Any) -> None:
    before = copy.deepcopy(document)
    assert apply_json_patch(document, [operation]) == expected
    assert document == before


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([{"op": "test", "path": "/a", "value": 2}], "testing '/a' failed"),
        ([{"op": "test", "path": "/flag", "value": 1}], "testing '/flag' failed"),
        ([{"op": "remove", "path": "/none"}], "'/none' does not exist"),
        ([{"op": "replace", "path": "/none", "value": 1}], "'/none' does not exist"),
        ([{"op": "add", "path": "/none/x", "value": 1}], "does not exist"),
        ([{"op": "add", "path": "/a/x", "value": 1}], "does not exist"),
        ([{"op": "add", "path": "/list/9", "value": 1}], "past the end"),
        ([{"op": "remove", "path": "/list/1"}], "past the end"),
        ([{"op": "remove", "path": "/list/-"}], "not an index"),
        ([{"op": "add", "path": "/list/01", "value": 1}], "not an index"),
        ([{"op": "add", "path": "/list/x", "value": 1}], "not an index"),
        ([{"op": "move", "from": "/list", "path": "/list/0"}], "into itself"),
        ([{"op": "copy", "path": "/b"}], "from must be a JSON pointer"),
        ([{"op": "add", "path": "a", "value": 1}], "path must be a JSON pointer"),
        ([{"op": "add", "path": "/a"}], "needs a value"),
        ([{"op": "twist", "path": "/a"}], "unknown op"),
        ([{"op": "remove", "path": ""}], "cannot be removed"),
        ([{"op": "replace", "path": "", "value": 3}], "a value that is not an object"),
        ([3], "an operation is an object"),
        ({"op": "add"}, "list of operations"),
        ([{"op": "test", "path": "", "value": {}}] * (JSON_PATCH_OPERATIONS_MAX + 1), "at most"),
    ],
)
def test_a_patch_that_cannot_be_applied_names_the_operation_and_the_cause(operations: Any, why: str) -> None:
    with pytest.raises(Invalid, match=why.replace("(", r"\(")) as caught:
        apply_json_patch({"a": 1, "flag": True, "list": [0]}, operations)
    assert caught.value.errors[0].path.startswith("patch")


def test_a_patch_is_all_or_nothing() -> None:
    document = {"a": {"b": 1}}
    with pytest.raises(Invalid, match=r"\[1\]"):
        apply_json_patch(document, [{"op": "add", "path": "/a/c", "value": 2}, {"op": "remove", "path": "/x"}])
    assert document == {"a": {"b": 1}}


@given(objects, st.data())
def test_an_added_value_can_be_read_and_its_removal_restores_the_object(document: Any, data: st.DataObject) -> None:
    name, value = data.draw(st.text(max_size=5).filter(lambda n: n not in document)), data.draw(values)
    before = copy.deepcopy(document)
    added = apply_json_patch(document, [{"op": "add", "path": pointer(name), "value": value}])
    assert same_json(added[name], value)
    assert same_json(apply_json_patch(added, [{"op": "remove", "path": pointer(name)}]), before)
    assert same_json(document, before)


def test_copies_of_an_object_into_itself_are_bounded() -> None:
    doubling = [{"op": "copy", "from": "", "path": "/a"}, {"op": "copy", "from": "", "path": "/b"}] * 40
    with pytest.raises(Invalid, match="copies more than"):
        apply_json_patch({"a": "x" * 100}, doubling)
    assert apply_json_patch({"a": 1}, doubling[:2]) == {"a": {"a": 1}, "b": {"a": {"a": 1}}}


# -- against a plain definition ------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "0", "1"])
small: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
paths = st.lists(st.sampled_from(["a", "b", "0", "1", "2", "-"]), max_size=4).map(lambda parts: pointer(*parts))
patch_operations = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": paths,
        "from": paths,
        "value": small,
    }
)


def plainly(document: Any, operation: dict[str, Any]) -> Any:
    """One operation on a deep copy; `LookupError` if it cannot be applied."""
    document = copy.deepcopy(document)
    op, path = operation["op"], operation["path"].split("/")[1:]
    source, value = operation["from"].split("/")[1:], copy.deepcopy(operation["value"])
    if op in ("copy", "move"):
        if op == "move" and len(path) > len(source) and path[: len(source)] == source:
            raise LookupError
        value = copy.deepcopy(at(document, source))
        if op == "move":
            take(document, source)
    if op in ("remove", "replace", "test"):
        found = at(document, path)
        if op == "test":
            if not same_json(found, value):
                raise LookupError
            return document
        if op == "remove" or path:
            take(document, path)
    if op == "remove":
        return document
    if not path:
        return value
    parent, last = at(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" and op != "replace" else place_in(last, len(parent)), value)
    else:
        raise LookupError
    return document


def at(document: Any, path: list[str]) -> Any:
    for part in path:
        if not isinstance(document, dict | list):
            raise LookupError
        document = document[part] if isinstance(document, dict) else document[place_in(part, len(document) - 1)]
    return document


def take(document: Any, path: list[str]) -> None:
    if not path:
        raise LookupError
    parent = at(document, path[:-1])
    at(parent, path[-1:])
    del parent[path[-1] if isinstance(parent, dict) else int(path[-1])]


def place_in(part: str, last: int) -> int:
    if not part.isdigit() or int(part) > last:
        raise LookupError
    return int(part)


@given(st.dictionaries(names, small, max_size=4), st.lists(patch_operations, max_size=40))
def test_every_patch_equals_its_operations_on_deep_copies(document: Any, operations: list[Any]) -> None:
    """Operations that cannot be applied are left out of the patch: alone after the others, each must fail."""
    before, expected = copy.deepcopy(document), copy.deepcopy(document)
    applied: list[Any] = []
    sent = copy.deepcopy(operations)
    for operation in operations:
        try:
            after = plainly(expected, operation)
        except LookupError:
            with pytest.raises(Invalid):
                apply_json_patch(document, [*applied, operation])
            continue
        if isinstance(after, dict):
            expected = after
            applied.append(operation)
    assert same_json(apply_json_patch(document, applied), expected)
    assert same_json(document, before)
    assert same_json(operations, sent)


class CountedList(list[Any]):
    """A list that counts how often it is read from its beginning."""

    reads = 0

    def __iter__(self) -> Any:
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/list/-", "value": 1},
        {"op": "replace", "path": "/list/7", "value": 1},
        {"op": "remove", "path": "/list/0"},
        {"op": "move", "from": "/list/0", "path": "/list/5"},
    ],
)
def test_a_list_is_copied_once_for_all_operations(operation: dict[str, Any]) -> None:
    items = CountedList(range(JSON_PATCH_OPERATIONS_MAX))
    apply_json_patch({"list": items}, [operation] * JSON_PATCH_OPERATIONS_MAX)
    assert items.reads == 1
    assert list(items) == list(range(JSON_PATCH_OPERATIONS_MAX))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[BlockList]:
    """Every list that a patch changes."""
    made: list[BlockList] = []

    class Counted(BlockList):
        def __init__(self, items: Any) -> None:
            super().__init__(items)
            made.append(self)

    monkeypatch.setattr(patch_module, "BlockList", Counted)
    return made


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/list/0", "value": 1},
        {"op": "add", "path": "/list/50000", "value": 1},
        {"op": "remove", "path": "/list/0"},
        {"op": "remove", "path": "/list/50000"},
        {"op": "move", "from": "/list/0", "path": "/list/50000"},
        {"op": "copy", "from": "/list/0", "path": "/list/0"},
    ],
    ids=lambda each: f"{each['op']} {each['path']}",
)
def test_changes_inside_a_long_list_move_few_of_its_items(counted: list[BlockList], operation: dict[str, Any]) -> None:
    expected = list(range(100_000))
    for _ in range(1_000):
        index = int(operation["path"].rpartition("/")[2])
        match operation["op"]:
            case "add":
                expected.insert(index, 1)
            case "remove":
                del expected[index]
            case "move":
                expected.insert(index, expected.pop(0))
            case "copy":
                expected.insert(index, expected[0])
    assert apply_json_patch({"list": list(range(100_000))}, [operation] * 1_000) == {"list": expected}
    (changed,) = counted
    assert changed.moved <= 1_000 * 2 * (2 * BLOCK_ITEMS)  # a plain list moves 50,000,000


@given(st.lists(st.tuples(st.sampled_from("idsg"), st.integers(0, 10**6)), max_size=60), st.integers(0, 3))
def test_a_block_list_equals_a_list(changes: list[tuple[str, int]], blocks: int) -> None:
    plain: list[Any] = list(range(blocks * BLOCK_ITEMS + blocks))
    tested = BlockList(plain)
    for change, place in changes:
        if change == "i":
            for _ in range(20):
                plain.insert(place % (len(plain) + 1), place)
                tested.insert(place % (len(tested) + 1), place)
        elif plain and change == "d":
            del plain[place % len(plain)]
            del tested[place % len(tested)]
        elif plain and change == "s":
            plain[place % len(plain)] = -place
            tested[place % len(tested)] = -place
        elif plain:
            assert tested[place % len(plain)] == plain[place % len(plain)]
        assert len(tested) == len(plain)
    assert list(tested) == plain
    assert tested == plain
    assert tested != [*plain, 1]


def test_a_patch_is_stopped_by_the_operation_that_makes_the_object_too_large() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(30)]
    with pytest.raises(TooLarge, match=r"\[6\]: the object would have more than 10000 bytes"):
        apply_json_patch({"a": "x" * 100}, doubling, bytes_max=10_000)
    adds = [{"op": "add", "path": f"/{n}", "value": "x" * 1_000} for n in range(30)]
    with pytest.raises(TooLarge, match=r"\[9\]"):
        apply_json_patch({}, adds, bytes_max=10_000)


@pytest.mark.parametrize("width", [1, 50])
def test_the_size_of_a_result_is_followed_exactly_but_for_commas(width: int) -> None:
    document = {"list": [{"a": "b" * n} for n in range(width)], "name": {"x": 1}}
    operations = [
        {"op": "add", "path": "/list/0", "value": {"new": [1, 2]}},
        {"op": "remove", "path": "/list/1"},
        {"op": "move", "from": "/name/x", "path": "/name/longer"},
        {"op": "copy", "from": "/list", "path": "/list/-"},
        {"op": "replace", "path": "/list/0", "value": "z"},
        {"op": "add", "path": "/name", "value": {}},
    ]
    patching = patch_module._Patching(document, 10**6)
    for index, operation in enumerate(operations):
        patching.apply(operation, f"[{index}]")
    size = len(encode_json(patching.plain_root()))
    assert abs(patching._bytes - size) <= 2 * len(operations)


def test_an_object_that_is_too_large_can_be_made_smaller() -> None:
    shrinking: list[dict[str, Any]] = [{"op": "remove", "path": "/b"}, {"op": "replace", "path": "/a", "value": 1}]
    assert apply_json_patch({"a": "x" * 100, "b": 1}, shrinking, bytes_max=10) == {"a": 1}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "add", "path": pointer(*"a" * (89 * n + 1)), "value": nested(89)} for n in range(13)],
        [{"op": "add", "path": "/b", "value": nested(OBJECT_DEPTH_MAX)}],
        [{"op": "test", "path": "/b", "value": nested(5_000)}],
        [
            {"op": "add", "path": "/a", "value": nested(60)},
            {"op": "copy", "from": "/a", "path": pointer(*"a" * 50)},
        ],
        [
            {"op": "add", "path": "/a", "value": nested(60)},
            {"op": "add", "path": "/b", "value": nested(60)},
            {"op": "move", "from": "/b", "path": pointer(*"a" * 50)},
        ],
        [{"op": "add", "path": pointer(*"a" * (OBJECT_DEPTH_MAX + 1)), "value": 1}],
    ],
)
def test_an_operation_that_nests_too_deep_is_refused_where_it_stands(operations: list[Any]) -> None:
    with pytest.raises(Invalid, match=r"\[\d+\]: the result would be nested more than 100 deep"):
        apply_json_patch({"a": 1, "b": 1}, operations)


def test_an_object_may_become_as_deep_as_one_may_be_stored() -> None:
    document = apply_json_patch({}, [{"op": "add", "path": "/a", "value": nested(OBJECT_DEPTH_MAX - 1)}])
    assert document == nested(OBJECT_DEPTH_MAX)


def test_moves_of_a_large_value_back_and_forth_are_bounded() -> None:
    document: dict[str, Any] = {"a": [[] for _ in range(JSON_PATCH_MOVED_MAX // 10)], "b": {}}
    to_and_fro = [{"op": "move", "from": "/a", "path": "/b/a"}, {"op": "move", "from": "/b/a", "path": "/a"}]
    assert apply_json_patch(document, to_and_fro * 9) == {"b": {}, "a": document["a"]}
    with pytest.raises(Invalid, match="moves more than"):
        apply_json_patch(document, to_and_fro * 11)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each value that a patch measures."""
    sizes: list[int] = []
    size_of = patch_module._size

    def measure(value: Any) -> int:
        sizes.append(size_of(value))
        return sizes[-1]

    monkeypatch.setattr(patch_module, "_size", measure)
    return sizes


@pytest.mark.parametrize(("source", "path"), [("/a", "/b"), ("/list/0", "/list/1")])
def test_moves_do_not_measure_the_value_that_they_move(measured: list[int], source: str, path: str) -> None:
    document = {"a": ["x" * 100] * 1_000, "list": [["x" * 100] * 1_000, 1]}
    to_and_fro = [{"op": "move", "from": source, "path": path}, {"op": "move", "from": path, "path": source}]
    apply_json_patch(document, to_and_fro * 1_000)
    assert sum(measured) < 2 * len(encode_json(document))


def test_tests_of_a_large_value_cost_what_their_own_values_have(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = 0
    duplicate = patch_module._duplicate

    def count(value: Any) -> Any:
        nonlocal copied
        copied += 1
        return duplicate(value)

    monkeypatch.setattr(patch_module, "_duplicate", count)
    document: dict[str, Any] = {"a": [[n] for n in range(1_000)], "b": {str(n): n for n in range(1_000)}}
    for path, value in (("/a", []), ("/b", {}), ("/a", {}), ("/b", [])):
        with pytest.raises(Invalid, match="failed: it has another value"):
            apply_json_patch(document, [{"op": "test", "path": path, "value": value}])
    assert copied == 0


# -- merge patch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_passes_the_examples_of_its_rfc(target: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(target)
    assert apply_merge_patch(target, patch) == expected
    assert target == before


@given(objects, objects)
def test_a_merge_patch_applied_twice_changes_nothing_more(target: Any, patch: Any) -> None:
    before = copy.deepcopy(target)
    once = apply_merge_patch(target, patch)
    assert same_json(apply_merge_patch(once, patch), once)
    assert same_json(target, before)


def test_a_merge_patch_that_nests_too_deep_is_refused() -> None:
    assert apply_merge_patch({}, nested(OBJECT_DEPTH_MAX)) == nested(OBJECT_DEPTH_MAX)
    with pytest.raises(Invalid, match="nested more than 100 deep"):
        apply_merge_patch({}, nested(5_000))


@pytest.mark.parametrize("inner", [list, dict])
def test_lists_in_a_merge_patch_count_as_depth(inner: type) -> None:
    def made(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value] if inner is list else {"a": value}
        return {"b": [value]}

    assert apply_merge_patch({}, made(OBJECT_DEPTH_MAX - 2)) == made(OBJECT_DEPTH_MAX - 2)
    with pytest.raises(Invalid, match="nested more than 100 deep"):
        apply_merge_patch({}, made(OBJECT_DEPTH_MAX - 1))
