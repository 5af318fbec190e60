"""The durable log of kept decisions: segments in a directory, appended in batches, bounded by bytes.

`recorder` appends, `run` writes and syncs in the background, `segments` reads. A disk that fails costs records, which
are counted, and never the decision that was being recorded.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from kedge.env import Env
from kedge.errors import Terminal, check
from kedge.kept import HEADER, encode_end
from kedge.observe.recording.log_index import IndexBuilder
from kedge.observe.recording.log_search import indexed_decisions
from kedge.observe.recording.segments import segment_path, segments
from kedge.observe.records import (
    CountsRecord,
    CoverageRecord,
    Decision,
    FieldCount,
    OutsideEvent,
    ReceivedPart,
    RecordEncoder,
    without_objects,
)

_log = logging.getLogger("kedge.observe")
INDEXED_RECORD: Final = 4
"""A record with its index, in sizes of the record: a reference to an object takes three bytes in the record of many,
and eight in the index."""


class ClosedSegment(NamedTuple):
    """A segment that is no longer written."""

    path: Path
    bytes: int
    records: int | None = None
    """None if an earlier run wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    appended: int
    """Records passed to the log."""
    written: int
    """Records written to the operating system: a kill does not lose them."""
    lost: int
    """Records lost to a failing disk, or because they cannot be encoded."""
    stripped: int
    """Records written without the objects they read, because of their size."""
    pending: int
    """Records not yet written."""
    bytes: int
    """The size of all segments on disk."""
    segments: int
    segments_dropped: int
    """Oldest segments removed to keep the log within its bound."""
    errors: int
    last_error: str


class InputPieces(Protocol):
    """Returns the pieces of received logs that a batch of records needs; `fresh`: in a segment that has none yet."""

    def __call__(self, decisions: Sequence[Decision], *, fresh: bool) -> Iterable[ReceivedPart | OutsideEvent]: ...


class DecisionLog:
    """Appends to the log in `directory`, which belongs to this process alone. Nothing is written before a `flush`."""

    def __init__(self, directory: Path, env: Env) -> None:
        """Continue after the existing segments.

        Raises:
            Terminal: the directory cannot be created or listed. Correct its permissions, or choose another.
        """
        self.directory = directory
        self._env = env
        try:
            directory.mkdir(parents=True, exist_ok=True)
            found = segments(directory)
            closed = [ClosedSegment(path, path.stat().st_size) for path in found.values()]
        except OSError as error:
            raise Terminal(f"decisions cannot be logged in {directory}: {error}; choose another directory") from error
        self._closed = deque(closed)
        """Complete segments, oldest first."""
        self._next_number = max(found, default=0) + 1
        self._path = directory
        self._descriptor = -1
        """The descriptor of the current segment at `_path`; -1 until there is something to write."""
        self._size = 0
        """Bytes written to that segment."""
        self._records = 0
        """Records written to that segment."""
        self._sections = 0
        """Sections written to that segment: a complete segment ends with their number."""
        self._hiding_key = env.secret_bytes(32)
        """Hides the values of Secrets in this log; it is in memory alone."""
        self._encoder = RecordEncoder(hiding_key=self._hiding_key)
        self._index = IndexBuilder()
        """The index of the current segment, with records that are not yet written."""
        self._sources: list[Callable[[], None]] = []
        self._inputs: InputPieces | None = None
        self._begun: RecordEncoder | None = None
        """The encoder of the segment that has inputs already: each segment has its own."""
        self._coverage: Callable[[], CoverageRecord] | None = None
        self._covered = 0
        """The number of decisions that the last record of the coverage had seen."""
        self._counts: Callable[[], CountsRecord] | None = None
        self._counted: set[FieldCount] = set()
        """The rows in this segment, each with its last count."""
        self._counts_due_s = 0.0
        self._unencoded: list[Decision] = []
        """Records to encode. Many together cost less: the code is in the processor's caches from the second on."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._pending_records = 0
        self._unsynced = False
        self._appended = self._written = self._lost = self._stripped = self._segments_dropped = self._errors = 0
        self._last_error = ""
        self._warned: set[str] = set()
        """Operations whose failure was logged. A failure is logged again only after a success."""
        self._show()

    @property
    def segment_number(self) -> int:
        """The number of the segment that the next record is written to."""
        return self._next_number - (self._descriptor >= 0)

    # -- writing -----------------------------------------------------------------------------------

    def add_source(self, append_all: Callable[[], None]) -> None:
        """Before every flush, call a function that appends all records its owner still holds back."""
        self._sources.append(append_all)

    def cover_by(self, coverage: Callable[[], CoverageRecord]) -> None:
        """With records, and at the end, write how many decisions there were: a reader states what it lacks."""
        self._coverage = coverage

    def keep_inputs(self, pieces: InputPieces) -> None:
        """Write with the records what they were decided on: `pieces` returns it for a batch of them."""
        self._inputs = pieces

    def count_by(self, counts: Callable[[], CountsRecord]) -> None:
        """With records, but not more often than `Limits.decision_counts_every_s`, and at the end, write the counts.

        A segment stands alone: its first record of counts has every row, later ones those that changed.
        """
        self._counts = counts

    def append(self, decision: Decision) -> None:
        """Add a record to the next batch. Raises neither for the content of the record nor for the disk.

        The record must not change afterwards: it is encoded later, at a `flush` or with others.
        """
        self._appended += 1
        self._unencoded.append(decision)
        if len(self._unencoded) >= self._env.limits.decisions_batch_max:
            self._encode_all()

    def note(self, event: OutsideEvent) -> None:
        """Add an event to the next batch."""
        self._index.add_event(event, self._end())
        self._add_pending(self._encoder.outside(event))

    def _collect(self) -> None:
        for append_all in self._sources:
            append_all()
        self._encode_all()

    def _encode_all(self) -> None:
        waiting, self._unencoded = self._unencoded, []
        encoder: RecordEncoder | None = None
        for number, decision in enumerate(waiting):
            if self._encoder is not encoder:  # at first, and after a record that ended its segment
                encoder = self._encoder
                self._encode_inputs(waiting[number:] if number else waiting)
            self._encode(decision)

    def _encode_inputs(self, decisions: Sequence[Decision]) -> None:
        """Add what these records were decided on, as far as a source has it."""
        if self._inputs is None:
            return
        encoder, fresh = self._encoder, self._encoder is not self._begun
        self._begun = encoder
        for piece in self._inputs(decisions, fresh=fresh):
            made = encoder.outside(piece) if isinstance(piece, OutsideEvent) else encoder.received(piece)
            self._index_versions(made)
            self._add_pending(made)

    def _encode(self, decision: Decision) -> None:
        limits = self._env.limits
        try:
            frames = self._encoder.decision(decision, bytes_max=limits.decision_log_record_bytes_max)
            if frames is None:
                self._stripped += 1
                self._stripped_total.inc()
                bare, dropped = without_objects(decision)
                bare.objects_dropped = dropped
                frames = self._encoder.decision(bare, bytes_max=limits.decision_log_record_bytes_max)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            self._failed(
                "encode", f"decision {decision.id} of {decision.controller} cannot be written: {error}", lost=1
            )
            return
        if frames is None:
            text = f"decision {decision.id} of {decision.controller} is too large for the log without its objects too"
            self._failed("size", text, lost=1)
            return
        self._add_to_index(decision, frames)
        self._pending_records += 1
        if self._size + self._pending_bytes + self._index.size >= limits.decision_log_segment_bytes_max:
            self._write_pending()
            self._end_segment()
        elif self._pending_bytes >= limits.decision_log_pending_bytes_max:
            self._write_pending()

    def _add_to_index(self, decision: Decision, frames: Sequence[bytes]) -> None:
        """Add the sections of one record, and after the last record of a part the part."""
        self._index.add_decision(decision, self._index_versions(frames))
        self._add_pending(frames)
        if self._index.decisions >= self._env.limits.decision_index_part_max:
            self._add_pending(self._index.take_part(self._end()))

    def _index_versions(self, frames: Sequence[bytes]) -> int:
        """Add the versions before the last record to the index. Returns where the section of the record begins."""
        at = self._end()
        number, versions = self._encoder.added
        for each, frame in zip(versions, frames, strict=False):
            self._index.add_version(number, each.key, each.revision, each.value, at)
            number, at = number + 1, at + len(frame)
        return at

    def _end(self) -> int:
        """Where the next section begins, in the current segment or in the next one."""
        return (self._size or len(HEADER)) + self._pending_bytes

    def _add_pending(self, frames: Sequence[bytes]) -> None:
        self._pending += frames
        self._pending_bytes += sum(map(len, frames))

    def flush(self) -> None:
        """Write pending records to the operating system at once. After it only a crash of the machine loses them."""
        self._collect()
        if self._pending:
            self._write_coverage()
            self._write_counts()
        self._write_pending()

    def hide_with(self, key: bytes) -> None:
        """Hide values with this key from now on, in a segment of its own."""
        self.flush()
        self._hiding_key = key
        self._end_segment()

    def begin_segment(self) -> None:
        """End the segment. The records that follow may be older than those before them, and so may their inputs."""
        self.flush()
        self._end_segment()

    def _write_coverage(self) -> None:
        if self._coverage is None:
            return
        found = self._coverage()
        if found.seen != self._covered:
            self._covered = found.seen
            self._index.add_coverage(found, self._end())
            self._add_pending(self._encoder.coverage(found))

    def _write_counts(self, *, last: bool = False) -> None:
        now_s = self._env.monotonic()
        if self._counts is None or (self._counted and not last and now_s < self._counts_due_s):
            return
        self._counts_due_s = now_s + self._env.limits.decision_counts_every_s
        found = self._counts()
        rows = tuple([row for row in found.rows if row not in self._counted])
        if rows:
            self._counted = set(found.rows)
            self._add_pending(self._encoder.counts(replace(found, rows=rows)))

    def _write_pending(self) -> None:
        if not self._pending:
            return
        batch, records, sections = b"".join(self._pending), self._pending_records, len(self._pending)
        self._pending.clear()
        self._pending_bytes = self._pending_records = 0
        try:
            if self._descriptor < 0:
                self._begin_segment()
            self._write(batch)
        except OSError as error:
            self._failed("write", f"the decision log in {self.directory} cannot be written: {error}", lost=records)
            # Versions of the lost batch are not in this segment, so no later record may refer to them: begin another.
            self._index = IndexBuilder()  # it has the lost batch
            self._end_segment()
            return
        self._size += len(batch)
        self._sections += sections
        self._written += records
        self._records += records
        self._unsynced = True
        self._warned.discard("write")

    def sync(self) -> None:
        """Sync to disk. It blocks the event loop, as every sync in kedge does."""
        if not self._unsynced:
            return
        self._unsynced = False
        began_s = self._env.monotonic()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._failed("sync", f"the decision log in {self.directory} cannot be synced: {error}")
        self._sync_s.observe(self._env.monotonic() - began_s)

    async def run(self) -> None:
        """Flush and sync every `Limits.decision_log_sync_s`, and once more when cancelled."""
        try:
            while True:
                await asyncio.sleep(self._env.limits.decision_log_sync_s)
                self.flush()
                self.sync()
        finally:
            self.flush()
            self.sync()

    def close(self) -> None:
        """Write and sync pending records, and close the segment. A later record begins another."""
        self._collect()
        self._write_coverage()
        self._write_counts(last=True)
        self.flush()
        self.sync()
        self._end_segment()

    def statistics(self) -> LogStatistics:
        self._collect()
        return LogStatistics(
            appended=self._appended,
            written=self._written,
            lost=self._lost,
            stripped=self._stripped,
            pending=self._pending_records,
            bytes=self._bytes(),
            segments=len(self._closed) + (self._descriptor >= 0),
            segments_dropped=self._segments_dropped,
            errors=self._errors,
            last_error=self._last_error,
        )

    # -- segments ----------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        self._make_room()
        while True:
            path = segment_path(self.directory, self._next_number)
            self._next_number += 1
            try:
                self._descriptor = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
                )
            except FileExistsError:
                continue  # a segment has one writer
            break
        self._path, self._size, self._sections, self._records = path, 0, 0, 0
        self._write(HEADER)
        self._size = len(HEADER)
        self._sync_directory()

    def _sync_directory(self) -> None:
        """Make the name of a new segment durable. Some filesystems cannot; the segment is used all the same."""
        try:
            descriptor = os.open(self.directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failed("sync", f"the names in {self.directory} cannot be synced: {error}")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:  # a write is short only when the disk is full, and then the next one raises
            view = view[os.write(self._descriptor, view) :]

    def _end_segment(self) -> None:
        """Close the segment after its last whole batch. The next flush begins another, which stands alone."""
        check(not self._pending, "pending records refer to versions in the segment that ends")
        self._encoder = RecordEncoder(hiding_key=self._hiding_key)
        self._counted = set()
        index, self._index = self._index, IndexBuilder()
        if self._descriptor < 0:
            return
        path, descriptor, size = self._path, self._descriptor, self._size
        self._descriptor, self._size, self._unsynced = -1, 0, False
        try:
            try:
                os.ftruncate(descriptor, size)
                if self._sections:
                    size += _write_end(descriptor, size, self._sections, index.take_whole(size))
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if not self._sections:
                path.unlink()
        except OSError as error:
            self._failed("close", f"segment {path} was not closed properly: {error}")
        if self._sections:
            self._closed.append(ClosedSegment(path, size, self._records))

    def _make_room(self) -> None:
        """Remove the oldest segments until another one fits."""
        limits = self._env.limits
        # A segment ends with the record that fills it, so it may exceed its size by one record and its index, and by
        # the inputs of a batch.
        room = (
            limits.decision_log_bytes_max
            - limits.decision_log_segment_bytes_max
            - INDEXED_RECORD * limits.decision_log_record_bytes_max
            - (limits.decision_log_inputs_bytes_max if self._inputs is not None else 0)
        )
        while self._closed and (
            sum(each.bytes for each in self._closed) > room or len(self._closed) >= limits.decision_log_segments_max
        ):
            path, _, records = self._closed.popleft()
            try:
                dropped = indexed_decisions(path) if records is None else records
                path.unlink(missing_ok=True)
                self._segments_dropped += 1
                self._dropped_total.labels("log full").inc(dropped)
            except OSError as error:
                self._failed("remove", f"segment {path} cannot be removed, so the log exceeds its bound: {error}")

    # -- reporting ---------------------------------------------------------------------------------

    def _failed(self, what: str, text: str, *, lost: int = 0) -> None:
        """Count a failure, and log it once until the operation succeeds again."""
        self._errors += 1
        self._lost += lost
        self._last_error = text
        self._errors_total.labels(what).inc()
        self._lost_total.inc(lost)
        if lost:
            self._dropped_total.labels(what).inc(lost)
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", text)

    def _bytes(self) -> int:
        return self._size + sum(each.bytes for each in self._closed)

    def _show(self) -> None:
        metrics = self._env.metrics
        self._errors_total = metrics.counter(
            "kedge_decisions_log_errors_total", "Failed operations of the decision log", ("what",)
        )
        self._lost_total = metrics.counter(
            "kedge_decisions_log_lost_total", "Kept records that the log failed to write"
        )
        self._dropped_total = metrics.counter(
            "kedge_decisions_log_dropped_total", "Kept decisions that the log does not have, or no longer has", ("why",)
        )
        self._stripped_total = metrics.counter(
            "kedge_decisions_log_stripped_total", "Records logged without the objects they read, because of their size"
        )
        self._sync_s = metrics.histogram("kedge_decisions_log_sync_seconds", "Time of a sync of the decision log")
        for series, help_text, read in (
            ("kedge_decisions_log_bytes", "Size of the decision log on disk", self._bytes),
            ("kedge_decisions_log_segments", "Segments on disk", lambda: len(self._closed) + (self._descriptor >= 0)),
            ("kedge_decisions_log_segment_bytes", "Size of the current segment", lambda: self._size),
            ("kedge_decisions_log_pending_bytes", "Bytes not yet written", lambda: self._pending_bytes),
            ("kedge_decisions_log_unindexed", "Records after the index's last part", lambda: self._index.decisions),
            ("kedge_decisions_log_unencoded", "Kept records not yet encoded", lambda: len(self._unencoded)),
        ):
            metrics.gauge(series, help_text).set_function(read)


def _write_end(descriptor: int, size: int, sections: int, part: Sequence[bytes]) -> int:
    """Write the last part of the index, and mark a segment as complete. On a full disk both are left out."""
    end = b"".join((*part, encode_end(sections + len(part))))
    with suppress(OSError):
        if os.write(descriptor, end) == len(end):
            return len(end)
    os.ftruncate(descriptor, size)
    return 0
