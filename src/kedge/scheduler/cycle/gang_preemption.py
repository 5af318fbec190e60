"""Preemption for gangs: room for every member is planned before any pod is evicted.

`plan_gang_preemption` is pure but for the snapshot, which it restores: it places the members one after the other, each
beside those before it and without their victims. `GangPreemptor` evicts them; if one eviction is refused, the rest
stay, and the record of the attempt names the pods that left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kedge.api.objects import Object
from kedge.api.requests import ListOptions
from kedge.api.wellknown import DISRUPTION_BUDGET_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Fenced, NotFound, OperatingError, TooManyRequests
from kedge.keys import Fence
from kedge.scheduler.cycle.decide import NodeDecision
from kedge.scheduler.cycle.preemption import EvictionCheck, PreemptionInputs, plan_preemption
from kedge.scheduler.queue.scheduling_queue import QueuedPod, SchedulingQueue
from kedge.scheduler.report.attempt_records import AttemptRecords, OpenAttempt
from kedge.scheduler.report.event_recorder import EventRecorder
from kedge.scheduler.report.explanation import explain
from kedge.scheduler.report.report_records import Report
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.scheduler.state.disruption_budgets import evictable
from kedge.scheduler.state.nominations import Nomination, nominated_claim
from kedge.scheduler.state.shapes import PodRequest


@dataclass(frozen=True, slots=True)
class GangPreemption:
    """A node for every member, and all victims in the order in which they are evicted."""

    places: tuple[tuple[QueuedPod, Nomination], ...]
    victims: tuple[Object, ...]


def plan_gang_preemption(
    state: ClusterState, members: Sequence[QueuedPod], decide: Callable[[QueuedPod], NodeDecision]
) -> tuple[GangPreemption | None, bool]:
    """The plan; None if evicting pods of lower priority than every member does not make room for all.

    Also returns whether a disruption budget protected a pod.
    """
    priority = min(each.priority for each in members)
    snapshot, victims, places = state.snapshot, list[Object](), list[tuple[QueuedPod, Nomination]]()
    off: list[tuple[str, str, PodRequest]] = []
    check = EvictionCheck(lambda pods: state.evictable([*victims, *pods])[len(victims) :])
    going: set[str] = set()
    inputs = PreemptionInputs(
        lambda node: [pod for pod in state.pods_on(node) if pod.uid not in going], check, state.nominated.places
    )
    complete = True
    with state.nominated.hidden_below(priority):
        for member in members:
            decision, awaited = decide(member), frozenset[str]()
            node = decision.node
            if node is None:
                plan = plan_preemption(snapshot, decision, explain(snapshot, decision), priority, inputs)
                if plan is None:
                    complete = False
                    break
                node, awaited = plan.node, plan.awaited
                victims.extend(plan.victims)
                going |= awaited
                for uid in sorted(awaited):
                    if (claim := snapshot.claim(uid)) is not None:
                        off.append((uid, claim.node, claim.request))
                        snapshot.remove_claim(uid)
            snapshot.add_claim(nominated_claim(member.uid), node, decision.request)
            places.append((member, Nomination(node, decision.request, member.priority, awaited)))
        for member, _ in places:
            snapshot.remove_claim(nominated_claim(member.uid))
        for uid, node, request in off:
            snapshot.add_claim(uid, node, request)
    found = GangPreemption(tuple(places), tuple(victims)) if complete and going else None
    return found, check.rejected_any


class GangPreemptor:
    """Carries out plans, for one scheduler."""

    def __init__(
        self,
        client: Client,
        env: Env,
        cluster_state: ClusterState,
        queue: SchedulingQueue,
        attempts: AttemptRecords,
        event_recorder: EventRecorder,
    ) -> None:
        self._client = client
        self._cluster_state = cluster_state
        self._queue = queue
        self._attempts = attempts
        self._event_recorder = event_recorder
        self._preempted = env.metrics.counter("kedge_scheduler_preempted_total", "Pods evicted by preemption")

    async def preempt(
        self, plan: GangPreemption, fence: Fence, record: OpenAttempt, unblocked_by: Sequence[str]
    ) -> None:
        """Evict the victims, if the budgets still allow all of them. The first refusal spares the rest."""
        left: list[Object] = []
        gone: list[Object] = []
        try:
            await self._check_budgets(plan.victims)
            async with self._event_recorder.reports.begin(plan.places[0][0].pod, record.id, fence) as report:
                await self._nominate(plan, report)
                for victim in plan.victims:
                    try:
                        await report.evict(victim.key, victim.uid)
                    except NotFound:  # it was deleted meanwhile, by another client
                        gone.append(victim)
                        continue
                    left.append(victim)
                    self._preempted.inc()
                    message = f"evicted for gang {plan.places[0][0].key}, which has a higher priority"
                    self._event_recorder.event(victim, "Preempted", message, decision=record.id, fence=fence)
        except (Fenced, asyncio.CancelledError):
            self._drop(plan)  # or the gang would wait, in the next term, for victims that were never evicted
            raise
        except OperatingError as error:
            spared = ", ".join(str(each.key) for each in plan.victims[len(left) + len(gone) :])
            record.error = f"{type(error).__name__}: {error}; spared: {spared or 'none'}"
            self._drop(plan)
        finally:
            names = ", ".join(str(each.key) for each in left) or "none"
            record.reason += f"; evicted for the gang: {names}"
            if gone:
                record.reason += f"; already gone: {', '.join(str(each.key) for each in gone)}"
            self._attempts.nominated(record, plan.places[0][1].node, left)
            self._attempts.end(record, unblocked_by=unblocked_by)

    async def _check_budgets(self, victims: Sequence[Object]) -> None:
        """Read the budgets from the API server before the first eviction: the caches may be behind."""
        kind = self._client.kinds.of_key_kind(DISRUPTION_BUDGET_KIND)
        budgets: dict[str, Sequence[Object]] = {}
        for namespace in dict.fromkeys(each.key.namespace for each in victims):
            budgets[namespace] = (await self._client.list(kind, ListOptions(namespace=namespace))).objects
        allowed = {each.uid for each in evictable(victims, lambda namespace: budgets[namespace])}
        protected = [str(each.key) for each in victims if each.uid not in allowed]
        if protected:
            raise TooManyRequests(f"disruption budgets protect {', '.join(protected)}: no pod is evicted for the gang")

    async def _nominate(self, plan: GangPreemption, report: Report) -> None:
        for member, nomination in plan.places:
            if nomination.awaited:
                status = {"metadata": {"uid": member.uid}, "status": {"nominatedNodeName": nomination.node}}
                await report.patch(member.key, status, "status")

    def _drop(self, plan: GangPreemption) -> None:
        """The pods evicted so far still leave; the gang is tried again."""
        for member, made in plan.places:
            now = self._cluster_state.nominated.places.get(member.uid)
            if now is not None and (now.node, now.awaited) == (made.node, made.awaited):  # not a newer nomination
                self._cluster_state.drop_nomination(member.uid)
        self._queue.retry(plan.places[0][0].uid)
