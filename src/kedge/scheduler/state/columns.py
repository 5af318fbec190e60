"""Columns of the node table: label values as small integers, and the log of rows that changed.

`snapshot` owns them and is their only writer; `filters`, `scores` and `domains` read whole columns at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.api.selectors import Requirement

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Ids = NDArray[np.int32]
Codes = NDArray[np.uint8]
Rows = Any
"""An index into a column: an array of row numbers, or `EVERY` for all of them."""

EVERY = slice(None)
ABSENT = 0
"""The id of a label that a node lacks, in every column."""


def grown(array: NDArray[Any], capacity: int) -> NDArray[Any]:
    """`array` with its last axis extended to `capacity`; new cells are zero."""
    wider = np.zeros((*array.shape[:-1], capacity), array.dtype)
    wider[..., : array.shape[-1]] = array
    return wider


class Column:
    """One label key: the value each row has, as an id."""

    __slots__ = ("_by_value", "ids", "key", "values")

    def __init__(self, key: str, capacity: int) -> None:
        self.key = key
        self.values: list[str] = [""]
        """By id; the first is for nodes without the label."""
        self._by_value: dict[str, int] = {}
        self.ids: Ids = np.zeros(capacity, np.int32)

    def clear(self, capacity: int) -> None:
        """Forget every value. Ids given before are invalid: their holders must count again."""
        self.values, self._by_value, self.ids = [""], {}, np.zeros(capacity, np.int32)

    def set(self, row: int, value: str | None) -> None:
        self.ids[row] = ABSENT if value is None else self.intern(value)

    def intern(self, value: str) -> int:
        found = self._by_value.get(value)
        if found is None:
            found = self._by_value[value] = len(self.values)
            self.values.append(value)
        return found

    def find(self, value: str) -> int:
        """The id of a value; -1, which no row has, if no node ever had the value."""
        return self._by_value.get(value, -1)

    def meets(self, requirement: Requirement, rows: Rows) -> Bools:
        """Which rows meet a requirement on this label."""
        ids: Ids = self.ids[rows]
        match requirement.operator:
            case "In":
                return self._is_one_of(ids, requirement.values)
            case "NotIn":
                return ~self._is_one_of(ids, requirement.values)
            case "Exists":
                return np.not_equal(ids, ABSENT)
            case "DoesNotExist":
                return np.equal(ids, ABSENT)
            case _:
                return self._by_table(ids, requirement)

    def _is_one_of(self, ids: Ids, values: frozenset[str]) -> Bools:
        if len(values) == 1:
            (value,) = values
            only: Bools = ids == self.find(value)
            return only
        found = np.zeros(len(ids), np.bool_)
        for value in values:
            found |= ids == self.find(value)
        return found

    def _by_table(self, ids: Ids, requirement: Requirement) -> Bools:
        present = np.unique(ids)
        answers = [i != ABSENT and requirement.matches({self.key: self.values[i]}) for i in present.tolist()]
        return np.asarray(answers, np.bool_)[np.searchsorted(present, ids)]


class ChangeLog:
    """The rows that changed, in order. Each reader keeps its own offset; a reader too far behind rebuilds."""

    __slots__ = ("_first", "_rows", "_rows_max")

    def __init__(self, rows_max: int) -> None:
        self._rows: list[int] = []
        self._rows_max = rows_max
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._rows)

    def append(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) > 2 * self._rows_max:
            del self._rows[: self._rows_max]
            self._first += self._rows_max

    def since(self, place: int) -> list[int] | None:
        """The rows that changed after `place`, each once; None if they are no longer known."""
        if place < self._first:
            return None
        rows = self._rows[place - self._first :]
        return rows if len(rows) < 2 else sorted(set(rows))


def as_rows(rows: Iterable[int]) -> Ints:
    return np.fromiter(rows, np.int64)
