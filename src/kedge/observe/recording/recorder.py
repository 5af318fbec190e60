"""Where decisions go when they end: counted always, kept in full when a rule says so. One a process.

`runtime.context` makes the records, `rules` says which are kept, `aggregate` counts, `log` makes them durable. The
recorder never fails a reconcile, and every answer it gives can say what it covers: `coverage`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.observe.recording.aggregate import Aggregate, FieldCount
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.rules import WROTE, Keeper, KeepReason, KeepRules, Window
from kedge.observe.records import CacheRead, Call, Decision

Release = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a view of the records can know. Every view shows it."""

    since: datetime
    """When recording began."""
    until: datetime
    seen: int
    """Decisions that ended: all of them are in the counts."""
    kept: Mapping[str, int]
    """Of those, how many were kept in full, by the rule that kept them."""
    sample_every: int
    """Of the decisions that no other rule keeps, one in so many was kept."""
    held: int
    """Kept records that are still in memory."""
    held_since: datetime | None
    """When the oldest of them began; None if there is none."""
    dropped: int
    """Kept records that had to leave memory."""
    windows: tuple[Window, ...]
    """Those that are open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStatistics:
    seen: int
    kept: Mapping[str, int]
    held: int
    dropped: int
    rows: int
    """Of the counts."""
    other: int
    """Reads and fields that found no row."""
    writers: int
    """Versions whose decision can be looked up."""
    writers_dropped: int
    windows: int


def _pin_nothing() -> Sequence[Release]:
    return ()


class Recorder:
    """Takes every decision of a process. Shared by its controllers."""

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
        self._keeper = Keeper(env, rules)
        self._held: deque[tuple[Decision, Sequence[Release]]] = deque()
        self._by_id: dict[str, Decision] = {}
        """Exactly the decisions of `_held`."""
        self._writers: dict[Revision, tuple[Key, str]] = {}
        """By revision: a call is one commit, and a commit has one of its own."""
        self._writers_order: deque[Revision] = deque()
        """The keys of `_writers`, oldest first: a dict alone is slow to give up its oldest."""
        self._writers_max = env.limits.decision_writers_max
        self._aggregate = Aggregate(env.limits.decision_rows_max)
        self._tables = self._aggregate.tables
        self._kept = dict.fromkeys((rule.value for rule in KeepReason), 0)
        self._since = env.now()
        self._seen = 0
        self._dropped = 0
        self._writers_dropped = 0
        self.records = records
        """Whether anything is recorded at all."""
        self._show()

    # -- taking ------------------------------------------------------------------------------------

    def why_keep(self, decision: Decision) -> str:
        """Why this decision, which has ended, is to be kept in full; empty if it is only counted."""
        return self._keeper.why_keep(decision, decision.calls) if self.records else ""

    def take(self, decision: Decision, pin: Callable[[], Sequence[Release]] = _pin_nothing) -> None:
        """Count a decision that has ended, and keep it if a rule says so, or whoever made it already did.

        `pin` is called for one that is kept, and holds on to what recheck would need; what it returns is called once
        the record is no longer held. Neither may raise.
        """
        if not self.records:
            return
        self._seen += 1
        table = self._tables.get(decision.controller) or self._aggregate.table(decision.controller)
        reads, calls = table.reads, None
        for step in decision.steps:
            if type(step) is CacheRead:
                try:
                    reads[step.cache][step.verb] += 1
                except KeyError:
                    table.count_new_read(step)
            elif type(step) is Call:
                table.count_call(step)
                if step.revision and step.outcome in WROTE:
                    self._index(step, decision.id)
                if calls is None:
                    calls = [step]
                else:
                    calls.append(step)
        if not decision.kept:
            decision.kept = self._keeper.why_keep(decision, calls or ())
        if decision.kept:
            self._keep(decision, pin())

    def open_window(self, name: str, *, until_s: float, tenants: Iterable[str] = (), keys: Iterable[Key] = ()) -> None:
        """Keep every decision about these, or about anything if none are named, until `env.monotonic()` is `until_s`.

        Raises:
            BadRequest: it would be open for too long. Choose an earlier end, and open it again if need be.
            TooManyRequests: too many are open. Close one first.
        """
        self._keeper.open_window(name, until_s=until_s, tenants=tenants, keys=keys)

    def close_window(self, name: str) -> bool:
        """End a window before its time; False if there is none of that name."""
        return self._keeper.close_window(name)

    def close(self) -> None:
        """Let go of every record, and of what they pin. The counts stay."""
        while self._held:
            self._drop_oldest()

    # -- asking ------------------------------------------------------------------------------------

    def decision(self, decision_id: str) -> Decision | None:
        """A record that was kept and is still held."""
        return self._by_id.get(decision_id)

    def decisions(
        self, *, controller: str = "", key: Key | None = None, since: datetime | None = None
    ) -> Iterator[Decision]:
        """Held records, newest first: of one controller, about one key, begun at `since` or later."""
        for decision, _ in tuple(reversed(self._held)):
            if controller and decision.controller != controller:
                continue
            if key is not None and decision.key != key:
                continue
            if since is None or decision.began >= since:
                yield decision

    def writer_of(self, key: Key, revision: Revision) -> str | None:
        """The decision that made this version; None if it was none of this process's, or too long ago."""
        found = self._writers.get(revision)
        return found[1] if found is not None and found[0] == key else None

    def counts(self) -> Iterator[FieldCount]:
        """How often each controller read or wrote each field. Never sampled; `Coverage.since` is its window."""
        return iter(self._aggregate)

    def coverage(self) -> Coverage:
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

    def statistics(self) -> RecorderStatistics:
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

    def _index(self, call: Call, decision_id: str) -> None:
        key, revision, reply, writers = call.key, call.revision, call.reply, self._writers
        if call.outcome == "removed" and (not reply or reply[0].origin.operation != call.operation):
            return  # somebody removed it, perhaps not this call: the last version seen is another's
        if key is None:
            if not reply:
                return
            key = reply[0].key
        if revision not in writers:
            self._writers_order.append(revision)
            if len(writers) >= self._writers_max:
                del writers[self._writers_order.popleft()]
                self._writers_dropped += 1
        writers[revision] = (key, decision_id)

    def _keep(self, decision: Decision, releases: Sequence[Release]) -> None:
        rule = decision.kept.partition(":")[0]
        self._kept[rule if rule in self._kept else KeepReason.OTHER.value] += 1
        self._held.append((decision, releases))
        self._by_id[decision.id] = decision
        if len(self._held) > self._env.limits.decisions_kept_max:
            self._drop_oldest()
            self._dropped += 1
        if self._log is not None:
            self._log.append(decision)

    def _drop_oldest(self) -> None:
        decision, releases = self._held.popleft()
        if self._by_id.get(decision.id) is decision:
            del self._by_id[decision.id]
        _release(releases)

    def _show(self) -> None:
        """Counted in plain numbers while work goes on, and told when somebody looks."""
        metrics, told = self._env.metrics, dict.fromkeys(self._kept, 0)
        # Made first, so read first: it tells the counters below what happened since the last look.
        held = metrics.gauge("kedge_decisions_held", "Kept records in memory")
        seen = metrics.counter("kedge_decisions_total", "Decisions that ended")
        kept = metrics.counter("kedge_decisions_kept_total", "Decisions kept in full, by rule", ("rule",))
        dropped = metrics.counter("kedge_decisions_dropped_total", "Kept records that left memory for newer ones")
        other = metrics.counter("kedge_decisions_other_total", "Reads and fields counted in the row `other`")
        seen_told = dropped_told = other_told = 0

        def look() -> float:
            nonlocal seen_told, dropped_told, other_told
            seen.inc(self._seen - seen_told)
            dropped.inc(self._dropped - dropped_told)
            other.inc(self._aggregate.other - other_told)
            seen_told, dropped_told, other_told = self._seen, self._dropped, self._aggregate.other
            for rule, count in self._kept.items():
                kept.labels(rule).inc(count - told[rule])
                told[rule] = count
            return len(self._held)

        held.set_function(look)
        for series, words, read in (
            ("kedge_decisions_rows", "Rows of the counts", lambda: self._aggregate.rows),
            ("kedge_decisions_writers", "Versions whose decision can be looked up", lambda: len(self._writers)),
            ("kedge_decisions_windows", "Windows open", lambda: len(self._keeper.windows())),
        ):
            metrics.gauge(series, words).set_function(read)


def _release(releases: Sequence[Release]) -> None:
    for release in releases:
        release()
