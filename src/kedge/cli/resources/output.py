"""How objects are printed: tables from the server, JSON, YAML, names and JSONPath. Data goes to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from kedge.api.wellknown import META_GROUP
from kedge.cli.resources.catalog import ResourceType
from kedge.errors import Terminal

TABLE = f"application/json;as=Table;v=v1;g={META_GROUP},application/json"
FORMATS = "table|wide|json|yaml|name|jsonpath=TEMPLATE"
_GAP = "   "
_STYLES = {
    "Running": "green",
    "Ready": "green",
    "Pending": "yellow",
    "NotReady": "red",
    "CrashLoopBackOff": "red",
    "Error": "red",
}


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--output", "-o", default="table", metavar=FORMATS, help="How to print.")(command)


def check_output(output: str) -> None:
    """
    Raises:
        Terminal: there is no such format.
    """
    if output not in ("table", "wide", "json", "yaml", "name") and not output.startswith("jsonpath="):
        raise Terminal(f"there is no output format {output!r}: use {FORMATS}")


def colours() -> bool:
    """Whether stdout may have colours: on a terminal, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def format_rows(header: Sequence[str] | None, rows: Iterable[Sequence[str]], widths: list[int] | None = None) -> str:
    """Columns that line up. `widths` is kept between calls, for rows that arrive one by one."""
    table = [*([list(header)] if header is not None else []), *(list(row) for row in rows)]
    if not table:
        return ""
    size = widths if widths is not None else []
    for row in table:
        size += [0] * (len(row) - len(size))
        for index, cell in enumerate(row):
            size[index] = max(size[index], len(cell))
    paint = _STYLES if colours() else {}
    lines = []
    for row in table:
        cells = [cell.ljust(size[index]) for index, cell in enumerate(row[:-1])] + row[-1:]
        painted = [
            click.style(cell, fg=paint[text]) if text in paint else cell for cell, text in zip(cells, row, strict=True)
        ]
        lines.append(_GAP.join(painted).rstrip())
    return "\n".join(lines)


def table_cells(
    table: Mapping[str, Any],
    definitions: Sequence[Mapping[str, Any]],
    *,
    wide: bool,
    namespaces: bool,
    labels: bool,
    label_columns: Sequence[str] = (),
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a Table from the server. Each of `label_columns` is a label with a column of its own."""
    shown = [index for index, each in enumerate(definitions) if wide or not each.get("priority")]
    header = [*(["NAMESPACE"] if namespaces else []), *(str(definitions[index]["name"]).upper() for index in shown)]
    header += [name.rpartition("/")[2].upper() for name in label_columns]
    header += ["LABELS"] if labels else []
    rows = []
    for row in table.get("rows") or ():
        metadata = (row.get("object") or {}).get("metadata") or {}
        cells = [_cell(row["cells"][index]) for index in shown]
        values = metadata.get("labels") or {}
        pairs = ",".join(f"{name}={value}" for name, value in sorted(values.items()))
        rows.append(
            [
                *([metadata.get("namespace", "")] if namespaces else []),
                *cells,
                *(values.get(name, "") for name in label_columns),
                *([pairs or "<none>"] if labels else []),
            ]
        )
    return header, rows


def _cell(value: Any) -> str:
    if value is None:
        return "<none>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def print_objects(output: str, objects: Sequence[tuple[ResourceType, Mapping[str, Any]]], *, single: bool) -> None:
    """Print whole objects: one alone, or several as a List."""
    bodies = [body for _, body in objects]
    document = bodies[0] if single and len(bodies) == 1 else {"apiVersion": "v1", "kind": "List", "items": bodies}
    if output == "name":
        for kind, body in objects:
            click.echo(f"{kind.label}/{body['metadata']['name']}")
    elif output.startswith("jsonpath="):
        from kedge.cli.resources.jsonpath import JsonPath

        click.echo(JsonPath(output.removeprefix("jsonpath=")).text(document), nl=False)
    elif output == "yaml":
        click.echo(as_yaml(document), nl=False)
    else:
        import json

        click.echo(json.dumps(document, indent=4, ensure_ascii=False))


def as_yaml(document: Any) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=True, default_flow_style=False, allow_unicode=True))
