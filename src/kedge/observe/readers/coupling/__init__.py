"""`coupling`: which controllers can change the inputs of a controller without calling it. Pure functions of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kedge.api.field_notes import WHOLE
from kedge.observe.readers.coupling.edges import (
    NOT_TESTED,
    Basis,
    CouplingEdge,
    DeclaredComponent,
    EdgeVerdict,
    FieldId,
    TwoHops,
    Waking,
    declared_edge,
    direct_edges,
    links_of,
    two_hops,
)
from kedge.observe.readers.coupling.fields import EXISTENCE, path_of
from kedge.observe.readers.coupling.loops import CouplingCycle, Fight, cycles_through, fights_in
from kedge.observe.readers.coupling.report import COUPLING_KIND, NOT_SEEN, Coupling
from kedge.observe.readers.coupling.shared_limits import SharedLimit, shared_limits
from kedge.observe.readers.coupling.traffic import Traffic, traffic_of
from kedge.observe.readers.coverage import coverage_lines_of
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Decision

__all__ = [
    "COUPLING_KIND",
    "EXISTENCE",
    "NOT_SEEN",
    "NOT_TESTED",
    "Basis",
    "Coupling",
    "CouplingCycle",
    "CouplingEdge",
    "DeclaredComponent",
    "EdgeVerdict",
    "FieldId",
    "Fight",
    "SharedLimit",
    "TwoHops",
    "Waking",
    "coupling_of",
    "path_of",
]

DeclaredFields = Mapping[str, Mapping[str, Iterable[str]]]
"""By controller and kind: the fields of a component whose reads are not noted."""


def coupling_of(
    recording: Recording,
    controller: str,
    *,
    decision: Decision | None = None,
    declared_fields: DeclaredFields | None = None,
    declared: Sequence[DeclaredComponent] = (),
) -> Coupling:
    """Everything that couples others to `controller`, or to one decision of it.

    `declared_fields` are of components, such as schedulers, whose reads are not noted. `declared` adds edges that no
    record shows.
    """
    fields = declared_fields or {}
    traffic = traffic_of(recording, fields)
    names = [each for each in traffic.controllers() if each != controller]
    into = {name: _edges_into(traffic, name, fields) for name in names}
    into[controller] = own = _edges_into(traffic if decision is None else _only(traffic, decision), controller, fields)
    links = links_of(traffic)
    window_s = traffic.window_s
    cycles = cycles_through(controller, into, links, window_s, complete=traffic.complete)
    fights = [each for each in fights_in(traffic.decisions) if controller in each.controllers]
    edges = [*own, *_declared_edges(controller, own, declared)]
    return Coupling(
        controller=controller,
        decision="" if decision is None else decision.id,
        edges=tuple(edges),
        paths=tuple(two_hops(own, into, links, complete=traffic.complete)),
        cycles=tuple(cycles) if decision is None else (),
        fights=tuple(fights) if decision is None else (),
        limits=tuple(shared_limits(traffic, controller)) if decision is None else (),
        coverage=(*coverage_lines_of(recording), *_notes_on(traffic, recording)),
    )


def _edges_into(traffic: Traffic, reader: str, fields: DeclaredFields) -> list[CouplingEdge]:
    watched = frozenset(fields.get(reader, ()))
    return direct_edges(traffic, reader, frozenset(fields), watched=watched)


def _only(traffic: Traffic, decision: Decision) -> Traffic:
    """The same, with one decision as the reads of its controller. Its wake-ups are still those of all decisions."""
    name = decision.controller
    made = replace(
        traffic,
        touched=traffic.touched.copy(),
        reads=traffic.reads.copy(),
        objects_read=traffic.objects_read.copy(),
        decisions=[each for each in traffic.decisions if each.controller != name or each.id == decision.id],
        complete=True,
    )
    if decision.scheduling is None:
        made.touched.pop(name, None)
        for kind, touched in (decision.touched or {}).items():
            made.touched[name][kind].update(touched)
        made.objects_read[name] = {each.key for read in decision.reads for each in read.objects}
        made.reads.pop(name, None)
        made.reads[name].update(read.cache.partition("[")[0] for read in decision.reads)
    return made


def _declared_edges(
    controller: str, known: Sequence[CouplingEdge], declared: Sequence[DeclaredComponent]
) -> list[CouplingEdge]:
    """Edges by declaration alone: a kind that one component writes and this one reads, where no record has an edge."""
    own = next((each for each in declared if each.name == controller), None)
    if own is None:
        return []
    seen = {(each.writer, each.kind, _part_of(each.field)) for each in known}
    found = []
    for other in declared:
        if other.name == controller:
            continue
        for kind, field in sorted(other.writes):
            if kind in own.reads and (other.name, kind, _part_of(field)) not in seen:
                waking = Waking.DECLARED if kind in own.watches else Waking.SILENT
                found.append(declared_edge(FieldId(other.name, kind, field), controller, waking))
    return found


def _part_of(field: str) -> str:
    """The part of an object that a right is about: its status, its existence, or all else."""
    part = field.partition(".")[0]
    return part if part in ("status", EXISTENCE) else WHOLE


def _notes_on(traffic: Traffic, recording: Recording) -> list[str]:
    """The limits of the fields and writers in the answer."""
    made = []
    if any(traffic.noted_every):
        rates = " or ".join(map(str, traffic.noted_every))
        made.append(
            "fields: those of each controller's first decisions, of retries, and of 1 in"
            f" {rates} of the others were noted; requests and wake-ups were all counted"
        )
    elif not recording.counts:
        made.append("fields: the records have no counts, so only kept decisions are covered")
    if not recording.states and not traffic.complete:
        made.append("writers: a log of samples has no writes of agents and users")
    return made
