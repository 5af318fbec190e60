"""Counts of every read and write by controller, verb, kind and field. Never sampled.

`recorder` passes it all decisions; readers of coupling use its rows. It counts attempts, not successes, and fields two
levels deep, labels and annotations by key: enough to see two controllers at one field, and bounded. Fields that were
read are known of noted decisions alone; reads and wake-ups are counted by kind for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from kedge.api.field_notes import KEYED_FIELDS, OPEN_MAPS, WHOLE
from kedge.api.wellknown import POD_KIND
from kedge.observe.recording.brief import BriefDecision
from kedge.observe.records import SNAPSHOT, CacheMark, CacheRead, Call, Decision, FieldCount

OTHER: Final = "other"
"""In every column of the row that counts the rest, once all rows are in use."""
TOUCH: Final = "touch"
"""The verb of a row with a field that noted decisions touched. It counts decisions."""
WAKE: Final = "wake"
"""The verb of a row of wake-ups by changes of a kind. Its field is the writer of the change; empty for none of ours."""

_FIELDS_OF_VERB: Final = {
    **dict.fromkeys(("get", "list", "delete", "delete collection", "evict", "confirm ended"), (WHOLE, "")),
    "bind": ("spec", "nodeName"),
}
"""Verbs whose intent has options, not fields."""
_IDENTITY: Final = frozenset({"apiVersion", "kind"})
_CONDITIONS: Final = frozenset({"uid", "resourceVersion"})
"""Members of the metadata that, like the above, identify the object and are not written."""
_KEYED: Final = {field.partition(".")[2] for field in KEYED_FIELDS}
_KEYS_MAX: Final = 256
"""Keys of labels and annotations that are counted for one verb and kind; the others are one field."""
_wake_of: Final = attrgetter("wake")
_NOT_NOTED: Final[dict[str, tuple[str, ...]]] = {}
_NO_MEMBERS: Final[dict[str, int]] = {}
_NO_FIELDS: Final[dict[str, dict[str, int]]] = {}


class ControllerCounts:
    """The counts of one controller."""

    __slots__ = ("_aggregate", "_binds", "_bound_at", "begun", "calls", "noted_next", "reads", "touches", "wakes")

    def __init__(self, aggregate: Aggregate) -> None:
        self._aggregate = aggregate
        self._binds = 0
        """Binds whose marks and field are not counted yet: these are the same in all of them."""
        self._bound_at: Sequence[CacheMark] = ()
        """Marks of the latest bind."""
        self.begun = 0
        """Reconciles that began."""
        self.noted_next = 1
        """No decision before this one has its fields noted, unless a window opens."""
        self.reads: dict[str, dict[str, int]] = {}
        """By cache and verb."""
        self.touches: dict[str, dict[str, int]] = {}
        """By kind and field."""
        self.wakes: dict[str, dict[str, int]] = {}
        """By kind and writer."""
        self.calls: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
        """By verb and kind, then by the two parts of the field. The second is empty for a field of one part."""

    def count_snapshot(self, marks: Iterable[CacheMark]) -> None:
        """Count the reads of a scheduling attempt: one of every cache that it follows."""
        reads = self.reads
        for mark in marks:
            try:
                reads[mark.cache][SNAPSHOT] += 1
            except KeyError:
                self._count(reads, mark.cache, SNAPSHOT)

    def count_binds(self, briefs: Sequence[BriefDecision]) -> None:
        """Count attempts that were bound, with their wake-ups and their marks."""
        marks = briefs[0].marks
        if len(marks) != len(briefs[-1].marks):  # a scheduler has begun to follow a cache between two of them
            for brief in briefs:
                self.count_binds((brief,))
            return
        if len(marks) != len(self._bound_at):
            self.settle_binds()
            self._bound_at = marks
        self._binds += len(briefs)
        wakes = [(*what.partition("/")[:2], writer) for what, writer in map(_wake_of, briefs)]
        for (kind, slash, writer), count in Counter(wakes).items():
            if slash:
                self._count(self.wakes, kind, writer, count)

    def settle_binds(self) -> None:
        """Count the parts that all binds since the last call have in common."""
        if self._binds:
            for mark in self._bound_at:
                self._count(self.reads, mark.cache, SNAPSHOT, self._binds)
            self._count_field("bind", POD_KIND, *_FIELDS_OF_VERB["bind"], self._binds)
            self._binds = 0

    def count_read(self, cache: str, verb: str) -> None:
        try:
            self.reads[cache][verb] += 1
        except KeyError:
            self._count(self.reads, cache, verb)

    def count_steps(self, decision: Decision) -> None:
        """Count the reads and the calls of a record."""
        for step in decision.steps:
            if type(step) is CacheRead:
                self.count_read(step.cache, step.verb)
            elif type(step) is Call:
                self.count_call(step.verb, step.key[0] if step.key is not None else _kind_of(step), step.intent)

    def count_touches(self, decision: Decision) -> None:
        for kind, fields in (decision.touched or _NOT_NOTED).items():
            for field in fields:
                self._count(self.touches, kind, field)

    def count_wakes(self, wakes: Iterable[tuple[str, str]]) -> None:
        for what, writer in wakes:
            try:
                self.wakes[what.partition("/")[0]][writer] += 1
            except KeyError:
                self.count_new_wake(what, writer)

    def count_new_wake(self, what: str, writer: str) -> None:
        """Count a wake-up that is not in `wakes` yet."""
        kind, slash, _ = what.partition("/")
        if slash:  # else it is no change: a resync, a retry
            self._count(self.wakes, kind, writer)

    def _count(self, counts: dict[str, dict[str, int]], first: str, second: str, count: int = 1) -> None:
        found = counts.get(first, _NO_MEMBERS)
        if second in found:
            found[second] += count
        elif self._aggregate.take_row(count):
            counts.setdefault(first, {})[second] = count

    def count_call(self, verb: str, kind: str, intent: Any) -> None:
        """Count the fields of a request's body."""
        if verb in _FIELDS_OF_VERB:
            self._count_field(verb, kind, *_FIELDS_OF_VERB[verb])
            return
        if not _is_mapping(intent):
            for name, member in fields_of_patch(intent):
                self._count_field(verb, kind, name, member)
            return
        try:
            fields = self.calls[verb][kind]
        except KeyError:
            fields = _NO_FIELDS
        for name, value in intent.items():
            if name in _IDENTITY:
                continue
            if not value or name in OPEN_MAPS or not _is_mapping(value):
                self._count_field(verb, kind, name, "")
                continue
            members = fields.get(name, _NO_MEMBERS)
            for member in value:
                if member in members:  # most are: neither a label nor a condition ever is
                    members[member] += 1
                elif name != "metadata":
                    self._count_field(verb, kind, name, member)
                elif member in _KEYED:
                    self._count_keys(verb, kind, member, value[member])
                elif member not in _CONDITIONS:
                    self._count_field(verb, kind, name, member)

    def fields(self) -> Iterator[tuple[str, str, str, str, int]]:
        """Verb, kind, the two parts of the field, and the count."""
        for verb, kinds in self.calls.items():
            for kind, fields in kinds.items():
                for name, members in fields.items():
                    for member, count in members.items():
                        yield verb, kind, name, member, count

    def _count_keys(self, verb: str, kind: str, member: str, values: Any) -> None:
        """Count each label or annotation of a body as a field of its own."""
        for key in values if _is_mapping(values) else (WHOLE,):
            field = f"{member}.{key}"
            known = self.calls.get(verb, {}).get(kind, _NO_FIELDS).get("metadata", _NO_MEMBERS)
            if field not in known and len(known) >= _KEYS_MAX:
                field = f"{member}.{WHOLE}"
            self._count_field(verb, kind, "metadata", field)

    def _count_field(self, verb: str, kind: str, name: str, member: str, count: int = 1) -> None:
        members = self.calls.get(verb, {}).get(kind, _NO_FIELDS).get(name, _NO_MEMBERS)
        if member in members:
            members[member] += count
        elif self._aggregate.take_row(count):
            self.calls.setdefault(verb, {}).setdefault(kind, {}).setdefault(name, {})[member] = count


class Aggregate:
    """Counts by row. At most `rows_max` rows; the rest is counted in the row `OTHER`."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self.tables: dict[str, ControllerCounts] = {}
        """By controller."""
        self.rows = 0
        self.other = 0

    def table(self, controller: str) -> ControllerCounts:
        found = self.tables.get(controller)
        if found is None:
            found = self.tables[controller] = ControllerCounts(self)
        return found

    def settle(self) -> None:
        """Bring the counts up to date. Call it before reading them."""
        for table in self.tables.values():
            table.settle_binds()

    def take_row(self, count: int = 1) -> bool:
        """Take a new row. False if none is left: then so many items are counted in the row `OTHER`."""
        if self.rows < self._rows_max:
            self.rows += 1
            return True
        self.other += count
        return False

    def __iter__(self) -> Iterator[FieldCount]:
        """Rows in order; the row `OTHER` is last, if its count is not 0."""
        found: Counter[tuple[str, str, str, str]] = Counter()
        for controller, table in self.tables.items():
            for cache, verbs in table.reads.items():
                for verb, count in verbs.items():
                    found[controller, verb, kind_of_cache(cache), WHOLE] += count
            for verb, counts in ((TOUCH, table.touches), (WAKE, table.wakes)):
                for kind, fields in counts.items():
                    for field, count in fields.items():
                        found[controller, verb, kind, field] += count
            for verb, kind, name, member, count in table.fields():
                found[controller, verb, kind, f"{name}.{member}" if member else name] += count
        for (controller, verb, kind, field), count in sorted(found.items()):
            yield FieldCount(controller, verb, kind, field, count)
        if self.other:
            yield FieldCount(OTHER, OTHER, OTHER, OTHER, self.other)


def kind_of_cache(cache: str) -> str:
    """The kind of a cache, whose name is the kind and, in brackets, the scope."""
    return cache.partition("[")[0]


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)


def _kind_of(call: Call) -> str:
    """The kind of a call without a key: from its reply, or from its body."""
    if call.reply:
        return call.reply[0].key.kind
    intent = call.intent
    return str(intent.get("kind", OTHER)) if type(intent) is dict else OTHER


def fields_of_patch(intent: Any) -> Iterator[tuple[str, str]]:
    """The fields of a JSON patch; for any other body, the whole object."""
    if not isinstance(intent, list | tuple) or not intent:
        yield WHOLE, ""
        return
    for operation in intent:
        path = operation.get("path", "") if isinstance(operation, dict) else ""
        _, name, member, key = (*path.split("/"), "", "", "")[:4]
        if name in OPEN_MAPS:
            member = ""
        elif name == "metadata" and member in _KEYED:
            member = f"{member}.{key or WHOLE}"
        yield name or WHOLE, member.replace("~1", "/").replace("~0", "~")
