"""The index of a decision log: parts inside each segment, so that a reader finds the decisions about an object.

    segment  versions and decisions | part | versions and decisions | part | ... | end
    part     tables of postings, decisions, versions and writes | index (head, with the place of the part before it)

`log` writes a part after every `Limits.decision_index_part_max` decisions, and at the end of a segment one part for all
of it; `log_search` reads them. Decisions behind the last sound part are scanned, so a lost part costs no answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from kedge.api.objects import Object
from kedge.errors import check
from kedge.kept import encode_section
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.recording.process_events import is_process_event
from kedge.observe.recording.rules import WROTE
from kedge.observe.records import CacheRead, Call, CoverageRecord, Decision, OutsideEvent, call_ended

INDEX: Final = "index"
"""The head of a part. It is the last section of the part."""
TABLE: Final = "table"
INDEX_VERSION: Final = 1
BUCKETS: Final = 256
"""Postings are divided by checksum: a lookup reads one bucket of each part. A search about a workload looks for dozens
of checksums in every segment, and reads few of so many buckets."""
FEW_BUCKETS: Final = 32
"""In a part with few postings. It divides `BUCKETS`."""
FEW_POSTINGS: Final = 32_768
"""Up to so many: each bucket is then a few kilobytes, and the sections of more of them would be as long as they are."""
MISSING: Final = 0xFFFFFFFF
"""The place of a version that cannot be read."""
TABLES_BEFORE_BUCKETS: Final = 3
"""The tables of decisions, versions and writes."""


class PartHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The contents of one part."""

    previous: int
    """Where the head of the part before it begins; 0 for the first."""
    begin: int
    """Where the sections that it covers begin."""
    end: int
    """Where they end, and its tables begin."""
    tables: tuple[int, ...]
    """Where each table begins: decisions, versions, writes, then the buckets, of which there are few or many."""
    decisions: int
    first_decision: int
    """How many decisions of the segment are in the parts before it."""
    first_version: int
    """The same of versions."""
    rules: dict[str, int]
    """The number of decisions by rule, without reports."""
    first: datetime | None
    """When the earliest of them began; None if there is none."""
    last: datetime | None
    write_kinds: tuple[str, ...]
    """The kinds of objects that these decisions wrote: a row of the table of writes has a number of this list."""
    write_revision_max: Revision
    write_first: datetime | None
    coverages: tuple[CoverageRecord, ...]
    events: tuple[OutsideEvent, ...] = ()
    """Starts, ends and terms of its process: a few in a log."""


class WriteRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The table of writes, by column."""

    kinds: bytes
    """Two bytes a row: the place in `PartHead.write_kinds`."""
    revisions: list[Revision]
    times: list[datetime]
    decisions: bytes


class _Owner(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _OwnedMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    owner_references: tuple[_Owner, ...] = ()


class _OwnedObject(msgspec.Struct, frozen=True, gc=False):
    metadata: _OwnedMetadata = _OwnedMetadata()


_owners: Final = msgspec.json.Decoder(_OwnedObject).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_head: Final = msgspec.msgpack.Decoder(PartHead).decode
_rows: Final = msgspec.msgpack.Decoder(WriteRows).decode


# -- checksums -------------------------------------------------------------------------------------


def about_hash(key: Key) -> int:
    """Decisions about an object, and attempts that preempted it."""
    return crc32(b"about", _key_hash(key))


def touched_hash(key: Key) -> int:
    """Decisions that read, wrote or removed a version of an object."""
    return crc32(b"touched", _key_hash(key))


def wrote_hash(key: Key) -> int:
    """Decisions that wrote a version of an object."""
    return crc32(b"wrote", _key_hash(key))


def revision_hash(key: Key, revision: Revision) -> int:
    """The decision that wrote one version."""
    return crc32(b"at %d" % revision, _key_hash(key))


def owner_hash(uid: str) -> int:
    """Decisions that are the first of their segment with some version of an object that `uid` owns, and those that
    refused to admit one."""
    return crc32(uid.encode(), 1)


def id_hash(decision_id: str) -> int:
    return crc32(decision_id.encode(), 2)


def _key_hash(key: Key) -> int:
    return crc32(f"{key[0]}/{key[1]}/{key[2]}".encode())


# -- writing ---------------------------------------------------------------------------------------


class _PartTables:
    """The tables of one part, or of a whole segment."""

    def __init__(self) -> None:
        self.begin: int | None = None
        self.hashes = [array("I") for _ in range(BUCKETS)]
        self.ordinals = [array("I") for _ in range(BUCKETS)]
        self.decisions = array("I")
        self.versions = array("I")
        self.rules: dict[str, int] = {}
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.writes: list[tuple[str, Revision, datetime, int]] = []
        self.coverages: dict[str, CoverageRecord] = {}
        self.events: list[OutsideEvent] = []

    def add(self, other: _PartTables) -> None:
        """Append the tables of the next part."""
        if self.begin is None:
            self.begin = other.begin
        for mine, more in zip((*self.hashes, *self.ordinals), (*other.hashes, *other.ordinals), strict=True):
            mine.extend(more)
        self.decisions.extend(other.decisions)
        self.versions.extend(other.versions)
        for rule, count in other.rules.items():
            self.rules[rule] = self.rules.get(rule, 0) + count
        self.first = min((each for each in (self.first, other.first) if each is not None), default=None)
        self.last = max((each for each in (self.last, other.last) if each is not None), default=None)
        self.writes += other.writes
        self.coverages |= other.coverages
        self.events += other.events

    def count(self, decision: Decision) -> None:
        """Add a decision to the totals."""
        rule, began = decision.kept.partition(":")[0], decision.began
        self.rules[rule] = self.rules.get(rule, 0) + 1
        if self.first is None or began < self.first:
            self.first = began
        if self.last is None or began > self.last:
            self.last = began

    def sections(self, previous: int, end: int, first_decision: int, first_version: int) -> list[bytes]:
        """The tables, which begin at `end`, and behind them the head."""
        assert self.begin is not None
        rows = self.writes
        kinds = {kind: n for n, kind in enumerate(dict.fromkeys(kind for kind, *_ in rows))}
        columns = WriteRows(
            array("H", [kinds[each[0]] for each in rows]).tobytes(),
            [each[1] for each in rows],
            [each[2] for each in rows],
            array("I", [each[3] for each in rows]).tobytes(),
        )
        bodies = [self.decisions.tobytes(), self.versions.tobytes(), _encode(columns)]
        count = FEW_BUCKETS if sum(map(len, self.hashes)) <= FEW_POSTINGS else BUCKETS
        bodies += [b"".join([*self.hashes[n::count], *self.ordinals[n::count]]) for n in range(count)]
        frames = [encode_section(TABLE, each, version=INDEX_VERSION) for each in bodies]
        head = PartHead(
            previous,
            self.begin,
            end,
            tuple(accumulate((len(each) for each in frames[:-1]), initial=end)),
            len(self.decisions),
            first_decision,
            first_version,
            self.rules,
            self.first,
            self.last,
            tuple(kinds),
            max((each[1] for each in rows), default=NO_REVISION),
            min((each[2] for each in rows), default=None),
            tuple(self.coverages.values()),
            tuple(self.events),
        )
        return [*frames, encode_section(INDEX, _encode(head), version=INDEX_VERSION)]


class DecisionNames:
    """The checksums of every name that a decision is found by. Keys occur often, so their checksums are remembered."""

    def __init__(self) -> None:
        self._keys: dict[Key, int] = {}

    def of(self, decision: Decision, owners_of: Callable[[Object], Iterable[int]]) -> set[int]:
        """`owners_of` has the checksums of the owners of a version."""
        found = {id_hash(decision.id), crc32(b"about", self._hash(decision.key))}
        if decision.scheduling is not None:
            found.update(about_hash(Key.parse(each)) for each in decision.scheduling.victims)
        if decision.admission is not None and decision.admission.owner_uid:
            found.add(owner_hash(decision.admission.owner_uid))
        for step in decision.steps:
            if type(step) is CacheRead:
                versions = step.objects
            elif type(step) is Call:
                versions = step.reply
                if step.outcome in WROTE:
                    self._add_write(step, found)
            else:
                continue
            for each in versions:
                found.add(crc32(b"touched", self._hash(each.key)))
                found.update(owners_of(each))
        return found

    def _add_write(self, call: Call, found: set[int]) -> None:
        key = call.reply[0].key if call.reply else call.key
        if key is None:
            return
        base = self._hash(key)
        found.add(crc32(b"touched", base))
        if call.key is not None and call.key != key:
            found.add(touched_hash(call.key))
        if call.revision and call.reply and call.outcome == "done":
            found.update((crc32(b"wrote", base), crc32(b"at %d" % call.revision, base)))

    def _hash(self, key: Key) -> int:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _key_hash(key)
        return found


def owner_hashes(value: bytes) -> list[int]:
    """The checksums of the owners of an object, from its JSON."""
    if b'"ownerReferences"' not in value:
        return []
    try:
        return [owner_hash(each.uid) for each in _owners(value).metadata.owner_references]
    except msgspec.MsgspecError:
        return []


class IndexBuilder:
    """Collects the index of one segment, part by part. A checksum may belong to two names: readers compare again."""

    def __init__(self) -> None:
        self._names = DecisionNames()
        self._previous = 0
        self._whole = _PartTables()
        """The parts that were taken."""
        self._part = _PartTables()
        self._owned: dict[tuple[Key, Revision], list[int]] = {}
        """Checksums of the owners of versions to which no decision has referred yet."""
        self._postings = 0

    @property
    def decisions(self) -> int:
        """Decisions in the part that is being collected."""
        return len(self._part.decisions)

    @property
    def size(self) -> int:
        """About the bytes of the part at the end, which has the whole segment."""
        places = sum(len(each.decisions) + len(each.versions) for each in (self._whole, self._part))
        return 8 * self._postings + 4 * places + 24 * (len(self._whole.writes) + len(self._part.writes))

    def add_version(self, number: int, key: Key, revision: Revision, value: bytes, at: int) -> None:
        """A version whose section begins at `at`. Numbers follow each other."""
        self._reach(at)
        check(number == len(self._whole.versions) + len(self._part.versions), "versions are numbered one by one")
        self._part.versions.append(at)
        if owners := owner_hashes(value):
            self._owned[key, revision] = owners

    def add_decision(self, decision: Decision, at: int) -> None:
        """A decision whose section begins at `at`. Its versions were added before it."""
        self._reach(at)
        part = self._part
        ordinal = len(self._whole.decisions) + len(part.decisions)
        part.decisions.append(at)
        if not decision.part_of:
            part.count(decision)
        found = self._names.of(decision, self._take_owners)
        for step in decision.steps:
            if type(step) is Call and step.outcome == "done" and step.revision and step.reply:
                kind, ended = step.reply[0].key.kind, call_ended(decision, step)
                part.writes.append((kind, step.revision, ended, ordinal))
        hashes, ordinals = part.hashes, part.ordinals
        for each in found:
            hashes[each % BUCKETS].append(each)
            ordinals[each % BUCKETS].append(ordinal)
        self._postings += len(found)

    def _take_owners(self, version: Object) -> Iterable[int]:
        """The owners of a version, at the first decision of the segment that refers to it."""
        return self._owned.pop((version.key, version.revision), ()) if self._owned else ()

    def add_coverage(self, coverage: CoverageRecord, at: int) -> None:
        self._reach(at)
        self._part.coverages[coverage.process] = coverage

    def add_event(self, event: OutsideEvent, at: int) -> None:
        if is_process_event(event):
            self._reach(at)
            self._part.events.append(event)

    def _reach(self, at: int) -> None:
        if self._part.begin is None:
            self._part.begin = at

    def take_part(self, end: int) -> list[bytes]:
        """The sections of the part that was collected, which begin at `end`. Begins another."""
        part, whole = self._part, self._whole
        made = part.sections(self._previous, end, len(whole.decisions), len(whole.versions))
        whole.add(part)
        self._part = _PartTables()
        self._previous = end + sum(map(len, made[:-1]))
        return made

    def take_whole(self, end: int) -> list[bytes]:
        """One part for the whole segment, in place of all before it; nothing if the segment is empty."""
        self._whole.add(self._part)
        return [] if self._whole.begin is None else self._whole.sections(0, end, 0, 0)


# -- reading ---------------------------------------------------------------------------------------


class WriteRow(NamedTuple):
    revision: Revision
    at: datetime
    ordinal: int
    """The number of the decision in its segment."""


def decode_head(body: bytes) -> PartHead:
    return _head(body)


def bucket_of(head: PartHead, checksum: int) -> int:
    """The number of the table with this checksum."""
    return TABLES_BEFORE_BUCKETS + checksum % (len(head.tables) - TABLES_BEFORE_BUCKETS)


def ordinals_of(bucket: bytes, checksum: int) -> Iterator[int]:
    """The decisions in a bucket with this checksum."""
    half = len(bucket) // 2
    pattern, at = checksum.to_bytes(4, "little"), 0
    while (at := bucket.find(pattern, at, half)) >= 0:
        if at % 4:
            at += 1
            continue
        yield int.from_bytes(bucket[half + at : half + at + 4], "little")
        at += 4


def place_in(table: bytes, ordinal: int) -> int:
    """The entry of a table of places; `MISSING` beyond its end."""
    found = table[4 * ordinal : 4 * ordinal + 4]
    return int.from_bytes(found, "little") if len(found) == 4 else MISSING


def writes_in(body: bytes, head: PartHead, kind: str | None) -> Iterator[WriteRow]:
    """The writes to objects of one kind, or of all kinds."""
    if kind is not None and kind not in head.write_kinds:
        return
    rows, number = _rows(body), None if kind is None else head.write_kinds.index(kind)
    for n, each in enumerate(array("H", rows.kinds)):
        if number is None or each == number:
            yield WriteRow(rows.revisions[n], rows.times[n], place_in(rows.decisions, n))
