"""The scheduler: takes pods that wait, decides on its picture of the cluster, and binds; the bind proves.

One lease a scheduler name: one leads, standbys keep their pictures warm. Schedulers of several names may work side by
side; then only the bind's proof protects them from each other, and a pod may be refused and tried again.
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
from kedge.runtime.lease import LeaderElection, Leadership
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.cycle.attempt import SchedulingCycle
from kedge.scheduler.queue.pending import Pending, QueueStage
from kedge.scheduler.report.attempt_records import AttemptRecords
from kedge.scheduler.report.event_recorder import EventRecorder
from kedge.scheduler.report.policy_status import PolicyStatusWriter
from kedge.scheduler.state.cluster_state import ClusterState

DEFAULT_NAME = "default-scheduler"
LEASE_NAMESPACE = SYSTEM_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """A scheduler's own account of itself."""

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
    """Places the pods that name it. `run` it once; it works until `stop`, or until it is cancelled."""

    def __init__(
        self,
        client: Client,
        env: Env,
        *,
        name: str = DEFAULT_NAME,
        lease_namespace: str = LEASE_NAMESPACE,
        caches: CacheSet | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.name = name
        self._client = client
        self._env = env
        process = env.new_uid()[:8]
        self._own_caches = caches is None
        self.caches = caches or CacheSet(client, env)
        self.recorder = recorder
        self.pending = Pending(env)
        self.cluster_state = ClusterState(self.caches, client.kinds, env, self.pending, scheduler=name)
        self._attempts = AttemptRecords(env, self.cluster_state, recorder, scheduler=name, process=process)
        self._event_recorder = EventRecorder(client, env, component=name, current=self._waiting_pod)
        self._policy_status = PolicyStatusWriter(client, env, scheduler=name)
        self._binder = Binder(client, env, self.cluster_state, self.pending, self._attempts, self._event_recorder)
        self._cycle = SchedulingCycle(
            client,
            env,
            self.cluster_state,
            self.pending,
            self._attempts,
            self._binder,
            self._event_recorder,
            scheduler=name,
        )
        lease = Key(LEASE_KIND, lease_namespace, name)
        self._election = LeaderElection(client, env, lease, identity=f"{name}-{process}")
        self._ready = asyncio.Event()
        """Something may be done: a pod became active, or a bind ended."""
        self.pending.on_ready = self._ready.set
        self._binder.on_room = self._ready.set
        self.cluster_state.on_gone = self._gone
        self.cluster_state.on_gated = lambda pod: self._tell_gated([pod])
        self.cluster_state.on_policy = lambda policy: self._obey([policy])
        self._fence: Fence | None = None
        """Of the term in which it leads."""
        self._closed = asyncio.Event()
        self._leading = False

    # -- from outside ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`. Cancelled, it stops at once, and lets its lease go all the same."""
        self.cluster_state.follow()
        work = asyncio.ensure_future(self._election.run(self._lead))
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait((work, closed), return_when=asyncio.FIRST_COMPLETED)
            if work.done() or self._election.leadership is not None:
                await work
        finally:
            work.cancel()
            closed.cancel()
            await asyncio.gather(work, closed, return_exceptions=True)
            await self._cycle.stop()
            await self._event_recorder.stop()
            await self._policy_status.stop()
            if self._own_caches:
                await self.caches.stop()

    def stop(self) -> None:
        """Decide nothing more, let binds under way end, then let go of the lease: `run` returns when that is done."""
        self._closed.set()
        self._ready.set()

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
            pending={stage.value: self.pending.count(stage) for stage in QueueStage},
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
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._binder.on_failure = lambda error: None if failure.done() else failure.set_exception(error)
        tasks = [
            asyncio.ensure_future(self._schedule(term.fence)),
            asyncio.ensure_future(self._sweep()),
            failure,
        ]
        self._leading, self._fence = True, term.fence
        self._tell_gated(self.cluster_state.gated.values())
        self._obey(self.cluster_state.governance.policies.values())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what fails ends the term, and is seen
            await self._binder.wait_all()
        finally:
            self._leading, self._fence = False, None
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._binder.cancel_all()
            self.cluster_state.forget_all()
            for waiting in self.pending:
                if waiting.stage is QueueStage.IN_FLIGHT:
                    self.pending.failed(waiting, pause=False)

    async def _wait_caches(self, revision: Revision) -> None:
        """A new leader decides nothing before it has seen all that its predecessor wrote."""
        async with asyncio.TaskGroup() as group:  # at once: one that must list again does so while the others wait
            for cache in self.cluster_state.caches.values():
                wait = wait_caught_up(self._client, self._env, cache, revision)
                group.create_task(wait, name=f"{self.name} waits for {cache.name}")

    async def _schedule(self, fence: Fence) -> None:
        limits = self._env.limits
        while not self._closed.is_set():
            self._ready.clear()
            left = limits.scheduler_burst_max
            while left > 0:
                if len(self._binder) >= limits.scheduler_binds_max:
                    await self._ready.wait()
                    break
                waiting = self.pending.take()
                if waiting is None:
                    await self._wait_ready()
                    break
                left -= self._cycle.attempt(waiting, fence)
            else:
                await asyncio.sleep(0)

    async def _wait_ready(self) -> None:
        """Until a pod may be tried: one was woken, a pause is over, or a bind has ended."""
        due_s = self.pending.next_s()
        if due_s is None:
            await self._ready.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, due_s - self._env.monotonic())):
                await self._ready.wait()

    async def _sweep(self) -> None:
        """The nets below: what is assumed for too long is read; who waits for too long is tried."""
        limits = self._env.limits
        while True:
            await asyncio.sleep(min(limits.scheduler_assumed_s, limits.scheduler_flush_s) / 4)
            old_s = self._env.monotonic() - limits.scheduler_assumed_s
            for assumption in tuple(self.cluster_state.assumed.values()):
                if assumption.revision and assumption.since_s <= old_s:
                    await self._binder.settle(assumption)
            self.cluster_state.unreleased.review_all()
            self.pending.flush()
            self._obey(self.cluster_state.governance.policies.values())

    def _obey(self, policies: Iterable[Object]) -> None:
        """Say that decisions go by these. Who does not lead decides nothing."""
        if self._fence is not None:
            self._policy_status.tell(policies, self._fence)

    def _tell_gated(self, pods: Iterable[Object]) -> None:
        """Say of these that they wait for their gates. Who does not lead says nothing."""
        if self._fence is not None:
            for pod in pods:
                self._event_recorder.gated(pod, fence=self._fence)

    def _waiting_pod(self, uid: str) -> Object | None:
        waiting = self.pending.get(uid)
        return waiting.pod if waiting is not None else self.cluster_state.gated.get(uid)

    def _gone(self, uid: str) -> None:
        """Nothing is remembered of a pod that is no more: one of its name is another."""
        self._binder.refusals.forget(uid)
        self._event_recorder.forget(uid)
