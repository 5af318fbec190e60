"""The recorder of a process: counts every decision that ended, and keeps those that a rule selects.

`runtime.context` makes the records, `rules` selects, `aggregate` counts, `log` makes kept records durable. The recorder
never fails a reconcile. `coverage` states what its answers cover.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

from kedge.api.field_notes import FieldNotes
from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.observe.recording.aggregate import Aggregate, ControllerCounts
from kedge.observe.recording.brief import BriefDecision, BriefSource, Release
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.recorder_statistics import Coverage, RecorderStatistics
from kedge.observe.recording.rules import WROTE, BegunDecision, KeepReason, KeepRules, KeepSelector
from kedge.observe.records import CacheRead, Call, CountsRecord, CoverageRecord, Decision, FieldCount

Pin = Callable[[Decision], Sequence[Release]]
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
        self._held: deque[tuple[Decision, Sequence[Release]]] = deque()
        self._by_id: dict[str, Decision] = {}
        """Exactly the decisions of `_held`."""
        self._writers: dict[Revision, tuple[Key, str]] = {}
        """By revision: a call is one commit, and each commit has its own revision."""
        self._writers_order: deque[Revision] = deque()
        """The keys of `_writers`, oldest first: finding the oldest key of a dict is slow."""
        self._writers_max = env.limits.decision_writers_max
        self._aggregate = Aggregate(env.limits.decision_rows_max)
        self._ended: list[Decision] = []
        """Decisions that are not counted yet, nor kept. Many together cost less: the code is in the processor's caches
        from the second on. Every reader, and every flush of the log, calls `_process` first."""
        self._pins: list[Pin] = []
        """For each of `_ended` its pin. Lists, not a list of tuples, which the garbage collector would have to look
        at."""
        self._judged: list[bool] = []
        """For each of `_ended`, whether the rules have seen it."""
        self._on_kept: list[TakeKept] = []
        self._unfinished: list[Unfinished] = []
        self._batch_max = env.limits.decisions_batch_max
        self._noted = (env.limits.decisions_noted_first, env.limits.decisions_noted_every)
        self._begun: dict[str, int] = {}
        """By controller: decisions that asked for notes."""
        self._deciders: dict[str, None] = {}
        """Every `Decision.process`, in order."""
        self._recent: dict[Revision, Decision] = {}
        """By the revisions that they wrote: decisions that no rule kept."""
        self._recent_pins: dict[Revision, Pin] = {}
        """For each of `_recent` its pin: apart, for the garbage collector, as above."""
        self._recent_order: deque[Revision] = deque()
        """These revisions, oldest first, with those of decisions that were kept meanwhile."""
        self._recent_max = env.limits.decisions_recent_max
        self._recent_binds: dict[Revision, tuple[BriefDecision, BriefSource]] = {}
        """As `_recent`, of brief decisions."""
        self._kept = dict.fromkeys((rule.value for rule in KeepReason), 0)
        self._since = env.now()
        self._seen = 0
        self._dropped = 0
        self._writers_dropped = 0
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

    @property
    def has_windows(self) -> bool:
        """Whether a window may be open."""
        return self._keeper.has_windows

    def notes_for(self, decision: Decision) -> FieldNotes | None:
        """Notes for a decision that begins; None if the fields that it reads are not noted.

        Noted are the first decisions of each controller, all decisions while a window is open, and a sample. A kept
        decision without notes can be run again for them.
        """
        if not self.records:
            return None
        name = decision.controller
        begun = self._begun[name] = self._begun.get(name, 0) + 1
        first, every = self._noted
        if begun <= first or begun % every == 0 or self._keeper.has_windows:
            return FieldNotes(self._env.limits.decision_objects_noted_max)
        return None

    def counts_of(self, controller: str) -> ControllerCounts | None:
        """Where a controller counts its reads and calls while it makes them; None if the recorder is off."""
        return self._aggregate.table(controller) if self.records else None

    def take(self, decision: Decision, pin: Pin = _pin_nothing, *, judged: bool = False, counted: bool = False) -> None:
        """Count a decision that has ended, and keep it if `Decision.kept` is set already or a rule keeps it. With
        `judged`, `kept` is the verdict of `why_keep`, also if it is empty. With `counted`, its steps were counted when
        they were made.

        `pin` is called for a kept decision: it pins the parts of the received logs that a recheck needs. The functions
        that it returns are called when the record leaves memory. None of these may raise. The decision must not change
        afterwards.
        """
        if not self.records:
            return
        self._seen += not decision.part_of  # a report decides nothing
        if not counted:
            self._aggregate.table(decision.controller).count_steps(decision)
        self._ended.append(decision)
        self._pins.append(pin)
        self._judged.append(judged)
        # A window keeps what ends while it is open, so it must be looked at now.
        if len(self._ended) >= self._batch_max or self._keeper.has_windows:
            self._process()

    def take_brief(self, brief: BriefDecision, source: BriefSource) -> None:
        """Count a bind that succeeded and that no rule keeps. Nothing in it may change afterwards."""
        if not self.records:
            return
        self._seen += 1
        if source.process not in self._deciders:
            self._deciders[source.process] = None
        self._aggregate.table(source.controller).count_bind(*brief.wake, brief.marks)
        revision = brief.revision
        self._add_writer(revision, brief.key, brief.id)
        binds = self._recent_binds
        binds[revision] = (brief, source)
        if len(binds) > self._recent_max:
            del binds[next(iter(binds))]

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

    def close(self) -> None:
        """Release every record and its pins. The counts stay."""
        self._process()
        self._recent.clear()
        self._recent_pins.clear()
        self._recent_binds.clear()
        self._recent_order.clear()
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
        found = self._writers.get(revision)
        return found[1] if found is not None and found[0] == key else None

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
            writers=len(self._writers),
            writers_dropped=self._writers_dropped,
            windows=len(self._keeper.windows()),
        )

    # -- inside ------------------------------------------------------------------------------------

    def _process(self) -> None:
        """Count the decisions that have ended, and keep those that a rule keeps."""
        self._aggregate.settle()
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        pins, self._pins = self._pins, []
        judgements, self._judged = self._judged, []
        for decision, pin, judged in zip(ended, pins, judgements, strict=True):
            self._count(decision, pin, judged=judged)

    def _count(self, decision: Decision, pin: Pin, *, judged: bool) -> None:
        wrote: list[Revision] = []
        table = self._aggregate.table(decision.controller)
        if decision.process not in self._deciders:
            self._deciders[decision.process] = None
        table.count_wakes(decision.wakes)
        if decision.touched:
            table.count_touches(decision)
        for step in decision.steps:
            if type(step) is Call and step.revision and step.outcome in WROTE:
                self._index(step, decision.part_of or decision.id)
                wrote.append(step.revision)
        if decision.scheduling is not None:
            table.count_snapshot(decision.marks)
        if not judged and not decision.kept:
            decision.kept = self._keeper.why_keep(decision)
        if decision.kept:
            self._keep(decision, pin(decision))
            self._keep_writers(decision)
        elif wrote:
            for revision in wrote:
                self._remember(revision, decision, pin)

    def _remember(self, revision: Revision, ended: Decision, pin: Pin) -> None:
        """Hold a decision that no rule keeps for a while: one that read what it wrote may be kept soon."""
        self._recent[revision] = ended
        self._recent_pins[revision] = pin
        self._recent_order.append(revision)
        if len(self._recent_order) > self._recent_max:
            oldest = self._recent_order.popleft()
            self._recent.pop(oldest, None)
            self._recent_pins.pop(oldest, None)

    def _keep_writers(self, decision: Decision) -> None:
        """Keep the decisions that wrote what a kept one read, if they are still there. One step back, and no further:
        the writers of their inputs in turn would be everything."""
        recent = self._recent
        for revision in _revisions_read(decision):
            if (writer := recent.get(revision)) is not None:
                pin = self._recent_pins[revision]
                for call in writer.calls:
                    recent.pop(call.revision, None)
            elif (bind := self._recent_binds.pop(revision, None)) is not None:
                brief, source = bind
                writer, pin = source.record_of(brief), source.pin
            else:
                continue
            writer.kept = f"{KeepReason.INPUT}: of {decision.id}"
            self._keep(writer, pin(writer))

    def _index(self, call: Call, decision_id: str) -> None:
        key, revision, reply = call.key, call.revision, call.reply
        if call.outcome == "removed" and (not reply or reply[0].origin.operation != call.operation):
            return  # another call may have removed it: the last version is not from this call
        if key is None:
            if not reply:
                return
            key = reply[0].key
        self._add_writer(revision, key, decision_id)

    def _add_writer(self, revision: Revision, key: Key, decision_id: str) -> None:
        writers = self._writers
        if revision not in writers:
            self._writers_order.append(revision)
            if len(writers) >= self._writers_max:
                del writers[self._writers_order.popleft()]
                self._writers_dropped += 1
        writers[revision] = (key, decision_id)

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
                lambda: len(self._recent) + len(self._recent_binds),
            ),
            ("kedge_decisions_writers", "Versions whose decision can be looked up", lambda: len(self._writers)),
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
