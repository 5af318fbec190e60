"""The coupling graph: every component, the fields by which one changes the inputs of another, and cycles. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kedge.observe.readers.coupling import CouplingEdge, DeclaredFields, Waking
from kedge.observe.readers.coupling.edges import direct_edges, links_of
from kedge.observe.readers.coupling.loops import cycles_through
from kedge.observe.readers.coupling.traffic import traffic_of
from kedge.observe.readers.coverage import coverage_lines_of
from kedge.observe.readers.recording import Recording

GRAPH_KIND: Final = "CouplingGraph"
FIELDS_MAX: Final = 12
"""Fields that one edge lists; the others are counted."""


def graph_document(recording: Recording, declared: DeclaredFields) -> dict[str, Any]:
    """One edge for each writer and reader, with its fields; cycles once each."""
    traffic = traffic_of(recording, declared)
    into = {
        name: direct_edges(traffic, name, frozenset(declared), watched=frozenset(declared.get(name, ())))
        for name in traffic.controllers()
    }
    links = links_of(traffic)
    cycles: dict[frozenset[str], dict[str, Any]] = {}
    for name in into:
        for each in cycles_through(name, into, links, traffic.window_s, complete=traffic.complete):
            shown = {"controllers": list(each.controllers), "turns": each.turns}
            cycles.setdefault(frozenset(each.controllers), {**shown, "perMinute": round(each.per_minute, 3)})
    edges = [row for reader, found in into.items() for row in _rows(reader, found)]
    names = {*into, *(each["writer"] for each in edges)}
    return {
        "components": sorted(names),
        "edges": edges,
        "cycles": sorted(cycles.values(), key=lambda each: (-each["turns"], each["controllers"])),
        "coverage": list(coverage_lines_of(recording)),
    }


def _rows(reader: str, edges: Sequence[CouplingEdge]) -> list[dict[str, Any]]:
    by_writer: dict[str, list[CouplingEdge]] = {}
    for each in edges:
        by_writer.setdefault(each.writer, []).append(each)
    return [
        {
            "writer": writer,
            "reader": reader,
            "wakes": any(each.waking is not Waking.SILENT for each in found),
            "fields": [{"kind": each.kind, "field": each.field, "waking": each.waking.value} for each in found][
                :FIELDS_MAX
            ],
            "fieldsLeftOut": max(0, len(found) - FIELDS_MAX),
        }
        for writer, found in sorted(by_writer.items())
    ]
