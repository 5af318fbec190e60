"""Shared by the benchmarks: a table for people, one line of JSON for machines, medians against noise."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console().print(table)


def print_json(figures: dict[str, Any]) -> None:
    print(json.dumps({key: _rounded(value) for key, value in figures.items()}))


def median_of(rounds: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(rounds))


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
