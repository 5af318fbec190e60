"""Edges of coupling: a field that one controller writes and another reads; directly and over two hops. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from kedge.api.field_notes import WHOLE
from kedge.api.objects import Object
from kedge.keys import Key, Revision
from kedge.observe.readers.coupling.fields import EXISTENCE, narrower, touches
from kedge.observe.readers.coupling.traffic import READ_VERBS, Traffic
from kedge.observe.records import Decision

EXAMPLES_MAX: Final = 3
"""Objects that an edge names."""


class Waking(StrEnum):
    """Whether a change of the field wakes the reader."""

    WATCHED = "watched"
    """A change by this writer woke it."""
    DECLARED = "watched by declaration"
    """It declares a watch on the kind, and no change by this writer was seen to wake it."""
    SILENT = "silent"
    """A silent edge: no change by this writer woke it, and it sees the new value only when something else wakes it."""
    UNKNOWN = "not known"
    """The records have no wake-ups of this reader."""


class Basis(StrEnum):
    """The evidence of an edge."""

    OBJECTS = "objects"
    """Kept decisions show an object that the one wrote and the other read."""
    COUNTS = "counts"
    """Only the counts show it: the objects may differ."""
    DECLARED = "declared"
    """No record shows it; a declaration does."""


class EdgeVerdict(NamedTuple):
    """Whether another value of the field changes a decision."""

    decisive: bool | None
    """None if it was not tested."""
    text: str


NOT_TESTED: Final = EdgeVerdict(None, "not tested")


class FieldId(NamedTuple):
    """One field of one kind, as one controller writes it."""

    writer: str
    kind: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CouplingEdge:
    """`writer` can change an input of `reader` without calling it."""

    writer: str
    reader: str
    kind: str
    field: str
    writes: int = 0
    """Requests that wrote the field."""
    reads: int = 0
    """Noted decisions that read the field; reads of the kind for `existence`."""
    transfers: int = 0
    """Versions of the writer that kept decisions of the reader had."""
    waking: Waking
    basis: Basis
    objects: tuple[str, ...] = ()
    """Examples."""
    declared_reads: bool = False
    """The reader declares the field; its reads are not noted."""
    verdict: EdgeVerdict = NOT_TESTED

    @property
    def id(self) -> FieldId:
        return FieldId(self.writer, self.kind, self.field)


class TwoHops(NamedTuple):
    """`first` changes an input of a controller, whose write `second` is then an input of the reader."""

    first: CouplingEdge
    second: CouplingEdge


class DeclaredComponent(NamedTuple):
    """The reads and writes that a component declares, whatever the records have."""

    name: str
    watches: frozenset[str]
    """Kinds whose changes wake it."""
    reads: frozenset[str]
    """All kinds that it reads."""
    writes: frozenset[tuple[str, str]]
    """Kinds and fields, as `("Pod", "status")`."""


def direct_edges(
    traffic: Traffic,
    reader: str,
    declared_reads: frozenset[str] = frozenset(),
    *,
    watched: frozenset[str] = frozenset(),
) -> list[CouplingEdge]:
    """The edges into a reader, in order. `declared_reads` are readers whose fields are declared, not noted; `watched`
    are kinds that such a reader always follows."""
    found: dict[FieldId, CouplingEdge] = {}
    versions = _versions_read(traffic, reader)
    for writer, kinds in sorted(traffic.writes.items()):
        if writer == reader:
            continue
        for kind, fields in sorted(kinds.items()):
            if not traffic.reads[reader].get(kind) and kind not in traffic.touched[reader]:
                continue
            wanted = {**dict(traffic.touched[reader].get(kind, {})), EXISTENCE: traffic.reads[reader][kind]}
            for touched, written in _pairs(wanted, fields):
                edge = _edge(traffic, reader, FieldId(writer, kind, narrower(touched, written)), versions, watched)
                if edge is not None:
                    counts = (fields[written], wanted[touched])
                    found[edge.id] = _counted(edge, *counts, declared=reader in declared_reads)
    return [found[each] for each in sorted(found)]


def declared_edge(field: FieldId, reader: str, waking: Waking) -> CouplingEdge:
    """An edge that no record shows."""
    return CouplingEdge(**field._asdict(), reader=reader, waking=waking, basis=Basis.DECLARED)


def _counted(edge: CouplingEdge, writes: int, reads: int, *, declared: bool) -> CouplingEdge:
    return replace(edge, writes=writes, reads=reads, declared_reads=declared and edge.field != EXISTENCE)


def _pairs(wanted: Iterable[str], fields: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Fields that are read, each with the fields that are written and that it depends on."""
    for touched in sorted(wanted):
        for written in sorted(fields):
            if written != WHOLE and touches(touched, written):
                yield touched, written


def _edge(
    traffic: Traffic, reader: str, field: FieldId, versions: dict[Key, set[Revision]] | None, watched: frozenset[str]
) -> CouplingEdge | None:
    written = _objects_written(traffic, field)
    common = sorted(written if versions is None else [key for key in written if key in versions])
    if not common and traffic.complete:
        return None  # every decision was kept, and no object is both written by the one and read by the other
    return CouplingEdge(
        **field._asdict(),
        reader=reader,
        transfers=len(_transfers(traffic, reader, field, common, versions)),
        waking=_waking(traffic, reader, field, common, watched),
        basis=Basis.OBJECTS if common else Basis.COUNTS,
        objects=tuple(str(key) for key in common[:EXAMPLES_MAX]),
    )


def _objects_written(traffic: Traffic, field: FieldId) -> set[Key]:
    fields = traffic.writes[field.writer][field.kind]
    found = [
        traffic.objects_written.get((field.writer, field.kind, each), set())
        for each in fields
        if touches(field.field, each)
    ]
    return set().union(*found)


def _has(fields: Iterable[str], field: str) -> bool:
    return any(touches(field, each) for each in fields)


def _versions_read(traffic: Traffic, reader: str) -> dict[Key, set[Revision]] | None:
    """The revisions of each object that kept decisions of a reader had; None for a scheduler, which reads all."""
    found: dict[Key, set[Revision]] = {key: set() for key in traffic.objects_read[reader]}
    for decision in traffic.decisions:
        if decision.controller == reader:
            if decision.scheduling is not None:
                return None
            for seen in objects_in(decision):
                if seen.key in found:
                    found[seen.key].add(seen.revision)
    return found


def objects_in(decision: Decision) -> Iterator[Object]:
    """The versions that a decision read, from caches or past them."""
    for read in decision.reads:
        yield from read.objects
    for call in decision.calls:
        if call.verb in READ_VERBS:
            yield from call.reply


def _transfers(
    traffic: Traffic, reader: str, field: FieldId, common: Sequence[Key], versions: dict[Key, set[Revision]] | None
) -> set[tuple[Key, Revision]]:
    """The writes of the writer that reached the reader: each was the last of its field in a version that was read."""
    found: set[tuple[Key, Revision]] = set()
    if versions is None:
        marks = [mark for each in traffic.decisions if each.controller == reader for mark in each.marks]
        newest = max((each.revision for each in marks if each.cache.partition("[")[0] == field.kind), default=0)
        for key in common:
            for write in traffic.by_object[key]:
                if write.writer == field.writer and write.revision <= newest and _has(write.fields, field.field):
                    found.add((key, write.revision))
        return found
    for key in common:
        for revision in versions[key]:
            last = traffic.writer_at(key, field.field, revision)
            if last is not None and last.writer == field.writer:
                found.add((key, last.revision))
    return found


def _waking(traffic: Traffic, reader: str, field: FieldId, common: Sequence[Key], watched: frozenset[str]) -> Waking:
    wakes = traffic.wakes[reader]
    writers = {field.writer, ""} if field.field == EXISTENCE else {field.writer}
    # Versions of agents and users may have no writer in a wake-up.
    writers |= set() if any(each.controller == field.writer for each in traffic.decisions) else {""}
    if traffic.complete and common and not watched:
        names = {str(key) for key in common}
        seen = any(
            what in names and writer in writers
            for each in traffic.decisions
            if each.controller == reader and _reads_kind(each, field.kind)
            for what, writer in each.wakes
        )
    else:
        seen = any(wakes.get(field.kind, Counter())[writer] for writer in writers)
    if seen:
        return Waking.WATCHED
    if field.kind in watched:
        return Waking.DECLARED
    has_wakes = any(wakes.values()) or any(each.controller == reader for each in traffic.decisions)
    return Waking.SILENT if has_wakes else Waking.UNKNOWN


def _reads_kind(decision: Decision, kind: str) -> bool:
    """Whether it read the kind: a wake-up of a key that does not is none for this edge."""
    return any(read.cache.partition("[")[0] == kind for read in decision.reads)


# -- two hops --------------------------------------------------------------------------------------


Links = dict[tuple[FieldId, FieldId], set[str]]
"""A field that a controller read and a field that it wrote, with the kept decisions that did both."""


def links_of(traffic: Traffic) -> Links:
    """The fields that each kept decision read, by their writers, and those that it wrote."""
    wrote: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for key, writes in traffic.by_object.items():
        for write in writes:
            wrote[write.decision].update((key.kind, field) for field in write.fields)
    found: Links = {}
    for decision in traffic.decisions:
        outs = [FieldId(decision.controller, *each) for each in wrote.get(decision.id, ())]
        for into in _inputs(traffic, decision) if outs else ():
            for out in outs:
                found.setdefault((into, out), set()).add(decision.id)
    return found


def _inputs(traffic: Traffic, decision: Decision) -> set[FieldId]:
    """The fields that a decision read, each with the writer of the version that it had."""
    found: set[FieldId] = set()
    for seen in objects_in(decision):
        kind = seen.key.kind
        for touched in (*traffic.touched[decision.controller].get(kind, ()), EXISTENCE):
            write = traffic.writer_at(seen.key, touched, seen.revision)
            if write is not None and write.writer != decision.controller:
                fields = (narrower(touched, each) for each in write.fields if touches(touched, each))
                found.update(FieldId(write.writer, kind, each) for each in fields)
    return found


def two_hops(
    direct: Sequence[CouplingEdge], into: dict[str, list[CouplingEdge]], links: Links, *, complete: bool
) -> list[TwoHops]:
    """Paths over one controller between.

    With all decisions kept, a decision must have read the first field and written the second; otherwise the counts are
    enough.
    """
    found = []
    for second in direct:
        for first in into.get(second.writer, ()):
            if first.writer == second.reader or first.writer == second.writer:
                continue
            if (first.id, second.id) in links or not complete:
                found.append(TwoHops(first, second))
    return found
