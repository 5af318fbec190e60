"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) as pure functions on decoded JSON.

Neither changes its input; both may share unchanged parts with it. The service decides what a patch may change.
A patch costs at most time in proportion to the object and the patch: a container is copied once, not once an operation,
and `block_list` changes a long list in the middle. Size and depth of the result are checked after each operation.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import msgspec

from kedge.api.block_list import BlockList
from kedge.api.codec import OBJECT_DEPTH_MAX, containers_in, same_json
from kedge.errors import BadRequest, FieldError, Invalid, TooLarge
from kedge.limits import Limits

JSON_PATCH_OPERATIONS_MAX: Final = 10_000
"""As in Kubernetes: more in one patch is a mistake or an attack."""
_OPERATIONS_A_STEP: Final = 250
"""A move in a long list takes about 20 µs."""
JSON_PATCH_COPY_BYTES_MAX: Final = 3 * 1024 * 1024
"""Total size of all copies in one patch, as in Kubernetes: a patch may copy a value and remove it again, any number of
times. The result has a bound of its own."""
JSON_PATCH_MOVED_MAX: Final = 200_000
"""Objects and lists inside all values that one patch moves deeper: each such move measures how deep its value nests."""
OBJECT_BYTES_MAX: Final = Limits().commit_bytes_max
"""The size of a result, where a server has set no other limit."""
_CONTAINERS: Final = (Mapping, list, BlockList)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=list)
"""Measures values. JSON has every type of a document but `BlockList`, which is written as a list."""


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """`target` with the members of `patch` set, and those that are null removed.

    Raises:
        Invalid: the patch nests deeper than an object may.
    """
    return _merged(target, patch, OBJECT_DEPTH_MAX)


def _merged(target: Any, patch: Any, depth_left: int) -> Any:
    if not isinstance(patch, Mapping):
        if isinstance(patch, list) and containers_in(patch, depth_max=depth_left, types=_CONTAINERS) is None:
            raise _invalid("", _TOO_DEEP)
        return patch
    if depth_left == 0:
        raise _invalid("", _TOO_DEEP)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif type(value) is str:  # as most are
            merged[name] = value
        else:
            merged[name] = _merged(merged.get(name), value, depth_left - 1)
    return merged


def apply_json_patch(
    document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]], *, bytes_max: int = OBJECT_BYTES_MAX
) -> dict[str, Any]:
    """`document` after every operation, in order. Each may leave at most `bytes_max` bytes of JSON.

    Raises:
        TooLarge: an operation makes the object larger than that. Nothing is applied.
        Invalid: an operation is malformed, its path does not exist, a `test` failed, or a result nests too deep.
            Nothing is applied.
    """
    steps = json_patch_steps(document, operations, bytes_max=bytes_max)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: dict[str, Any] = finished.value
            return result


def json_patch_steps(
    document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]], *, bytes_max: int
) -> Generator[None, None, dict[str, Any]]:
    """As `apply_json_patch`, in steps of some milliseconds each: a server does other work in between."""
    if not isinstance(operations, Sequence) or isinstance(operations, str | bytes):
        raise _invalid("", "a JSON patch is a list of operations")
    if len(operations) > JSON_PATCH_OPERATIONS_MAX:
        raise _invalid("", f"a JSON patch has at most {JSON_PATCH_OPERATIONS_MAX} operations: split it")
    patching = _Patching(document, bytes_max)
    for index, operation in enumerate(operations):
        if index % _OPERATIONS_A_STEP == _OPERATIONS_A_STEP - 1:
            yield
        patching.apply(operation, f"[{index}]")
    if not isinstance(patching.root, Mapping):
        raise _invalid("", "the patch replaces the object with a value that is not an object")
    return dict(patching.plain_root())


class _Patching:
    """One patch being applied: copies each container before its first change, and changes the copy from then on.

    Invariant: no container stands in `root` at two places, so a container that is owned may be changed in place.
    """

    def __init__(self, document: Any, bytes_max: int) -> None:
        self.root = document
        self._owned: dict[int, Any] = {}
        """Copies that this patch made, by id: dicts, and a `BlockList` for each list. Kept alive, so that no id is used
        twice."""
        self._bytes_max = bytes_max
        self._bytes = _size(document)
        """The size of `root` as JSON, but for commas: each operation adds and subtracts what it changes."""
        self._copied_bytes = 0
        self._moved = 0

    def apply(self, operation: Any, place: str) -> None:
        if not isinstance(operation, Mapping):
            raise _invalid(place, "an operation is an object with op and path")
        op, path = operation.get("op"), _pointer(operation, "path", place)
        match op:
            case "add":
                self._insert(path, _checked_value(operation, path, place), place)
            case "replace":
                self._replace(path, _checked_value(operation, path, place), place)
            case "remove":
                self._remove(path, place)
            case "test":
                if not _same(_get(self.root, path, place), _checked_value(operation, path, place)):
                    raise _invalid(place, f"testing {operation['path']!r} failed: it has another value")
            case "copy":
                self._insert(path, self._copy(_pointer(operation, "from", place), path, place), place)
            case "move":
                self._move(_pointer(operation, "from", place), path, place)
            case _:
                raise _invalid(place, f"unknown op {op!r}: use add, remove, replace, move, copy or test")

    def _copy(self, source: Sequence[str], path: Sequence[str], place: str) -> Any:
        value = _get(self.root, source, place)
        self._copied_bytes += _size(value)
        if self._copied_bytes > JSON_PATCH_COPY_BYTES_MAX:
            raise _invalid(place, f"the patch copies more than {JSON_PATCH_COPY_BYTES_MAX} bytes: send the values")
        _check_fits(value, path, place)
        return _duplicate(value)

    def _move(self, source: Sequence[str], path: Sequence[str], place: str) -> None:
        if len(path) > len(source) and path[: len(source)] == source:
            raise _invalid(place, "a value cannot be moved into itself")
        value = _get(self.root, source, place)
        if len(path) > len(source):
            self._moved += _check_fits(value, path, place)
            if self._moved > JSON_PATCH_MOVED_MAX:
                raise _invalid(place, f"the patch moves more than {JSON_PATCH_MOVED_MAX} parts deeper: split it")
        # The value stays in the object: to measure it here would cost its size once a move.
        self._remove(source, place, size=0)
        self._insert(path, value, place, size=0)

    def _insert(self, path: Sequence[str], value: Any, place: str, size: int | None = None) -> None:
        parent = self._changeable_parent(path, place)
        size = _size(value) if size is None else size
        if isinstance(parent, BlockList):
            last = len(parent)
            index = last if path[-1] == "-" else _index(parent, path[-1], path, place, last=last)
            self._grow(size, place)
            parent.insert(index, value)
        elif parent is None:
            self._grow(size - _size(self.root), place)
            self.root = value
        else:
            name = path[-1]
            before = _size(parent[name]) if name in parent else -_size(name)
            self._grow(size - before, place)
            parent[name] = value

    def _replace(self, path: Sequence[str], value: Any, place: str) -> None:
        parent = self._changeable_parent(path, place)
        if parent is None:
            self._grow(_size(value) - _size(self.root), place)
            self.root = value
        else:
            member = _member(parent, path[-1], path, place)
            self._grow(_size(value) - _size(parent[member]), place)
            parent[member] = value

    def _remove(self, path: Sequence[str], place: str, size: int | None = None) -> None:
        parent = self._changeable_parent(path, place)
        if parent is None:
            raise _invalid(place, "the whole object cannot be removed by a patch")
        member = _member(parent, path[-1], path, place)
        name_bytes = _size(member) if isinstance(member, str) else 0
        self._grow(-name_bytes - (_size(parent[member]) if size is None else size), place)
        del parent[member]

    def _grow(self, change: int, place: str) -> None:
        self._bytes += change
        if change > 0 and self._bytes > self._bytes_max:
            raise TooLarge(
                f"the patch cannot be applied: {place}: the object would have more than {self._bytes_max} bytes:"
                " make it smaller"
            )

    def plain_root(self) -> Any:
        """The result, with a list for each `BlockList`. A `BlockList` stands only in a container that is owned too."""
        plain = {id_: list(each) for id_, each in self._owned.items() if isinstance(each, BlockList)}
        for id_, container in self._owned.items():
            if id_ in plain:
                items = plain[id_]
                items[:] = [plain[id(item)] if isinstance(item, BlockList) else item for item in items]
            else:
                for name, item in container.items():
                    if isinstance(item, BlockList):
                        container[name] = plain[id(item)]
        return self.root

    def _changeable_parent(self, path: Sequence[str], place: str) -> Any:
        """The container that holds the end of `path`, which may be changed in place; None for the root's."""
        if not path:
            return None
        parent = self.root = self._changeable(self.root, path, place)
        for part in path[:-1]:
            name = _member(parent, part, path, place)
            parent[name] = parent = self._changeable(parent[name], path, place)
        return parent

    def _changeable(self, container: Any, path: Sequence[str], place: str) -> Any:
        if id(container) in self._owned:
            return container
        if isinstance(container, Mapping):
            copied: Any = dict(container)
        elif isinstance(container, list):
            copied = BlockList(container)
        else:
            raise _absent(path, place)
        self._owned[id(copied)] = copied
        return copied


def _duplicate(value: Any) -> Any:
    """A copy that shares no container with `value`, which nests no deeper than an object may."""
    if isinstance(value, Mapping):
        return {name: _duplicate(item) for name, item in value.items()}
    return [_duplicate(item) for item in value] if isinstance(value, list | BlockList) else value


def _size(value: Any) -> int:
    """Bytes of a value as JSON. Each value is measured when it comes and when it goes, so all of it costs what the
    object and the patch have."""
    try:
        return len(_ENCODER.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"a value of the patch cannot be written as JSON: {error}") from error


def _same(found: Any, value: Any) -> bool:
    """Whether a `test` holds. A value of another size differs at once, so that it costs no more than `value` has."""
    return bool(found == value) and same_json(_duplicate(found), value)


def _check_fits(value: Any, path: Sequence[str], place: str) -> int:
    """How many containers `value` has. `Invalid` if it would nest too deep at `path`."""
    if not isinstance(value, _CONTAINERS) and len(path) <= OBJECT_DEPTH_MAX:
        return 0
    found = containers_in(value, depth_max=OBJECT_DEPTH_MAX - len(path), types=_CONTAINERS)
    if found is None:
        raise _invalid(place, _TOO_DEEP)
    return found


def _checked_value(operation: Mapping[str, Any], path: Sequence[str], place: str) -> Any:
    if "value" not in operation:
        raise _invalid(place, f"{operation.get('op')} needs a value")
    _check_fits(operation["value"], path, place)
    return operation["value"]


# -- pointers ----------------------------------------------------------------------------------------


def _pointer(operation: Mapping[str, Any], name: str, place: str) -> list[str]:
    text = operation.get(name)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise _invalid(place, f"{name} must be a JSON pointer, such as /metadata/labels/app")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _get(document: Any, path: Sequence[str], place: str) -> Any:
    for part in path:
        document = document[_member(document, part, path, place)]
    return document


def _member(container: Any, part: str, path: Sequence[str], place: str) -> Any:
    """The name or index in `container` that `part` of a pointer means; it must exist."""
    if isinstance(container, Mapping) and part in container:
        return part
    if isinstance(container, list | BlockList):
        return _index(container, part, path, place, last=len(container) - 1)
    raise _absent(path, place)


def _index(items: list[Any] | BlockList, part: str, path: Sequence[str], place: str, *, last: int) -> int:
    if not (part.isascii() and part.isdigit()) or (part[0] == "0" and part != "0") or len(part) > 9:
        raise _invalid(place, f"{part!r} in {_text(path)!r} is not an index of a list")
    if int(part) > last:
        raise _invalid(place, f"{_text(path)!r} is past the end of a list of {len(items)}")
    return int(part)


def _text(path: Sequence[str]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


_TOO_DEEP: Final = f"the result would be nested more than {OBJECT_DEPTH_MAX} deep: flatten it"


def _absent(path: Sequence[str], place: str) -> Invalid:
    return _invalid(place, f"{_text(path)!r} does not exist")


def _invalid(place: str, why: str) -> Invalid:
    message = f"the patch cannot be applied: {place + ': ' if place else ''}{why}"
    return Invalid(message, errors=(FieldError(f"patch{place}", "FieldValueInvalid", why),))
