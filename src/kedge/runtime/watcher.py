"""Follows one kind: list, watch, resume, relist, as a state machine. Writes to one sink, and to nothing else.

It uses `client.contract.Client`; `watch_states` has its states, and `runtime.cache` is its sink. It decides only how to
go on when a request or a stream ends. No error ends it: it reports the error, pauses and lists again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, assert_never

from kedge.api.kinds import Kind
from kedge.api.requests import EventType, ListOptions, ObjectList, WatchEvent, WatchOptions
from kedge.backoff import Backoff, jittered
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import (
    Compacted,
    FutureRevision,
    HeldOff,
    Lagged,
    OperatingError,
    OutcomeUnknown,
    TooManyRequests,
    Unavailable,
    check,
    unreachable,
)
from kedge.keys import NO_REVISION, Revision
from kedge.logs import DEBUG, DECISION, INFO, WARNING
from kedge.runtime.revision_probe import RevisionProbe
from kedge.runtime.steps import STEP_SHARE, StepBudget
from kedge.runtime.watch_states import (
    ConnectingState,
    ListingState,
    PausingState,
    Sink,
    StoppedState,
    StreamingState,
    Transition,
    WaitingState,
    WatchReason,
    WatchScope,
    WatchState,
    state_name,
)
from kedge.tasks import gather_ended

_T = TypeVar("_T")

_FIRST_PROBE = 0.1
"""When a new stream is first probed, as a share of the time between two probes."""
_ADDED_AT_ONCE = 100
"""Objects of a page that are added between two looks at the clock: an object is decoded for each index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherStatistics:
    """Figures of one watcher."""

    state: str
    healthy: bool
    transitions: dict[str, int]
    """How often each "state: reason" was entered."""
    failures: int
    """In a row, since it was last healthy: the backoff grows with them."""
    last_error: str
    received_age_s: float | None
    """Since anything last arrived on a stream; None before the first event."""


class Watcher:
    """Keeps a sink current. `start` it once; it runs until `stop`."""

    def __init__(
        self,
        client: Client,
        env: Env,
        kind: Kind,
        sink: Sink,
        *,
        scope: WatchScope | None = None,
        revision_probe: RevisionProbe | None = None,
    ) -> None:
        self._client = client
        self._revision_probe = revision_probe or RevisionProbe(client, env)
        self._env = env
        self._kind = kind
        self._sink = sink
        self._scope = scope or WatchScope()
        self.name = f"{kind.key_kind}{self._scope}"
        self._state: WatchState = StoppedState()
        self._task: asyncio.Task[Any] | None = None
        self._failures = 0
        self._asks = 0
        """Requested relists in a row, since a stream was last healthy."""
        self._pages_lost = 0
        self._resync_s = math.inf
        """When to list again even if the stream is healthy: counted from the last list, not from the stream."""
        self._stood: Revision = -1
        """The revision of the sink when a stream was last found behind."""
        self._transitions: Counter[str] = Counter()
        self._last_error = ""
        self._held = False
        """The breaker held it off, and no stream was opened since."""
        self._broken = False
        """An unexpected error was reported, and no stream was healthy since."""
        self._is_behind = False
        """A server was found behind, and no stream was healthy since."""
        self._received_s: float | None = None
        metrics, labels = env.metrics, ("cache",)
        self._moves = metrics.counter(
            "kedge_watch_transitions_total", "State changes of a watcher, by reason", ("cache", "to", "reason")
        )
        self._behind = metrics.counter(
            "kedge_watch_server_behind_total", "Answers of a server that lacks a revision received before", labels
        ).labels(self.name)
        self._events = metrics.counter("kedge_watch_events_total", "Events taken", labels).labels(self.name)
        self._pages = metrics.counter("kedge_watch_pages_total", "Pages listed", labels).labels(self.name)
        self._probes = metrics.counter("kedge_watch_probes_total", "Probes of the store's revision", labels).labels(
            self.name
        )
        self._list_s = metrics.histogram("kedge_watch_list_seconds", "Duration of a list", labels).labels(self.name)
        self._backoff = Backoff(env.limits.watch_backoff_s, env.limits.watch_backoff_s_max)
        self._backoff_gauge = metrics.gauge("kedge_watch_backoff_seconds", "Last pause before a retry", labels).labels(
            self.name
        )
        metrics.gauge("kedge_watch_healthy", "1 while the watcher follows its kind", labels).labels(
            self.name
        ).set_function(lambda: float(self.healthy))

    # -- from outside ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow. Must be called on the event loop."""
        check(self._task is None, f"the watcher of {self.name} was started already")
        self._task = self._env.spawn(self._run(), name=f"watch {self.name}")

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    @property
    def state(self) -> WatchState:
        return self._state

    @property
    def healthy(self) -> bool:
        """Whether it runs, is not held off, has not failed twice in a row, and recovered from any unexpected error."""
        running = self._task is not None and not self._task.done()
        return running and not self._broken and not self._held and self._failures < 2

    def statistics(self) -> WatcherStatistics:
        return WatcherStatistics(
            state=state_name(self._state),
            healthy=self.healthy,
            transitions=dict(sorted(self._transitions.items())),
            failures=self._failures,
            last_error=self._last_error,
            received_age_s=None if self._received_s is None else self._env.monotonic() - self._received_s,
        )

    # -- the machine -------------------------------------------------------------------------------

    async def _run(self) -> None:
        DECISION.set("")  # a cache may be opened by a decision, and outlives it
        loop = asyncio.get_running_loop()
        try:
            self._move(Transition(ListingState(), WatchReason.STARTED))
            while True:
                try:
                    transition = await self._handle(self._state)
                except Exception as error:  # no error may end the watch
                    if loop.is_closed():
                        raise  # the loop has ended: a pause is impossible
                    self._report(error)
                    transition = self._pause(ListingState(), WatchReason.FAILED, error)
                self._move(transition)
        finally:
            self._move(Transition(StoppedState(), WatchReason.STOPPED))

    async def _handle(self, state: WatchState) -> Transition:
        match state:
            case ListingState():
                return await self._list(state)
            case ConnectingState():
                return await self._connect(state)
            case StreamingState():
                return await self._stream(state)
            case PausingState():
                await asyncio.sleep(state.delay_s)
                return Transition(state.then, WatchReason.PAUSED)
            case WaitingState():
                await self._wait_admitted()
                return Transition(state.then, WatchReason.PAUSED)
            case StoppedState():
                unreachable(state)  # entered last, when the machine has ended
        assert_never(state)

    def _move(self, transition: Transition) -> None:
        self._state = transition.to
        if transition.error is not None:
            self._last_error = f"{type(transition.error).__name__}: {transition.error}"
        to = state_name(transition.to)
        self._transitions[f"{to}: {transition.reason}"] += 1
        self._moves.labels(self.name, to, transition.reason).inc()
        level = DEBUG if transition.error is None else INFO
        if self._env.log.enabled(level):
            fields = {"cache": self.name, "state": to, "reason": str(transition.reason), "error": self._last_error}
            self._env.log.write(level, "the watch has moved", fields)
        self._sink.watcher_moved(transition.to, transition.reason)

    def _pause(
        self, then: ListingState | ConnectingState, reason: WatchReason, error: BaseException | None = None
    ) -> Transition:
        """Twice as long each time, with jitter, so that watchers that lost the same server do not retry in step."""
        self._failures += 1
        delay_s = self._backoff.pause_s(self._failures, self._env.random)
        if isinstance(error, TooManyRequests):
            delay_s = max(delay_s, error.retry_after_s)
        self._backoff_gauge.set(delay_s)
        return Transition(PausingState(delay_s, then), reason, error)

    def _wait(self, then: ListingState | ConnectingState, error: HeldOff) -> Transition:
        """Not a failure of the server, so the backoff does not grow: the breaker has counted the failures."""
        self._held = True
        return Transition(WaitingState(then), WatchReason.HELD, error)

    async def _wait_admitted(self) -> None:
        """All watchers of a process wait for one breaker: they resume one by one, and the first probes for all."""
        breaker, spread_s = self._client.breaker, self._env.limits.breaker_open_s
        held_s = breaker.held_s()
        while True:
            await asyncio.sleep(held_s + jittered(spread_s, self._env.random, (0.0, 1.0)))
            held_s = breaker.held_s()
            if not held_s:
                return

    def _report(self, error: Exception) -> None:
        self._broken = True
        self._env.spawn(_raise(error), name=f"watch {self.name}")

    # -- list --------------------------------------------------------------------------------------

    async def _list(self, state: ListingState) -> Transition:
        asked_s = self._env.monotonic()
        floor = self._sink.revision_seen
        self._sink.relist_requested.clear()
        try:
            transition = await self._list_pages(state, asked_s, floor)
        except Compacted as error:
            # The revision of the first page was compacted. After two in a row the list is read without pages.
            self._pages_lost += 1
            return self._pause(ListingState(whole=self._pages_lost > 1), WatchReason.COMPACTED, error)
        except HeldOff as error:
            return self._wait(state, error)
        except (OperatingError, TimeoutError) as error:
            if isinstance(error, FutureRevision):
                self._server_behind(floor, str(error))
            return self._pause(state, _reason(error), error)
        finally:
            self._list_s.observe(self._env.monotonic() - asked_s)
        return transition

    async def _list_pages(self, state: ListingState, asked_s: float, floor: Revision) -> Transition:
        relist = self._sink.begin_relist()
        options = self._list_options(
            limit=0 if state.whole else self._env.limits.relist_page_max,
            # Another server, or this one after a restart, may be behind what was received here.
            resource_version=str(floor) if floor else "",
            resource_version_match="NotOlderThan" if floor else "",
        )
        first: ObjectList | None = None
        step = StepBudget(self._env, f"list of {self.name}")
        while True:
            page = await self._request(self._client.list(self._kind, options))
            self._pages.inc()
            if page.revision < floor:
                older = Unavailable(f"a list at {page.revision} is older than {floor}, which was received before")
                self._server_behind(floor, str(older))
                return self._pause(state, WatchReason.OLDER, older)
            first = first or page
            if page.revision != first.revision:
                torn = Unavailable(f"a list began at {first.revision} and went on at {page.revision}")
                return self._pause(ListingState(whole=True), WatchReason.TORN, torn)
            step.begin()
            for start in range(0, len(page.objects), _ADDED_AT_ONCE):
                relist.add(page.objects[start : start + _ADDED_AT_ONCE])
                if step.used_up():
                    await asyncio.sleep(0)
                    step.begin()
            await asyncio.sleep(0)  # a page may be long: let other tasks run
            if not page.continue_token:
                break
            options = self._list_options(limit=self._env.limits.relist_page_max, continue_token=page.continue_token)
        self._pages_lost = 0
        for _ in relist.find_deletions(first.revision):
            if step.used_up():
                await asyncio.sleep(0)
                step.begin()
        relist.apply(first.revision, asked_s=asked_s)
        if self._sink.notifying:
            await self._sink.wait_notified()  # no event overtakes the list, and none waits for it in memory
        self._resync_s = asked_s + jittered(self._env.limits.relist_every_s, self._env.random, (0.75, 1.25))
        return Transition(ConnectingState(self._sink.revision), WatchReason.LISTED)

    def _list_options(self, **options: Any) -> ListOptions:
        scope = self._scope
        return ListOptions(
            namespace=scope.namespace,
            label_selector=scope.label_selector,
            field_selector=scope.field_selector,
            **options,
        )

    async def _request(self, request: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self._env.limits.watch_request_s):
            return await request

    # -- watch -------------------------------------------------------------------------------------

    async def _connect(self, state: ConnectingState) -> Transition:
        options = WatchOptions(
            namespace=self._scope.namespace,
            label_selector=self._scope.label_selector,
            field_selector=self._scope.field_selector,
            resource_version=str(state.after),
            allow_bookmarks=True,
        )
        try:
            if state.after == NO_REVISION:  # an empty store: a watch without a revision would send initial events
                raise Compacted("nothing was ever written: there is no revision to watch after")
            stream = await self._request(self._client.watch(self._kind, options))
        except (OperatingError, TimeoutError) as error:
            return self._after_failure(error)
        self._held = False
        return Transition(StreamingState(stream, self._env.monotonic()), WatchReason.CONNECTED)

    async def _stream(self, state: StreamingState) -> Transition:
        """Read until the stream ends, or until it is given up."""
        self._received_s = self._env.monotonic()
        reader = asyncio.ensure_future(self._read(state.stream))
        guard = asyncio.ensure_future(self._guard(state))
        relist = asyncio.ensure_future(self._wait_relist_requested())
        tasks: tuple[asyncio.Future[Any], ...] = (reader, guard, relist)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                return self._after_end(reader)
            if relist.done():
                return Transition(ListingState(), WatchReason.ASKED)
            return self._after_guard(await guard)
        finally:
            for task in tasks:
                task.cancel()
            await gather_ended(*tasks)
            with suppress(OperatingError):
                await state.stream.aclose()

    async def _read(self, stream: AsyncGenerator[WatchEvent, None]) -> None:
        sink, monotonic, slice_max = self._sink, self._env.monotonic, self._env.limits.watch_slice_max
        step_s = self._env.limits.step_s_max * STEP_SHARE
        taken, worked_s = 0, 0.0
        try:
            async for event in stream:
                self._received_s = began_s = monotonic()
                if sink.notifying:
                    await sink.wait_notified()
                    began_s = monotonic()
                if event.type is EventType.BOOKMARK:
                    sink.progress(event.revision)
                else:
                    sink.apply(event)
                taken += 1
                worked_s += monotonic() - began_s
                if taken == slice_max or worked_s >= step_s:
                    self._events.inc(taken)
                    taken, worked_s = 0, 0.0
                    await asyncio.sleep(0)
        finally:
            self._events.inc(taken)

    async def _wait_relist_requested(self) -> None:
        """Ends when a relist was requested, after a backoff since the last requested one.

        The stream is read meanwhile, so that the cache stays current.
        """
        await self._sink.relist_requested.wait()
        self._asks += 1
        await asyncio.sleep(self._backoff.pause_s(self._asks, self._env.random))

    async def _guard(self, state: StreamingState) -> WatchReason:
        """Ends when the stream is to be given up, with the reason. Events alone do not prove that none is missing."""
        limits, env = self._env.limits, self._env
        probed: Revision = NO_REVISION
        # Streams break together and reopen one by one: a while later one probe serves all of them.
        await asyncio.sleep(limits.watch_probe_s * _FIRST_PROBE)
        while True:
            if probed > self._sink.revision:
                return WatchReason.BEHIND
            probed = await self._probe(state.since_s)
            now_s = env.monotonic()
            if probed == NO_REVISION and now_s - (self._received_s or state.since_s) > limits.watch_silence_s:
                return WatchReason.SILENT
            if now_s >= self._resync_s:
                return WatchReason.RESYNC
            if now_s - state.since_s > limits.watch_healthy_s:
                self._failures, self._asks, self._broken, self._is_behind = 0, 0, False, False
            await asyncio.sleep(self._revision_probe.next_s(limits.watch_probe_s))

    async def _probe(self, since_s: float) -> Revision:
        """The revision of the store; `NO_REVISION` if it cannot be read.

        A probe from before the stream proves nothing about it: the stream begins in the past.
        """
        self._probes.inc()
        probe_s = self._env.limits.watch_probe_s
        asked_s = max(since_s, self._env.monotonic() - probe_s / 2)
        answer = self._revision_probe.known(since_s=asked_s)
        if answer is None:
            try:
                async with asyncio.timeout(probe_s):
                    answer = await self._revision_probe.read(
                        self._kind, namespace=self._scope.namespace, since_s=asked_s
                    )
            except (OperatingError, TimeoutError):
                return NO_REVISION
        self._sink.proof(answer.revision, asked_s=answer.asked_s)
        return answer.revision

    # -- transitions -------------------------------------------------------------------------------

    def _after_end(self, reader: asyncio.Future[None]) -> Transition:
        error = reader.exception()
        if error is None:
            return self._resume(WatchReason.ENDED)
        if isinstance(error, (OperatingError, TimeoutError)):
            return self._after_failure(error)
        raise error

    def _after_guard(self, reason: WatchReason) -> Transition:
        if reason is WatchReason.RESYNC:
            return Transition(ListingState(), reason)
        if reason is WatchReason.BEHIND:
            stood, self._stood = self._stood, self._sink.revision
            if stood == self._stood:
                # The stream before it brought nothing either: a third may be as late. A list is current.
                return self._pause(ListingState(), reason)
        return self._resume(reason)

    def _server_behind(self, revision: Revision, found: str) -> None:
        """A server lacks a revision that was received here. A replica catches up; a store that lost it does not."""
        self._behind.inc()
        if not self._is_behind:
            self._is_behind = True
            fields = {"cache": self.name, "revision": revision, "error": found}
            self._env.log.write(
                WARNING, "the server lacks a revision received before: is it behind, or restored?", fields
            )

    def _after_failure(self, error: OperatingError | TimeoutError) -> Transition:
        """After compacted history, or a rejected watch, list again. After any other failure, resume."""
        if isinstance(error, HeldOff):
            return self._wait(ConnectingState(self._sink.revision), error)
        if isinstance(error, FutureRevision):
            self._server_behind(self._sink.revision, str(error))
        reason = _reason(error)
        if reason in (WatchReason.COMPACTED, WatchReason.REFUSED):
            return self._pause(ListingState(), reason, error)
        return self._resume(reason, error)

    def _resume(self, reason: WatchReason, error: BaseException | None = None) -> Transition:
        return self._pause(ConnectingState(self._sink.revision), reason, error)


def _reason(error: OperatingError | TimeoutError) -> WatchReason:
    match error:
        case Compacted():
            return WatchReason.COMPACTED
        case Lagged():
            return WatchReason.LAGGED
        case Unavailable() | TooManyRequests() | OutcomeUnknown() | TimeoutError():
            return WatchReason.UNAVAILABLE
    return WatchReason.REFUSED


async def _raise(error: Exception) -> Coroutine[Any, Any, None]:
    raise error
