"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) as pure functions on decoded JSON.

Neither changes its input; both may share unchanged parts with it. The service decides what a patch may change.
A patch costs at most time in proportion to the object and the patch: a container is copied once, not once an operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kedge.api.codec import OBJECT_DEPTH_MAX, containers_in, encode_json, same_json
from kedge.errors import FieldError, Invalid

JSON_PATCH_OPERATIONS_MAX: Final = 10_000
"""As in Kubernetes: more in one patch is a mistake or an attack."""
JSON_PATCH_COPY_BYTES_MAX: Final = 3 * 1024 * 1024
"""Total size of all copies in one patch, as in Kubernetes: an object copied into itself doubles with each copy. Only
copies make a result larger than the object and the patch together."""
JSON_PATCH_MOVED_MAX: Final = 200_000
"""Objects and lists inside all values that one patch moves deeper: each such move measures how deep its value nests."""


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """`target` with the members of `patch` set, and those that are null removed.

    Raises:
        Invalid: the patch nests deeper than an object may.
    """
    return _merged(target, patch, OBJECT_DEPTH_MAX)


def _merged(target: Any, patch: Any, depth_left: int) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    if depth_left == 0:
        raise _invalid("", _TOO_DEEP)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value, depth_left - 1)
    return merged


def apply_json_patch(document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`document` after every operation, in order.

    Raises:
        Invalid: an operation is malformed, its path does not exist, a `test` failed, or a result nests too deep.
            Nothing is applied.
    """
    if not isinstance(operations, Sequence) or isinstance(operations, str | bytes):
        raise _invalid("", "a JSON patch is a list of operations")
    if len(operations) > JSON_PATCH_OPERATIONS_MAX:
        raise _invalid("", f"a JSON patch has at most {JSON_PATCH_OPERATIONS_MAX} operations: split it")
    patching = _Patching(document)
    for index, operation in enumerate(operations):
        patching.apply(operation, f"[{index}]")
    if not isinstance(patching.root, Mapping):
        raise _invalid("", "the patch replaces the object with a value that is not an object")
    return dict(patching.root)


class _Patching:
    """One patch being applied: copies each container before its first change, and changes the copy from then on.

    Invariant: no container stands in `root` at two places, so a container that is owned may be changed in place.
    """

    def __init__(self, document: Any) -> None:
        self.root = document
        self._owned: dict[int, Any] = {}
        """Copies that this patch made, by id. Kept alive, so that no id is used twice."""
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
                if not same_json(_get(self.root, path, place), _checked_value(operation, path, place)):
                    raise _invalid(place, f"testing {operation['path']!r} failed: it has another value")
            case "copy":
                self._insert(path, self._copy(_pointer(operation, "from", place), path, place), place)
            case "move":
                self._move(_pointer(operation, "from", place), path, place)
            case _:
                raise _invalid(place, f"unknown op {op!r}: use add, remove, replace, move, copy or test")

    def _copy(self, source: Sequence[str], path: Sequence[str], place: str) -> Any:
        value = _get(self.root, source, place)
        self._copied_bytes += len(encode_json(value))
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
        self._remove(source, place)
        self._insert(path, value, place)

    def _insert(self, path: Sequence[str], value: Any, place: str) -> None:
        parent = self._changeable_parent(path, place)
        if isinstance(parent, list):
            last = len(parent)
            parent.insert(last if path[-1] == "-" else _index(parent, path[-1], path, place, last=last), value)
        elif parent is None:
            self.root = value
        else:
            parent[path[-1]] = value

    def _replace(self, path: Sequence[str], value: Any, place: str) -> None:
        parent = self._changeable_parent(path, place)
        if parent is None:
            self.root = value
        else:
            parent[_member(parent, path[-1], path, place)] = value

    def _remove(self, path: Sequence[str], place: str) -> None:
        parent = self._changeable_parent(path, place)
        if parent is None:
            raise _invalid(place, "the whole object cannot be removed by a patch")
        del parent[_member(parent, path[-1], path, place)]

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
            copied = list(container)
        else:
            raise _absent(path, place)
        self._owned[id(copied)] = copied
        return copied


def _duplicate(value: Any) -> Any:
    """A copy that shares no container with `value`, which nests no deeper than an object may."""
    if isinstance(value, Mapping):
        return {name: _duplicate(item) for name, item in value.items()}
    return [_duplicate(item) for item in value] if isinstance(value, list) else value


def _check_fits(value: Any, path: Sequence[str], place: str) -> int:
    """How many containers `value` has. `Invalid` if it would nest too deep at `path`."""
    if not isinstance(value, Mapping | list) and len(path) <= OBJECT_DEPTH_MAX:
        return 0
    found = containers_in(value, depth_max=OBJECT_DEPTH_MAX - len(path))
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
    if isinstance(container, list):
        return _index(container, part, path, place, last=len(container) - 1)
    raise _absent(path, place)


def _index(items: list[Any], part: str, path: Sequence[str], place: str, *, last: int) -> int:
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
