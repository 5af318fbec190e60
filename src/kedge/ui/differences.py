"""Differences of two versions of an object, field by field. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kedge.api.objects import Object

FIELDS_MAX: Final = 40
"""Fields that are listed for one object; the others are counted."""
VALUE_CHARS_MAX: Final = 300
_ALWAYS_DIFFERENT: Final = frozenset({"metadata.resourceVersion", "metadata.managedFields"})
_NAMES: Final = ("type", "name", "key", "ip")
"""Members that name an element of a list, in this order."""


def field_differences(old: Object | None, new: Object | None) -> dict[str, Any]:
    """The fields whose values differ, with both values as text; None where one has no such field."""
    before, after = _document(old), _document(new)
    rows: list[dict[str, str | None]] = []
    left_out = 0
    for path, one, other in _changed("", before, after):
        if path in _ALWAYS_DIFFERENT:
            continue
        if len(rows) < FIELDS_MAX:
            rows.append({"path": path, "before": _text(one), "after": _text(other)})
        else:
            left_out += 1
    return {"fields": rows, "fieldsLeftOut": left_out}


class _Absent:
    pass


_ABSENT: Final = _Absent()


def _document(found: Object | None) -> Any:
    return _ABSENT if found is None else found.edit()


def _changed(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            below = f"{path}.{name}" if path else str(name)
            yield from _changed(below, old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and (named := _named(old, new)) is not None:
        one, other = named
        for name in dict.fromkeys([*one, *other]):
            yield from _changed(f"{path}[{name}]", one.get(name, _ABSENT), other.get(name, _ABSENT))
    elif old != new:
        yield path or "object", old, new


def _named(old: list[Any], new: list[Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Both lists by the names of their elements; None unless every element has a name of its own."""
    for member in _NAMES:
        made = []
        for each in (old, new):
            by_name = {str(item.get(member)): item for item in each if isinstance(item, Mapping) and member in item}
            if len(by_name) != len(each):
                break
            made.append(by_name)
        if len(made) == 2:
            return made[0], made[1]
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, _Absent):
        return None
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."
