"""The answer to `kedge coupling`: edges, paths, cycles, fights and shared limits, as text, JSON and a drawing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kedge.api.wellknown import KEDGE_API_VERSION
from kedge.observe.readers.coupling.edges import Basis, CouplingEdge, EdgeVerdict, FieldId, TwoHops, Waking
from kedge.observe.readers.coupling.loops import CouplingCycle, Fight
from kedge.observe.readers.coupling.shared_limits import SharedLimit

COUPLING_KIND: Final = "Coupling"
NOT_SEEN: Final = "An edge that is not listed was not seen in this window."


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupling:
    """The controllers that can change the inputs of one controller, or of one of its decisions."""

    controller: str
    decision: str = ""
    edges: tuple[CouplingEdge, ...] = ()
    paths: tuple[TwoHops, ...] = ()
    cycles: tuple[CouplingCycle, ...] = ()
    fights: tuple[Fight, ...] = ()
    limits: tuple[SharedLimit, ...] = ()
    coverage: tuple[str, ...] = ()

    def with_verdicts(self, verdicts: Mapping[FieldId, EdgeVerdict]) -> Coupling:
        judged = tuple(replace(each, verdict=verdicts.get(each.id, each.verdict)) for each in self.edges)
        by_id = {each.id: each for each in judged}
        paths = tuple(TwoHops(each.first, by_id.get(each.second.id, each.second)) for each in self.paths)
        return replace(self, edges=judged, paths=paths)

    def document(self) -> dict[str, Any]:
        """For programs. Members may be added; those of today stay."""
        return {
            "apiVersion": KEDGE_API_VERSION,
            "kind": COUPLING_KIND,
            "controller": self.controller,
            "decision": self.decision,
            "edges": [_edge_document(each) for each in self.edges],
            "paths": [[_edge_document(each) for each in path] for path in self.paths],
            "cycles": [
                {
                    "controllers": list(each.controllers),
                    "edges": [_edge_document(edge) for edge in each.edges],
                    "turns": each.turns,
                    "perMinute": round(each.per_minute, 3),
                }
                for each in self.cycles
            ],
            "fights": [
                {
                    "controllers": list(each.controllers),
                    "object": each.object,
                    "field": each.field,
                    "turns": each.turns,
                    "perMinute": round(each.per_minute, 3),
                    "values": list(each.values),
                }
                for each in self.fights
            ],
            "sharedLimits": [
                {
                    "limit": each.limit,
                    "name": each.name,
                    "writer": each.writer,
                    "reader": each.reader,
                    "times": each.times,
                    "uses": each.uses,
                    "text": each.text,
                }
                for each in self.limits
            ],
            "coverage": list(self.coverage),
            "absentEdges": NOT_SEEN,
        }

    # -- text --------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        writers = sorted({each.writer for each in self.edges} | {each.writer for each in self.limits})
        about = f"decision {self.decision} of {self.controller}" if self.decision else self.controller
        if writers:
            yield f"{len(writers)} can change the inputs of {about} without calling it: {', '.join(writers)}"
        else:
            yield f"no coupling of {about} was seen in this window"
        if self.edges:
            yield ""
            yield from _table(("WRITER", "KIND", "FIELD", "CHANGES", "DECISIVE", "SEEN"), map(_row, self.edges))
        yield from _part("two hops", _path_texts(self.paths))
        yield from _part("cycles", map(_cycle_text, self.cycles))
        yield from _part("fights", map(_fight_text, self.fights))
        yield from _part("shared limits", (each.text for each in self.limits))
        tested = [each for each in self.edges if each.verdict.decisive]
        yield from _part("decisive", (f"{_name(each)}: {each.verdict.text}" for each in tested))
        yield ""
        yield from self.coverage
        yield NOT_SEEN

    # -- drawing -----------------------------------------------------------------------------------

    def dot(self) -> str:
        """A graph for `dot`. An edge is dashed if it is silent, bold if it is decisive, red in a fight.

        Coverage is its label, for a reader of the drawing, and a comment, for a reader of the text.
        """
        notes = (*self.coverage, NOT_SEEN)
        label = "".join(f"{_escaped(each)}\\l" for each in notes)
        lines = [
            "digraph coupling {",
            *(f"  // {' '.join(each.split())}" for each in notes),
            "  rankdir=LR;",
            f'  label="{label}"; labelloc=b; labeljust=l;',
            "  node [shape=box];",
            f"  {_quoted(self.controller)} [style=bold];",
        ]
        drawn: dict[tuple[str, str], list[CouplingEdge]] = {}
        for each in (*self.edges, *(path.first for path in self.paths), *(e for c in self.cycles for e in c.edges)):
            group = drawn.setdefault((each.writer, each.reader), [])
            if each.id not in [known.id for known in group]:
                group.append(each)
        fighting = {frozenset(each.controllers) for each in self.fights}
        for (writer, reader), edges in sorted(drawn.items()):
            style = "dashed" if all(each.waking is Waking.SILENT for each in edges) else "solid"
            style = "bold" if any(each.verdict.decisive for each in edges) else style
            color = ", color=red" if frozenset((writer, reader)) in fighting else ""
            label = "\\n".join(_escaped(f"{each.kind} {each.field}") for each in edges)
            lines.append(f'  {_quoted(writer)} -> {_quoted(reader)} [label="{label}", style={style}{color}];')
        for limit in self.limits:
            lines.append(
                f"  {_quoted(limit.writer)} -> {_quoted(limit.reader)}"
                f' [label="{_escaped(limit.limit)}: {_escaped(limit.name)}", style=dotted];'
            )
        return "\n".join([*lines, "}"])


def _edge_document(edge: CouplingEdge) -> dict[str, Any]:
    return {
        "writer": edge.writer,
        "reader": edge.reader,
        "kind": edge.kind,
        "field": edge.field,
        "changes": edge.waking.value,
        "basis": edge.basis.value,
        "readsDeclared": edge.declared_reads,
        "writes": edge.writes,
        "reads": edge.reads,
        "transfers": edge.transfers,
        "objects": list(edge.objects),
        "decisive": edge.verdict.decisive,
        "verdict": edge.verdict.text,
    }


def _row(edge: CouplingEdge) -> tuple[str, ...]:
    decisive = {True: "yes", False: "no", None: "not tested"}[edge.verdict.decisive]
    reads = "declared" if edge.declared_reads else f"{edge.reads} reads"
    seen = f"{edge.writes} writes, {reads}"
    if edge.basis is Basis.OBJECTS:
        seen += f", {edge.transfers} versions passed on {', '.join(edge.objects)}"
    elif edge.basis is Basis.COUNTS:
        seen += ", by counts: no kept decision has an object of both"
    else:
        seen = "not seen in this window; declared"
    return (edge.writer, edge.kind, edge.field, edge.waking.value, decisive, seen)


def _table(header: Sequence[str], rows: Any) -> Iterator[str]:
    table = [tuple(header), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _part(title: str, texts: Any) -> Iterator[str]:
    found = list(texts)
    if found:
        yield ""
        yield f"{title}:"
        yield from (f"  {each}" for each in found)


def _name(edge: CouplingEdge) -> str:
    return f"{edge.writer} -> {edge.kind} {edge.field} -> {edge.reader}"


def _path_texts(paths: Sequence[TwoHops]) -> Iterator[str]:
    """One line for each pair of controllers on the way, with the fields of both hops."""
    by_pair: dict[tuple[str, str, str], list[TwoHops]] = {}
    for path in paths:
        by_pair.setdefault((path.first.writer, path.second.writer, path.second.reader), []).append(path)
    for (far, near, reader), found in by_pair.items():
        first, second = (_fields_text(each[hop] for each in found) for hop in (0, 1))
        yield f"{far} -> {first} -> {near} -> {second} -> {reader}"


def _fields_text(edges: Iterable[CouplingEdge]) -> str:
    kinds: dict[str, dict[str, None]] = {}
    for edge in edges:
        kinds.setdefault(edge.kind, {})[edge.field] = None
    return "; ".join(f"{kind} {', '.join(fields)}" for kind, fields in kinds.items())


def _cycle_text(cycle: CouplingCycle) -> str:
    steps = " -> ".join(f"{each.writer} -> {each.kind} {each.field}" for each in cycle.edges)
    return f"{steps} -> {cycle.edges[-1].reader}: {cycle.turns} turns, {cycle.per_minute:.1f} a minute"


def _fight_text(fight: Fight) -> str:
    one, other = fight.controllers
    return (
        f"{one} and {other} write {fight.field} of {fight.object} by turns: {fight.turns} changes of hands,"
        f" {fight.per_minute:.1f} a minute; {one} sets {fight.values[0]!r}, {other} sets {fight.values[1]!r}"
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
