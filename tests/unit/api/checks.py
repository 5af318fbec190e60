"""Manifests with changed fields, and their validation errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.unit.api.manifests import manifest

from kedge.api.codec import encode_json
from kedge.api.kinds import KINDS, Kind
from kedge.api.validation import Checked, check_object
from kedge.errors import Invalid

DELETE = object()


def kind_of(obj: dict[str, Any]) -> Kind:
    return KINDS.of_api(obj["apiVersion"], obj["kind"])


def check(obj: dict[str, Any]) -> Checked:
    return check_object(kind_of(obj), encode_json(obj))


def put(obj: Any, path: str, value: Any) -> None:
    """Set or delete the value at a JSON pointer; `-` appends to a list."""
    *parents, last = (part.replace("~1", "/") for part in path.split("/"))
    for part in parents:
        obj = obj[int(part)] if isinstance(obj, list) else obj.setdefault(part, {})
    if isinstance(obj, list):
        obj.append(value) if last == "-" else obj.__setitem__(int(last), value)
    elif value is DELETE:
        del obj[last]
    else:
        obj[last] = value


def errors_of(kind: str, *changes: tuple[str, Any]) -> list[str]:
    obj = manifest(kind)
    for path, value in changes:
        put(obj, path, value)
    with pytest.raises(Invalid) as caught:
        check(obj)
    return [str(error) for error in caught.value.errors]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON value."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        found += places(item, (*at, name))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    result = copy.copy(value)
    result[at[0]] = replaced(value[at[0]], at[1:], new)
    return result


def mutated(kind: str, changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    obj = manifest(kind)
    for at, value in changes:
        try:
            obj = replaced(obj, at, copy.deepcopy(value))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed the path
    return obj
