"""The scheduling cycle: one attempt for a pod or a gang ends in a bind, a preemption, or a wait for events.

`attempt` never waits: binds and evictions run in parallel with the next attempts. `scheduler` calls it while it leads;
`binder` learns the outcome of each bind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress

from kedge.api.holds import HELD, Hold, active_hold
from kedge.api.objects import Object
from kedge.api.views import PodView, ReservationView
from kedge.api.wellknown import HOLD_PREFIX
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Fenced, NotFound, OperatingError
from kedge.keys import Fence, Key
from kedge.placement.resources import CPU, MEMORY
from kedge.runtime.cache import Behind
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.cycle.decide import NodeDecision, decide
from kedge.scheduler.cycle.gang_preemption import GangPreemption, GangPreemptor, plan_gang_preemption
from kedge.scheduler.cycle.gangs import Gangs, MemberPlacement
from kedge.scheduler.cycle.preemption import EvictionCheck, Preemption, PreemptionInputs, may_be_kept, plan_preemption
from kedge.scheduler.queue.events import NOTHING, ClusterEvent, event_names
from kedge.scheduler.queue.scheduling_queue import QueuedPod, SchedulingQueue
from kedge.scheduler.report.attempt_records import AttemptRecords, OpenAttempt
from kedge.scheduler.report.event_recorder import UNSCHEDULABLE, EventRecorder
from kedge.scheduler.report.explanation import Explanation, explain, summarize
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.nominations import Nomination
from kedge.scheduler.state.shapes import shape_key
from kedge.tasks import gather_ended

DrawFor = Callable[[Key], int]
"""The draw that breaks ties in an attempt for this pod."""
_COSTLY = 8
"""The cost of a gang, or of an attempt without a feasible node, in ordinary attempts."""


class SchedulingCycle:
    """Runs attempts, for one scheduler."""

    def __init__(
        self,
        client: Client,
        env: Env,
        cluster_state: ClusterState,
        queue: SchedulingQueue,
        attempts: AttemptRecords,
        binder: Binder,
        event_recorder: EventRecorder,
        scheduler: str,
        draw_for: DrawFor,
    ) -> None:
        self._draw_for = draw_for
        self._client = client
        self._env = env
        self._name = scheduler
        self._cluster_state = cluster_state
        self._queue = queue
        self._attempts = attempts
        self._binder = binder
        self._event_recorder = event_recorder
        self._gangs = Gangs(client, env, cluster_state, queue, binder, attempts)
        self._gang_preemptor = GangPreemptor(client, env, cluster_state, queue, attempts, event_recorder)
        self._wake_tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By pod uid and purpose: wake the pod when caches show the cause of a refusal, or when a quarantine ends."""
        metrics = env.metrics
        self._decision_seconds = metrics.histogram("kedge_scheduler_attempt_seconds", "Time a decision took")
        self._unschedulable_count = metrics.counter(
            "kedge_scheduler_attempts_total", "Attempts, by result", ("result",)
        ).labels("unschedulable")
        self._blockers = metrics.counter(
            "kedge_scheduler_blockers_total",
            "Attempts without a node, by each reason for which nodes were excluded",
            ("reason",),
        )
        self._preempted = metrics.counter("kedge_scheduler_preempted_total", "Pods evicted by preemption")

    async def stop(self) -> None:
        for task in tuple(self._wake_tasks.values()):
            task.cancel()
        await gather_ended(*self._wake_tasks.values())

    def attempt(self, queued: QueuedPod, fence: Fence) -> int:
        """Decide for one pod, or for its whole gang, and start the bind. Nothing waits in here.

        Returns its cost as a part of a burst: an attempt without a feasible node explains every node.
        """
        began_s, started = self._env.monotonic(), self._binder.started
        hold = self._hold_of(queued)
        if hold is not None:
            self._pause_held(hold, self._queue.take_gang(queued), fence)
            return 1
        if queued.gang is not None:
            self._attempt_gang(queued, fence)
        elif self._cluster_state.nominated:
            nomination = self._cluster_state.nominated.take(queued.uid)
            with self._cluster_state.nominated.hidden_below(queued.priority):
                self._attempt_pod(queued, fence, began_s, nomination)
        else:
            self._attempt_pod(queued, fence, began_s, None)
        self._decision_seconds.observe(self._env.monotonic() - began_s)
        return 1 if self._binder.started > started and queued.gang is None else _COSTLY

    def _hold_of(self, queued: QueuedPod) -> Hold | None:
        """The hold that keeps this scheduler from trying the pod, if there is one."""
        notes = queued.pod.metadata.annotations
        if not notes or not any(name.startswith(HOLD_PREFIX) for name in notes):
            return None
        return active_hold(queued.pod.metadata, self._name, self._env.now())

    def _pause_held(self, hold: Hold, members: Sequence[QueuedPod], fence: Fence) -> None:
        """A pod and its gang wait until the hold ends or is removed."""
        for each in members:
            self._queue.pause(each, (hold.until - self._env.now()).total_seconds(), "a hold has ended")
            if self._cluster_state.drop_nomination(each.uid) is not None:  # a held pod reserves no room
                self._event_recorder.clear_nomination(each.pod, decision=self._attempts.latest, fence=fence)
            self._event_recorder.unschedulable(each.pod, HELD, str(hold), decision=self._attempts.latest, fence=fence)

    def _attempt_pod(self, queued: QueuedPod, fence: Fence, began_s: float, nomination: Nomination | None) -> None:
        view = queued.pod.as_view(PodView)
        record = self._attempts.begin(queued, fence, began_s)
        place = self._cluster_state.reserved_node(queued.uid)
        reserved = self._cluster_state.snapshot.find(place) if place else None
        if reserved is not None and reserved.name not in self._binder.refusals.excluded(queued.uid):
            self._bind_reserved(queued, view, reserved, fence, record)
            return
        decision = self._decide(queued, record)
        if decision.node is None:
            self._handle_no_node(queued, view, decision, fence, record, nomination)
            return
        if self._attempts.will_be_kept(record):  # only now: the snapshot changes below
            self._attempts.explained(record, explain(self._cluster_state.snapshot, decision))
        assumption = self._cluster_state.assume(queued.pod, decision.node, decision.request)
        node = (decision.node_uid, decision.node_revision)
        self._binder.start(self._binder.bind, queued, assumption, node, fence, record)
        if nomination is not None and nomination.node != decision.node:
            self._cluster_state.notify_room(nomination.node, "a nomination was dropped")

    def _bind_reserved(
        self, queued: QueuedPod, view: PodView, node: NodeRow, fence: Fence, record: OpenAttempt
    ) -> None:
        """A reservation holds room for the pod, so there is nothing to decide. The bind proves the reservation."""
        assumption = self._cluster_state.assume(queued.pod, node.name, self._cluster_state.policies.request_of(view))
        self._attempts.reserved(record, node.name)
        self._binder.start(self._binder.bind, queued, assumption, (node.uid, node.revision), fence, record)

    def _decide(self, queued: QueuedPod, record: OpenAttempt) -> NodeDecision:
        decision = self._decision_of(queued)
        self._attempts.decided(record, decision)
        return decision

    def _decision_of(self, queued: QueuedPod) -> NodeDecision:
        cluster_state, policies = self._cluster_state, self._cluster_state.policies
        view = queued.pod.as_view(PodView)
        return decide(
            cluster_state.snapshot,
            policies.request_of(view),
            self._draw_for(queued.key),
            settings=policies.settings_of(view),
            room=cluster_state.quotas.room_of(queued.key.namespace),
            excluded=self._binder.refusals.excluded(queued.uid),
        )

    def _handle_no_node(
        self,
        queued: QueuedPod,
        view: PodView,
        decision: NodeDecision,
        fence: Fence,
        record: OpenAttempt,
        nomination: Nomination | None,
    ) -> None:
        explanation = explain(self._cluster_state.snapshot, decision)
        kept = (
            nomination is not None
            and may_be_kept(nomination, explanation)
            and self._cluster_state.nominated.waits_for_victims(nomination)
        )
        plan, more = None, NOTHING
        if not kept and view.spec.preemption_policy != "Never":
            plan, more = self._plan_preemption(queued, decision, explanation)
        unblocked_by = self._unschedulable(
            queued, decision, explanation, fence, record, more, preempts=kept or plan is not None
        )
        if nomination is not None and kept:
            self._cluster_state.nominated.put(queued.uid, nomination)  # its victims are still terminating
        else:
            if nomination is not None and (plan is None or plan.node != nomination.node):
                self._cluster_state.notify_room(nomination.node, "a nomination was dropped")
            if plan is not None:
                made = Nomination(plan.node, decision.request, queued.priority, plan.awaited)
                self._cluster_state.nominated.put(queued.uid, made)
                self._binder.start(self._preempt, queued.pod, plan, made, fence, record.id)
                self._attempts.nominated(record, plan.node, plan.victims)
        if view.status.nominated_node_name and queued.uid not in self._cluster_state.nominated:
            self._event_recorder.clear_nomination(queued.pod, decision=record.id, fence=fence)
        self._attempts.end(record, unblocked_by=event_names(unblocked_by))

    def _plan_preemption(
        self, queued: QueuedPod, decision: NodeDecision, explanation: Explanation
    ) -> tuple[Preemption | None, ClusterEvent]:
        """A preemption plan; and, without one, the event that may make it possible."""
        state = self._cluster_state
        check = EvictionCheck(state.evictable)
        inputs = PreemptionInputs(state.pods_on, check, state.nominated.places)
        plan = plan_preemption(state.snapshot, decision, explanation, queued.priority, inputs)
        if plan is None and (check.rejected_any or state.await_binds_below(queued.priority)):
            return None, ClusterEvent.BUDGET
        return plan, NOTHING

    def _unschedulable(
        self,
        queued: QueuedPod,
        decision: NodeDecision,
        explanation: Explanation,
        fence: Fence,
        record: OpenAttempt,
        more: ClusterEvent = NOTHING,
        *,
        preempts: bool = False,
    ) -> ClusterEvent:
        """Queue a pod for the events that may unblock it, and report why it is unschedulable."""
        unblocked_by = more | (ClusterEvent.NODE if queued.gang is None else ClusterEvent.NODE | ClusterEvent.GANG)
        for blocker in explanation.counts:
            unblocked_by |= blocker.unblocked_by
            self._blockers.labels(blocker.reason).inc_by(record.id)
        self._watch_refusals(queued)
        key: Hashable = (
            ("gang", *queued.gang)
            if queued.gang is not None
            else (
                shape_key(decision.request, decision.settings, self._cluster_state.snapshot.tallies.mentioned),
                decision.inputs,
                queued.priority,  # nominations hold room from lower priorities only
                queued.pod.as_view(PodView).spec.preemption_policy,  # one that never preempts fails where others do not
            )
        )
        message = summarize(decision, explanation)
        self._queue.unschedulable(queued, unblocked_by, key, preempts=preempts)
        self._event_recorder.unschedulable(queued.pod, UNSCHEDULABLE, message, decision=record.id, fence=fence)
        self._unschedulable_count.inc_by(record.id)
        self._attempts.explained(record, explanation)
        record.result, record.condition, record.reason = "failed", "PodScheduled", message
        return unblocked_by

    def _watch_refusals(self, queued: QueuedPod) -> None:
        """Wake a pod when one of its excluded nodes may be tried again.

        Caches catch up soon, a quarantine is long: each has its own task. A deleted node has no revision to wait for;
        if it returns, the event of a new node wakes the pod.
        """
        uid, refusals = queued.uid, self._binder.refusals
        if refusals.unseen(uid) and (uid, "seen") not in self._wake_tasks:
            self._wake_tasks[uid, "seen"] = self._env.spawn(
                self._wake_when_seen(uid), name=f"wait for the cause of refusals of {queued.key}"
            )
        if refusals.quarantined_until_s(uid) is not None and (uid, "quarantine") not in self._wake_tasks:
            self._wake_tasks[uid, "quarantine"] = self._env.spawn(
                self._wake_after_quarantine(uid), name=f"wait for the quarantine of {queued.key}"
            )

    async def _wake_when_seen(self, uid: str) -> None:
        """Wake a pod when the caches show the cause of its refusals."""
        try:
            for about, revision in self._binder.refusals.unseen(uid):
                cache = self._cluster_state.caches.get(about.kind)
                if cache is None:
                    continue
                try:
                    await cache.wait_floor(revision, within_s=self._env.limits.floor_wait_s)
                except Behind:
                    cache.request_relist()
        finally:
            self._wake_tasks.pop((uid, "seen"), None)
        self._queue.wake(uid, "the cache shows the cause of a refusal")

    async def _wake_after_quarantine(self, uid: str) -> None:
        refusals = self._binder.refusals
        try:
            while (until_s := refusals.quarantined_until_s(uid)) is not None:
                await asyncio.sleep(max(0.001, until_s - self._env.monotonic()))
                self._queue.wake(uid, "its quarantine is over")
        finally:
            self._wake_tasks.pop((uid, "quarantine"), None)

    # -- preemption --------------------------------------------------------------------------------

    async def _preempt(self, pod: Object, plan: Preemption, made: Nomination, fence: Fence, decision: str) -> None:
        """Nominate the pod and evict its victims. If an eviction is rejected, drop the nomination."""
        try:
            async with self._event_recorder.reports.begin(pod, decision, fence) as report:
                status = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": plan.node}}
                await report.patch(pod.key, status, "status")
                for victim in plan.victims:
                    message = f"evicted from {plan.node} for {pod.key}, which has a higher priority"
                    self._event_recorder.event(victim, "Preempted", message, decision=decision, fence=fence)
                    with suppress(NotFound):  # it was deleted meanwhile
                        await report.evict(victim.key, victim.uid)
                    self._preempted.inc()
        except (OperatingError, asyncio.CancelledError) as error:
            # A budget was used up meanwhile, a call failed, or the term has ended. Victims evicted so far still leave;
            # retry the pod, or it would wait for victims that were never evicted.
            now = self._cluster_state.nominated.places.get(pod.uid)
            if now is not None and (now.node, now.awaited) == (made.node, made.awaited):  # not a newer nomination
                self._cluster_state.drop_nomination(pod.uid)
                self._queue.retry(pod.uid)
            if isinstance(error, Fenced | asyncio.CancelledError):
                raise

    # -- gangs -------------------------------------------------------------------------------------

    def _attempt_gang(self, queued: QueuedPod, fence: Fence) -> None:
        """Choose a node for every member, or for none."""
        assert queued.gang is not None
        members = self._queue.take_gang(queued)
        nominated = {each.uid: self._cluster_state.nominated.take(each.uid) for each in members}
        if not self._place_gang(queued.gang, members, nominated, fence):
            for uid, nomination in nominated.items():
                if nomination is not None and uid not in self._cluster_state.nominated:
                    self._cluster_state.notify_room(nomination.node, "a nomination was dropped")
            for each in members:
                if (
                    each.pod.as_view(PodView).status.nominated_node_name
                    and each.uid not in self._cluster_state.nominated
                ):
                    self._event_recorder.clear_nomination(each.pod, decision=self._attempts.latest, fence=fence)

    def _place_gang(
        self,
        gang: tuple[str, str],
        members: list[QueuedPod],
        nominated: Mapping[str, Nomination | None],
        fence: Fence,
    ) -> bool:
        """Choose a node for every member and reserve. Returns whether all have one."""
        hold = next(filter(None, map(self._hold_of, members)), None)
        if hold is not None:
            self._pause_held(hold, members, fence)
            return False
        record = self._gangs.record_of(gang)
        if record is not None and not self._gangs.may_go_on(record, members):
            self._resume_gang(members, record, fence)
            return False
        missing = self._gangs.missing(members)
        if missing:
            self._gang_waits(members, ClusterEvent.GANG, missing, fence)
            return False
        # Members that an earlier attempt reserved for keep their places: sending the chunk again confirms them.
        chosen = [] if record is None else self._reserved_members(members, fence)
        kept = {each.queued.uid for each in chosen}
        for member in sorted((each for each in members if each.uid not in kept), key=self._size, reverse=True):
            with self._cluster_state.nominated.hidden_below(member.priority):
                attempt = self._attempts.begin(member, fence, self._env.monotonic())
                decision = self._decide(member, attempt)
                if decision.node is None and record is not None:
                    self._give_up_record(gang, members, chosen, fence, attempt)
                    return False
                if decision.node is None:
                    self._gang_does_not_fit(members, chosen, member, decision, fence, attempt, nominated)
                    return False
            assumption = self._cluster_state.assume(member.pod, decision.node, decision.request)
            chosen.append(MemberPlacement(member, assumption, (decision.node_uid, decision.node_revision), attempt))
        self._binder.start(self._gangs.reserve_and_bind, gang, chosen, fence)
        return True

    def _size(self, member: QueuedPod) -> tuple[int, int]:
        """The largest member chooses first: small ones fit into the rest more often than the other way round."""
        requests = self._cluster_state.policies.request_of(member.pod.as_view(PodView)).requirements.requests
        return requests.get(CPU, 0), requests.get(MEMORY, 0)

    def _gang_does_not_fit(
        self,
        members: list[QueuedPod],
        chosen: list[MemberPlacement],
        misfit: QueuedPod,
        decision: NodeDecision,
        fence: Fence,
        record: OpenAttempt,
        nominated: Mapping[str, Nomination | None],
    ) -> None:
        """One member does not fit beside the others, so none is placed: undo the assumptions, and wait together.

        If pods of lower priority are in the way, they are preempted for the whole gang; victims of an earlier attempt
        are waited for first.
        """
        explanation = explain(self._cluster_state.snapshot, decision)
        for each in reversed(chosen):
            self._cluster_state.undo_assume(each.assumption)
        plan, more = self._plan_gang_preemption(members, explanation, nominated)
        unblocked_by = self._unschedulable(misfit, decision, explanation, fence, record, more)
        if plan is not None:
            for member, nomination in plan.places:
                self._cluster_state.nominated.put(member.uid, nomination)
            self._binder.start(self._gang_preemptor.preempt, plan, fence, record, event_names(unblocked_by))
        else:
            self._attempts.end(record, unblocked_by=event_names(unblocked_by))
        assert misfit.gang is not None
        why = f"gang {misfit.gang[1]}: {misfit.key.name} does not fit beside the others"
        for each in chosen:
            each.record.result, each.record.condition, each.record.reason = "failed", "PodScheduled", why
            self._attempts.end(each.record, unblocked_by=event_names(unblocked_by))
        self._gang_waits([each for each in members if each is not misfit], unblocked_by, why, fence)

    def _plan_gang_preemption(
        self, members: list[QueuedPod], explanation: Explanation, nominated: Mapping[str, Nomination | None]
    ) -> tuple[GangPreemption | None, ClusterEvent]:
        places = self._cluster_state.nominated
        if any(each is not None and places.waits_for_victims(each) for each in nominated.values()):
            for uid, nomination in nominated.items():
                if nomination is not None:
                    places.put(uid, nomination)
            return None, NOTHING
        never = any(each.pod.as_view(PodView).spec.preemption_policy == "Never" for each in members)
        if never or not any(blocker.preemptible for blocker in explanation.counts):
            return None, NOTHING
        order = sorted(members, key=self._size, reverse=True)
        plan, protected = plan_gang_preemption(self._cluster_state, order, self._decision_of)
        least = min(each.priority for each in members)
        if plan is None and (protected or self._cluster_state.await_binds_below(least)):
            return None, ClusterEvent.BUDGET
        return plan, NOTHING

    def _gang_waits(self, members: list[QueuedPod], unblocked_by: ClusterEvent, why: str, fence: Fence) -> None:
        for member in members:
            self._queue.unschedulable(member, unblocked_by | ClusterEvent.GANG, ("gang", *(member.gang or ())))
            self._event_recorder.unschedulable(
                member.pod, UNSCHEDULABLE, why, decision=self._attempts.latest, fence=fence
            )

    def _give_up_record(
        self,
        gang: tuple[str, str],
        members: list[QueuedPod],
        chosen: list[MemberPlacement],
        fence: Fence,
        misfit: OpenAttempt,
    ) -> None:
        """The others do not fit beside the places that an earlier attempt reserved: free those, and choose again."""
        for each in chosen:
            self._cluster_state.forget(each.queued.uid)
        for attempt in (*(each.record for each in chosen), misfit):
            self._attempts.abandoned(attempt, f"gang {gang[1]}: the others do not fit beside the reserved places")
        self._binder.start(self._gangs.abandon, gang, members, fence)

    def _reserved_members(self, members: list[QueuedPod], fence: Fence) -> list[MemberPlacement]:
        """Members whose place is reserved, assumed there."""
        placed: list[MemberPlacement] = []
        for member in members:
            node = self._cluster_state.snapshot.find(self._cluster_state.reserved_node(member.uid))
            if node is not None:
                view = member.pod.as_view(PodView)
                attempt = self._attempts.begin(member, fence, self._env.monotonic())
                self._attempts.reserved(attempt, node.name)
                assumption = self._cluster_state.assume(
                    member.pod, node.name, self._cluster_state.policies.request_of(view)
                )
                placed.append(MemberPlacement(member, assumption, (node.uid, node.revision), attempt))
        return placed

    def _resume_gang(self, members: list[QueuedPod], record: Object, fence: Fence) -> None:
        """An earlier attempt left a record that cannot be used as it is: finish a committed gang, abandon any other."""
        gang = members[0].gang
        assert gang is not None
        if record.as_view(ReservationView).status.phase != "Committed":
            self._binder.start(self._gangs.abandon, gang, members, fence)
            return
        placed = self._reserved_members(members, fence)
        known = {each.queued.uid for each in placed}
        others = [member for member in members if member.uid not in known]
        self._binder.start(self._gangs.bind_committed, gang, placed, others, fence)
