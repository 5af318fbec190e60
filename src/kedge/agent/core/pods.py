"""Pod workers: each observes one pod, plans, acts, and observes again when woken.

A worker keeps in memory only probe results and the times of its first observations; the rest is in the API and the
driver, so that a restarted agent continues where it stopped. Nothing is stopped or confirmed from a cache alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any

from kedge.agent.core import pod_acts
from kedge.agent.core.config import container_setup
from kedge.agent.core.driver import CannotStart, ContainerProcess, ContainerSetup, Identity, PullFailed
from kedge.agent.core.hooks import PodHooks
from kedge.agent.core.plan import (
    HEALTHY,
    POST_START_FAILED,
    Ending,
    Health,
    PodObservation,
    PodPlan,
    Start,
    latest,
    plan_pod,
)
from kedge.agent.core.pod_evidence import StatusInputs, planned_status
from kedge.agent.core.pod_records import bind_revision
from kedge.agent.core.probes import Prober, has_probes
from kedge.agent.core.resize import NO_RESIZE, PodResizer, ResizeStage, Verdict, needs_decision, plan_resize
from kedge.agent.core.volume_refresh import VolumeRefresh
from kedge.agent.core.worker_context import WorkerContext
from kedge.api.holds import active_hold, next_hold_end
from kedge.api.objects import Object
from kedge.api.views import Container, PodView
from kedge.api.wellknown import AT_MOST_ONE, BIND_ANNOTATION, NODE_ALLOCATION_KIND
from kedge.backoff import Backoff
from kedge.errors import Conflict, NotFound, OperatingError, Unavailable
from kedge.keys import Key, Revision
from kedge.placement.admission import Rejection, admitted, first_rejection
from kedge.placement.ledger import ClaimState
from kedge.runtime.status import plan_status

NAME = "agent"
"""The name under which a hold applies to the agent."""


class Admission(Enum):
    """Whether a pod that was created with this node's name still waits for its admission."""

    UNKNOWN = "unknown"
    WAITS = "waits"
    NEEDLESS = "needless"
    """A bind placed it, or the node has admitted it, or it has no claim."""


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
        self._admission = Admission.UNKNOWN
        self._rejection: Rejection | None = None
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
        self._hooks = PodHooks(context.driver, self._env, context.hooks, self.wake)
        self._files = VolumeRefresh(context.driver, self._env, context.refreshes, context.surroundings, context.tokens)
        self._resizer = PodResizer(context.driver, context.resizes, context.committed)
        self._resize = NO_RESIZE
        self._resize_failed = ""
        """Why the resize could not be applied."""
        self._resize_rejection: Rejection | None = None
        self._on_done = on_done
        self._records = context.records.of_pod(uid, key, lambda: context.node.uid)
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
        self._close()

    def _close(self) -> None:
        for prober in self._probers.values():
            prober.stop()
        self._hooks.close()

    # -- the loop ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        backoff = Backoff(self._env.limits.agent_retry_s, self._env.limits.agent_retry_s_max)
        while True:
            self._wake.clear()
            pause_s: float | None
            self._records.begin(failures + 1)
            try:
                done, pause_s = await self._sync()
                failures = 0
                self._records.end(self._seen)
            except OperatingError as error:
                self._records.end(self._seen, error)
                done, failures = False, failures + 1
                self._context.retries.inc()
                pause_s = backoff.pause_s(failures, self._env.random)
            if done:
                self._close()
                self._on_done(self.uid)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _sync(self) -> tuple[bool, float | None]:
        """Observe, plan and act once. Returns whether the pod is finished, and when to sync again at the latest."""
        processes = await self._context.of_pod(self.uid)
        for failed in self._hooks.take_failed_stops():
            self._records.note(pod_acts.pre_stop_failed(*failed))
        pod = await self._pod()
        seen = self._seen
        if pod is not None and not processes and self._may_be_unadmitted(pod):
            await self._check_admission(pod)
        self._update_probers(pod, processes)
        await self._check_resize(pod, processes)
        observation = self._observe(pod, processes)
        plan = plan_pod(observation, self._env.limits)
        self._records.planned(seen, observation, plan)
        for stop in plan.stop:
            container = None if pod is None else _container_of(pod, stop.process.identity.container)
            await self._hooks.stop(stop.process.identity, container, stop.grace_s, stop.cause)
        if plan.ending is Ending.CONFIRM:
            await self._confirm(processes)
            if pod is None:
                await self._driver.remove(self.uid)
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
        elif await self._resizes_on(observation, plan):
            return False, 0.0
        await self._files.refresh(pod, processes)
        return False, self._resync_s(pod, plan)

    def _resync_s(self, pod: PodView, plan: PodPlan) -> float | None:
        """When time alone may change the plan, or the conditions about holds."""
        ends = next_hold_end(pod, self._env.now())
        held_s = None if ends is None else max(0.0, (ends - self._env.now()).total_seconds())
        unsized = self._resizer.pending or bool(self._resize_failed)
        resize_s = self._env.limits.agent_resize_s if unsized and not pod.terminating else None
        waits = (plan.resync_s, held_s, resize_s, None if pod.terminating else self._files.left_s(pod))
        return min((each for each in waits if each is not None), default=None)

    async def _sync_after_start(self) -> tuple[bool, float | None]:
        """Write the status after a start. Containers that could not be started are retried with backoff."""
        processes = await self._context.of_pod(self.uid)
        if self._seen is None or self._unconfirmed or self._disowned:
            return False, 0.0
        seen = self._seen
        pod = seen.as_view(PodView)
        self._update_probers(pod, processes)
        await self._check_resize(pod, processes)
        observation = self._observe(pod, processes)
        plan = plan_pod(observation, self._env.limits)
        self._records.planned(seen, observation, plan)
        await self._write_status(observation, plan)
        if plan.start:
            raise Unavailable(f"{self.key} could not be started yet: the agent tries again", key=self.key)
        return False, 0.0 if plan.stop or plan.ending else self._resync_s(pod, plan)

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
        for process in processes:
            identity = process.identity
            if not process.running:
                self._hooks.forget(identity)
            elif identity in self._hooks.failed or self._hooks.is_starting(identity):
                known = health.get(identity.container, HEALTHY)
                failed = self._hooks.failed.get(identity)
                sick = known.sick if failed is None else f"{POST_START_FAILED}: {failed}"
                health[identity.container] = replace(known, started=False, sick=sick)
        return PodObservation(
            pod=pod,
            processes=processes,
            health=health,
            now_s=now_s,
            age_s=age_s,
            leaving_s=0.0 if self._leaving_s is None else now_s - self._leaving_s,
            disowned=self._disowned,
            unadmitted=self._admission is Admission.WAITS,
            rejection=self._rejection or self._resize_rejection,
            resize=self._resize,
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
                self._records.note(pod_acts.refused(start, "ImagePullBackOff", "its image cannot be pulled"))
                self._waiting[name] = {"reason": "ImagePullBackOff"}
                continue
            if self._waiting.get(name, {}).get("reason") == "ImagePullBackOff":
                del self._waiting[name]
            try:
                setup = container_setup(pod, start.container, await self._context.surroundings(pod))
                node_uid = await self._may_start()
                if not node_uid or node_uid != self._context.node.uid:
                    return
                await self._start(pod, start, setup, node_uid)
                self._waiting.pop(name, None)
            except CannotStart as error:
                self._records.note(pod_acts.refused(start, error.waiting, error.message))
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

    def _may_be_unadmitted(self, pod: PodView) -> bool:
        """Whether the pod may have been created with this node's name: then nothing proved that it fits."""
        if pod.finished or pod.terminating or self._admission is Admission.NEEDLESS:
            return False
        return BIND_ANNOTATION not in pod.metadata.annotations

    async def _check_admission(self, pod: PodView) -> None:
        """Decide on committed state whether this node admits the pod. The write of its start time proves it."""
        view, ledger = await self._context.committed()
        claim = ledger.claims.get(self.uid)
        if claim is None or claim.state is not ClaimState.UNADMITTED:
            self._admission, self._rejection = Admission.NEEDLESS, None
            return
        self._admission = Admission.WAITS
        self._rejection = first_rejection(pod, view, admitted(view, ledger.claims.items(), but=self.uid))

    async def _check_resize(self, pod: PodView | None, processes: Sequence[ContainerProcess]) -> None:
        """Decide on committed state whether this node allocates the resources in the pod's spec."""
        self._resize, self._resize_rejection = NO_RESIZE, None
        if pod is None or pod.finished or self._disowned or self._admission is Admission.WAITS:
            return
        if pod.terminating or active_hold(pod, NAME, self._env.now()) is not None:
            # Shown as it is; without a resize nothing is deferred.
            stage = ResizeStage.DEFERRED if needs_decision(pod, processes) else ResizeStage.GRANTED
            self._resize = plan_resize(pod, processes, Verdict(stage))
            return
        self._resize, self._resize_rejection = await self._resizer.observe(pod, processes)

    async def _resizes_on(self, observation: PodObservation, plan: PodPlan) -> bool:
        """Take the next step of a resize, after its allocation was reported. Returns whether there may be another."""
        resize, failed = observation.resize, self._resize_failed
        self._resize_failed = ""
        if plan.ending or resize.stage is ResizeStage.FITS:
            return not plan.ending  # the service has granted it
        if resize.apply:
            self._resize_failed = await self._resizer.apply(resize)
            return not self._resize_failed or self._resize_failed != failed
        return False

    async def _start(self, pod: PodView, start: Start, setup: ContainerSetup, node_uid: str) -> None:
        bound_at = bind_revision(pod, self._context.node.name)
        identity = Identity(self.uid, start.container.name, start.attempt, bound_at, node_uid)
        keep_s = self._context.node.keep_s() if is_at_most_one(pod) else None
        if keep_s is not None and keep_s <= 0:
            return  # too long without contact to start a process that must not run twice
        await self._driver.start(identity, pod, start.container, setup, keep_s=keep_s)
        self._records.note(pod_acts.started(start))
        self._hooks.started(identity, start.container)
        self._context.starts.labels("restart" if start.attempt else "first").inc()
        for old in await self._context.of_pod(self.uid):
            if old.identity.container == identity.container and old.identity.attempt < start.attempt - 1:
                await self._driver.forget(old.identity)

    @property
    def awaits_room(self) -> bool:
        """Whether a resize waits for room on the node."""
        return self._resizer.pending

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
        inputs = StatusInputs(
            now=now,
            address=self._driver.address(self.uid),
            node_address=self._context.node.address,
            waiting=self._waiting,
            resize_failed=self._resize_failed,
        )
        status, patch = planned_status(seen, pod, observation, plan, inputs)
        self._records.computed(seen, inputs, differs=patch is not None)
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
            sent = self._context.client.patch(self.key, patch, subresource="status", options=self._records.options)
            self._last_written = (await self._records.call("patch", self.key, patch, sent)).object
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
            sent = self._context.client.delete(self.key, self._records.delete_options())
            written = await self._records.call("delete", self.key, {"uid": self.uid}, sent)
            if not written.removed:
                self._note(written.object)  # finalizers keep it; its end is recorded

    async def _confirm(self, processes: Sequence[ContainerProcess]) -> None:
        """Confirm that no process of the pod runs here, which frees the claim of a force-deleted pod, and forget it."""
        context = self._context
        if context.node.uid and not self._over:
            with suppress(NotFound, Conflict):  # no ledger, or that of another incarnation: no claim of ours is in it
                node, ended = context.node, {"nodeUid": context.node.uid, "podUid": self.uid}
                sent = context.client.confirm_ended(
                    node=node.name, node_uid=node.uid, pod_uid=self.uid, options=self._records.options
                )
                await self._records.call("confirm ended", Key(NODE_ALLOCATION_KIND, "", node.name), ended, sent)
        for process in processes:
            await self._driver.forget(process.identity)


def _container_of(pod: PodView, name: str) -> Container | None:
    every = (*pod.spec.init_containers, *pod.spec.containers)
    return next((each for each in every if each.name == name), None)


def is_at_most_one(pod: PodView) -> bool:
    return pod.metadata.annotations.get(AT_MOST_ONE) == "true"
