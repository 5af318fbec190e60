"""The work queue: each key once, never twice at once, never lost; fair between tenants; with backoff after failures.

Neighbours: `order` chooses among ready keys, `delays` holds those not yet due, `loops` finds keys that run without
progress, `reports` describes the queue. It runs nothing itself and knows no objects: workers call `get` and `done`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import InvariantBroken, TooManyRequests, unreachable
from kedge.runtime.queue.delays import Delays, DelayTimer
from kedge.runtime.queue.entries import READY, RUNNING, WAITING, QueueEntry
from kedge.runtime.queue.items import (
    REQUEUE,
    RESYNC,
    RETRY,
    SPIN,
    SUCCESS,
    Item,
    ItemOutcome,
    K,
    KeyReport,
    Loop,
    OutcomeKind,
    QueueClosed,
    QueueStatistics,
    RunEffects,
    WaitReason,
    Wake,
    namespace_of,
    no_priority,
)
from kedge.runtime.queue.loops import LoopDetector
from kedge.runtime.queue.metrics import QueueMetrics
from kedge.runtime.queue.order import Order
from kedge.runtime.queue.reports import report_entry, report_idle, report_queue
from kedge.runtime.queue.waiters import Waiters

RESYNC_PRIORITY = -(2**31) - 1
"""Below every priority an object can have."""
_QUEUED: WaitReason = WaitReason.QUEUED
_SUCCESS: OutcomeKind = OutcomeKind.SUCCESS


class WorkQueue(Generic[K]):
    """Keys that are to be reconciled.

    `workers` is how many tasks will call `get`; with it, tenants whose runs are long leave some workers to the others.
    `on_loop` is called with each loop when it is found. Everything but waiting happens in the call itself.
    """

    def __init__(
        self,
        env: Env,
        name: str,
        *,
        workers: int = 0,
        tenant_of: Callable[[K], str] = namespace_of,
        priority_of: Callable[[K], int] = no_priority,
        on_loop: Callable[[Loop[K]], object] | None = None,
    ) -> None:
        self.name = name
        self._env = env
        self._monotonic = env.monotonic
        self._limits = env.limits
        self._backoff = Backoff(env.limits.queue_backoff_s, env.limits.queue_backoff_s_max, jitter=(0.5, 1.0))
        self._tenant_of = tenant_of
        self._priority_of = priority_of
        self._on_loop = on_loop
        self._entries: dict[K, QueueEntry[K]] = {}
        """Every key that is queued or running. The invariants are in the docstring of `QueueEntry`."""
        self.order: Order[K] = Order(env.limits, workers=workers)
        self.delays: Delays[K] = Delays()
        self.detector: LoopDetector[K] = LoopDetector(env, name=name)
        self.running = 0
        self.failing = 0
        """Entries with `failures` above 0."""
        self.resync_owed = False
        """An add was refused since the last resync began: a key may be due that is not in the queue."""
        self.closed = False
        self.adds = self.gets = self.aged = self.refused = self.successes = 0
        self.service_s = 0.0
        self._getters = Waiters()
        self._room = Waiters()
        self._owed = Waiters()
        self._drained = Waiters()
        self._timer = DelayTimer(env.monotonic, self._on_timer)
        """Set only while a `get` waits: `get` itself promotes due keys first."""
        self._metrics = QueueMetrics(env, self)

    def __len__(self) -> int:
        """Keys that are queued or running."""
        return len(self._entries)

    # -- adding ------------------------------------------------------------------------------------

    def add(
        self,
        key: K,
        why: str | Wake,
        *,
        delay_s: float = 0.0,
        priority: int | None = None,
        tenant: str | None = None,
    ) -> bool:
        """Run `key`, at once or after a delay. A key that is queued keeps the earlier time and the higher priority.

        Returns False if it was rejected: the queue is closed, or it is full and a resync is owed (`wait_resync_owed`).
        """
        wake = why if isinstance(why, Wake) else Wake(why)
        reason = WaitReason.DELAYED if delay_s > 0 else _QUEUED
        return self._add(key, wake, delay_s, reason, priority=priority, tenant=tenant)

    async def resync(self, keys: Iterable[K], *, spread_s: float | None = None) -> None:
        """Add every key, in case a change was missed: at low priority, spread out, and waiting for room.

        Keys that are backing off keep their delay. If it does not finish, a resync is owed.

        Raises:
            QueueClosed: the queue was closed first.
        """
        spread_s = self._limits.queue_resync_spread_s if spread_s is None else spread_s
        finished = False
        try:
            for count, key in enumerate(list(keys), 1):
                while key not in self._entries and len(self._entries) >= self._limits.queue_keys_max:
                    self._check_open()
                    await self._room.wait()
                self._check_open()
                self._resync_key(key, self._env.random.uniform(0.0, spread_s))
                if count % self._limits.queue_resync_burst == 0:
                    await asyncio.sleep(0)
            finished = True
        finally:
            if not finished:
                self._owe_resync()

    def _resync_key(self, key: K, delay_s: float) -> None:
        entry = self._entries.get(key)
        self._metrics.resyncs.inc()
        if entry is not None and entry.reason in (WaitReason.BACKOFF, WaitReason.LOOPING):
            self._note_wake(entry, RESYNC)  # it will run anyway; a resync does not shorten its delay
            return
        self._add(key, RESYNC, delay_s, WaitReason.RESYNC, priority=None, tenant=None)

    async def wait_resync_owed(self) -> None:
        """Wait until adds were refused because the queue was full, and it has room again. Then list and `resync`.

        Raises:
            QueueClosed: the queue was closed.
        """
        while not (self.resync_owed and len(self._entries) < self._limits.queue_keys_max):
            self._check_open()
            await self._owed.wait()
        self._check_open()
        self.resync_owed = False

    def _add(
        self, key: K, wake: Wake, delay_s: float, reason: WaitReason, *, priority: int | None, tenant: str | None
    ) -> bool:
        if self.closed:
            return False
        now_s = self._monotonic()
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= self._limits.queue_keys_max:
                self.refused += 1
                self._owe_resync()
                return False
            entry = QueueEntry(
                key,
                self._tenant_of(key) if tenant is None else tenant,
                self._priority_of(key) if priority is None else priority,
                now_s,
                given=priority is not None,
            )
            if wake is RESYNC:
                entry.priority = RESYNC_PRIORITY
            self._entries[key] = entry
            fresh = True
        else:
            fresh = False
            self._claim(entry, wake, priority, tenant)
        self.adds += 1
        self._note_wake(entry, wake)
        due_s = now_s + delay_s
        if key in self.detector.throttled:
            until_s = self.detector.hold_until_s(key, (wake,))
            if until_s > due_s:
                due_s, reason = until_s, WaitReason.LOOPING
        if entry.state is RUNNING:
            if entry.again_s is None:
                entry.added_s = now_s
            if entry.again_s is None or due_s < entry.again_s:
                entry.again_s, entry.again_reason = due_s, reason
        elif fresh or (entry.state is WAITING and due_s < entry.due_s):
            self._schedule(entry, due_s, reason, now_s)
        return True

    def _claim(self, entry: QueueEntry[K], wake: Wake, priority: int | None, tenant: str | None) -> None:
        """Raise a queued key to the requested priority; move it to another tenant, if one is given."""
        if priority is not None:
            entry.base_priority, entry.given = priority, True
        requested = RESYNC_PRIORITY if wake is RESYNC else entry.base_priority
        if entry.state is RUNNING and entry.again_s is None:
            entry.priority = requested  # its next turn begins here
        moved = requested > entry.priority or (tenant is not None and tenant != entry.tenant)
        if not moved:
            return
        if entry.state is READY:
            self.order.remove(entry)
        entry.priority = max(requested, entry.priority)
        if tenant is not None:
            entry.tenant = tenant
        if entry.state is READY:
            self.order.push(entry)
            self._metrics.show_priority(entry.priority)

    def _note_wake(self, entry: QueueEntry[K], wake: Wake) -> None:
        wakes = entry.wakes
        if wake in wakes:
            return
        if len(wakes) < self._limits.queue_wakes_max:
            wakes.append(wake)
        else:
            entry.wakes_dropped += 1
            self._metrics.wakes_dropped.inc()

    def _owe_resync(self) -> None:
        self.resync_owed = True
        if len(self._entries) < self._limits.queue_keys_max:
            self._owed.wake_one()

    # -- running -----------------------------------------------------------------------------------

    async def get(self) -> Item[K]:
        """Wait for the next key to run. The caller must call `done` for it.

        Raises:
            QueueClosed: the queue hands out nothing more. Stop.
        """
        while True:
            self._check_open()
            item = self.get_nowait()
            if item is not None:
                return item
            self._set_timer(waiting=True)
            await self._getters.wait()

    def get_nowait(self) -> Item[K] | None:
        """The next key to run, if one is ready now."""
        if self.closed:
            return None
        now_s = self._monotonic()
        if self.delays.heap:
            self._promote(now_s)
        entry = self.order.pop(now_s)
        if entry is None:
            return None
        self.gets += 1
        entry.place = self.gets
        entry.begun_s = now_s
        self.running += 1
        if entry.aged:
            self.aged += 1
        self._metrics.wait_s.observe(now_s - entry.ready_s)
        item = Item(
            entry.key,
            entry.tenant,
            entry.priority,
            entry.failures + 1,
            tuple(entry.wakes),
            entry.wakes_dropped,
            entry.added_s,
            entry.ready_s,
            now_s,
            entry.place,
            entry.aged,
        )
        entry.begin_turn(self._priority_of)
        return item

    def done(self, item: Item[K], outcome: ItemOutcome = SUCCESS, facts: RunEffects | None = None) -> None:
        """A worker has finished with `item`. The effects of the run, if they are known, let loops be found."""
        entry = self._out(item)
        now_s = self._monotonic()
        used_s = max(0.0, now_s - entry.begun_s)
        self.order.end(entry, used_s)
        self.running -= 1
        self.service_s += used_s
        if outcome.kind is _SUCCESS:
            self.successes += 1
        else:
            self._metrics.done[outcome.kind].inc()
        loops = self.detector.ran(
            item.key, item.wakes, facts, error=outcome.error, terminal=outcome.kind is OutcomeKind.TERMINAL
        )
        self._plan_next(entry, outcome, now_s)
        if self.order.ready:
            self._getters.wake_one()  # a worker that was reserved for other tenants may be needed now
        if not self.running:
            self._drained.wake_all()
        for loop in loops:
            self._report(loop)

    def put_back(self, item: Item[K], *, delay_s: float = 0.0, reason: WaitReason = _QUEUED) -> None:
        """Return an item that was not run: it is queued as if it had not been handed out, and waits for `delay_s`.

        Its failures and wake-ups are kept. An add during the delay makes it ready at once, as always.
        """
        entry = self._out(item)
        now_s = self._monotonic()
        self.order.end(entry, now_s - entry.begun_s)
        self.running -= 1
        due_s = now_s + delay_s
        if entry.again_s is not None and entry.again_s < due_s:
            due_s, reason = entry.again_s, entry.again_reason
        entry.again_s = None
        entry.added_s = item.added_s
        entry.priority = max(item.priority, entry.priority)
        entry.wakes_dropped += item.wakes_dropped
        later, entry.wakes = entry.wakes, list(item.wakes)
        for wake in later:
            self._note_wake(entry, wake)
        self._schedule(entry, due_s, reason, now_s)
        if self.order.ready:
            self._getters.wake_one()
        if not self.running:
            self._drained.wake_all()

    def _out(self, item: Item[K]) -> QueueEntry[K]:
        """The entry of an item that a worker holds."""
        entry = self._entries.get(item.key)
        if entry is None or entry.state is not RUNNING or entry.place != item.place:
            raise InvariantBroken(f"{item.key} (item {item.place}) is not running: call done once for each item")
        return entry

    def _plan_next(self, entry: QueueEntry[K], outcome: ItemOutcome, now_s: float) -> None:
        """Queue the key again if it was woken while it ran, or if the outcome requires it; else drop it."""
        if outcome.kind is _SUCCESS and entry.again_s is None:
            self.failing -= entry.failures > 0
            self._forget(entry)
            return
        plans: list[tuple[float, WaitReason, Wake | None]] = []
        if entry.again_s is not None:
            # The run was judged after these wake-ups came: it may have shown that they belong to a loop.
            hold_s = 0.0 if entry.wakes_dropped else self.detector.hold_until_s(entry.key, entry.wakes)
            held = hold_s > entry.again_s
            plans.append((max(entry.again_s, hold_s), WaitReason.LOOPING if held else entry.again_reason, None))
        else:
            entry.added_s = now_s
        failures = entry.failures
        match outcome.kind:
            case OutcomeKind.SUCCESS | OutcomeKind.TERMINAL:
                entry.failures = 0
            case OutcomeKind.FAILURE:
                entry.failures += 1
                pause_s = self._backoff_s(entry.failures, outcome.error)
                plans.append((now_s + pause_s, WaitReason.BACKOFF, RETRY))
            case OutcomeKind.REQUEUE:
                entry.failures = 0
                plans.append(self._requeue(entry.key, outcome.delay_s, now_s))
            case _:
                unreachable(outcome.kind)
        self.failing += (entry.failures > 0) - (failures > 0)
        entry.last_error = outcome.error
        entry.again_s = None
        if not plans:
            self._forget(entry)
            return
        due_s, reason, wake = min(plans, key=lambda plan: plan[0])
        if wake is not None:
            self._note_wake(entry, wake)
        self._schedule(entry, due_s, reason, now_s)

    def _forget(self, entry: QueueEntry[K]) -> None:
        del self._entries[entry.key]
        if self.resync_owed:
            self._owed.wake_one()
        self._room.wake_one()

    def _backoff_s(self, failures: int, error: BaseException | None) -> float:
        pause_s = self._backoff.pause_s(failures, self._env.random)
        if isinstance(error, TooManyRequests):
            pause_s = max(pause_s, min(error.retry_after_s, self._limits.queue_backoff_s_max))
        self._metrics.backoff_s.observe(pause_s)
        return pause_s

    def _requeue(self, key: K, delay_s: float, now_s: float) -> tuple[float, WaitReason, Wake]:
        if delay_s >= self._limits.queue_loop_hold_s:
            return now_s + delay_s, WaitReason.REQUEUE, REQUEUE
        due_s, until_s = now_s + max(0.0, delay_s), self.detector.hold_until_s(key, (SPIN,))
        if until_s > due_s:
            return until_s, WaitReason.LOOPING, SPIN
        return due_s, WaitReason.REQUEUE, SPIN

    def _report(self, loop: Loop[K]) -> None:
        self._metrics.holds.inc()
        if loop.holds == 1:
            self._metrics.loops.labels(self.name, loop.kind.name.lower()).inc()
            if self._on_loop is not None:
                self._on_loop(loop)

    # -- due and not due ---------------------------------------------------------------------------

    def _schedule(self, entry: QueueEntry[K], due_s: float, reason: WaitReason, now_s: float) -> None:
        """Make a key that is not running ready, or put it into `delays`."""
        entry.reason = reason
        if due_s > now_s:
            entry.state = WAITING
            self.delays.put(entry, due_s)
            self._set_timer()
        else:
            if entry.ticket:
                self.delays.remove(entry)
            self._make_ready(entry, now_s)

    def _make_ready(self, entry: QueueEntry[K], ready_s: float) -> None:
        entry.state = READY
        entry.ready_s = ready_s
        self.order.push(entry)
        if entry.priority not in self._metrics.priorities:
            self._metrics.show_priority(entry.priority)
        if not self.closed:
            self._getters.wake_one()

    def _promote(self, now_s: float) -> None:
        """Make the keys that have become due ready."""
        while (entry := self.delays.pop_due(now_s)) is not None:
            self._make_ready(entry, entry.due_s)

    def _set_timer(self, *, waiting: bool = False) -> None:
        due_s = self.delays.next_s()
        if due_s is None or self.closed or not (waiting or self._getters):
            return
        self._timer.set(due_s)

    def _on_timer(self) -> None:
        self._promote(self._monotonic())
        self._set_timer()

    # -- stopping ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept and hand out nothing more. Running items go on; queued keys stay visible in reports."""
        self.closed = True
        self._timer.cancel()
        for waiters in (self._getters, self._room, self._owed):
            waiters.wake_all()

    async def drain(self) -> tuple[K, ...]:
        """Close, wait until `done` was called for every running item, and return the keys that are left."""
        self.close()
        while self.running:
            await self._drained.wait()
        return tuple(self._entries)

    def _check_open(self) -> None:
        if self.closed:
            raise QueueClosed(f"queue {self.name} is closed: finish the item you hold, and stop")

    # -- looking -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Keys that are not yet due."""
        return len(self.delays)

    @property
    def oldest_ready_s(self) -> float:
        """How long the key that has been ready longest has waited."""
        ready_s = self.order.oldest_ready_s()
        return self._monotonic() - ready_s if ready_s is not None else 0.0

    def statistics(self) -> QueueStatistics[K]:
        if not self.closed:
            self._promote(self._monotonic())
        return report_queue(self)

    def explain(self, key: K) -> KeyReport[K] | None:
        """The report of `key`; None if it is neither queued nor running nor remembered for its last runs."""
        entry = self._entries.get(key)
        if entry is not None:
            return report_entry(entry, self.detector, self._monotonic())
        loop, terminal = self.detector.loop(key), self.detector.terminal(key)
        if loop is None and terminal is None:
            return None
        return report_idle(key, self._tenant_of(key), self._priority_of(key), loop, terminal)

    def reports(self) -> Iterator[KeyReport[K]]:
        """Every key that is queued or running."""
        now_s = self._monotonic()
        return (report_entry(entry, self.detector, now_s) for entry in list(self._entries.values()))
