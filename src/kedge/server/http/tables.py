"""The Table form of objects and lists: the form that `kubectl get` requests and prints.

Columns are declared in `api.kinds`; cells that are more than a field are computed in `cells`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from kedge.api.kinds import Kind, PrinterColumn
from kedge.api.objects import Object
from kedge.api.wellknown import META_API_VERSION, POD_KIND
from kedge.server.http.cells import CELLS, NONE, SHARED_CELLS, Body, Cell, PodCells, age, at, items_at

API_VERSION = META_API_VERSION
_NAME = PrinterColumn("Name", "string", ".metadata.name")
_FILTERED = re.compile(r'(.*)\[\?\(@\.(\w+)=="(\w+)"\)\]\.(\w+)')


@cache
def columns_of(kind: Kind) -> tuple[PrinterColumn, ...]:
    """The columns of a kind in the order they are shown: the name comes first unless the kind places it itself."""
    if any(column.name == _NAME.name for column in kind.columns):
        return kind.columns
    return (_NAME, *(kind.columns or (PrinterColumn("Age", "date", ".metadata.creationTimestamp"),)))


def definitions(kind: Kind) -> list[dict[str, Any]]:
    """`columnDefinitions` of a Table."""
    return [
        {
            "name": column.name,
            "type": "string" if column.type == "date" else column.type,
            "format": "name" if column.name == _NAME.name else "",
            "description": f"{column.name} of the {kind.kind}.",
            "priority": column.priority,
        }
        for column in columns_of(kind)
    ]


def row_of(kind: Kind, found: Object, now: datetime, include: str) -> dict[str, Any]:
    """One row. `include` is the parameter `includeObject`: Metadata, Object or None."""
    body = found.edit()
    row: dict[str, Any] = {"cells": list(_cells(kind, body, now))}
    match include:
        case "None":
            row["object"] = None
        case "Object":
            row["object"] = {**body, "metadata": _metadata(body, found)}
        case _:
            row["object"] = partial(body, found)
    return row


def partial(body: Body, found: Object) -> dict[str, Any]:
    """The object's metadata alone, as `PartialObjectMetadata`."""
    return {"kind": "PartialObjectMetadata", "apiVersion": API_VERSION, "metadata": _metadata(body, found)}


def _metadata(body: Body, found: Object) -> dict[str, Any]:
    return {**body["metadata"], "resourceVersion": str(found.revision)}


def _cells(kind: Kind, body: Body, now: datetime) -> Iterable[Cell]:
    pod = PodCells(body, now) if kind.key_kind == POD_KIND else None
    for column in columns_of(kind):
        if column.path:
            yield _copied(column, body, now)
        elif pod is not None:
            yield _pod_cell(column.name, pod)
        else:
            compute = CELLS.get((kind.kind, column.name)) or SHARED_CELLS.get(column.name)
            yield compute(body, now) if compute is not None else NONE


def _pod_cell(name: str, pod: PodCells) -> Cell:
    match name:
        case "Ready":
            return f"{pod.ready}/{pod.total}"
        case "Status":
            return pod.reason
        case "Restarts":
            return pod.restarts
        case _:
            return pod.gates


def _copied(column: PrinterColumn, body: Body, now: datetime) -> Cell:
    value = _value_at(column.path, body)
    if column.type == "date":
        return age(value, now)
    if value is None:
        return {"integer": 0, "boolean": False}.get(column.type, NONE)
    if isinstance(value, str | int | bool):
        return value
    return NONE if isinstance(value, Mapping) else ",".join(str(each) for each in value)


def _value_at(path: str, body: Body) -> Any:
    filtered = _FILTERED.fullmatch(path)
    if filtered is None:
        return at(body, *path.lstrip(".").split("."))
    items, name, wanted, value = filtered.groups()
    for item in items_at(body, *items.lstrip(".").split(".")):
        if item.get(name) == wanted:
            return item.get(value)
    return None
