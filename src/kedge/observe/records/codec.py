"""Records as sections of the kept format: object versions once each, and records that refer to them by number.

A stream stands alone: every version that a record refers to is before it. `recording` appends sections to a log or a
file; `RecordReader` reads them in order. A record is never changed by encoding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import force_setattr, replace

from kedge.api.kinds import KINDS, Registry
from kedge.api.objects import Object
from kedge.errors import KedgeError
from kedge.kept import HEADER, Section, encode_end, encode_section, read_bytes
from kedge.keys import Key, Origin, Revision
from kedge.observe.records.decision import CacheRead, Call, Decision, DecisionStep, PodSync, encode_plain
from kedge.observe.records.hidden_values import HiddenValues
from kedge.observe.records.history import (
    CommitRecord,
    CountsRecord,
    CoverageRecord,
    OutsideEvent,
    ReceivedChange,
    ReceivedEntry,
    ReceivedPart,
    StoreState,
)
from kedge.observe.records.redaction import RedactedField

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
VERSION: Final = "version"
DECISION: Final = "decision"
STATE: Final = "state"
COMMIT: Final = "commit"
RECEIVED: Final = "received"
OUTSIDE: Final = "outside"
COVERAGE: Final = "coverage"
COUNTS: Final = "counts"
CODEC_VERSION: Final = 3
"""The version of all sections above. Fields may be added at the end of a record without a new one."""

Record: TypeAlias = Decision | StoreState | CommitRecord | ReceivedPart | OutsideEvent | CoverageRecord | CountsRecord


class BadRecord(KedgeError):
    """A section is sound but cannot be decoded here. The message has the reason; other sections may be read."""


class Version(NamedTuple):
    """An object as plain data, without its kind, which a registry finds again by the key."""

    key: Key
    revision: Revision
    created: Revision
    origin: Origin
    value: bytes

    @classmethod
    def of(cls, found: Object) -> Version:
        return cls(found.key, found.revision, found.created, found.origin, found.value)

    def object(self, kinds: Registry) -> Object:
        """Raises `NotFound` if `kinds` does not have its kind."""
        kind = kinds.of_key_kind(self.key.kind)
        return Object(kind, self.key, self.value, revision=self.revision, created=self.created, origin=self.origin)


class _WirePart(NamedTuple):
    """A `ReceivedPart` in bytes: its objects are the numbers of their versions."""

    process: str
    deciders: tuple[str, ...]
    cache: str
    place: int
    revision: Revision
    base: list[int]
    entries: list[tuple[int, str, Revision, list[tuple[str, Key, int | None, Revision, bool]]]]
    continues: bool = False
    """Records of before do not have it."""
    times: tuple[int, ...] = ()
    """One for each entry; empty in records of before."""


# -- writing ---------------------------------------------------------------------------------------


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=encode_plain)


class RecordEncoder:
    """Encodes the records of one stream, and knows which versions the stream has already.

    It holds at most `versions_max` versions; then it forgets all, and writes again what is referred to again.
    """

    def __init__(
        self, versions_max: int = 1 << 62, *, hiding_key: bytes = b"", redact: Iterable[RedactedField] = ()
    ) -> None:
        """Values of Secrets and of the fields in `redact` are replaced by hashes with `hiding_key`; without a key by
        the same text."""
        self._versions_max = versions_max
        self._hidden = HiddenValues(hiding_key, redact)
        self._known: dict[tuple[Key, Revision], tuple[int, bytes, Origin, Revision]] = {}
        """Number, value, origin and creation: not the object, which may hold its decoded view."""
        self._numbers = 0
        self._new: list[Object] = []
        """Versions that the record being encoded is the first to refer to. The last has number `_numbers - 1`."""
        self.added: tuple[int, list[Object]] = (0, [])
        """The versions that the last record brought, and the number of the first: one section each, before its own."""

    def decision(self, decision: Decision, *, bytes_max: int = 1 << 62) -> list[bytes] | None:
        """The sections to append, versions first; None if they would be more than `bytes_max`.

        Raises:
            TypeError, ValueError, OverflowError, RecursionError: the record holds what cannot be written.
        """
        steps = decision.steps
        first = self._begin()
        try:
            decision.steps = list(map(self._step, steps))
            return self._sections(DECISION, _encoder.encode(decision), first, bytes_max)
        except BaseException:
            self._forget(first)
            raise
        finally:
            decision.steps = steps

    def _step(self, step: DecisionStep) -> DecisionStep:
        if type(step) is CacheRead:
            return self._read(step)
        if type(step) is Call:
            return self._call(step)
        if type(step) is PodSync and step.objects:
            return replace(step, objects=tuple(map(self._number, step.objects)))
        return step

    def _read(self, step: CacheRead) -> CacheRead:
        objects = step.objects
        if not objects:
            return step
        numbers: Any = tuple(map(self._number, objects))
        return CacheRead(step.cache, step.verb, step.about, step.place, step.revision, step.age_s, step.found, numbers)

    def _call(self, step: Call) -> Call:
        intent = self._hidden.intent(step.key, step.intent_json)
        if not step.reply and intent is step.intent_json:
            return step
        return replace(step, intent_json=intent, reply=tuple(map(self._number, step.reply)))

    def state(self, state: StoreState) -> list[bytes]:
        return self._record(STATE, lambda: (state.revision, state.at, self._all(state.objects)))

    def commit(self, commit: CommitRecord) -> list[bytes]:
        return self._record(COMMIT, lambda: (commit.revision, commit.at, self._all(commit.written), commit.deleted))

    def received(self, part: ReceivedPart) -> list[bytes]:
        return self._record(
            RECEIVED,
            lambda: _WirePart(
                *part[:5], self._all(part.base), self._entries(part.entries), part.continues, _times(part.entries)
            ),
        )

    def outside(self, event: OutsideEvent) -> list[bytes]:
        return self._record(OUTSIDE, lambda: event)

    def coverage(self, coverage: CoverageRecord) -> list[bytes]:
        return self._record(COVERAGE, lambda: coverage)

    def counts(self, counts: CountsRecord) -> list[bytes]:
        return self._record(COUNTS, lambda: counts)

    def _entries(self, entries: Iterable[ReceivedEntry]) -> list[Any]:
        return [
            (
                each.place,
                each.source,
                each.revision,
                [
                    (change.type, change.key, None if change.new is None else self._number(change.new), *change[3:])
                    for change in each.changes
                ],
            )
            for each in entries
        ]

    def _record(self, name: str, content: Callable[[], Any]) -> list[bytes]:
        first = self._begin()
        try:
            made = self._sections(name, _encoder.encode(content()), first, 1 << 62)
        except BaseException:
            self._forget(first)
            raise
        assert made is not None
        return made

    def _sections(self, name: str, body: bytes, first: int, bytes_max: int) -> list[bytes] | None:
        made = [
            encode_section(
                VERSION,
                _encoder.encode((number, each.key, each.revision, each.created, each.origin, each.value)),
                version=CODEC_VERSION,
            )
            for number, each in enumerate(self._new, first)
        ]
        made.append(encode_section(name, body, version=CODEC_VERSION))
        if sum(map(len, made)) > bytes_max:
            self._forget(first)
            return None
        self.added, self._new = (first, self._new), []
        return made

    def _begin(self) -> int:
        if len(self._known) >= self._versions_max:
            self._known.clear()
        return self._numbers

    def _forget(self, first: int) -> None:
        """None of the last record will be in the stream, so no later record may refer to its versions."""
        for each in self._new:
            self._known.pop((each.key, each.revision), None)
        self._new.clear()
        self._numbers = first

    def _all(self, objects: Iterable[Object]) -> list[int]:
        return list(map(self._number, objects))

    def _number(self, found: Object) -> int:
        found = self._hidden.object(found)
        place = (found.key, found.revision)
        known = self._known.get(place)
        # A revision names one version of a key, but not of a dry run, nor of an object's last state once removed.
        if known is not None:
            number, value, origin, created = known
            if value == found.value and origin == found.origin and created == found.created:
                return number
        number = self._numbers
        self._numbers = number + 1
        self._known[place] = (number, found.value, found.origin, found.created)
        self._new.append(found)
        return number


# -- reading ---------------------------------------------------------------------------------------

_OBJECTS_IN: Final[dict[type, str]] = {CacheRead: "objects", Call: "reply", PodSync: "objects"}
"""The field of each step that has objects: in bytes, the numbers of their versions."""
_version: Final = msgspec.msgpack.Decoder(tuple[int, Key, Revision, Revision, Origin, bytes])
_decision: Final = msgspec.msgpack.Decoder(Decision)
_state: Final = msgspec.msgpack.Decoder(tuple[Revision, datetime, list[int]])
_commit: Final = msgspec.msgpack.Decoder(tuple[Revision, datetime, list[int], tuple[Key, ...]])
_received: Final = msgspec.msgpack.Decoder(_WirePart)
_outside: Final = msgspec.msgpack.Decoder(OutsideEvent)
_coverage: Final = msgspec.msgpack.Decoder(CoverageRecord)
_counts: Final = msgspec.msgpack.Decoder(CountsRecord)


class RecordReader:
    """Decodes the sections of one stream, in order. Each version becomes an object once, and only when it is needed."""

    def __init__(self, kinds: Registry = KINDS, find_version: Callable[[int], Section | None] | None = None) -> None:
        """`find_version` finds the section of a version that was not read yet, for a reader that begins anywhere."""
        self._kinds = kinds
        self._find_version = find_version
        self._versions: dict[int, Version] = {}
        self._objects: dict[int, Object] = {}

    def read(self, section: Section) -> Record | None:
        """The record in a section; None for a version, and for a section of another layer.

        Raises:
            BadRecord: it cannot be decoded, or refers to a version that was lost or whose kind is not known here.
        """
        read = _READERS.get(section.name)
        if read is None:
            return None
        if section.version != CODEC_VERSION:
            raise BadRecord(
                f"section {section.name!r} has codec version {section.version}, and this build reads"
                f" {CODEC_VERSION}: use a matching kedge"
            )
        try:
            return read(self, section.body)
        except (msgspec.MsgspecError, KedgeError, LookupError, ValueError, RecursionError) as error:
            raise BadRecord(f"a record {section.name!r} cannot be decoded: {error}") from error

    def knows(self, section: Section) -> bool:
        """Whether the section is one of this layer's."""
        return section.name in _READERS

    def _add_version(self, body: bytes) -> None:
        number, key, revision, created, origin, value = _version.decode(body)
        self._versions[number] = Version(key, revision, created, origin, value)
        self._objects.pop(number, None)

    def _read_decision(self, body: bytes) -> Decision:
        decision = _decision.decode(body)
        for step in decision.steps:
            name = _OBJECTS_IN.get(type(step), "")
            if name and (numbers := getattr(step, name)):
                force_setattr(step, name, self._all(numbers))
        return decision

    def _read_state(self, body: bytes) -> StoreState:
        revision, at, numbers = _state.decode(body)
        return StoreState(revision, at, self._all(numbers))

    def _read_commit(self, body: bytes) -> CommitRecord:
        revision, at, numbers, deleted = _commit.decode(body)
        return CommitRecord(revision, at, self._all(numbers), deleted)

    def _read_received(self, body: bytes) -> ReceivedPart:
        process, deciders, cache, place, revision, base, entries, continues, times = _received.decode(body)
        made = [
            ReceivedEntry(
                number,
                source,
                reached,
                tuple(
                    [
                        ReceivedChange(kind, key, None if version is None else self._find(version), changed, missed)
                        for kind, key, version, changed, missed in changes
                    ]
                ),
                at,
            )
            for (number, source, reached, changes), at in zip(entries, _read_times(times, len(entries)), strict=True)
        ]
        return ReceivedPart(process, deciders, cache, place, revision, self._all(base), tuple(made), continues)

    def _read_outside(self, body: bytes) -> OutsideEvent:
        return _outside.decode(body)

    def _read_coverage(self, body: bytes) -> CoverageRecord:
        return _coverage.decode(body)

    def _read_counts(self, body: bytes) -> CountsRecord:
        return _counts.decode(body)

    def _all(self, numbers: Iterable[int]) -> tuple[Object, ...]:
        return tuple(map(self._find, numbers))

    def _find(self, number: int) -> Object:
        found = self._objects.get(number)
        if found is None:
            version = self._versions.get(number)
            if version is None and self._find_version is not None and (section := self._find_version(number)):
                self._add_version(section.body)
                version = self._versions.get(number)
            if version is None:
                raise LookupError(f"it refers to version {number}, which is not in this file")
            found = self._objects[number] = version.object(self._kinds)
        return found


_READERS: Final[dict[str, Callable[[RecordReader, bytes], Record | None]]] = {
    VERSION: RecordReader._add_version,
    DECISION: RecordReader._read_decision,
    STATE: RecordReader._read_state,
    COMMIT: RecordReader._read_commit,
    RECEIVED: RecordReader._read_received,
    OUTSIDE: RecordReader._read_outside,
    COVERAGE: RecordReader._read_coverage,
    COUNTS: RecordReader._read_counts,
}


# -- one record alone ------------------------------------------------------------------------------


def _times(entries: Sequence[ReceivedEntry]) -> tuple[int, ...]:
    """The times of entries in microseconds, each but the first since the one before; empty unless all have one."""
    times = [(each.at - _EPOCH) // _MICROSECOND for each in entries if each.at is not None]
    if len(times) < len(entries):
        return ()
    return tuple([after - before for before, after in pairwise((0, *times))])


def _read_times(times: Sequence[int], count: int) -> Iterable[datetime | None]:
    if len(times) != count:
        return repeat(None, count)
    return [_EPOCH + each * _MICROSECOND for each in accumulate(times)]


def without_objects(decision: Decision) -> tuple[Decision, int]:
    """A copy of the record without the objects it read, and how many those were."""
    steps: list[DecisionStep] = []
    dropped = 0
    for step in decision.steps:
        if isinstance(step, CacheRead | PodSync) and step.objects:
            dropped += len(step.objects)
            step = replace(step, objects=())
        elif type(step) is Call and step.reply:
            dropped += len(step.reply)
            step = replace(step, reply=())
        steps.append(step)
    return replace(decision, steps=steps), dropped


def encode_decision(decision: Decision) -> bytes:
    """One record with its objects, as a stream of its own."""
    made = RecordEncoder().decision(decision)
    assert made is not None
    return b"".join((HEADER, *made, encode_end(len(made))))


def decode_decision(data: bytes, *, kinds: Registry = KINDS) -> Decision:
    """Read what `encode_decision` wrote.

    Raises:
        BadRecord: it is damaged, or has no decision.
    """
    reader = RecordReader(kinds)
    for section in read_bytes(data, Path("decision")):
        if not isinstance(section, Section):
            raise BadRecord(f"the record is damaged: {section}")
        if isinstance(found := reader.read(section), Decision):
            return found
    raise BadRecord("there is no decision in it")
