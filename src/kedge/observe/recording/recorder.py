"""The recorder of a process: counts every decision that ended, and keeps those that a rule selects.

`runtime.context` makes the records, `rules` selects, `aggregate` counts, `log` makes kept records durable. The recorder
never fails a reconcile. `coverage` states what its answers cover.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from kedge.api.field_notes import FieldNotes
from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.observe.recording.aggregate import Aggregate, ControllerCounts
from kedge.observe.recording.brief import BriefDecision, BriefSource, Release
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.recent_decisions import DecisionRing, EndedDecision, Pin, ended_decision
from kedge.observe.recording.recorder_statistics import Coverage, RecorderStatistics
from kedge.observe.recording.rules import WROTE, BegunDecision, KeepReason, KeepRules, KeepSelector, Window
from kedge.observe.recording.written_versions import WrittenVersions
from kedge.observe.records import CacheRead, Call, CountsRecord, CoverageRecord, Decision, FieldCount, OutsideEvent

TakeKept = Callable[[Decision], None]
Unfinished = Callable[[], Iterable[Decision]]
"""The records so far of the decisions that a component has begun and not ended."""


def _pin_nothing(_: Decision) -> Sequence[Release]:
    return ()


class Recorder:
    """Records every decision of a process. Shared by its controllers."""

    def __init__(
        self,
        env: Env,
        *,
        log: DecisionLog | None = None,
        rules: KeepRules = KeepRules(),  # noqa: B008  frozen
        records: bool = True,
    ) -> None:
        self._env = env
        self._log = log
        self._keeper = KeepSelector(env, rules)
        self.open_windows: Mapping[str, Window] = self._keeper.open_windows
        """By name: windows that may be open. The same mapping for ever."""
        self._held: deque[tuple[Decision, Sequence[Release]]] = deque()
        self._by_id: dict[str, Decision] = {}
        """Exactly the decisions of `_held`."""
        self._versions = WrittenVersions(env.limits)
        self._aggregate = Aggregate(env.limits.decision_rows_max)
        self._tables = self._aggregate.tables
        self._ended: list[EndedDecision] = []
        """Decisions that are not counted yet, nor kept. Many together cost less: the code is in the processor's caches
        from the second on. Every reader, and every flush of the log, calls `_process` first."""
        self._briefs: list[BriefDecision] = []
        """The same of brief decisions, of one source."""
        self._brief_source: BriefSource | None = None
        self._on_kept: list[TakeKept] = []
        self._unfinished: list[Unfinished] = []
        self._batch_max = env.limits.decisions_batch_max
        self._noted = (env.limits.decisions_noted_first, env.limits.decisions_noted_every)
        self._deciders: dict[str, None] = {}
        """Every `Decision.process`, in order."""
        self._ring = DecisionRing(env)
        self._kept = dict.fromkeys((rule.value for rule in KeepReason), 0)
        self._since = env.now()
        self._seen = 0
        self._dropped = 0
        self.records = records
        """Whether the recorder records; False turns it off."""
        if log is not None:
            log.add_source(self._process)
            run = env.new_uid()[:8]
            log.cover_by(partial(self.coverage_record, run))
            log.count_by(partial(self.counts_record, run))
        self._show()

    # -- recording ---------------------------------------------------------------------------------

    def why_keep(self, decision: Decision, *, begun: str = "") -> str:
        """The rule that keeps this decision, which has ended; empty if it is only counted. `begun` is the answer of
        `why_keep_begun` about it."""
        return self._keeper.why_keep(decision, begun=begun) if self.records else ""

    def why_keep_begun(self, decision: BegunDecision) -> str:
        """The rule that keeps this decision however it ends; empty if there is none so far."""
        return self._keeper.why_keep_begun(decision) if self.records else ""

    def begin(self, controller: str) -> tuple[ControllerCounts | None, FieldNotes | None]:
        """A reconcile begins. Returns where it counts its reads and calls while it makes them, and notes of the fields
        that it reads; None for either that is not recorded.

        Noted are the first decisions of each controller, all decisions while a window is open, and a sample. A kept
        decision without notes can be run again for them.
        """
        if not self.records:
            return None, None
        counts = self._tables.get(controller) or self._aggregate.table(controller)
        begun = counts.begun = counts.begun + 1
        if begun < counts.noted_next and not self._keeper.open_windows:
            return counts, None
        first, every = self._noted
        counts.noted_next = begun + 1 if begun < first else (begun // every + 1) * every
        if begun <= first or begun % every == 0 or self._keeper.open_windows:
            return counts, FieldNotes(self._env.limits.decision_objects_noted_max)
        return counts, None

    def end(self, decision: Decision, pin: Pin, calls: Sequence[Call], listed: int) -> None:
        """A reconcile that `begin` began has ended. As `take`; its steps were counted when they were made. `calls` are
        those among its steps, and `listed` is the number of objects that its lists returned."""
        if self.records:
            self._seen += 1
            ended = self._ended
            ended.append((decision, pin, calls, listed))
            # A window keeps what ends while it is open, so it must be looked at now.
            if len(ended) >= self._batch_max or self._keeper.open_windows:
                self._count_ended()

    def take(self, decision: Decision, pin: Pin = _pin_nothing, *, judged: bool = False) -> None:
        """Count a decision that has ended, and keep it if `Decision.kept` is set already or a rule keeps it. With
        `judged`, `kept` is the verdict of `why_keep`, also if it is empty.

        `pin` is called for a kept decision: it pins the parts of the received logs that a recheck needs. The functions
        that it returns are called when the record leaves memory. None of these may raise. The decision must not change
        afterwards.
        """
        if not self.records:
            return
        self._seen += not decision.part_of  # a report decides nothing
        self._aggregate.table(decision.controller).count_steps(decision)
        ended = ended_decision(decision, pin)
        if judged:
            self._count_ended()  # in the order in which they ended
            self._count((ended,), judged=True)
            return
        self._ended.append(ended)
        if len(self._ended) >= self._batch_max or self._keeper.open_windows:
            self._count_ended()

    def take_brief(self, brief: BriefDecision, source: BriefSource) -> None:
        """Count a bind that succeeded and that no rule keeps. Nothing in it may change afterwards."""
        if not self.records:
            return
        if source is not self._brief_source:
            self._count_briefs()
            self._brief_source = source
        briefs = self._briefs
        briefs.append(brief)
        if len(briefs) >= self._batch_max:
            self._count_briefs()

    def on_kept(self, take: TakeKept) -> None:
        """Call a function with every decision that is kept from now on. It must not raise, nor change the decision."""
        self._on_kept.append(take)

    def add_unfinished(self, unfinished: Unfinished) -> None:
        """Register a component that records here. Costs nothing until `unfinished` is called."""
        self._unfinished.append(unfinished)

    def unfinished(self) -> list[Decision]:
        """Records of the decisions that have begun and not ended, as far as they are now, in the order of their begin.

        A request without a reply is a last step with the outcome `under way`. These decisions are not counted: one that
        ends is, and the memory of a process that is killed is gone. A simulation reads it after a crash.
        """
        found = [each for unfinished in self._unfinished for each in unfinished()] if self.records else []
        return sorted(found, key=lambda each: each.began)

    def catch_up(self) -> None:
        """Count and keep the decisions that have ended, without waiting for a full batch."""
        self._process()

    def open_window(
        self,
        name: str,
        *,
        until_s: float,
        tenants: Iterable[str] = (),
        keys: Iterable[Key] = (),
        workloads: Iterable[Key] = (),
    ) -> None:
        """Keep every decision about these tenants, keys, and workloads with what they own, until `env.monotonic()` is
        `until_s`. A window that names none of them keeps every decision.

        Raises:
            BadRequest: it would be open for too long. Choose an earlier end, and open it again later.
            TooManyRequests: too many are open. Close one first.
        """
        self._process()
        self._keeper.open_window(name, until_s=until_s, tenants=tenants, keys=keys, workloads=workloads)

    def close_window(self, name: str) -> bool:
        """Close a window before its end; False if there is none of that name."""
        return self._keeper.close_window(name)

    def note(self, event: OutsideEvent) -> None:
        """Add an event of this process to its log, if it has one: a term of a leader, a start, an end."""
        if self._log is not None:
            self._log.note(event)

    def reach_back(self, name: str, since: datetime) -> Iterator[None]:
        """Keep the decisions of the ring that began at `since` or later, for a window of that name. Pauses after some
        of them, so that the caller can let others run."""
        self._process()
        made: list[tuple[Decision, Pin]] = []
        for record, pin in self._ring.take(since):
            if not record.kept:  # else a kept decision had read what it wrote
                made.append((record, pin))
                if len(made) % self._batch_max == 0:
                    yield
        made.sort(key=lambda pair: pair[0].began)  # the inputs of a segment begin with those of its first record
        if self._log is not None and made:
            self._log.begin_segment()
        missing_until = self._ring.missing_until
        if self._log is not None and missing_until is not None and missing_until >= since:
            text = f"decisions before {missing_until:%H:%M:%S} that no rule kept are no longer held"
            self._log.note(OutsideEvent(self._env.now(), "gap", text, name))
        for number, (record, pin) in enumerate(made, 1):
            if record.id in self._by_id:
                continue
            record.kept = f"{KeepReason.WINDOW}: {name}, reached back"
            self._keep(record, pin(record))
            if number % self._batch_max == 0:
                yield

    def close(self) -> None:
        """Release every record and its pins. The counts stay."""
        self._process()
        self._ring.clear()
        self._versions.release()
        while self._held:
            self._drop_oldest()

    # -- reading -----------------------------------------------------------------------------------

    def decision(self, decision_id: str) -> Decision | None:
        """A kept record that is still in memory."""
        self._process()
        return self._by_id.get(decision_id)

    def decisions(
        self, *, controller: str = "", key: Key | None = None, since: datetime | None = None
    ) -> Iterator[Decision]:
        """Records in memory, newest first: of one controller, about one key, begun at `since` or later."""
        self._process()
        for decision, _ in tuple(reversed(self._held)):
            if controller and decision.controller != controller:
                continue
            if key is not None and decision.key != key:
                continue
            if since is None or decision.began >= since:
                yield decision

    def writer_of(self, key: Key, revision: Revision) -> str | None:
        """The decision that wrote this version; None if another process wrote it, or it was too long ago."""
        self._process()
        return self._versions.writer_of(key, revision)

    def counts(self) -> Iterator[FieldCount]:
        """How often each controller read or wrote each field, since `Coverage.since`. Never sampled."""
        self._process()
        return iter(self._aggregate)

    def coverage(self) -> Coverage:
        self._process()
        return Coverage(
            since=self._since,
            until=self._env.now(),
            seen=self._seen,
            kept={rule: count for rule, count in self._kept.items() if count},
            sample_every=self._env.limits.decisions_sample_every,
            held=len(self._held),
            held_since=self._held[0][0].began if self._held else None,
            dropped=self._dropped,
            windows=self._keeper.windows(),
        )

    def coverage_record(self, process: str) -> CoverageRecord:
        """The coverage up to now, for a log or a kept file. `process` names this recorder in it."""
        found = self.coverage()
        return CoverageRecord(process, found.since, found.until, found.seen, dict(found.kept), found.sample_every)

    def counts_record(self, process: str) -> CountsRecord:
        """The counts up to now, for a log or a kept file. `process` names this recorder in it."""
        rows = tuple(self.counts())
        noted_every = self._env.limits.decisions_noted_every
        return CountsRecord(process, self._since, self._env.now(), rows, tuple(self._deciders), noted_every)

    def statistics(self) -> RecorderStatistics:
        self._process()
        return RecorderStatistics(
            seen=self._seen,
            kept={rule: count for rule, count in self._kept.items() if count},
            held=len(self._held),
            dropped=self._dropped,
            rows=self._aggregate.rows,
            other=self._aggregate.other,
            writers=len(self._versions),
            writers_dropped=self._versions.dropped,
            windows=len(self._keeper.windows()),
        )

    # -- inside ------------------------------------------------------------------------------------

    def _process(self) -> None:
        """Bring everything up to date, for a reader: count the decisions that have ended, and keep those that a rule
        keeps."""
        self._count_ended()
        self._aggregate.settle()

    def _count_ended(self) -> None:
        self._count_briefs()
        if self._ended:
            ended, self._ended = self._ended, []
            self._count(ended, judged=False)

    def _count_briefs(self) -> None:
        briefs, source = self._briefs, self._brief_source
        if briefs and source is not None:
            self._briefs = []
            self._seen += len(briefs)
            self._deciders.setdefault(source.process)
            self._aggregate.table(source.controller).count_binds(briefs)
            self._versions.add_binds(briefs, source)
            self._ring.add_briefs(briefs, source)

    def _count(self, ended: Sequence[EndedDecision], *, judged: bool) -> None:
        deciders, tables, why_keep = self._deciders, self._tables, self._keeper.why_keep_with
        rest: list[EndedDecision] = []
        for each in ended:
            decision, pin, calls, _ = each
            table = tables.get(decision.controller) or self._aggregate.table(decision.controller)
            if decision.process not in deciders:
                deciders[decision.process] = None
            table.count_wakes(decision.wakes)
            if decision.touched:
                table.count_touches(decision)
            if decision.scheduling is not None:
                table.count_snapshot(decision.marks)
            if not judged and not decision.kept:
                decision.kept = why_keep(calls, decision)
            for call in calls:
                if call.revision and call.outcome in WROTE:
                    self._versions.add(call, decision.part_of or decision.id)
                    if not decision.kept:
                        self._versions.hold(call.revision, each)
            if decision.kept:
                self._keep(decision, pin(decision))
                self._keep_writers(decision)
            else:
                rest.append(each)
        self._ring.add(rest)

    def _keep_writers(self, decision: Decision) -> None:
        """Keep the decisions that wrote what a kept one read, if they are still there. One step back, and no further:
        the writers of their inputs in turn would be everything."""
        for revision in _revisions_read(decision):
            found = self._versions.take_writer(revision)
            if found is not None:
                writer, pin = found
                writer.kept = f"{KeepReason.INPUT}: of {decision.id}"
                self._keep(writer, pin(writer))

    def _keep(self, decision: Decision, releases: Sequence[Release]) -> None:
        if not decision.part_of:
            rule = decision.kept.partition(":")[0]
            self._kept[rule if rule in self._kept else KeepReason.OTHER.value] += 1
        self._held.append((decision, releases))
        self._by_id[decision.id] = decision
        if len(self._held) > self._env.limits.decisions_kept_max:
            self._drop_oldest()
            self._dropped += 1
        if self._log is not None:
            self._log.append(decision)
        for take in self._on_kept:
            take(decision)

    def _drop_oldest(self) -> None:
        decision, releases = self._held.popleft()
        if self._by_id.get(decision.id) is decision:
            del self._by_id[decision.id]
        _release(releases)

    def _show(self) -> None:
        """Register metrics. Work only changes plain numbers; the counters below are brought up to date when scraped."""
        metrics, shown = self._env.metrics, dict.fromkeys(self._kept, 0)
        # Registered first, so read first: reading it updates the counters below.
        held = metrics.gauge("kedge_decisions_held", "Kept records in memory")
        seen = metrics.counter("kedge_decisions_total", "Decisions that ended")
        kept = metrics.counter("kedge_decisions_kept_total", "Decisions kept in full, by rule", ("rule",))
        drops = metrics.counter(
            "kedge_decisions_dropped_total",
            "Decisions whose full record was not kept, or was removed from memory for newer ones",
            ("why",),
        )
        dropped, counted = drops.labels("memory"), drops.labels("sampled away")
        other = metrics.counter("kedge_decisions_other_total", "Reads and fields counted in the row `other`")
        seen_shown = dropped_shown = counted_shown = other_shown = 0

        def update() -> float:
            nonlocal seen_shown, dropped_shown, counted_shown, other_shown
            self._process()
            seen.inc(self._seen - seen_shown)
            dropped.inc(self._dropped - dropped_shown)
            other.inc(self._aggregate.other - other_shown)
            seen_shown, dropped_shown, other_shown = self._seen, self._dropped, self._aggregate.other
            counted.inc(self._seen - sum(self._kept.values()) - counted_shown)
            counted_shown = self._seen - sum(self._kept.values())
            for rule, count in self._kept.items():
                kept.labels(rule).inc(count - shown[rule])
                shown[rule] = count
            return len(self._held)

        held.set_function(update)
        for series, help_text, read in (
            ("kedge_decisions_rows", "Rows in use for the counts of reads and writes", lambda: self._aggregate.rows),
            (
                "kedge_decisions_recent",
                "Versions whose writers no rule has kept yet",
                lambda: self._versions.recent,
            ),
            ("kedge_decisions_writers", "Versions whose decision can be looked up", lambda: len(self._versions)),
            ("kedge_decisions_windows", "Open recording windows", lambda: len(self._keeper.windows())),
        ):
            metrics.gauge(series, help_text).set_function(read)


def _revisions_read(decision: Decision) -> Iterator[Revision]:
    """The versions that a decision was made on, as far as its record has them."""
    attempt = decision.scheduling
    if attempt is not None:
        yield attempt.pod_revision
        if attempt.cause is not None:
            yield attempt.cause.revision
    for step in decision.steps:
        if type(step) is CacheRead:
            for each in step.objects:
                yield each.revision


def _release(releases: Sequence[Release]) -> None:
    for release in releases:
        release()
