"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) as pure functions on decoded JSON.

Neither changes its input; both may share unchanged parts with it. The service decides what a patch may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kedge.api.codec import encode_json, same_json
from kedge.errors import FieldError, Invalid

JSON_PATCH_OPERATIONS_MAX = 10_000
"""As in Kubernetes: more in one patch is a mistake or an attack."""
JSON_PATCH_COPY_BYTES_MAX = 3 * 1024 * 1024
"""Total size of all copies in one patch, as in Kubernetes: an object copied into itself doubles with each copy."""


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """`target` with the members of `patch` set, and those that are null removed."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = apply_merge_patch(merged.get(name), value)
    return merged


def apply_json_patch(document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`document` after every operation, in order.

    Raises:
        Invalid: an operation is malformed, its path does not exist, or a `test` failed. Nothing is applied.
    """
    if not isinstance(operations, Sequence) or isinstance(operations, str | bytes):
        raise _invalid("", "a JSON patch is a list of operations")
    if len(operations) > JSON_PATCH_OPERATIONS_MAX:
        raise _invalid("", f"a JSON patch has at most {JSON_PATCH_OPERATIONS_MAX} operations: split it")
    result: Any = document
    copied = 0
    for index, operation in enumerate(operations):
        place = f"[{index}]"
        if isinstance(operation, Mapping) and operation.get("op") == "copy":
            copied += len(encode_json(_get(result, _pointer(operation, "from", place), place)))
            if copied > JSON_PATCH_COPY_BYTES_MAX:
                raise _invalid(place, f"the patch copies more than {JSON_PATCH_COPY_BYTES_MAX} bytes: send the values")
        result = _apply(result, operation, place)
    if not isinstance(result, Mapping):
        raise _invalid("", "the patch replaces the object with a value that is not an object")
    return dict(result)


def _apply(document: Any, operation: Any, place: str) -> Any:
    if not isinstance(operation, Mapping):
        raise _invalid(place, "an operation is an object with op and path")
    op, path = operation.get("op"), _pointer(operation, "path", place)
    match op:
        case "add":
            return _set(document, path, _value(operation, place), place, insert=True)
        case "replace":
            _get(document, path, place)
            return _set(document, path, _value(operation, place), place, insert=False)
        case "remove":
            return _remove(document, path, place)
        case "test":
            if not same_json(_get(document, path, place), _value(operation, place)):
                raise _invalid(place, f"testing {operation['path']!r} failed: it has another value")
            return document
        case "copy" | "move":
            source = _pointer(operation, "from", place)
            value = _get(document, source, place)
            if op == "move":
                if len(path) > len(source) and path[: len(source)] == source:
                    raise _invalid(place, "a value cannot be moved into itself")
                document = _remove(document, source, place)
            return _set(document, path, value, place, insert=True)
        case _:
            raise _invalid(place, f"unknown op {op!r}: use add, remove, replace, move, copy or test")


def _pointer(operation: Mapping[str, Any], name: str, place: str) -> list[str]:
    text = operation.get(name)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise _invalid(place, f"{name} must be a JSON pointer, such as /metadata/labels/app")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _value(operation: Mapping[str, Any], place: str) -> Any:
    if "value" not in operation:
        raise _invalid(place, f"{operation.get('op')} needs a value")
    return operation["value"]


def _get(document: Any, path: Sequence[str], place: str) -> Any:
    for part in path:
        document = _step(document, part, path, place)
    return document


def _step(document: Any, part: str, path: Sequence[str], place: str) -> Any:
    if isinstance(document, Mapping) and part in document:
        return document[part]
    if isinstance(document, list):
        return document[_index(document, part, path, place, last=len(document) - 1)]
    raise _absent(path, place)


def _set(document: Any, path: Sequence[str], value: Any, place: str, *, insert: bool) -> Any:
    """A copy of `document` along `path`, with `value` at its end."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if rest:
        value = _set(_step(document, part, path, place), rest, value, place, insert=insert)
    if isinstance(document, Mapping):
        return {**document, part: value}
    if not isinstance(document, list):
        raise _absent(path, place)
    changed = list(document)
    if rest or not insert:
        changed[_index(document, part, path, place, last=len(document) - 1)] = value
    else:
        at = len(document) if part == "-" else _index(document, part, path, place, last=len(document))
        changed.insert(at, value)
    return changed


def _remove(document: Any, path: Sequence[str], place: str) -> Any:
    if not path:
        raise _invalid(place, "the whole object cannot be removed by a patch")
    part, rest = path[0], path[1:]
    child = _step(document, part, path, place)
    if rest:
        return _set(document, [part], _remove(child, rest, place), place, insert=False)
    if isinstance(document, Mapping):
        return {name: value for name, value in document.items() if name != part}
    at = _index(document, part, path, place, last=len(document) - 1)
    return [*document[:at], *document[at + 1 :]]


def _index(items: list[Any], part: str, path: Sequence[str], place: str, *, last: int) -> int:
    if not (part.isascii() and part.isdigit()) or (part[0] == "0" and part != "0") or len(part) > 9:
        raise _invalid(place, f"{part!r} in {_text(path)!r} is not an index of a list")
    if int(part) > last:
        raise _invalid(place, f"{_text(path)!r} is past the end of a list of {len(items)}")
    return int(part)


def _text(path: Sequence[str]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def _absent(path: Sequence[str], place: str) -> Invalid:
    return _invalid(place, f"{_text(path)!r} does not exist")


def _invalid(place: str, why: str) -> Invalid:
    message = f"the patch cannot be applied: {place + ': ' if place else ''}{why}"
    return Invalid(message, errors=(FieldError(f"patch{place}", "FieldValueInvalid", why),))
