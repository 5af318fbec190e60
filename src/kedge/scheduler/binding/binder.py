"""The binder: sends binds in parallel, each its own commit, and learns each outcome from the reply or by a read.

An assumption ends by evidence alone: the cache shows the pod, the service rejects the bind, or a read settles it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions, Written
from kedge.api.views import PodView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, NODE_KIND, POD_KIND
from kedge.backoff import Backoff
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Fenced, OperatingError, OutcomeUnknown, Refused
from kedge.keys import NO_REVISION, Fence, Key, Origin, Revision
from kedge.logs import DECISION
from kedge.scheduler.binding.refusals import Refusals
from kedge.scheduler.queue.scheduling_queue import QueuedPod, SchedulingQueue
from kedge.scheduler.report.attempt_records import AttemptRecords, OpenAttempt, bind_request
from kedge.scheduler.report.event_recorder import EventRecorder
from kedge.scheduler.state.assumptions import Assumption
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.tasks import gather_ended

_Work = tuple[Callable[..., Coroutine[Any, Any, None]], tuple[Any, ...]]


class Binder:
    """Binds pods to the nodes that one scheduler chose."""

    def __init__(
        self,
        client: Client,
        env: Env,
        cluster_state: ClusterState,
        queue: SchedulingQueue,
        attempts: AttemptRecords,
        event_recorder: EventRecorder,
        *,
        on_bind_ended: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._env = env
        self._cluster_state = cluster_state
        self._queue = queue
        self._attempts = attempts
        self._event_recorder = event_recorder
        self.refusals = Refusals(env, self._cache_reached, self._version)
        self.bound = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[_Work]] = []
        """Futures of idle workers. Reusing a worker is cheaper than a task for each bind."""
        self._in_flight = 0
        self._idle_event = asyncio.Event()
        self.started = 0
        """Binds and gangs ever started."""
        self._on_bind_ended = on_bind_ended
        self._on_failure = on_failure
        """Called with an error that must end the term: the fence is lost, or there is a bug."""
        self._results = env.metrics.counter("kedge_scheduler_attempts_total", "Attempts, by result", ("result",))
        self._done = self._results.labels("bound")
        env.metrics.gauge("kedge_scheduler_binds_in_flight", "Binds in flight").set_function(self.__len__)

    def __len__(self) -> int:
        """Binds in flight."""
        return self._in_flight

    def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run one bind, or one gang, in parallel with the others."""
        self.started += 1
        if not self._in_flight:
            self._idle_event.clear()
        self._in_flight += 1
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result((work, args))
                return
        worker = asyncio.get_running_loop().create_task(self._serve((work, args)))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _serve(self, given: _Work) -> None:
        loop = asyncio.get_running_loop()
        while True:
            work, args = given
            try:
                await work(*args)
            except Exception as error:  # noqa: BLE001  it ends the term, which reports it
                self._on_failure(error)
            finally:
                DECISION.set("")
                self._in_flight -= 1
                if not self._in_flight:
                    self._idle_event.set()
                self._on_bind_ended()
            del given, work, args
            more: asyncio.Future[_Work] = loop.create_future()
            self._idle.append(more)
            given = await more

    async def wait_all(self) -> None:
        if self._in_flight:
            await self._idle_event.wait()

    async def cancel_all(self) -> None:
        """Cancel every bind in flight, and the idle workers."""
        workers = tuple(self._workers)
        for worker in workers:
            worker.cancel()
        await gather_ended(*workers)
        self._idle.clear()
        self._in_flight = 0  # a worker cancelled before its first step has not decremented it
        self._idle_event.set()

    # -- one bind ----------------------------------------------------------------------------------

    async def bind(
        self,
        queued: QueuedPod,
        assumption: Assumption,
        node: tuple[str, Revision],
        fence: Fence,
        record: OpenAttempt,
    ) -> None:
        """Bind a pod to its assumed node. `node` is the uid and the revision of the node that was decided on."""
        DECISION.set(record.id)  # lines of the client carry it, until this worker begins other work
        pod, uid = queued.pod, queued.uid
        request = bind_request(pod, assumption.node, *node)
        # A repeated bind finds the pod already bound to this node, so the service need not record the operation.
        options = WriteOptions(fence=fence, origin=Origin(f"{record.id}#1", record.id), recorded=False)
        error: OperatingError | None = None
        reply: Written | None = None
        self._attempts.binding(record, request)
        try:
            reply = await self._client.bind(request, options=options)
        except Fenced as failed:
            self._attempts.bound(record, None, failed)
            raise  # another process leads: the term is over, and its end is the end of the attempt
        except OperatingError as failed:
            error = failed
        if reply is not None:
            self.bound += 1
            self._cluster_state.bind_committed(assumption, reply.object.revision)
            self._queue.done(queued)
            self.refusals.forget(uid)
            self._event_recorder.forget(uid)
            if pod.as_view(PodView).status.nominated_node_name:
                self._event_recorder.clear_nomination(pod, decision=record.id, fence=fence)
            self._done.inc()
        self._attempts.bound(record, reply, error)
        if error is not None:
            await self._failed(queued, assumption, error, fence, record)
        self._attempts.end(record)

    async def _failed(
        self, queued: QueuedPod, assumption: Assumption, error: OperatingError, fence: Fence, record: OpenAttempt
    ) -> None:
        if isinstance(error, OutcomeUnknown):
            # It may have been committed, or may still be. Only a read may end the assumption.
            self._results.labels("outcomeunknown").inc()
            began_s = self._env.monotonic()
            found = await self.settle(assumption)
            self._attempts.read_after(record, assumption.key, found, self._env.monotonic() - began_s)
            self._queue.failed(queued)
            return
        self.return_to_queue(queued, assumption, error, fence, record)

    def return_to_queue(
        self, queued: QueuedPod, assumption: Assumption, error: OperatingError, fence: Fence, record: OpenAttempt
    ) -> None:
        """Nothing was bound. Record a refusal, and retry the pod."""
        self._results.labels(type(error).__name__.lower()).inc()
        self._cluster_state.forget(assumption.uid)
        about = error.key
        if about is not None and about.kind in (NODE_ALLOCATION_KIND, NODE_KIND) and about.name != assumption.node:
            self._queue.failed(queued)  # another member of its gang was refused
            return
        if isinstance(error, Refused) and about is not None and about.kind == NODE_ALLOCATION_KIND:
            self._cluster_state.unreleased.ledger_refused(assumption.node, error.revision)
        gone = self._queue.get(assumption.uid) is None  # its refusals would never be forgotten
        if isinstance(error, Refused) and not gone and self.refusals.record(assumption.uid, assumption.node, error):
            limits = self._env.limits
            message = (
                f"node {assumption.node} refused this pod {limits.scheduler_refusals_max} times, last: {error};"
                f" it is not tried again for {limits.scheduler_quarantine_s:.0f} s"
            )
            self._event_recorder.event(queued.pod, "Quarantined", message, decision=record.id, fence=fence)
        self._queue.failed(queued)

    async def settle(self, assumption: Assumption) -> Object | None:
        """Read the pod from the API server, as often as needed, to learn the outcome of its bind. Returns the pod."""
        backoff, failures = Backoff(self._env.limits.client_backoff_s, self._env.limits.client_backoff_s_max), 0
        while self._cluster_state.assumed.get(assumption.uid) is assumption:
            try:
                found = (await self._cluster_state.caches[POD_KIND].fresh_read(assumption.key)).value
            except OperatingError:
                failures += 1
                await asyncio.sleep(backoff.pause_s(failures, self._env.random))
                continue
            self._cluster_state.settle(assumption, found)
            return found
        return self._cluster_state.cached(assumption.key)

    def _cache_reached(self, about: Key, revision: Revision) -> bool:
        cache = self._cluster_state.caches.get(about.kind)
        return cache is None or cache.reached(revision)

    def _version(self, about: Key) -> Revision:
        cache = self._cluster_state.caches.get(about.kind)
        found = cache.get(about).value if cache is not None else None
        return found.revision if found is not None else NO_REVISION
