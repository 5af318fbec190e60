"""The order of `kedge get --sort-by`: values of one path, compared as numbers, quantities, times or texts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kedge.api.quantity import parse_quantity
from kedge.cli.resources.jsonpath import JsonPath
from kedge.errors import Terminal

SortedRow = TypeVar("SortedRow")


def sorted_by(
    path: str, rows: Sequence[SortedRow], document: Callable[[SortedRow], Mapping[str, Any]]
) -> list[SortedRow]:
    """Rows by the value at `path` of their document; those without one first, equal ones as they were.

    Raises:
        Terminal: no row has a value there.
    """
    template = JsonPath(path)
    found = [template.values(document(row)) for row in rows]
    if rows and not any(found):
        raise Terminal(f"no object has a field {path}: `-o yaml` prints those that there are")
    values = [each[0] if each else None for each in found]
    rank = _texts if any(isinstance(each, str) and _quantity(each) is None for each in values) else _numbers
    order = sorted(range(len(rows)), key=lambda index: rank(values[index]))
    return [rows[index] for index in order]


def _texts(value: Any) -> tuple[bool, str]:
    """Times are texts too: RFC 3339 in UTC sorts as text."""
    return value is not None, "" if value is None else str(value)


def _numbers(value: Any) -> tuple[bool, float]:
    if value is None:
        return False, 0.0
    return True, float(value) if isinstance(value, int | float) else _quantity(str(value)) or 0.0


def _quantity(text: str) -> float | None:
    try:
        return parse_quantity(text).nano / 1e9
    except ValueError:
        return None
