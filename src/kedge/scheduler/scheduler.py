"""The scheduler: takes pods that wait, decides on its picture of the cluster, and binds; the bind proves.

One lease a scheduler name: one leads, standbys keep their pictures warm. Binds are pipelined, each its own commit. What
a bind came to is learned from its answer or by reading: no timeout is taken for a failure, and no clock frees anything.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kedge.api.objects import Object
from kedge.api.requests import Binding, WriteOptions
from kedge.api.views import PodView
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Compacted, Fenced, NotFound, OperatingError, OutcomeUnknown, Refused, to_status
from kedge.keys import Fence, Key, Origin, Revision
from kedge.observe.recorder import Recorder
from kedge.observe.records import CacheMark, Call
from kedge.observe.records import Decision as Record
from kedge.runtime.cache import Behind, CacheSet
from kedge.runtime.lease import LeaderElection, Leadership
from kedge.scheduler.decide import Decision, decide
from kedge.scheduler.explain import Explanation, explain, words
from kedge.scheduler.pending import ANYTHING, HELPED_BY, Change, Pending, Stage, Waiting
from kedge.scheduler.picture import Assumption, Picture
from kedge.scheduler.refusals import Refusals
from kedge.scheduler.shapes import shape_key
from kedge.scheduler.telling import Teller

DEFAULT_NAME = "default-scheduler"
LEASE_NAMESPACE = "kube-system"


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
        self._process = env.new_uid()[:8]
        self._own_caches = caches is None
        self.caches = caches or CacheSet(client, env)
        self.recorder = recorder
        self.pending = Pending(env)
        self.picture = Picture(self.caches, client.kinds, env, self.pending, scheduler=name)
        self._refusals = Refusals(env, self._has_seen)
        self._teller = Teller(client, env, component=name)
        lease = Key("Lease.coordination.k8s.io", lease_namespace, name)
        self._election = LeaderElection(client, env, lease, identity=f"{name}-{self._process}")
        self._ready = asyncio.Event()
        self.pending.on_ready = self._ready.set
        self._closed = asyncio.Event()
        self._ended: asyncio.Future[None] | None = None
        self._binds: dict[asyncio.Task[None], None] = {}
        self._room_to_bind = asyncio.Event()
        self._leading = False
        self._attempts = 0
        self._bound = 0
        metrics = env.metrics
        self._took = metrics.histogram("kedge_scheduler_attempt_seconds", "Time a decision took")
        self._results = metrics.counter("kedge_scheduler_attempts_total", "Attempts, by how they ended", ("result",))
        metrics.gauge("kedge_scheduler_binds_in_flight", "Binds under way").set_function(lambda: len(self._binds))

    # -- from outside ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`. Cancelled, it stops at once, and lets its lease go all the same."""
        self.picture.follow()
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
            await self._teller.stop()
            if self._own_caches:
                await self.caches.stop()

    async def stop(self) -> None:
        """Decide nothing more, let binds under way end, then let go of the lease."""
        self._closed.set()
        self._ready.set()
        self._room_to_bind.set()
        await asyncio.sleep(0)

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            name=self.name,
            leading=self._leading,
            attempts=self._attempts,
            bound=self._bound,
            pending={stage.value: self.pending.count(stage) for stage in Stage},
            assumed=len(self.picture.assumed),
            binding=len(self._binds),
            nodes=self.picture.snapshot.node_count,
            claims=self.picture.snapshot.statistics()["kedge_scheduler_claims"],
        )

    # -- one term ----------------------------------------------------------------------------------

    async def _lead(self, term: Leadership) -> None:
        await self._wait_caches(term.fence.revision)
        self.picture.adopt_ledgers()
        self._leading = True
        self._ended = asyncio.get_running_loop().create_future()
        tasks = [
            asyncio.ensure_future(self._schedule(term.fence)),
            asyncio.ensure_future(self._sweep()),
            self._ended,
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what fails ends the term, and is seen
            await self._binds_end()
        finally:
            self._leading = False
            for each in (*tasks, *self._binds):
                each.cancel()
            await asyncio.gather(*tasks, *self._binds, return_exceptions=True)
            self._binds.clear()
            self.picture.forget_all()
            for waiting in self.pending:
                if waiting.stage is Stage.IN_FLIGHT:
                    self.pending.failed(waiting, pause=False)

    async def _wait_caches(self, revision: Revision) -> None:
        """A new leader decides nothing before it has seen all that its predecessor wrote."""
        for cache in self.picture.caches.values():
            while True:
                try:
                    await cache.wait_synced()
                    await cache.at_least(revision)
                    break
                except Behind:
                    cache.ask_relist()

    async def _binds_end(self) -> None:
        while self._binds:
            await asyncio.wait(tuple(self._binds))

    async def _schedule(self, fence: Fence) -> None:
        limits = self._env.limits
        while not self._closed.is_set():
            for _ in range(limits.scheduler_burst_max):
                if len(self._binds) >= limits.scheduler_binds_max:
                    break
                waiting = self.pending.take()
                if waiting is None:
                    break
                self._attempt(waiting, fence)
            else:
                await asyncio.sleep(0)
                continue
            if len(self._binds) >= limits.scheduler_binds_max:
                self._room_to_bind.clear()
                await self._room_to_bind.wait()
            else:
                await self._wait_ready()

    async def _wait_ready(self) -> None:
        """Until a pod is to be tried: it was woken, or its pause is over."""
        self._ready.clear()
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
            for assumption in tuple(self.picture.assumed.values()):
                if assumption.revision and assumption.since_s <= old_s:
                    await self._settle(assumption)
            self.pending.flush()

    # -- one attempt -------------------------------------------------------------------------------

    def _attempt(self, waiting: Waiting, fence: Fence) -> None:
        """Decide for one pod, and begin its bind. Nothing waits in here."""
        began_s = self._env.monotonic()
        pod = waiting.pod
        view = pod.as_view(PodView)
        picture = self.picture
        request = picture.request_of(view)
        draw = self._env.random.getrandbits(31)
        decision = decide(
            picture.snapshot,
            request,
            draw,
            settings=picture.settings_of(view),
            room=picture.room_of(pod.key.namespace),
            excluded=self._refusals.excluded(pod.uid),
        )
        self._attempts += 1
        record = self._record_of(waiting, view, decision, fence, began_s)
        if decision.node is None:
            self._unschedulable(waiting, decision, fence, record)
            return
        assumption = picture.assume(pod, decision.node, request)
        self._took.observe(self._env.monotonic() - began_s)
        bind = asyncio.get_running_loop().create_task(self._bind(waiting, assumption, decision, fence, record))
        self._binds[bind] = None
        bind.add_done_callback(self._bind_ended)

    def _bind_ended(self, bind: asyncio.Task[None]) -> None:
        self._binds.pop(bind, None)
        self._room_to_bind.set()
        error = None if bind.cancelled() else bind.exception()
        if error is not None and self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _unschedulable(self, waiting: Waiting, decision: Decision, fence: Fence, record: Record) -> None:
        explanation = explain(self.picture.snapshot, decision)
        reasons = tuple(dict.fromkeys(blocker.reason for blocker in explanation.counts))
        helped_by = Change.NODE
        for reason in reasons:
            helped_by |= HELPED_BY.get(reason, ANYTHING)
        alike = (
            shape_key(decision.request, decision.settings, self.picture.snapshot.tallies.mentioned),
            decision.blocked_zones,
            decision.excluded,
        )
        message = words(decision, explanation)
        self._await_seen(waiting)
        self.pending.unschedulable(waiting, helped_by, alike, reasons)
        self._teller.unschedulable(waiting.pod, "Unschedulable", message, decision=record.id, fence=fence)
        self._results.labels("unschedulable").inc()
        record.result, record.condition, record.reason = "failed", "PodScheduled", message
        record.details.update(_details(explanation), helpedBy=str(helped_by))
        self._take(record)

    def _await_seen(self, waiting: Waiting) -> None:
        """Wake a pod when the caches show what its refusals were about."""
        for about, revision in self._refusals.unseen(waiting.uid):
            self._env.spawn(self._tell_seen(waiting, about, revision), name=f"wait to see {about}")

    async def _tell_seen(self, waiting: Waiting, about: Key, revision: Revision) -> None:
        cache = self.picture.caches.get(about.kind)
        if cache is not None:
            with suppress(Behind):
                await cache.wait_floor(revision, wrote=about, within_s=self._env.limits.floor_wait_s)
        self.pending.happened(Change.SEEN, "a refusal was understood", lambda each: each.uid == waiting.uid)

    def _has_seen(self, about: Key, revision: Revision) -> bool:
        cache = self.picture.caches.get(about.kind)
        return cache is None or cache.reached(revision)

    # -- one bind ----------------------------------------------------------------------------------

    async def _bind(
        self, waiting: Waiting, assumption: Assumption, decision: Decision, fence: Fence, record: Record
    ) -> None:
        pod = waiting.pod
        began_s = self._env.monotonic()
        request = Binding(
            pod=pod.key,
            pod_uid=pod.uid,
            node=assumption.node,
            node_uid=decision.node_uid,
            decided_on={str(pod.key): pod.revision, f"Node/{assumption.node}": decision.node_revision},
        )
        options = WriteOptions(fence=fence, origin=Origin(f"{record.id}#1", record.id))
        error: OperatingError | None = None
        written: Object | None = None
        try:
            written = (await self._client.bind(request, options=options)).object
        except Fenced:
            raise  # deposed, and did not know it: the whole term is over
        except OperatingError as failed:
            error = failed
        if written is not None:
            self._bound += 1
            self.picture.made(assumption, written.revision)
            self.pending.done(waiting)
            self._refusals.forget(pod.uid)
            self._teller.forget(pod.uid)
            self._results.labels("bound").inc()
        else:
            assert error is not None
            await self._bind_failed(waiting, assumption, error, fence, record)
        record.result = "await change" if error is None else "failed"
        record.error = "" if error is None else f"{type(error).__name__}: {error}"
        self._finish(record, request, written, error, began_s)

    async def _bind_failed(
        self, waiting: Waiting, assumption: Assumption, error: OperatingError, fence: Fence, record: Record
    ) -> None:
        uid = assumption.uid
        self._results.labels(type(error).__name__.lower()).inc()
        if isinstance(error, OutcomeUnknown):
            # It may have been made, or may still be. Only a read may end the assumption.
            await self._settle(assumption)
            self.pending.failed(waiting)
            return
        self.picture.forget(uid)
        if isinstance(error, Refused):
            quarantined = self._refusals.note(uid, assumption.node, error)
            if quarantined:
                message = (
                    f"node {assumption.node} refused this pod {self._env.limits.scheduler_refusals_max} times, last:"
                    f" {error}; it is not tried again for {self._env.limits.scheduler_quarantine_s:.0f} s"
                )
                self._teller.event(waiting.pod, "Quarantined", message, decision=record.id, fence=fence)
            self.pending.failed(waiting)
        elif isinstance(error, NotFound):
            self._refusals.forget(uid)
            self.pending.failed(waiting)  # it is gone, and the cache is about to say so
        else:
            self.pending.failed(waiting)

    async def _settle(self, assumption: Assumption) -> None:
        """Read at the authority what became of a bind, until it answers: the assumption ends by evidence alone."""
        pause_s = self._env.limits.client_backoff_s
        while self.picture.assumed.get(assumption.uid) is assumption:
            try:
                read = await self.picture.caches["Pod"].fresh_read(assumption.key)
            except OperatingError:
                await asyncio.sleep(pause_s * self._env.random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, self._env.limits.client_backoff_s_max)
                continue
            found = read.value
            if found is not None and found.uid == assumption.uid and found.as_view(PodView).spec.node_name:
                # It is bound. The cache will show it; until then the claim stays, where the bind made it.
                node = found.as_view(PodView).spec.node_name
                self.picture.snapshot.add_claim(assumption.uid, node, assumption.request)
                assumption.node, assumption.revision, assumption.since_s = node, found.revision, self._env.monotonic()
                self.pending.remove(assumption.uid)
                return
            self.picture.forget(assumption.uid)
            return

    # -- the record --------------------------------------------------------------------------------

    def _record_of(self, waiting: Waiting, view: PodView, decision: Decision, fence: Fence, began_s: float) -> Record:
        record = Record(
            id=f"{self.name}:{self._process}:{self._attempts}",
            controller=self.name,
            process=self._process,
            key=waiting.key,
            tenant=waiting.key.namespace,
            priority=waiting.priority,
            uid=waiting.uid,
            generation=view.metadata.generation,
            fence=fence.revision,
            wakes=((waiting.woken_by, ""),),
            attempt=waiting.attempts,
            place=self._attempts,
            waited_s=began_s - waiting.since_s,
            delayed_s=waiting.since_s - waiting.added_s,
            began=self._env.now(),
            took_s=self._env.monotonic() - began_s,
        )
        if self.recorder is not None:
            record.marks = tuple(
                [CacheMark(each.name, each.place, each.revision, each.age_s) for each in self.picture.caches.values()]
            )
            record.details = {
                "draw": decision.draw,
                "node": decision.node,
                "score": decision.score,
                "feasible": decision.feasible,
                "nodes": decision.nodes,
                "policy": decision.settings.policy,
                "policyVersion": decision.settings.version,
                "canary": decision.settings.canary,
                "excluded": sorted(decision.excluded),
                "blockedZones": decision.blocked_zones,
            }
        return record

    def _finish(
        self, record: Record, request: Binding, written: Object | None, error: OperatingError | None, began_s: float
    ) -> None:
        if self.recorder is None:
            return
        record.steps.append(
            Call(
                "bind",
                request.pod,
                {"node": request.node, "nodeUid": request.node_uid, "decidedOn": dict(request.decided_on)},
                f"uid {request.pod_uid}",
                f"{record.id}#1",
                0.0,
                self._env.monotonic() - began_s,
                "done" if error is None else type(error).__name__,
                0 if written is None else written.revision,
                None if error is None else to_status(error),
                () if written is None else (written,),
            )
        )
        self._take(record)

    def _take(self, record: Record) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        record.kept = recorder.why_keep(record)
        releases = []
        if record.kept:
            for cache, mark in zip(self.picture.caches.values(), record.marks, strict=True):
                with suppress(Compacted):
                    releases.append(cache.received.pin(mark.place).release)
        recorder.take(record, releases)


def _details(explanation: Explanation) -> dict[str, Any]:
    near = explanation.near_miss
    return {
        "firstFailing": explanation.first_failing,
        "legend": [str(blocker) for blocker in explanation.legend],
        "counts": {str(blocker): count for blocker, count in explanation.counts.items()},
        "top": [{"node": s.node, "total": s.total, "parts": dict(s.parts)} for s in explanation.top],
        "nearMiss": None if near is None else {"node": near.node, "blocker": str(near.blocker), "total": near.total},
    }
