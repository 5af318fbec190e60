"""Searches in the decision logs of a cluster: the decisions about an object, by the index inside each segment.

`log_index` has the format, `log` writes it. A search finds every decision that a scan finds, and perhaps others, since
a checksum may belong to two names: readers select again. Damage is reported where a search meets it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeVar

import msgspec

from kedge.api.kinds import KINDS, Registry
from kedge.kept import Gap, Section, last_section, read_bytes, read_from, section_at
from kedge.keys import Key, Revision
from kedge.observe.recording.log_index import (
    INDEX,
    INDEX_VERSION,
    MISSING,
    DecisionNames,
    PartHead,
    about_hash,
    bucket_of,
    decode_head,
    id_hash,
    ordinals_of,
    owner_hash,
    owner_hashes,
    place_in,
    revision_hash,
    touched_hash,
    writes_in,
    wrote_hash,
)
from kedge.observe.recording.process_events import is_process_event
from kedge.observe.recording.segments import SkippedPart, no_log, read_segment, segments, warn_of
from kedge.observe.records import (
    BadRecord,
    Call,
    CoverageRecord,
    Decision,
    KeptTotals,
    OutsideEvent,
    RecordReader,
    call_ended,
)
from kedge.observe.records.codec import COVERAGE, DECISION, OUTSIDE, VERSION

_T = TypeVar("_T")
_SCANNED: Final = 1 << 30
"""The number of the part of decisions that no part has: they come after the others of their segment."""
_SEARCHED: Final = frozenset({VERSION, DECISION, COVERAGE, OUTSIDE})
"""Sections that answers are made of. Counts and cache contents are for readers of a whole log."""
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
Report = Callable[[SkippedPart], None]
Progress = Callable[[int, int], None]
"""Called with the work that is done, and all of it."""


def _no_progress(_done: int, _all: int) -> None:
    """Without a display."""


class FoundWrite(NamedTuple):
    """A write of a kept decision."""

    decision: Decision
    call: Call
    at: datetime


class FoundDecisions(NamedTuple):
    """The decisions that a search found."""

    decisions: dict[tuple[int, int, int], Decision]
    """By segment, part and place in it: these sort in the order of a scan."""
    left_out: int
    """Older ones that were not read, because of the bound of the search."""


class _BadTable(Exception):
    """A table of the index cannot be read: the segment is scanned instead."""


class IndexedSegment:
    """One segment with the parts of its index. Decisions that no part has are read at once."""

    def __init__(self, path: Path, kinds: Registry, *, is_newest: bool, report: Report) -> None:
        self.path = path
        self._kinds, self._report, self._is_newest = kinds, report, is_newest
        self.parts: list[PartHead] = []
        self.coverages: list[CoverageRecord] = []
        self.events: list[OutsideEvent] = []
        """Starts, ends and terms of the process."""
        self.scanned: list[Decision] = []
        """Decisions that no part has: those behind the last part, or all of them if there is no sound index."""
        self._scanned_names: list[set[int]] = []
        """The checksums of each of `scanned`; empty until one is searched for."""
        self._decisions: dict[tuple[int, int], Decision | None] = {}
        """Decisions that were read, by part and place in it."""
        self._places: dict[int, list[tuple[int, int]]] = {}
        """By checksum, of those that were searched for: an answer about a workload searches for most of them again."""
        self._tables: dict[int, bytes] = {}
        """Tables that were read, by their place."""
        self._file: BinaryIO | None = None
        self._size = self._indexed_bytes = 0
        self._reader = RecordReader(kinds, self._version)
        with path.open("rb") as file:
            self._open(file)
            self.parts, self._indexed_bytes = index_parts(file, self._size)
            if self.parts:
                self._take(read_from(file, self._size, self._indexed_bytes), self._reader)
        if self.parts:
            self.coverages[:0] = [each for part in self.parts for each in part.coverages]
            self.events[:0] = [each for part in self.parts for each in part.events]
        else:
            self.scan()

    def scan(self) -> None:
        """Read every record, in place of an index that cannot be read."""
        self.drop_index()
        self.scanned, self._scanned_names, self.coverages, self.events = [], [], [], []
        self._take(read_bytes(self.path.read_bytes(), self.path), RecordReader(self._kinds))

    @property
    def began(self) -> datetime:
        """When the earliest decision in the index began."""
        return min((each.first for each in self.parts if each.first is not None), default=_NEVER)

    def find(self, hashes: Iterable[int]) -> set[tuple[int, int]]:
        """Part and place of each decision in the index with one of these checksums."""
        wanted = set(hashes)
        self._look_up(wanted.difference(self._places))
        return set().union(*(self._places[each] for each in wanted))

    def _look_up(self, hashes: Collection[int]) -> None:
        if not hashes:
            return
        found: dict[int, list[tuple[int, int]]] = {each: [] for each in hashes}
        with self.path.open("rb") as file:
            self._open(file)
            for number, part in enumerate(self.parts):
                for each, places in found.items():
                    body = self._kept_table(file, part, bucket_of(part, each))
                    places += [(number, ordinal) for ordinal in ordinals_of(body, each)]
        self._places |= found

    def drop_index(self) -> None:
        """The file cannot be read: nothing is found by the index any more."""
        self.parts, self._places = [], {}

    def find_scanned(self, hashes: set[int]) -> Iterator[tuple[int, Decision]]:
        """Number and decision of each that no part has, with one of these checksums."""
        if not self._scanned_names:
            names = DecisionNames()
            self._scanned_names = [names.of(each, lambda found: owner_hashes(found.value)) for each in self.scanned]
        for number, (names_of_one, each) in enumerate(zip(self._scanned_names, self.scanned, strict=True)):
            if not hashes.isdisjoint(names_of_one):
                yield number, each

    def read(self, places: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Decision]]:
        """The decisions at these places that can be read, in the order of the segment."""
        with self.path.open("rb") as file:
            self._open(file)
            for place in sorted(places):
                if place not in self._decisions:
                    self._decisions[place] = self._read_one(file, *place)
                if (found := self._decisions[place]) is not None:
                    yield place, found

    def newest_write(self, kind: str | None, after: Revision, until: datetime) -> tuple[int, int] | None:
        """Part and place of the decision with the newest write to a kind, or to any, after a revision until a time."""
        best: tuple[int, int] | None = None
        with self.path.open("rb") as file:
            self._open(file)
            for number, part in enumerate(self.parts):
                if part.write_revision_max <= after or part.write_first is None or part.write_first > until:
                    continue
                for row in writes_in(self._table(file, part, 2), part, kind):
                    if row.revision > after and row.at <= until:
                        after, best = row.revision, (number, row.ordinal)
        return best

    # -- inside ------------------------------------------------------------------------------------

    def _open(self, file: BinaryIO) -> None:
        self._file, self._size = file, file.seek(0, 2)

    def _take(self, sections: Iterable[Section | Gap], reader: RecordReader) -> None:
        searched = (each for each in sections if isinstance(each, Gap) or each.name in _SEARCHED)
        for each in read_segment(searched, reader, self.path, is_newest=self._is_newest):
            match each:
                case Decision():
                    self.scanned.append(each)
                case CoverageRecord():
                    self.coverages.append(each)
                case OutsideEvent() if is_process_event(each):
                    self.events.append(each)
                case SkippedPart():
                    self._report(each)

    def _table(self, file: BinaryIO, part: PartHead, number: int) -> bytes:
        found = section_at(file, self._size, part.tables[number])
        if not isinstance(found, Section):
            raise _BadTable
        return found.body

    def _read_one(self, file: BinaryIO, number: int, ordinal: int) -> Decision | None:
        part = self.parts[number]
        at = self._place(file, part, 0, ordinal - part.first_decision)
        found = section_at(file, self._size, at)
        if not isinstance(found, Section):
            self._report(SkippedPart(self.path, at, found.bytes, found.why))
            return None
        try:
            record = self._reader.read(found)
        except BadRecord as error:
            self._report(SkippedPart(self.path, at, len(found.body), str(error)))
            return None
        return record if isinstance(record, Decision) else None

    def _version(self, number: int) -> Section | None:
        """The section of a version, for a decision that is being read."""
        assert self._file is not None
        for part in reversed(self.parts):
            if part.first_version <= number:
                at = self._place(self._file, part, 1, number - part.first_version)
                found = section_at(self._file, self._size, at) if at != MISSING else None
                return found if isinstance(found, Section) else None
        return None

    def _place(self, file: BinaryIO, part: PartHead, table: int, number: int) -> int:
        return place_in(self._kept_table(file, part, table), number)

    def _kept_table(self, file: BinaryIO, part: PartHead, number: int) -> bytes:
        """A table, read once: a search about a workload looks into most of them again and again."""
        at = part.tables[number]
        if at not in self._tables:
            self._tables[at] = self._table(file, part, number)
        return self._tables[at]


def index_parts(file: BinaryIO, size: int) -> tuple[list[PartHead], int]:
    """The parts of the index of a segment, and where the last one ends. The chain is used as a whole, or not at all."""
    head: object = last_section(file, size, INDEX, INDEX_VERSION)
    end = head.end if isinstance(head, Section) else 0
    found: list[PartHead] = []
    while isinstance(head, Section) and head.name == INDEX and head.version == INDEX_VERSION:
        try:
            found.append(decode_head(head.body))
        except msgspec.MsgspecError:
            break
        if not found[-1].previous:
            return found[::-1], end
        head = section_at(file, size, found[-1].previous)
    return [], 0


def indexed_decisions(path: Path) -> int:
    """How many decisions the index of a segment has."""
    with path.open("rb") as file:
        parts, _ = index_parts(file, file.seek(0, 2))
    return sum(each.decisions for each in parts)


class LogSearch:
    """The decision logs in some folders, the oldest records of each first."""

    def __init__(
        self,
        folders: Iterable[Path],
        kinds: Registry = KINDS,
        *,
        report: Report = warn_of,
        progress: Progress = _no_progress,
    ) -> None:
        """Find the segments, and read the heads of their indexes.

        Raises:
            NotFound: there is no such directory. Give that of a log.
        """
        self._segments: list[IndexedSegment] = []
        self._report = report
        self._progress = progress
        self.scans = 0
        """Segments that were scanned in the course of a search, because a table of their index cannot be read. Results
        of before it do not go together with those of after it."""
        paths: list[tuple[Path, bool]] = []
        for folder in folders:
            try:
                found = segments(folder)
            except OSError as error:
                raise no_log(folder, error) from error
            paths += [(path, number == max(found)) for number, path in found.items()]
        for done, (path, is_newest) in enumerate(paths):
            self._progress(done, len(paths))
            try:
                self._segments.append(IndexedSegment(path, kinds, is_newest=is_newest, report=report))
            except FileNotFoundError:
                report(SkippedPart(path, 0, 0, "the log reached its bound meanwhile, and this segment was removed"))
            except OSError as error:
                report(SkippedPart(path, 0, 0, f"it cannot be read: {error}"))

    # -- everything --------------------------------------------------------------------------------

    @property
    def coverages(self) -> list[CoverageRecord]:
        return [each for segment in self._segments for each in segment.coverages]

    @property
    def events(self) -> list[OutsideEvent]:
        """Starts, ends and terms of the processes, by time."""
        return sorted((each for segment in self._segments for each in segment.events), key=lambda each: each.at)

    def totals(self) -> KeptTotals:
        """All decisions in the logs, by rule, without reports."""
        rules: Counter[str] = Counter()
        times: list[datetime] = []
        for segment in self._segments:
            for part in segment.parts:
                rules.update(part.rules)
                times += [each for each in (part.first, part.last) if each is not None]
            scanned = [each for each in segment.scanned if not each.part_of]
            rules.update(each.kept.partition(":")[0] for each in scanned)
            times += [each.began for each in scanned]
        return KeptTotals(dict(rules), min(times, default=None), max(times, default=None))

    # -- some decisions ----------------------------------------------------------------------------

    def about(self, keys: Iterable[Key], *, newest: int | None = None) -> FoundDecisions:
        """Decisions about these objects, and attempts that preempted them; with `newest`, at most so many."""
        return self._find(map(about_hash, keys), newest)

    def touching(self, keys: Iterable[Key], *, newest: int | None = None) -> FoundDecisions:
        """Decisions that read, wrote or removed a version of one of these objects; with `newest`, at most so many."""
        return self._find(map(touched_hash, keys), newest)

    def with_owner(self, uids: Iterable[str]) -> FoundDecisions:
        """For each version of an object that one of `uids` owns, a decision that has it."""
        return self._find(map(owner_hash, uids))

    def writing(self, keys: Iterable[Key]) -> FoundDecisions:
        """Decisions that wrote one of these objects."""
        return self._find(map(wrote_hash, keys))

    def writers_of(self, versions: Iterable[tuple[Key, Revision]]) -> FoundDecisions:
        """The decisions that wrote these versions."""
        return self._find(revision_hash(key, revision) for key, revision in versions)

    def named(self, decision_ids: Iterable[str]) -> FoundDecisions:
        """The decisions with these ids. A report writes with the id of its attempt."""
        return self._find(map(id_hash, decision_ids))

    def decision(self, decision_id: str) -> Decision | None:
        """One decision by its id."""
        found = self.named([decision_id])
        return next((each for each in found.decisions.values() if each.id == decision_id), None)

    def writer_of(self, key: Key, revision: Revision) -> Decision | None:
        """The decision that wrote one version; None if none was kept."""
        for decision in self.writers_of([(key, revision)]).decisions.values():
            if any(call.revision == revision and key in _written(call) for call in decision.calls):
                return decision
        return None

    def newest_write(self, kind: str | None, after: Revision, until: datetime) -> FoundWrite | None:
        """The newest write to an object of a kind, or of any, after a revision and not after a time."""
        best: FoundWrite | None = None
        for segment in self._segments:
            found = self._indexed(segment, lambda each: each.newest_write(kind, after, until))
            indexed = self._read(segment, [] if found is None else [found])
            for decision in (*segment.scanned, *(each for _, each in indexed)):
                for call in decision.calls:
                    if call.outcome == "done" and call.reply and kind in (None, call.reply[0].key.kind):
                        at = call_ended(decision, call)
                        if call.revision > (best.call.revision if best else after) and at <= until:
                            best = FoundWrite(decision, call, at)
        return best

    def _find(self, hashes: Iterable[int], newest: int | None = None) -> FoundDecisions:
        wanted = set(hashes)
        if not wanted:
            return FoundDecisions({}, 0)
        found = [self._indexed(segment, lambda each: each.find(wanted)) or set() for segment in self._segments]
        left_out = 0 if newest is None else max(0, sum(map(len, found)) - newest)
        self._drop_oldest(found, left_out)
        made: dict[tuple[int, int, int], Decision] = {}
        total = sum(map(len, found))
        for number, (segment, places) in enumerate(zip(self._segments, found, strict=True)):
            for place, each in self._read(segment, places):
                made[number, *place] = each
            made.update(((number, _SCANNED, n), each) for n, each in segment.find_scanned(wanted))
            self._progress(len(made), total)
        return FoundDecisions(made, left_out)

    def _drop_oldest(self, found: list[set[tuple[int, int]]], count: int) -> None:
        """Drop the places of `count` decisions from the segments that began first."""
        for number in sorted(range(len(found)), key=lambda each: self._segments[each].began):
            if count <= 0:
                return
            kept = set(sorted(found[number])[count:])
            count -= len(found[number]) - len(kept)
            found[number] = kept

    def _read(
        self, segment: IndexedSegment, places: Collection[tuple[int, int]]
    ) -> list[tuple[tuple[int, int], Decision]]:
        return (self._indexed(segment, lambda each: list(each.read(places))) or []) if places else []

    def _indexed(self, segment: IndexedSegment, search: Callable[[IndexedSegment], _T]) -> _T | None:
        """The result of a search in the index; None if the segment had to be scanned, or is gone."""
        try:
            return search(segment)
        except _BadTable:
            self.scans += 1
            segment.scan()
        except OSError as error:
            self._report(SkippedPart(segment.path, 0, 0, f"it cannot be read: {error}"))
            segment.drop_index()
        return None


def _written(call: Call) -> set[Key]:
    return {each.key for each in call.reply} | ({call.key} if call.key is not None else set())
