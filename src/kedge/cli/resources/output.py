"""How objects are printed: tables from the server, JSON, YAML, names and JSONPath. Data goes to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kedge.api.wellknown import META_GROUP
from kedge.cli.resources.arguments import check_path
from kedge.cli.resources.catalog import ResourceType

TABLE = f"application/json;as=Table;v=v1;g={META_GROUP},application/json"
OBJECT_FORMATS = ("json", "yaml", "name")
TABLE_FORMATS = ("table", "wide")
_GAP = "   "
_STYLES = {
    "Running": "green",
    "Ready": "green",
    "Pending": "yellow",
    "NotReady": "red",
    "CrashLoopBackOff": "red",
    "Error": "red",
}


def check_output(output: str, formats: Sequence[str] = (*TABLE_FORMATS, *OBJECT_FORMATS)) -> None:
    """
    Raises:
        UsageError: there is no such format, or the template of a JSONPath is malformed.
    """
    word, _, template = output.partition("=")
    if word == "jsonpath" and template:
        check_path(template)
    elif output not in formats:
        raise click.UsageError(f"there is no output format {output!r}: use {', '.join(formats)} or jsonpath=TEMPLATE")


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


def format_table(
    kind: ResourceType,
    table: Mapping[str, Any],
    definitions: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    header: bool = True,
    several: bool = False,
    widths: list[int] | None = None,
    event: str = "",
) -> str:
    """A Table of the server with the columns that `options` of `kedge get` add.

    `several` puts the type before each name, and `event` is a column before all others.
    """
    namespaces = options["everywhere"] and kind.namespaced
    names, rows = table_cells(
        table,
        definitions,
        wide=options["output"] == "wide",
        namespaces=namespaces,
        labels=options["show_labels"],
        label_columns=[name for each in options["label_columns"] for name in each.split(",")],
    )
    if several:
        place = 1 if namespaces else 0
        for row in rows:
            row[place] = f"{kind.label}/{row[place]}"
    if event:
        names, rows = ["EVENT", *names], [[event, *row] for row in rows]
    return format_rows(names if header and not options["no_headers"] else None, rows, widths)


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
        _print_path(output, document)
    elif output == "yaml":
        click.echo(as_yaml(document), nl=False)
    else:
        import json

        click.echo(json.dumps(document, indent=4, ensure_ascii=False))


def print_event(output: str, event: str, body: Mapping[str, Any]) -> None:
    """Print a watch event with its object: JSON on one line, YAML or a JSONPath."""
    document = {"type": event, "object": body}
    if output == "json":
        import json

        click.echo(json.dumps(document, separators=(",", ":"), ensure_ascii=False))
    elif output == "yaml":
        click.echo(as_yaml(document), nl=False)
    else:
        _print_path(output, document)


def _print_path(output: str, document: Any) -> None:
    from kedge.cli.resources.jsonpath import JsonPath

    click.echo(JsonPath(output.removeprefix("jsonpath=")).text(document), nl=False)


def as_yaml(document: Any) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=True, default_flow_style=False, allow_unicode=True))
