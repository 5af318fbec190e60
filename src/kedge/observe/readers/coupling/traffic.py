"""Reads, writes and wake-ups by controller, gathered from the counts, the kept decisions and the commits. Pure.

Counts have every decision, by kind and field. Kept decisions and commits have objects and revisions too: which version
a reader had, and which writer it came from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from kedge.api.field_notes import WHOLE
from kedge.api.objects import Object
from kedge.api.wellknown import EVENT_KIND, LEASE_KIND, NODE_KIND, POD_KIND
from kedge.keys import AGENT_PREFIX, NODE_USER_PREFIX, Key, Revision
from kedge.observe.readers.coupling.fields import EXISTENCE, changed_fields, fields_of, touches
from kedge.observe.readers.recording import Recording
from kedge.observe.recording.aggregate import OTHER, TOUCH, WAKE, fields_of_patch
from kedge.observe.recording.rules import WROTE
from kedge.observe.records import Call, CountsRecord, Decision

AGENTS: Final = "agents"
"""The agents of all nodes: one program, which writes the status of nodes and pods."""
USER: Final = "user"
"""The writer of a version that no decision led to and whose caller has no name."""
READ_VERBS: Final = frozenset({"get", "list", "index"})
"""Verbs of reads, from a cache or from the server."""
_CREATES: Final = frozenset({"create", "ensure"})
_REMOVES: Final = frozenset({"delete", "delete collection", "evict", "reserve"})
_NO_INPUT: Final = frozenset({LEASE_KIND, EVENT_KIND})
"""Kinds that no reconcile decides on."""


class FieldWrite(NamedTuple):
    """One write of one object."""

    revision: Revision
    writer: str
    decision: str
    fields: frozenset[str]
    at: datetime


def _table() -> defaultdict[str, defaultdict[str, Counter[str]]]:
    return defaultdict(lambda: defaultdict(Counter))


@dataclass(slots=True)
class Traffic:
    """Reads, writes and wake-ups of each controller."""

    touched: defaultdict[str, defaultdict[str, Counter[str]]] = field(default_factory=_table)
    """By reader and kind: noted decisions by field."""
    reads: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """By reader: reads by kind."""
    writes: defaultdict[str, defaultdict[str, Counter[str]]] = field(default_factory=_table)
    """By writer and kind: requests by field."""
    wakes: defaultdict[str, defaultdict[str, Counter[str]]] = field(default_factory=_table)
    """By reader and kind: wake-ups by writer."""
    objects_read: defaultdict[str, set[Key]] = field(default_factory=lambda: defaultdict(set))
    by_object: dict[Key, list[FieldWrite]] = field(default_factory=dict)
    """Writes with their objects, by revision: of all commits, or of kept decisions."""
    decisions: list[Decision] = field(default_factory=list)
    groups: list[frozenset[str]] = field(default_factory=list)
    """The values of `Decision.process` that share a client."""
    complete: bool = False
    """Whether every decision was kept: then two controllers that share no object here are not coupled by counts."""
    since: datetime | None = None
    until: datetime | None = None
    noted_every: tuple[int, ...] = ()
    objects_written: defaultdict[tuple[str, str, str], set[Key]] = field(default_factory=lambda: defaultdict(set))
    """By writer, kind and field."""
    _seen_writes: dict[tuple[Key, str], list[FieldWrite]] = field(default_factory=dict)
    """By object and touched field: the writes that a reader sees. Filled as it is asked for."""

    @property
    def window_s(self) -> float:
        return (self.until - self.since).total_seconds() if self.since and self.until else 0.0

    def writer_at(self, key: Key, touched: str, revision: Revision) -> FieldWrite | None:
        """The last write, at or before a revision, of a field that a reader of `touched` sees."""
        found = self._seen_writes.get((key, touched))
        if found is None:
            writes = self.by_object.get(key, ())
            found = [each for each in writes if any(touches(touched, written) for written in each.fields)]
            self._seen_writes[key, touched] = found
        place = bisect_right(found, revision, key=lambda each: each.revision)
        return found[place - 1] if place else None

    def controllers(self) -> list[str]:
        return sorted({*self.touched, *self.reads, *(each.controller for each in self.decisions)})


def traffic_of(recording: Recording, schedulers: Mapping[str, Mapping[str, Iterable[str]]]) -> Traffic:
    """Gather a recording. `schedulers` has the declared fields, by kind, of components whose reads are not noted."""
    recording = replace(recording, decisions=[_relabelled(each) for each in recording.decisions])
    made = Traffic(decisions=sorted(recording.decisions, key=lambda each: each.began))
    _add_counts(made, recording.counts)
    made.complete = _is_complete(recording)
    late = _not_counted(made.decisions, recording.counts)
    for decision in made.decisions:
        _add_reads(made, decision, counted=decision.id not in late)
    for name, kinds in schedulers.items():
        if any(each.controller == name for each in made.decisions) or name in made.reads:
            for kind, fields in kinds.items():
                made.reads[name][kind] += 1
                made.touched[name][kind].update(dict.fromkeys(fields, 1))
    for key, write in _object_writes(recording):
        if key.kind not in _NO_INPUT:
            made.by_object.setdefault(key, []).append(write)
    for key, writes in made.by_object.items():
        writes.sort(key=lambda each: each.revision)
        for write in writes:
            for each in write.fields:
                made.objects_written[write.writer, key.kind, each].add(key)
            if write.decision == "" or not recording.counts or write.decision in late:
                made.writes[write.writer][key.kind].update(write.fields)
            elif recording.states:  # side effects of a request, such as the use of a quota, are in no request
                known = made.writes[write.writer][key.kind]
                known.update({each: 1 for each in write.fields if each not in known})
    times = [each.began for each in made.decisions]
    made.since = min([*times, *(each.since for each in recording.counts)], default=None)
    made.until = max([*times, *(each.until for each in recording.counts)], default=None)
    return made


def component_of(name: str) -> str:
    """The name of a controller; `agents` for the agent of any node."""
    return AGENTS if name.startswith(AGENT_PREFIX) else name


def _relabelled(decision: Decision) -> Decision:
    """The decision by the name of its component, as are the writers that woke it."""
    if any(writer.startswith(AGENT_PREFIX) for _, writer in decision.wakes):
        wakes = tuple((what, component_of(writer)) for what, writer in decision.wakes)
        decision = msgspec.structs.replace(decision, wakes=wakes)
    if decision.controller.startswith(AGENT_PREFIX):
        decision = msgspec.structs.replace(decision, controller=AGENTS)
    return decision


def _add_counts(made: Traffic, counts: Iterable[CountsRecord]) -> None:
    """Sum over processes; of one process the last count of each row."""
    rows: dict[tuple[str, str, str, str, str], int] = {}
    groups: dict[str, frozenset[str]] = {}
    rates: set[int] = set()
    for record in counts:
        groups[record.process] = frozenset(record.deciders)
        rates.add(record.noted_every)
        counted: dict[tuple[str, str, str, str, str], int] = {}
        for row in record.rows:
            about = component_of(row.field) if row.verb == WAKE else row.field
            # Agents that share a process are one controller here.
            place = record.process, component_of(row.controller), row.verb, row.kind, about
            counted[place] = counted.get(place, 0) + row.count
        rows |= counted
    made.groups, made.noted_every = list(groups.values()), tuple(sorted(rates))
    for (_, controller, verb, kind, name), count in rows.items():
        if controller == OTHER or kind in _NO_INPUT:
            continue
        if verb == TOUCH:
            made.touched[controller][kind][name] += count
        elif verb == WAKE:
            made.wakes[controller][kind][name] += count
        elif verb in READ_VERBS:
            made.reads[controller][kind] += count
        else:
            for each in _written_fields(verb, name):
                made.writes[controller][kind][each] += count


def _written_fields(verb: str, name: str) -> tuple[str, ...]:
    if verb in _REMOVES:
        return (EXISTENCE,)
    if verb in _CREATES:
        return (name, EXISTENCE)
    return (name,)


def _is_complete(recording: Recording) -> bool:
    last = {each.process: each for each in recording.coverages}
    return bool(last) and sum(each.seen for each in last.values()) <= len(recording.decisions)


def _not_counted(decisions: Iterable[Decision], counts: Iterable[CountsRecord]) -> frozenset[str]:
    """The decisions that no count has yet: a log has decisions every second, their counts more rarely."""
    until: dict[str, datetime] = {}
    for record in counts:
        for process in record.deciders:
            until[process] = max(record.until, until.get(process, record.until))
    return frozenset(
        each.id
        for each in decisions
        if each.process not in until or each.began + timedelta(seconds=each.took_s) > until[each.process]
    )


def _add_reads(made: Traffic, decision: Decision, *, counted: bool) -> None:
    name = decision.controller
    for read in decision.reads:
        kind = read.cache.partition("[")[0]
        made.objects_read[name].update(each.key for each in read.objects)
        if read.verb == "get":
            made.objects_read[name].add(Key(kind, *read.about))
        made.reads[name][kind] += 0 if counted else 1
    for call in decision.calls:
        if call.verb in READ_VERBS:
            made.objects_read[name].update(each.key for each in call.reply)
    for kind, fields in (decision.touched or {}).items():
        known = made.touched[name][kind]
        # Counts have the decisions that were noted as they ran; one that was run again for its fields is in none.
        known.update([each for each in fields if not counted or each not in known])
    if not counted:
        for what, writer in decision.wakes:
            if "/" in what:
                made.wakes[name][what.partition("/")[0]][writer] += 1
    if decision.scheduling is not None and (cause := decision.scheduling.cause) is not None:
        made.wakes[name][cause.key.kind][component_of(cause.writer)] += 1


# -- writes of objects -----------------------------------------------------------------------------


def _object_writes(recording: Recording) -> Iterator[tuple[Key, FieldWrite]]:
    if recording.states:
        yield from _committed(recording)
        return
    called = list(_called(recording.decisions))
    yield from called
    if _is_complete(recording):
        yield from _outside(recording.decisions, called)


def _outside(
    decisions: Iterable[Decision], called: Iterable[tuple[Key, FieldWrite]]
) -> Iterator[tuple[Key, FieldWrite]]:
    """Writes of agents and users, by the versions that decisions read: fields that no recorded request wrote.

    Only where every decision was kept: otherwise a request that was not kept would be taken for one of theirs.
    """
    written: defaultdict[Key, list[FieldWrite]] = defaultdict(list)
    for key, write in called:
        written[key].append(write)
    versions: defaultdict[Key, dict[Revision, tuple[Object, datetime]]] = defaultdict(dict)
    for decision in decisions:
        seen = [each for read in decision.reads for each in read.objects]
        for each in (*seen, *(each for call in decision.calls for each in call.reply)):
            versions[each.key].setdefault(each.revision, (each, decision.began))
    for key, known in versions.items():
        before: Object | None = None
        for revision in sorted(known):
            new, at = known[revision]
            if not new.origin.decision:
                since = 0 if before is None else before.revision
                others = [each.fields for each in written[key] if since < each.revision <= revision]
                fields = changed_fields(before, new).difference(*others)
                if fields:
                    yield key, FieldWrite(revision, writer_name(new, fields), "", fields, at)
            before = new


def _called(decisions: Iterable[Decision]) -> Iterator[tuple[Key, FieldWrite]]:
    """The writes of kept decisions, by their requests."""
    for decision in decisions:
        for call in decision.calls:
            key = call.reply[0].key if call.key is None and call.reply else call.key
            if call.outcome in WROTE and key is not None and call.verb not in READ_VERBS:
                at = decision.began + timedelta(seconds=call.began_s + call.took_s)
                yield key, FieldWrite(call.revision, decision.controller, decision.id, requested_fields(call), at)


def requested_fields(call: Call) -> frozenset[str]:
    """The fields that a request writes."""
    if call.verb in _REMOVES:
        return frozenset((EXISTENCE,))
    if call.verb == "bind":
        return frozenset(("spec.nodeName",))
    intent = call.intent
    if isinstance(intent, list):
        return frozenset(f"{name}.{member}" if member else name for name, member in fields_of_patch(intent))
    found = fields_of(intent) if isinstance(intent, dict) else {WHOLE: None}
    return frozenset((*found, EXISTENCE)) if call.verb in _CREATES else frozenset(found)


def _committed(recording: Recording) -> Iterator[tuple[Key, FieldWrite]]:
    """Every change of a recording with a whole history, by the versions before and after it."""
    known: dict[Key, Object] = {each.key: each for state in recording.states for each in state.objects}
    removals = {
        (call.key, call.revision): decision
        for decision in recording.decisions
        for call in decision.calls
        if call.outcome == "removed"
    }
    for commit in recording.commits:
        for new in commit.written:
            old = known.get(new.key)
            known[new.key] = new
            fields = changed_fields(old, new)
            if fields:
                yield (
                    new.key,
                    FieldWrite(commit.revision, writer_name(new, fields), new.origin.decision, fields, commit.at),
                )
        for key in commit.deleted:
            known.pop(key, None)
            by = removals.get((key, commit.revision))
            if by is not None:
                yield key, FieldWrite(commit.revision, by.controller, by.id, frozenset((EXISTENCE,)), commit.at)


def writer_name(new: Object, fields: frozenset[str]) -> str:
    """The controller, the agents, or the user behind a version."""
    origin = new.origin
    if origin.decision:
        return component_of(origin.writer)
    if origin.caller:
        return AGENTS if origin.caller.startswith(NODE_USER_PREFIX) else origin.caller
    status = any(each.startswith("status") for each in fields)
    reported = new.key.kind == NODE_KIND or (new.key.kind == POD_KIND and EXISTENCE not in fields)
    return AGENTS if status and reported else USER
