"""A controller: changes wake keys, and `reconcile` brings the object of a key closer to its desired state.

It joins caches, queue, write floors, lease and recorder around one reconciler. It decides only when a key may run,
when it runs next, and how to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kedge.backoff import jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Fenced, OperatingError, Terminal, check
from kedge.keys import NO_REVISION, Fence, Key, Revision
from kedge.logs import DECISION
from kedge.observe.recording.decision_lines import log_decision
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import Decision
from kedge.runtime.action import Action, Next, check_action
from kedge.runtime.cache import (
    Cache,
    CacheChange,
    CacheSet,
    CurrentMarks,
    Freshness,
    NotSynced,
    Subscription,
    WriteFloors,
    pin_all,
)
from kedge.runtime.catch_up import is_caught_up, wait_caught_up
from kedge.runtime.context import Context, Reconciler
from kedge.runtime.event_writer import EventWriter
from kedge.runtime.lease import LeaderElection, Leadership, SharedElection, no_note
from kedge.runtime.queue import (
    FLOOR,
    Item,
    ItemOutcome,
    KeyReport,
    Loop,
    QueueClosed,
    QueueStatistics,
    WaitReason,
    Wake,
    WorkQueue,
)
from kedge.runtime.spec import ControllerSpec, KeysOf
from kedge.runtime.steps import StepBudget, Waits
from kedge.tasks import gather_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatistics:
    """Figures of one controller."""

    name: str
    leading: bool
    """Whether its workers run; always true for a controller without a lease."""
    runs: int
    failures: int
    queue: QueueStatistics[Key]
    caches: tuple[Freshness, ...]
    waiting_floors: int
    """Keys that wait until the caches have received their writes."""


@dataclass(frozen=True, slots=True)
class ControllerRuntime:
    """The means of a controller in one process: its client and environment, and the parts it shares with others."""

    client: Client
    env: Env
    caches: CacheSet | None = None
    """Shared by the controllers of a process; without one, the controller makes its own and stops it."""
    recorder: Recorder | None = None
    lease: Key | SharedElection | None = None
    """The lease it must hold to work, or the election that the process shares; None for a process that is alone."""


class Controller:
    """Runs one reconciler as its spec declares. `run` it once; it works until `stop`, or until it is cancelled.

    With a lease only one controller of its name works at a time; the others keep their caches warm.
    """

    def __init__(self, spec: ControllerSpec, reconciler: Reconciler, runtime: ControllerRuntime) -> None:
        client, env = runtime.client, runtime.env
        self.spec = spec
        self.name = spec.name
        self.reconciler = reconciler
        self._client = client
        self._env = env
        self._watches = spec.all_watches()
        self._rights = spec.rights
        self._process = env.new_uid()[:8]
        self._own_caches = runtime.caches is None
        self.caches = CacheSet(client, env) if runtime.caches is None else runtime.caches
        self.recorder = runtime.recorder
        self._pin = self._pin_marks  # bound once: it is passed with every decision
        self._floors = WriteFloors(self.caches, env)
        self._events = EventWriter(client, env, self.name)
        self.queue: WorkQueue[Key] = WorkQueue(
            env, self.name, workers=spec.workers, priority_of=self._priority, on_loop=self._report_loop
        )
        note = no_note if self.recorder is None else self.recorder.note
        self._election = (
            LeaderElection(client, env, runtime.lease, identity=f"{self.name}-{self._process}", note=note)
            if isinstance(runtime.lease, Key)
            else runtime.lease
        )
        self._by_kind: dict[str, Cache] = {}
        self._marks = CurrentMarks(self._by_kind)
        self._subscriptions: list[Subscription] = []
        self._behind: dict[Key, OperatingError] = {}
        """Keys whose floors were not met in time: their next run fails with this error."""
        self._awaiting: dict[Key, asyncio.Task[None]] = {}
        """Keys that wait for their floors."""
        self._running: dict[str, Context] = {}
        """By decision id: the runs in progress, if they are recorded."""
        if self.recorder is not None:
            self.recorder.add_unfinished(lambda: [each.record_so_far() for each in self._running.values()])
        self._runs = 0
        self._failures = 0
        self._working = False
        self._stopped = asyncio.Event()
        self._cut = asyncio.Event()
        """Set when `stop` has waited long enough for the runs in progress."""
        self._count(env)

    def _count(self, env: Env) -> None:
        labels, metrics, name = ("controller",), env.metrics, self.name
        self._results = metrics.counter(
            "kedge_runtime_reconciles_total", "Reconciles, by result", ("controller", "result")
        )
        self._took = metrics.histogram("kedge_runtime_reconcile_seconds", "Duration of a reconcile", labels).labels(
            name
        )
        self._resyncs = metrics.counter(
            "kedge_runtime_resyncs_total", "Resyncs begun, by reason", ("controller", "why")
        )
        stop_pending = metrics.gauge("kedge_runtime_stop_pending", "Reconciles that a stop waits for", labels)
        stop_pending.labels(name).set_function(lambda: self.queue.running if self.queue.closed else 0)
        self._errors = metrics.counter(
            "kedge_runtime_failures_total", "Reconciles that failed, by error", ("controller", "error")
        )
        env.metrics.saturation(f"workers of {name}", lambda: self.queue.running / self.spec.workers)

    # -- from outside ------------------------------------------------------------------------------

    @property
    def leadership(self) -> Leadership | None:
        """The current term of this process; None on a standby, and without a lease."""
        return None if self._election is None else self._election.leadership

    async def run(self) -> None:
        """Work until `stop`. If it is cancelled, it stops at once, and still releases its lease."""
        self._follow()
        work = asyncio.ensure_future(self._lead(None) if self._election is None else self._election.run(self._lead))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            if work.done() or self._election is None or self._election.holding:
                await work  # its last step releases the lease
        finally:
            work.cancel()
            stopped.cancel()
            await gather_ended(work, stopped)
            self.queue.close()
            for subscription in self._subscriptions:
                subscription.close()
            for task in self._awaiting.values():
                task.cancel()
            await self._events.stop()
            if self._own_caches:
                await self.caches.stop()

    async def stop(self, *, within_s: float | None = None) -> tuple[Key, ...]:
        """Finish the runs in progress, start no more, then release the lease. Returns the keys that are left.

        Runs that do not finish in time are cancelled: their writes are fenced, or unknown as after any crash.
        """
        limit_s = self._env.limits.stop_s if within_s is None else within_s
        try:
            async with asyncio.timeout(limit_s):
                return await self.queue.drain()
        except TimeoutError:
            self._cut.set()
            return tuple(report.key for report in self.queue.reports())
        finally:
            self._stopped.set()

    def wake(self, key: Key, why: str = "asked") -> None:
        """Add `key` to the queue."""
        self.queue.add(key, why)

    def explain(self, key: Key) -> KeyReport[Key] | None:
        """The queue's report of a key: its state, why it waits, its failures and its last error."""
        return self.queue.explain(key)

    def statistics(self) -> ControllerStatistics:
        return ControllerStatistics(
            name=self.name,
            leading=self._working,
            runs=self._runs,
            failures=self._failures,
            queue=self.queue.statistics(),
            caches=tuple(cache.freshness() for cache in self._by_kind.values()),
            waiting_floors=len(self._awaiting),
        )

    # -- waking ------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Begin to follow every kind. Standbys do too, so that the caches of a new leader are warm."""
        check(not self._by_kind, f"controller {self.name} was run already: create another one")
        for watch in self._watches:
            cache = self.caches.cache(watch.kind, namespace=watch.namespace, label_selector=watch.label_selector)
            for index in watch.indexes:
                cache.add_index(index)
            self._by_kind[watch.kind.key_kind] = cache
        for watch in self._watches:
            if watch.keys_of is not None:
                handler = self._waker(watch.keys_of)
                self._subscriptions.append(self._by_kind[watch.kind.key_kind].subscribe(handler, name=self.name))

    def _waker(self, keys_of: KeysOf) -> Callable[[CacheChange], None]:
        caches, add = self.caches, self.queue.add

        def handle(change: CacheChange) -> None:
            wake: Wake | None = None
            with suppress(NotSynced):  # when that cache lists, all its objects wake their keys anyway
                for key in keys_of(change, caches):
                    wake = wake or _wake_by(change)  # most changes wake no key here
                    add(key, wake)

        return handle

    def _priority(self, key: Key) -> int:
        priority_of = self.spec.priority_of
        if priority_of is None:
            return 0
        cache = self._by_kind.get(self.spec.kind.key_kind)
        if cache is None:
            return 0
        try:
            found = cache.get(key).value
        except NotSynced:
            return 0
        try:
            return 0 if found is None else priority_of(found, self.caches)
        except NotSynced:
            return 0
        except Exception as error:  # noqa: BLE001  a bug in the caller's function is reported and costs no wake-up
            self._env.spawn(_raise(error), name=f"{self.name} getting the priority of {key}")
            return 0

    async def _resync(self) -> None:
        """Add every key periodically, in case a change was missed, and after the queue had to reject some."""
        every_s = self._env.limits.resync_every_s
        with suppress(QueueClosed):
            while True:
                why = "due"
                try:
                    async with asyncio.timeout(jittered(every_s, self._env.random, (0.75, 1.25))):
                        await self.queue.wait_resync_owed()
                    why = "owed"
                except TimeoutError:
                    pass
                self._resyncs.labels(self.name, why).inc()
                self._floors.sweep()
                await self.queue.resync(self._resynced())

    def _resynced(self) -> list[Key]:
        """The keys of its own kind, and of the other objects that its watches resync."""
        found = [each.key for each in self._by_kind[self.spec.kind.key_kind].list().value]
        for watch in self._watches:
            if watch.resync is not None:
                found += [each.key for each in self._by_kind[watch.kind.key_kind].list().value if watch.resync(each)]
        return found

    # -- running -----------------------------------------------------------------------------------

    async def _lead(self, term: Leadership | None) -> None:
        """Work for one term, or without an end. Returns when the queue is closed and every run has finished."""
        fence = None if term is None else term.fence
        await self._wait_caches(fence)
        self._working = True
        workers = [asyncio.ensure_future(self._work(fence)) for _ in range(self.spec.workers)]
        resync, cut = asyncio.ensure_future(self._resync()), asyncio.ensure_future(self._cut.wait())
        tasks: list[asyncio.Future[Any]] = [*workers, resync, cut]
        try:
            pending: Iterable[asyncio.Future[Any]] = tasks
            while not all(worker.done() for worker in workers) and not cut.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # a worker that raises ends the term with its error
        finally:
            self._working = False
            for task in tasks:
                task.cancel()
            await gather_ended(*tasks)

    async def _wait_caches(self, fence: Fence | None) -> None:
        """Wait until the caches have listed, and until those of a leader have the writes of its predecessor.

        For all of them at once: a cache whose stream is dead is relisted while the others wait.
        """
        revision = NO_REVISION if fence is None else fence.revision
        if fence is not None and self._behind_fence(revision):
            # Servers send bookmarks soon after a lease changes its holder: after them few caches, or none, are behind.
            await asyncio.sleep(2 * self._env.limits.watch_fence_progress_s)
        waiting = self._behind_fence(revision)
        if not waiting:
            return
        async with asyncio.TaskGroup() as group:
            for cache in waiting:
                wait = wait_caught_up(self._client, self._env, cache, revision, closed=lambda: self.queue.closed)
                group.create_task(wait, name=f"{self.name} waits for {cache.name}")

    def _behind_fence(self, revision: Revision) -> list[Cache]:
        return [each for each in self._by_kind.values() if not is_caught_up(self._client, each, revision)]

    async def _work(self, fence: Fence | None) -> None:
        step = StepBudget(self._env, self.name)
        with suppress(QueueClosed):
            while True:
                item = self.queue.get_nowait()
                if item is None:
                    item = await self.queue.get()
                    step.begin()
                if self._floors.unmet(item.key) and item.key not in self._behind:
                    self._await_floors(item)
                else:
                    run = Waits(self._run(item, fence))
                    await run
                    if run.waited:
                        step.begin()
                if step.used_up():
                    await asyncio.sleep(0)
                    step.begin()

    def _await_floors(self, item: Item[Key]) -> None:
        """The key waits until the caches have its writes, and the worker goes on."""
        self.queue.put_back(item, delay_s=self._env.limits.floor_wait_s, reason=WaitReason.FLOOR)
        if item.key not in self._awaiting:
            task = self._env.spawn(self._meet_floors(item.key), name=f"{self.name} waits for {item.key}")
            self._awaiting[item.key] = task

    async def _meet_floors(self, key: Key) -> None:
        try:
            await self._floors.met(key)
        except OperatingError as error:
            self._behind[key] = error
        finally:
            del self._awaiting[key]
        self.queue.add(key, FLOOR)

    async def _run(self, item: Item[Key], fence: Fence | None) -> None:
        self._runs += 1
        key, recorder, env = item.key, self.recorder, self._env
        decision = Decision(
            id=f"{self.name}:{self._process}:{self._runs}",
            controller=self.name,
            process=self._process,
            key=key,
            tenant=item.tenant,
            priority=item.priority,
            fence=0 if fence is None else fence.revision,
            fenced=self._client.fenced,
            wakes=item.wakes,
            wakes_dropped=item.wakes_dropped,
            attempt=item.attempt,
            place=item.place,
            delayed_s=item.delayed_s,
            waited_s=item.waited_s,
            began=env.now(),
        )
        counts = notes = None
        if recorder is not None:
            decision.marks = self._marks.at(env.monotonic())
            counts, notes = recorder.begin(self.name)
        ctx = Context(
            self._client,
            env,
            self._by_kind,
            self._floors,
            decision,
            fence=fence,
            counts=counts,
            notes=notes,
            rights=self._rights,
        )
        outcome: ItemOutcome | None = None
        lines = DECISION.set(decision.id)
        try:
            outcome = _outcome(decision, await self._reconcile(ctx, key))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                decision.result = "cancelled"
                raise
            # A task that the reconciler awaited was cancelled, not this worker: the run has failed.
            decision.result, outcome = "failed", ItemOutcome.failure(error)
            env.spawn(_raise(RuntimeError(f"{key}: the reconciler let a cancellation escape")), name=self.name)
        except Terminal as error:
            decision.result, outcome = "terminal", ItemOutcome.terminal(error)
        except OperatingError as error:
            decision.result, outcome = "failed", ItemOutcome.failure(error)
            if isinstance(error, Fenced):
                raise  # another leader took over: the whole term is over
        except Exception as error:  # noqa: BLE001  a bug in the reconciler is reported and stops no other key
            decision.result, outcome = "failed", ItemOutcome.failure(error)
            env.spawn(_raise(error), name=f"{self.name} reconciling {key}")
        finally:
            DECISION.reset(lines)
            self._end(item, ctx, decision, outcome)

    async def _reconcile(self, ctx: Context, key: Key) -> Action:
        if self.recorder is not None:
            self._running[ctx.decision] = ctx
        behind = self._behind.pop(key, None)
        if behind is not None:
            ctx.hold_back(behind)
        for watch in self._watches:
            if watch.max_age_s is not None:
                ctx.check_declared(watch.kind, max_age_s=watch.max_age_s)
        action: Action = await self.reconciler.reconcile(ctx, key)
        return action

    def _end(self, item: Item[Key], ctx: Context, decision: Decision, outcome: ItemOutcome | None) -> None:
        if outcome is not None and outcome.error is not None:
            decision.error = f"{type(outcome.error).__name__}: {outcome.error}"
            self._failures += 1
            self._errors.labels(self.name, type(outcome.error).__name__).inc_by(decision.id)
        decision.took_s = self._env.monotonic() - item.begun_s
        self._took.observe(decision.took_s, decision.id)
        self._results.labels(self.name, decision.result).inc()
        facts = ctx.end()
        if outcome is None:
            self.queue.put_back(item)  # the next worker runs it
        else:
            self.queue.done(item, outcome, facts)
        for note in ctx.events:
            self._events.note(note, decision=decision.id, fence=ctx.fence)
        log_decision(self._env.log, decision)
        if self.recorder is not None:
            self._running.pop(decision.id, None)
            self.recorder.end(decision, self._pin, ctx.calls_made, ctx.objects_listed)

    def _pin_marks(self, decision: Decision) -> Sequence[Callable[[], None]]:
        return pin_all(self._by_kind.values(), decision.marks)

    def _report_loop(self, loop: Loop[Key]) -> None:
        error = OperatingError(
            f"{loop.key} {loop.kind.value}: {loop.runs} runs without progress, woken by {loop.woken_by.what}"
            + (f", which {loop.woken_by.writer} wrote" if loop.woken_by.writer else "")
            + f"; it is held back for {loop.hold_s:.1f} s"
        )
        asyncio.get_running_loop().call_exception_handler({"message": str(error), "exception": error})


def _outcome(decision: Decision, action: Action) -> ItemOutcome:
    check_action(decision, action)
    decision.result = action.next.value
    decision.delay_s, decision.condition, decision.reason = action.delay_s, action.condition, action.reason
    if action.next is Next.AWAIT_CHANGE:
        return ItemOutcome.success()
    if action.next is Next.REQUEUE:
        return ItemOutcome.requeue(delay_s=action.delay_s or 0.0)
    return ItemOutcome.terminal(Terminal(action.reason))


def _wake_by(change: CacheChange) -> Wake:
    # A deletion has no writer: the writer of the last version would be blamed.
    writer = "" if change.new is None else change.new.origin.decision.partition(":")[0]
    return Wake(str(change.key), writer)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())


async def _raise(error: Exception) -> Coroutine[Any, Any, None]:
    raise error
