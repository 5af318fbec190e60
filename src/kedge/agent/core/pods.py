"""Pod workers: each observes one pod, plans, acts, and observes again when woken.

A worker keeps in memory only probe results and the times of its first observations; the rest is in the API and the
driver, so that a restarted agent continues where it stopped. Nothing is stopped or confirmed from a cache alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from kedge.agent.core.driver import CannotStart, ContainerProcess, Driver, Identity, PullFailed
from kedge.agent.core.node import NodeRegistration
from kedge.agent.core.plan import Ending, Health, PodObservation, PodPlan, Start, latest, plan_pod
from kedge.agent.core.probes import Prober, has_probes
from kedge.agent.core.status import pod_status
from kedge.api.holds import active_hold, next_hold_end
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.api.views import NodeAllocationView, PodView
from kedge.api.wellknown import AT_MOST_ONE, BIND_ANNOTATION, NODE_ALLOCATION_KIND, NODE_KIND
from kedge.backoff import Backoff
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Conflict, NotFound, OperatingError, Unavailable
from kedge.keys import Key, Revision
from kedge.placement.ledger import ClaimState
from kedge.runtime.status import plan_status

NAME = "agent"
"""The name under which a hold applies to the agent."""


class WorkerContext:
    """The means that the workers of one node share."""

    def __init__(self, client: Client, env: Env, driver: Driver, node: NodeRegistration) -> None:
        self.client = client
        self.env = env
        self.driver = driver
        self.node = node
        metrics = env.metrics
        self.starts = metrics.counter("kedge_agent_starts_total", "Processes started, by kind of start", ("kind",))
        self.retries = metrics.counter("kedge_agent_retries_total", "Pod syncs that failed and were repeated")

    async def of_pod(self, uid: str) -> tuple[ContainerProcess, ...]:
        return tuple(each for each in await self.driver.processes() if each.identity.pod_uid == uid)

    async def claim_is_held(self, pod_uid: str, node_uid: str) -> bool | None:
        """Whether this incarnation's ledger has the pod's claim, which the bind recorded. None if that is not known."""
        found = await self.client.find(Key(NODE_ALLOCATION_KIND, "", self.node.name))
        if found is None or not node_uid:
            return None
        ledger = found.as_view(NodeAllocationView)
        if ledger.spec.node_uid != node_uid:
            return None  # the claims of an earlier incarnation are still being released
        entry = ledger.status.entries.get(pod_uid)
        return entry is not None and entry.state == ClaimState.BOUND


class PodWorker:
    """Runs one pod, known by its uid, until nothing of it is left on this node."""

    def __init__(self, context: WorkerContext, uid: str, key: Key, on_done: Callable[[str], None]) -> None:
        self._context = context
        self._env = context.env
        self._driver = context.driver
        self.uid = uid
        self.key = key
        self._seen: Object | None = None
        """The newest version known, from the watch, a read or an own write."""
        self._unconfirmed = True
        """The cache has no pod of this uid: read it from the API server before anything else."""
        self._written: Revision = 0
        self._over = False
        """The pod's end is in its status, which freed its claim: nothing is left to confirm."""
        self._disowned = False
        self.awaits_contact = False
        """A status write waits for the next heartbeat."""
        self._last_written: Object | None = None
        """The version that this worker wrote last."""
        self._last_written_s = -math.inf
        self._first_s = self._env.monotonic()
        self._leaving_s: float | None = None
        self._probers: dict[Identity, Prober] = {}
        self._waiting: dict[str, dict[str, str]] = {}
        """The `waiting` state of containers that could not be started."""
        self._wake = asyncio.Event()
        self._on_done = on_done
        self._task = self._env.spawn(self._run(), name=f"pod {key.namespace}/{key.name}")

    def update(self, found: Object | None) -> None:
        """Take over the cached version. None: the cache has no pod of this uid on this node."""
        if found is None:
            self._unconfirmed = True
        elif found.revision >= self._written:
            self._seen, self._unconfirmed = found, False
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._task.cancel()
        for prober in self._probers.values():
            prober.stop()

    # -- the loop ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        backoff = Backoff(self._env.limits.agent_retry_s, self._env.limits.agent_retry_s_max)
        while True:
            self._wake.clear()
            pause_s: float | None
            try:
                done, pause_s = await self._sync()
                failures = 0
            except OperatingError:
                done, failures = False, failures + 1
                self._context.retries.inc()
                pause_s = backoff.pause_s(failures, self._env.random)
            if done:
                self._on_done(self.uid)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _sync(self) -> tuple[bool, float | None]:
        """Observe, plan and act once. Returns whether the pod is finished, and when to sync again at the latest."""
        processes = await self._context.of_pod(self.uid)
        pod = await self._pod()
        self._update_probers(pod, processes)
        observation = self._observe(pod, processes)
        plan = plan_pod(observation, self._env.limits)
        for stop in plan.stop:
            await self._driver.stop(stop.process.identity, grace_s=stop.grace_s)
        if plan.ending is Ending.CONFIRM:
            await self._confirm(processes)
            return True, None
        if self._seen is None or pod is None:
            return False, None  # its processes wake this worker when they end
        if plan.start:
            await self._write_status(observation, plan)  # before the start, which may take long
            await self._start_all(pod, plan)
            return await self._sync_after_start()
        await self._write_status(observation, plan)
        if plan.ending is Ending.REMOVE:
            await self._remove()
        return False, self._resync_s(pod, plan)

    def _resync_s(self, pod: PodView, plan: PodPlan) -> float | None:
        """When time alone may change the plan, or the conditions about holds."""
        ends = next_hold_end(pod, self._env.now())
        if ends is None:
            return plan.resync_s
        left_s = max(0.0, (ends - self._env.now()).total_seconds())
        return left_s if plan.resync_s is None else min(left_s, plan.resync_s)

    async def _sync_after_start(self) -> tuple[bool, float | None]:
        """Write the status after a start. Containers that could not be started are retried with backoff."""
        processes = await self._context.of_pod(self.uid)
        if self._seen is None or self._unconfirmed or self._disowned:
            return False, 0.0
        pod = self._seen.as_view(PodView)
        self._update_probers(pod, processes)
        observation = self._observe(pod, processes)
        plan = plan_pod(observation, self._env.limits)
        await self._write_status(observation, plan)
        if plan.start:
            raise Unavailable(f"{self.key} could not be started yet: the agent tries again", key=self.key)
        return False, 0.0 if plan.stop or plan.ending else plan.resync_s

    def _observe(self, pod: PodView | None, processes: Sequence[ContainerProcess]) -> PodObservation:
        now_s = self._env.monotonic()
        hold = None if pod is None else active_hold(pod, NAME, self._env.now())
        if pod is not None and pod.terminating and self._leaving_s is None and hold is None:
            self._leaving_s = now_s  # its grace begins when it may be stopped
        started = pod.status.start_time if pod is not None else None
        age_s = now_s - self._first_s
        if started is not None:
            age_s = max(age_s, (self._env.now() - started).total_seconds())
        health: dict[str, Health] = {i.container: prober.health for i, prober in self._probers.items()}
        return PodObservation(
            pod=pod,
            processes=processes,
            health=health,
            now_s=now_s,
            age_s=age_s,
            leaving_s=0.0 if self._leaving_s is None else now_s - self._leaving_s,
            disowned=self._disowned,
            held_s=None if hold is None else max(0.0, (hold.until - self._env.now()).total_seconds()),
        )

    async def _pod(self) -> PodView | None:
        """The pod as last observed. That it is gone or finished is confirmed at the API server first."""
        seen = self._seen
        if seen is not None and not self._unconfirmed and not seen.as_view(PodView).finished:
            return seen.as_view(PodView)
        # The reply to an earlier own write may arrive after the deletion event, and a deletion event may arrive while
        # this read is in flight: the read settles only what was unconfirmed before it began.
        self._unconfirmed = False
        try:
            fresh = await self._context.client.find(self.key)
        except OperatingError:
            self._unconfirmed = True
            raise
        if fresh is None or fresh.uid != self.uid:
            self._unconfirmed = True
            return None
        self._note(fresh)
        return fresh.as_view(PodView)

    def _note(self, newer: Object) -> None:
        """Remember a version that this worker read or wrote: an older one from the cache is ignored."""
        self._written = max(self._written, newer.revision)
        self._over = self._over or newer.as_view(PodView).finished
        if self._seen is None or newer.revision >= self._seen.revision:
            self._seen = newer

    # -- acts --------------------------------------------------------------------------------------

    async def _start_all(self, pod: PodView, plan: PodPlan) -> None:
        for start in plan.start:
            name = start.container.name
            try:
                await self._driver.pull(start.container.image)
            except PullFailed:
                self._waiting[name] = {"reason": "ImagePullBackOff"}
                continue
            if self._waiting.get(name, {}).get("reason") == "ImagePullBackOff":
                del self._waiting[name]
            node_uid = await self._may_start()
            if not node_uid or node_uid != self._context.node.uid:
                return
            try:
                await self._start(pod, start, node_uid)
                self._waiting.pop(name, None)
            except CannotStart as error:
                self._waiting[name] = {"reason": error.waiting, "message": error.message}

    async def _may_start(self) -> str:
        """Prove on committed state, after the image pull, that the pod is bound to this node incarnation and wanted.

        Returns the incarnation for which this holds; empty if it does not, or was not proved in time.
        """
        context = self._context
        node_uid, asked_s = context.node.uid, self._env.monotonic()
        fresh = await context.client.find(self.key)
        if fresh is None or fresh.uid != self.uid:
            self._unconfirmed = True
            return ""
        self._note(fresh)
        view = fresh.as_view(PodView)
        if view.spec.node_name != context.node.name or view.terminating or view.finished:
            return ""
        # The ledger is read after the pod: the bind wrote both, so a claim that is missing now was released.
        held = await context.claim_is_held(self.uid, node_uid)
        self._disowned = held is False
        in_time = self._env.monotonic() - asked_s <= self._env.limits.agent_proof_s
        return node_uid if held and in_time else ""

    async def _start(self, pod: PodView, start: Start, node_uid: str) -> None:
        bound_at = _bind_revision(pod, self._context.node.name)
        identity = Identity(self.uid, start.container.name, start.attempt, bound_at, node_uid)
        keep_s = self._context.node.keep_s() if is_at_most_one(pod) else None
        if keep_s is not None and keep_s <= 0:
            return  # too long without contact to start a process that must not run twice
        await self._driver.start(identity, pod, start.container, keep_s=keep_s)
        self._context.starts.labels("restart" if start.attempt else "first").inc()
        for old in await self._context.of_pod(self.uid):
            if old.identity.container == identity.container and old.identity.attempt < start.attempt - 1:
                await self._driver.forget(old.identity)

    @property
    def at_most_one(self) -> bool:
        return self._seen is not None and is_at_most_one(self._seen.as_view(PodView))

    async def keep(self) -> None:
        """The API confirmed a heartbeat: extend the time of at-most-one processes."""
        for process in await self._context.of_pod(self.uid):
            if process.running:
                await self._driver.keep(process.identity, self._context.node.keep_s())

    def _update_probers(self, pod: PodView | None, processes: Sequence[ContainerProcess]) -> None:
        """One prober for each running process that has probes."""
        wanted: dict[Identity, Any] = {}
        if pod is not None and not pod.finished:
            for container in (*pod.spec.init_containers, *pod.spec.containers):
                process = latest(processes, container.name)
                if process is not None and process.running and has_probes(container):
                    wanted[process.identity] = container
        for identity in [each for each in self._probers if each not in wanted]:
            self._probers.pop(identity).stop()
        for identity, container in wanted.items():
            if identity not in self._probers:
                self._probers[identity] = Prober(self._driver, self._env, identity, container, self.wake)

    async def _write_status(self, observation: PodObservation, plan: PodPlan) -> None:
        seen, pod = self._seen, observation.pod
        if seen is None or pod is None or pod.finished:
            return  # its end was its final status
        now = self._env.now()
        status = pod_status(
            pod,
            observation,
            plan,
            now=now,
            address=self._driver.address(self.uid),
            waiting=self._waiting,
        )
        patch = plan_status(seen, status, now)
        # 1. The link is restored. 2. This writes Ready. 3. The node lifecycle, which has no heartbeat yet, writes
        # Unknown. 4. This writes Ready. So a heartbeat goes first: after one the lifecycle does not write Unknown.
        self.awaits_contact = patch is not None and not self._context.node.in_contact
        if self.awaits_contact:
            raise Unavailable(f"{self.key} waits for the next heartbeat before its status is written", key=self.key)
        if patch is None:
            return
        if not plan.ending and self._is_contradicted(status, now):
            self.awaits_contact = True
            return
        patch["metadata"]["uid"] = self.uid
        try:
            self._last_written = (await self._context.client.patch(self.key, patch, subresource="status")).object
            self._last_written_s = self._env.monotonic()
            self._note(self._last_written)
        except Conflict:
            # Another writer was faster: write the status on the new version at the next sync.
            fresh = await self._context.client.find(self.key)
            if fresh is not None and fresh.uid == self.uid:
                self._note(fresh)
            raise

    def _is_contradicted(self, status: Mapping[str, Any], now: datetime) -> bool:
        """Whether this status was written since the last heartbeat and then overwritten: a writer with outdated leases
        would overwrite it again, so it is written once more after the next heartbeat."""
        return (
            self._last_written is not None
            and self._context.node.contact_s <= self._last_written_s
            and plan_status(self._last_written, status, now) is None
        )

    async def _remove(self) -> None:
        """The pod's end is in its status: remove the object."""
        with suppress(NotFound, Conflict):
            written = await self._context.client.delete(self.key, DeleteOptions(uid=self.uid, grace_s=0))
            if not written.removed:
                self._note(written.object)  # finalizers keep it; its end is recorded

    async def _confirm(self, processes: Sequence[ContainerProcess]) -> None:
        """Confirm that no process of the pod runs here, which frees the claim of a force-deleted pod, and forget it."""
        context = self._context
        if context.node.uid and not self._over:
            with suppress(NotFound, Conflict):  # no ledger, or that of another incarnation: no claim of ours is in it
                await context.client.confirm_ended(node=context.node.name, node_uid=context.node.uid, pod_uid=self.uid)
        for process in processes:
            await self._driver.forget(process.identity)


def is_at_most_one(pod: PodView) -> bool:
    return pod.metadata.annotations.get(AT_MOST_ONE) == "true"


class _BindRecord(msgspec.Struct):
    proved_on: dict[str, int] = msgspec.field(name="provedOn", default_factory=dict)


def _bind_revision(pod: PodView, node: str) -> Revision:
    """The node's revision that the bind proved; 0 for a pod that was never bound by a scheduler."""
    text = pod.metadata.annotations.get(BIND_ANNOTATION, "")
    if not text:
        return 0
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(text, type=_BindRecord).proved_on.get(str(Key(NODE_KIND, "", node)), 0)
    return 0
