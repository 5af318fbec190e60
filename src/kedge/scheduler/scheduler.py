"""The scheduler process: takes pending pods, decides on its state of the cluster, and binds. The bind proves a choice.

One lease per scheduler name: one process leads, standbys keep their state warm. Schedulers of different names may run
side by side; only the bind protects them from each other, so a bind may be refused and its pod tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from kedge.api.objects import Object
from kedge.api.wellknown import LEASE_KIND, SYSTEM_NAMESPACE
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import Fence, Key, Revision
from kedge.observe.recording.recorder import Recorder
from kedge.runtime.cache import CacheSet
from kedge.runtime.catch_up import wait_caught_up
from kedge.runtime.lease import LeaderElection, Leadership, no_note
from kedge.runtime.steps import StepBudget
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.cycle.attempt import DrawFor, SchedulingCycle
from kedge.scheduler.queue.scheduling_queue import QueueStage, SchedulingQueue
from kedge.scheduler.report.attempt_records import AttemptRecords
from kedge.scheduler.report.event_recorder import EventRecorder
from kedge.scheduler.report.policy_status import PolicyStatusWriter
from kedge.scheduler.report.report_records import ReportRecords
from kedge.scheduler.state.cache_follower import CacheFollower
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.tasks import gather_ended

DEFAULT_NAME = "default-scheduler"
LEASE_NAMESPACE = SYSTEM_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Counts of one scheduler process."""

    name: str
    leading: bool
    attempts: int
    bound: int
    pending: dict[str, int]
    assumed: int
    binding: int
    nominated: int
    nodes: int
    claims: int


class Scheduler:
    """Schedules the pods that name it. Call `run` once; it works until `stop`, or until it is cancelled."""

    def __init__(
        self,
        client: Client,
        env: Env,
        *,
        name: str = DEFAULT_NAME,
        lease_namespace: str = LEASE_NAMESPACE,
        caches: CacheSet | None = None,
        recorder: Recorder | None = None,
        draw_for: DrawFor | None = None,
    ) -> None:
        """`draw_for` breaks ties between nodes; without it they are broken at random."""
        self.name = name
        self._client = client
        self._env = env
        process = self.process = env.new_uid()[:8]
        """`Decision.process` of its attempts."""
        self._own_caches = caches is None
        self.caches = caches or CacheSet(client, env)
        self.recorder = recorder
        self._ready = asyncio.Event()
        """Set when a pod becomes active or a bind ends."""
        self._closed = asyncio.Event()
        self._leading = False
        self._fence: Fence | None = None
        """The fence of the current term; None while this process does not lead."""
        self._failure: asyncio.Future[None] | None = None
        """Ends the current term when a bind fails in a way that is not its own."""
        self.queue = SchedulingQueue(env, on_ready=self._ready.set)
        self.cluster_state = ClusterState(
            env, self.queue, scheduler=name, on_gone=self._pod_gone, on_gated=lambda pod: self._record_gated([pod])
        )
        self._follower = CacheFollower(
            self.caches,
            client.kinds,
            self.cluster_state,
            self.queue,
            name=name,
            on_policy=lambda policy: self._write_policy_status([policy]),
        )
        self._attempts = AttemptRecords(
            env, self.cluster_state, recorder, scheduler=name, process=process, fenced=client.fenced
        )
        reports = ReportRecords(client, env, recorder, scheduler=name, process=process)
        self._event_recorder = EventRecorder(client, env, reports, component=name, current=self._pending_pod)
        self._policy_status = PolicyStatusWriter(env, reports, scheduler=name)
        shared = client, env, self.cluster_state, self.queue, self._attempts
        self._binder = Binder(*shared, self._event_recorder, on_bind_ended=self._ready.set, on_failure=self._end_term)
        draw = draw_for or (lambda _: env.random.getrandbits(31))
        self._cycle = SchedulingCycle(*shared, self._binder, self._event_recorder, name, draw)
        lease = Key(LEASE_KIND, lease_namespace, name)
        note = no_note if recorder is None else recorder.note
        self._election = LeaderElection(client, env, lease, identity=f"{name}-{process}", note=note)

    # -- public ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`. If cancelled, stop at once, and release the lease all the same."""
        self._follower.start()
        work = asyncio.ensure_future(self._election.run(self._lead))
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait((work, closed), return_when=asyncio.FIRST_COMPLETED)
            if work.done() or self._election.leadership is not None:
                await work
        finally:
            work.cancel()
            closed.cancel()
            await gather_ended(work, closed)
            await self._cycle.stop()
            await self._event_recorder.stop()
            await self._policy_status.stop()
            if self._own_caches:
                await self.caches.stop()

    def stop(self) -> None:
        """Decide nothing more, let binds in flight end, then release the lease. `run` returns when that is done."""
        self._closed.set()
        self._ready.set()

    @property
    def leadership(self) -> Leadership | None:
        """The current term of this process; None on a standby."""
        return self._election.leadership

    @property
    def leading(self) -> bool:
        return self._leading

    @property
    def bound(self) -> int:
        """Pods that this process has bound."""
        return self._binder.bound

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            name=self.name,
            leading=self._leading,
            attempts=self._attempts.count,
            bound=self._binder.bound,
            pending={stage.value: self.queue.count(stage) for stage in QueueStage},
            assumed=len(self.cluster_state.assumed),
            binding=len(self._binder),
            nominated=len(self.cluster_state.nominated),
            nodes=self.cluster_state.snapshot.node_count,
            claims=self.cluster_state.snapshot.statistics()["kedge_scheduler_claims"],
        )

    # -- one term ----------------------------------------------------------------------------------

    async def _lead(self, term: Leadership) -> None:
        await self._wait_caches(term.fence.revision)
        self.cluster_state.unreleased.adopt_all()
        self._failure = asyncio.get_running_loop().create_future()
        tasks = [
            asyncio.ensure_future(self._schedule(term.fence)),
            asyncio.ensure_future(self._sweep()),
            self._failure,
        ]
        self._leading, self._fence = True, term.fence
        self._record_gated(self.cluster_state.gated.values())
        self._write_policy_status(self.cluster_state.policies.objects.values())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises: the failure ends the term and is reported
            await self._binder.wait_all()
        finally:
            self._leading, self._fence = False, None
            for each in tasks:
                each.cancel()
            await gather_ended(*tasks)
            await self._binder.cancel_all()
            self._attempts.end_term()
            self.cluster_state.forget_all()
            for queued in self.queue:
                if queued.stage is QueueStage.IN_FLIGHT:
                    self.queue.failed(queued, pause=False)

    def _end_term(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    async def _wait_caches(self, revision: Revision) -> None:
        """A new leader decides nothing before its caches show all that its predecessor wrote."""
        async with asyncio.TaskGroup() as group:  # in parallel: a cache that must relist does so while others wait
            for cache in self.cluster_state.caches.values():
                wait = wait_caught_up(self._client, self._env, cache, revision)
                group.create_task(wait, name=f"{self.name} waits for {cache.name}")

    async def _schedule(self, fence: Fence) -> None:
        limits, step = self._env.limits, StepBudget(self._env, self.name)
        while not self._closed.is_set():
            self._ready.clear()
            for cache in self.cluster_state.caches.values():
                if cache.notifying:  # the snapshot lacks a part of a long list: decide on all of it
                    await cache.wait_notified()
            step.begin()
            self._attempts.begin_step()
            left = limits.scheduler_burst_max
            while left > 0 and not step.used_up():
                if len(self._binder) >= limits.scheduler_binds_max:
                    await self._ready.wait()
                    break
                queued = self.queue.take()
                if queued is None:
                    await self._wait_ready()
                    break
                left -= self._cycle.attempt(queued, fence)
            else:
                await asyncio.sleep(0)

    async def _wait_ready(self) -> None:
        """Wait until a pod is active, a backoff is over, or a bind has ended."""
        due_s = self.queue.next_s()
        if due_s is None:
            await self._ready.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, due_s - self._env.monotonic())):
                await self._ready.wait()

    async def _sweep(self) -> None:
        """The safety nets: read pods that were assumed long ago, and retry pods that were pending for long."""
        limits = self._env.limits
        while True:
            await asyncio.sleep(min(limits.scheduler_assumed_s, limits.scheduler_flush_s) / 4)
            old_s = self._env.monotonic() - limits.scheduler_assumed_s
            for assumption in tuple(self.cluster_state.assumed.values()):
                if assumption.revision and assumption.since_s <= old_s:
                    await self._binder.settle(assumption)
            self.cluster_state.unreleased.review_all()
            self.queue.flush()
            self._write_policy_status(self.cluster_state.policies.objects.values())

    def _write_policy_status(self, policies: Iterable[Object]) -> None:
        """Only the leader writes: a standby decides nothing."""
        if self._fence is not None:
            self._policy_status.write(policies, self._fence)

    def _record_gated(self, pods: Iterable[Object]) -> None:
        """Only the leader writes."""
        if self._fence is not None:
            for pod in pods:
                self._event_recorder.gated(pod, fence=self._fence)

    def _pending_pod(self, uid: str) -> Object | None:
        queued = self.queue.get(uid)
        return queued.pod if queued is not None else self.cluster_state.gated.get(uid)

    def _pod_gone(self, uid: str) -> None:
        """Forget everything about the pod: a pod of the same name is another."""
        self._binder.refusals.forget(uid)
        self._event_recorder.forget(uid)
