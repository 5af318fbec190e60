"""The event recorder: writes why a pod is unschedulable, as its `PodScheduled` condition and an Event.

Best effort and rate limited: a report describes one attempt, and a lost report is replaced by the next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kedge.api.conditions import condition, find_condition, set_condition
from kedge.api.event_bodies import WARNING, count_of, event_body, event_key, event_repeat
from kedge.api.holds import HELD
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.wellknown import EVENT_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, Conflict, Fenced, NotFound, OperatingError
from kedge.keys import Fence
from kedge.runtime.status import status_of
from kedge.scheduler.report.report_records import Report, ReportRecords
from kedge.tasks import gather_ended

FAILED = "FailedScheduling"
UNSCHEDULABLE, GATED = "Unschedulable", "SchedulingGated"
"""Reasons of the `PodScheduled` condition."""
_WRITTEN_MAX = 10_000


class EventRecorder:
    """Writes conditions and Events for one scheduler."""

    def __init__(
        self,
        client: Client,
        env: Env,
        reports: ReportRecords,
        *,
        component: str,
        current: Callable[[str], Object | None],
    ) -> None:
        self._client = client
        self.reports = reports
        self._env = env
        self._component = component
        self._current = current
        """By uid: the latest version of a pending pod; None if the pod is not pending."""
        self._delayed: dict[tuple[str, str], tuple[str, str, Fence | None]] = {}
        """By pod uid and reason: the report to write when the rate limit allows. A later one replaces it."""
        self._events: Kind = client.kinds.of_key_kind(EVENT_KIND)
        self._written: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        """By pod uid and reason: the last message, and its time."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writes = env.metrics.counter("kedge_scheduler_reports_total", "Conditions and Events written", ("what",))

    def unschedulable(self, pod: Object, reason: str, message: str, *, decision: str, fence: Fence | None) -> None:
        """Report why a pod has no node. The same message is not repeated; another one too soon after is delayed."""
        now_s = self._env.monotonic()
        written = self._written.get((pod.uid, reason))
        if written is not None and written[0] == message:
            self._delayed.pop((pod.uid, reason), None)
            return
        if written is not None and now_s - written[1] < self._env.limits.scheduler_explained_s:
            self._write_later(pod.uid, reason, message, decision, fence)
            return
        self._written[pod.uid, reason] = message, now_s
        self._written.move_to_end((pod.uid, reason))
        if len(self._written) > _WRITTEN_MAX:
            self._written.popitem(last=False)
        self._spawn(self._write(pod, reason, message, decision, fence), name=f"report {pod.key}")

    def gated(self, pod: Object, *, fence: Fence) -> None:
        """Report that a pod has scheduling gates, unless its condition already does. Nothing failed, so no Event."""
        written = find_condition(pod.as_view(PodView).status.conditions, "PodScheduled")
        if written is None or written.reason != GATED:
            self.unschedulable(pod, GATED, "remove its scheduling gates first", decision="", fence=fence)

    def clear_nomination(self, pod: Object, *, decision: str, fence: Fence) -> None:
        """Clear the pod's nominated node."""
        self._spawn(self._clear_nomination(pod, decision, fence), name=f"clear the nomination of {pod.key}")

    async def _clear_nomination(self, pod: Object, decision: str, fence: Fence) -> None:
        patch = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": None}}
        with suppress(OperatingError):  # the next attempt clears it, or the pod is gone
            async with self.reports.begin(pod, decision, fence) as report:
                await report.patch(pod.key, patch, "status")

    def _write_later(self, uid: str, reason: str, message: str, decision: str, fence: Fence | None) -> None:
        known = (uid, reason) in self._delayed
        self._delayed[uid, reason] = message, decision, fence
        if not known:
            self._spawn(self._wait_and_write(uid, reason), name=f"report {uid} later")

    async def _wait_and_write(self, uid: str, reason: str) -> None:
        await asyncio.sleep(self._env.limits.scheduler_explained_s)
        message, decision, fence = self._delayed.pop((uid, reason), ("", "", None))
        pod = self._current(uid)
        if message and pod is not None and (reason == GATED) == bool(pod.as_view(PodView).spec.scheduling_gates):
            self.unschedulable(pod, reason, message, decision=decision, fence=fence)

    def event(self, pod: Object, reason: str, message: str, *, decision: str, fence: Fence | None) -> None:
        report = self.reports.begin(pod, decision, fence)
        self._spawn(self._try_event(pod, reason, message, report), name=f"event about {pod.key}")

    def forget(self, uid: str) -> None:
        if not self._written and not self._delayed:
            return
        for reason in (UNSCHEDULABLE, GATED, HELD):
            self._written.pop((uid, reason), None)
            self._delayed.pop((uid, reason), None)

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await gather_ended(*self._tasks)

    def _spawn(self, work: Any, *, name: str) -> None:
        task = self._env.spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, pod: Object, reason: str, message: str, decision: str, fence: Fence | None) -> None:
        try:
            async with self.reports.begin(pod, decision, fence) as report:
                await self._write_condition(pod, reason, message, report)
                if reason != GATED:
                    await self._write_event(pod, FAILED, message, report)
        except (Fenced, NotFound):
            self._written.pop((pod.uid, reason), None)  # another process leads, or the pod is gone
        except OperatingError:
            if self._written.pop((pod.uid, reason), ("", 0.0))[0] == message:
                # The pod changed, or the call failed: write it again later, on the latest version.
                self._write_later(pod.uid, reason, message, decision, fence)

    async def _write_condition(self, pod: Object, reason: str, message: str, report: Report) -> None:
        written = condition(
            "PodScheduled",
            status=False,
            reason=reason,
            message=message,
            observed_generation=pod.metadata.generation,
        )
        conditions = set_condition(status_of(pod).get("conditions") or (), written, self._env.now())
        patch = {"metadata": {"resourceVersion": str(pod.revision)}, "status": {"conditions": conditions}}
        await report.patch(pod.key, patch, "status")
        self._writes.labels("condition").inc()

    async def _try_event(self, pod: Object, reason: str, message: str, report: Report) -> None:
        with suppress(OperatingError):  # an Event may be lost: metrics count the same
            async with report:
                await self._write_event(pod, reason, message, report)

    async def _write_event(self, pod: Object, reason: str, message: str, report: Report) -> None:
        now, decision = self._env.now(), report.decision
        key = event_key(pod, reason, self._component)
        known = await self._client.find(key)
        try:
            if known is not None:
                patch = event_repeat(message=message, now=now, decision=decision, count=count_of(known) + 1)
                await report.patch(key, patch)
            else:
                body = event_body(
                    key,
                    pod,
                    component=self._component,
                    event_type=WARNING,
                    reason=reason,
                    message=message,
                    now=now,
                    decision=decision,
                )
                await report.create(self._events, body)
            self._writes.labels("event").inc()
        except (AlreadyExists, NotFound, Conflict):
            return  # written by another attempt meanwhile
