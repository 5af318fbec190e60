"""The scheduler: takes pods that wait, decides on its picture of the cluster, and binds; the bind proves.

One lease a scheduler name: one leads, standbys keep their pictures warm. Schedulers of several names may work side by
side; then only the bind's proof protects them from each other, and a pod may be refused and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kedge.api.holds import HELD, Hold, active_hold
from kedge.api.marks import HOLD_PREFIX, SYSTEM_NAMESPACE
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, WriteOptions
from kedge.api.views import PodView, ReservationView
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Fenced, NotFound, OperatingError
from kedge.keys import Fence, Key, Origin, Revision
from kedge.observe.recorder import Recorder
from kedge.observe.records import Decision as Record
from kedge.runtime.cache import Behind, Cache, CacheSet
from kedge.runtime.lease import LeaderElection, Leadership
from kedge.scheduler.attempts import Attempts
from kedge.scheduler.binder import Binder
from kedge.scheduler.decide import Decision, decide
from kedge.scheduler.explain import Explanation, explain, words
from kedge.scheduler.gangs import Gangs, Member
from kedge.scheduler.obeying import Obedience
from kedge.scheduler.pending import ANYTHING, HELPED_BY, Change, Pending, Stage, Waiting, change_names
from kedge.scheduler.picture import Picture
from kedge.scheduler.preemption import Nomination, Preemption, plan_preemption
from kedge.scheduler.shapes import shape_key
from kedge.scheduler.snapshot import NodeRow
from kedge.scheduler.telling import UNSCHEDULABLE, Teller

DEFAULT_NAME = "default-scheduler"
LEASE_NAMESPACE = SYSTEM_NAMESPACE
_COSTLY = 8
"""What a gang, or an attempt that comes to nothing, counts for: it takes about as long as so many others."""


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
        self.picture = Picture(self.caches, client.kinds, env, self.pending, scheduler=name)
        self._attempts = Attempts(env, self.picture, recorder, scheduler=name, process=process)
        self._teller = Teller(client, env, component=name, current=self._waiting_pod)
        self._obedience = Obedience(client, env, scheduler=name)
        self._binder = Binder(client, env, self.picture, self.pending, self._attempts, self._teller)
        self._gangs = Gangs(client, env, self.picture, self.pending, self._binder)
        lease = Key("Lease.coordination.k8s.io", lease_namespace, name)
        self._election = LeaderElection(client, env, lease, identity=f"{name}-{process}")
        self._ready = asyncio.Event()
        """Something may be done: a pod became active, or a bind ended."""
        self.pending.on_ready = self._ready.set
        self._binder.on_room = self._ready.set
        self.picture.on_gone = self._gone
        self.picture.on_gated = lambda pod: self._tell_gated([pod])
        self.picture.on_policy = lambda policy: self._obey([policy])
        self._fence: Fence | None = None
        """Of the term in which it leads."""
        self._seeing: dict[str, asyncio.Task[None]] = {}
        """By pod uid: who waits for the caches to show what a refusal was about."""
        self._closed = asyncio.Event()
        self._leading = False
        metrics = env.metrics
        self._took = metrics.histogram("kedge_scheduler_attempt_seconds", "Time a decision took")
        self._unschedulable_count = metrics.counter(
            "kedge_scheduler_attempts_total", "Attempts, by how they ended", ("result",)
        ).labels("unschedulable")
        self._preempted = metrics.counter("kedge_scheduler_preempted_total", "Pods asked to leave for others")

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
            for seeing in tuple(self._seeing.values()):
                seeing.cancel()
            await asyncio.gather(*self._seeing.values(), return_exceptions=True)
            await self._teller.stop()
            await self._obedience.stop()
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
            pending={stage.value: self.pending.count(stage) for stage in Stage},
            assumed=len(self.picture.assumed),
            binding=len(self._binder),
            nominated=len(self.picture.nominated),
            nodes=self.picture.snapshot.node_count,
            claims=self.picture.snapshot.statistics()["kedge_scheduler_claims"],
        )

    # -- one term ----------------------------------------------------------------------------------

    async def _lead(self, term: Leadership) -> None:
        await self._wait_caches(term.fence.revision)
        self.picture.lingering.adopt_all()
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._binder.on_failure = lambda error: None if failure.done() else failure.set_exception(error)
        tasks = [
            asyncio.ensure_future(self._schedule(term.fence)),
            asyncio.ensure_future(self._sweep()),
            failure,
        ]
        self._leading, self._fence = True, term.fence
        self._tell_gated(self.picture.gated.values())
        self._obey(self.picture.governance.policies.values())
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
            self.picture.forget_all()
            for waiting in self.pending:
                if waiting.stage is Stage.IN_FLIGHT:
                    self.pending.failed(waiting, pause=False)

    async def _wait_caches(self, revision: Revision) -> None:
        """A new leader decides nothing before it has seen all that its predecessor wrote."""
        async with asyncio.TaskGroup() as group:  # at once: one that must list again does so while the others wait
            for cache in self.picture.caches.values():
                group.create_task(self._wait_cache(cache, revision), name=f"{self.name} waits for {cache.name}")

    async def _wait_cache(self, cache: Cache, revision: Revision) -> None:
        while True:
            try:
                await cache.wait_synced()
                await cache.at_least(revision)
                return
            except Behind:
                cache.ask_relist()

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
                left -= self._attempt(waiting, fence)
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
            for assumption in tuple(self.picture.assumed.values()):
                if assumption.revision and assumption.since_s <= old_s:
                    await self._binder.settle(assumption)
            self.picture.lingering.review_all()
            self.pending.flush()
            self._obey(self.picture.governance.policies.values())

    def _obey(self, policies: Iterable[Object]) -> None:
        """Say that decisions go by these. Who does not lead decides nothing."""
        if self._fence is not None:
            self._obedience.tell(policies, self._fence)

    def _tell_gated(self, pods: Iterable[Object]) -> None:
        """Say of these that they wait for their gates. Who does not lead says nothing."""
        if self._fence is not None:
            for pod in pods:
                self._teller.gated(pod, fence=self._fence)

    def _waiting_pod(self, uid: str) -> Object | None:
        waiting = self.pending.get(uid)
        return waiting.pod if waiting is not None else self.picture.gated.get(uid)

    def _gone(self, uid: str) -> None:
        """Nothing is remembered of a pod that is no more: one of its name is another."""
        self._binder.refusals.forget(uid)
        self._teller.forget(uid)

    # -- one attempt -------------------------------------------------------------------------------

    def _attempt(self, waiting: Waiting, fence: Fence) -> int:
        """Decide for one pod, or for its whole gang, and begin to bind. Nothing waits in here.

        For how much of a burst it counts: every node is accounted for when none will do.
        """
        began_s, started = self._env.monotonic(), self._binder.started
        hold = self._hold_on(waiting)
        if hold is not None:
            self._wait_out(hold, self.pending.take_gang(waiting), fence)
            return 1
        if waiting.gang is not None:
            self._attempt_gang(waiting, fence)
        elif self.picture.nominated:
            nomination = self.picture.nominated.take(waiting.uid)
            with self.picture.nominated.hidden_below(waiting.priority):
                self._attempt_pod(waiting, fence, began_s, nomination)
        else:
            self._attempt_pod(waiting, fence, began_s, None)
        self._took.observe(self._env.monotonic() - began_s)
        return 1 if self._binder.started > started and waiting.gang is None else _COSTLY

    def _hold_on(self, waiting: Waiting) -> Hold | None:
        """A person's word that this scheduler is to leave the pod alone."""
        notes = waiting.pod.metadata.annotations
        if not notes or not any(name.startswith(HOLD_PREFIX) for name in notes):
            return None
        return active_hold(waiting.pod.metadata, self.name, self._env.now())

    def _wait_out(self, hold: Hold, members: Sequence[Waiting], fence: Fence) -> None:
        """A pod, and with it its gang, waits until its hold ends or is taken away."""
        for each in members:
            self.pending.pause(each, (hold.until - self._env.now()).total_seconds(), "a hold has ended")
            self._teller.unschedulable(each.pod, HELD, str(hold), decision=self._attempts.latest, fence=fence)

    def _attempt_pod(self, waiting: Waiting, fence: Fence, began_s: float, nomination: Nomination | None) -> None:
        view = waiting.pod.as_view(PodView)
        record = self._attempts.begin(waiting, view, fence, began_s)
        reserved = self.picture.snapshot.find(self.picture.reserved_node(waiting.uid))
        if reserved is not None and reserved.name not in self._binder.refusals.excluded(waiting.uid):
            self._bind_reserved(waiting, view, reserved, fence, record)
            return
        decision = self._decide(waiting, view, record)
        if decision.node is None:
            self._no_node(waiting, view, decision, fence, record, nomination)
            return
        if self._attempts.will_be_kept(record):  # the snapshot stands still only now
            self._attempts.explained(record, explain(self.picture.snapshot, decision))
        assumption = self.picture.assume(waiting.pod, decision.node, decision.request)
        node = (decision.node_uid, decision.node_revision)
        self._binder.start(self._binder.bind, waiting, assumption, node, fence, record)
        if nomination is not None and nomination.node != decision.node:
            self.picture.tell_room(nomination.node, "a place was given up")

    def _bind_reserved(self, waiting: Waiting, view: PodView, node: NodeRow, fence: Fence, record: Record) -> None:
        """A place is held for the pod, so there is nothing to decide: the bind proves that it may still have it."""
        assumption = self.picture.assume(waiting.pod, node.name, self.picture.governance.request_of(view))
        record.details.update(node=node.name, reserved=True)
        self._binder.start(self._binder.bind, waiting, assumption, (node.uid, node.revision), fence, record)

    def _decide(self, waiting: Waiting, view: PodView, record: Record) -> Decision:
        picture, governance = self.picture, self.picture.governance
        decision = decide(
            picture.snapshot,
            governance.request_of(view),
            self._env.random.getrandbits(31),
            settings=governance.settings_of(view),
            room=governance.room_of(waiting.key.namespace),
            excluded=self._binder.refusals.excluded(waiting.uid),
        )
        self._attempts.decided(record, decision)
        return decision

    def _no_node(
        self,
        waiting: Waiting,
        view: PodView,
        decision: Decision,
        fence: Fence,
        record: Record,
        nomination: Nomination | None,
    ) -> None:
        explanation = explain(self.picture.snapshot, decision)
        helped_by = self._unschedulable(waiting, decision, explanation, fence, record)
        if nomination is not None and self.picture.nominated.is_being_made(nomination):
            self.picture.nominated.put(waiting.uid, nomination)  # those in its way are still leaving
        elif view.spec.preemption_policy != "Never":
            plan = plan_preemption(
                self.picture.snapshot, decision, explanation, waiting.priority, self.picture.lodgers()
            )
            if nomination is not None and (plan is None or plan.node != nomination.node):
                self.picture.tell_room(nomination.node, "a place was given up")
            if plan is not None:
                made = Nomination(plan.node, decision.request, waiting.priority, plan.awaited)
                self.picture.nominated.put(waiting.uid, made)
                self._binder.start(self._make_room, waiting.pod, plan, fence, record.id)
                record.details["makingRoomOn"] = plan.node
                record.details["victims"] = [str(pod.key) for pod in plan.victims]
        if view.status.nominated_node_name and waiting.uid not in self.picture.nominated:
            self._teller.not_nominated(waiting.pod, decision=record.id, fence=fence)
        self._attempts.end(record, helpedBy=change_names(helped_by))

    def _unschedulable(
        self, waiting: Waiting, decision: Decision, explanation: Explanation, fence: Fence, record: Record
    ) -> Change:
        """Let a pod wait for what could help it, and say why it waits."""
        reasons = tuple(dict.fromkeys(blocker.reason for blocker in explanation.counts))
        helped_by = Change.NODE if waiting.gang is None else Change.NODE | Change.GANG
        for reason in reasons:
            helped_by |= HELPED_BY.get(reason, ANYTHING)
        refusals = self._binder.refusals
        awaited = refusals.unseen(waiting.uid) or refusals.quarantined_until_s(waiting.uid) is not None
        if awaited and waiting.uid not in self._seeing:  # of a node that is gone, its return is told as any other's
            self._seeing[waiting.uid] = self._env.spawn(
                self._tell_seen(waiting.uid), name=f"see why {waiting.key} was refused"
            )
        key: Hashable = (
            ("gang", *waiting.gang)
            if waiting.gang is not None
            else (
                shape_key(decision.request, decision.settings, self.picture.snapshot.tallies.mentioned),
                decision.blocked_zones,
                decision.excluded,
            )
        )
        message = words(decision, explanation)
        self.pending.unschedulable(waiting, helped_by, key, reasons)
        self._teller.unschedulable(waiting.pod, UNSCHEDULABLE, message, decision=record.id, fence=fence)
        self._unschedulable_count.inc()
        self._attempts.explained(record, explanation)
        record.result, record.condition, record.reason = "failed", "PodScheduled", message
        return helped_by

    async def _tell_seen(self, uid: str) -> None:
        """Wake a pod when the caches show what its refusals were about, and when its quarantine is over."""
        refusals = self._binder.refusals
        try:
            unseen = refusals.unseen(uid)
            for about, revision in unseen:
                cache = self.picture.caches.get(about.kind)
                if cache is None:
                    continue
                try:
                    await cache.wait_floor(revision, within_s=self._env.limits.floor_wait_s)
                except Behind:
                    cache.ask_relist()
            if unseen:
                self.pending.wake(uid, "a refusal was understood")
            while (until_s := refusals.quarantined_until_s(uid)) is not None:
                await asyncio.sleep(max(0.001, until_s - self._env.monotonic()))
                self.pending.wake(uid, "its quarantine is over")
        finally:
            self._seeing.pop(uid, None)

    # -- preemption --------------------------------------------------------------------------------

    async def _make_room(self, pod: Object, plan: Preemption, fence: Fence, decision: str) -> None:
        """Nominate the pod and ask its victims to leave. If one may not, the place is given up."""
        options = WriteOptions(fence=fence, origin=Origin(decision=decision))
        try:
            status = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": plan.node}}
            await self._client.patch(pod.key, status, subresource="status", options=options)
            for victim in plan.victims:
                message = f"asked to leave {plan.node} for {pod.key}, which has a higher priority"
                self._teller.event(victim, "Preempted", message, decision=decision, fence=fence)
                with suppress(NotFound):  # it left by itself
                    asked = DeleteOptions(uid=victim.uid, fence=fence, origin=options.origin)
                    await self._client.evict(victim.key, asked)
                self._preempted.inc()
        except Fenced:
            raise
        except OperatingError:
            # A budget was spent meanwhile, or nobody answers: whoever was asked leaves, and the pod is tried anew.
            self.picture.drop_nomination(pod.uid)
            self.pending.retry(pod.uid)

    # -- gangs -------------------------------------------------------------------------------------

    def _attempt_gang(self, waiting: Waiting, fence: Fence) -> None:
        """Choose a node for every member, or for none."""
        assert waiting.gang is not None
        members = self.pending.take_gang(waiting)
        hold = next(filter(None, map(self._hold_on, members)), None)
        if hold is not None:
            self._wait_out(hold, members, fence)
            return
        record = self._gangs.record_of(waiting.gang)
        if record is not None:
            self._resume_gang(members, record, fence)
            return
        missing = self._gangs.missing(members)
        if missing:
            self._gang_waits(members, Change.GANG, missing, fence)
            return
        chosen: list[Member] = []
        for member in members:
            view = member.pod.as_view(PodView)
            attempt = self._attempts.begin(member, view, fence, self._env.monotonic())
            decision = self._decide(member, view, attempt)
            if decision.node is None:
                self._gang_fits_not(members, chosen, member, decision, fence, attempt)
                return
            assumption = self.picture.assume(member.pod, decision.node, decision.request)
            chosen.append(Member(member, assumption, (decision.node_uid, decision.node_revision), attempt))
        self._binder.start(self._gangs.bring, chosen, fence)

    def _gang_fits_not(
        self,
        members: list[Waiting],
        chosen: list[Member],
        misfit: Waiting,
        decision: Decision,
        fence: Fence,
        record: Record,
    ) -> None:
        """One has no place beside the others, so none has: take back what was assumed, and wait together."""
        explanation = explain(self.picture.snapshot, decision)
        for each in reversed(chosen):
            self.picture.take_back(each.assumption)
        helped_by = self._unschedulable(misfit, decision, explanation, fence, record)
        self._attempts.end(record, helpedBy=change_names(helped_by))
        assert misfit.gang is not None
        why = f"gang {misfit.gang[1]}: {misfit.key.name} has no place beside the others"
        for each in chosen:
            each.record.result, each.record.condition, each.record.reason = "failed", "PodScheduled", why
            self._attempts.end(each.record, helpedBy=change_names(helped_by))
        self._gang_waits([each for each in members if each is not misfit], helped_by, why, fence)

    def _gang_waits(self, members: list[Waiting], helped_by: Change, why: str, fence: Fence) -> None:
        for member in members:
            self.pending.unschedulable(member, helped_by | Change.GANG, ("gang", *(member.gang or ())))
            self._teller.unschedulable(member.pod, UNSCHEDULABLE, why, decision=self._attempts.latest, fence=fence)

    def _resume_gang(self, members: list[Waiting], record: Object, fence: Fence) -> None:
        """An earlier attempt left its record: bring a committed gang to its end, give up any other."""
        gang = members[0].gang
        assert gang is not None
        if record.as_view(ReservationView).status.phase != "Committed":
            self._binder.start(self._gangs.abandon, gang, members, fence)
            return
        placed: list[Member] = []
        for member in members:
            node = self.picture.snapshot.find(self.picture.reserved_node(member.uid))
            if node is not None:
                view = member.pod.as_view(PodView)
                attempt = self._attempts.begin(member, view, fence, self._env.monotonic())
                attempt.details.update(node=node.name, reserved=True)
                assumption = self.picture.assume(member.pod, node.name, self.picture.governance.request_of(view))
                placed.append(Member(member, assumption, (node.uid, node.revision), attempt))
        known = {each.waiting.uid for each in placed}
        others = [member for member in members if member.uid not in known]
        self._binder.start(self._gangs.finish, gang, placed, others, fence)
