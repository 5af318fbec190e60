"""The event recorder: writes why a pod is unschedulable, as its `PodScheduled` condition and an Event.

Best effort and rate limited: a report describes one attempt, and a lost report is replaced by the next.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kedge.api.conditions import condition, find_condition, set_condition
from kedge.api.holds import HELD
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.timestamps import format_time
from kedge.api.views import PodView
from kedge.api.wellknown import EVENT_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import AlreadyExists, Conflict, Fenced, NotFound, OperatingError
from kedge.keys import Fence, Key, Origin
from kedge.runtime.status import status_of

FAILED = "FailedScheduling"
UNSCHEDULABLE, GATED = "Unschedulable", "SchedulingGated"
"""Reasons of the `PodScheduled` condition."""
_WRITTEN_MAX = 10_000


class EventRecorder:
    """Writes conditions and Events for one scheduler."""

    def __init__(self, client: Client, env: Env, *, component: str, current: Callable[[str], Object | None]) -> None:
        self._client = client
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
        options = WriteOptions(fence=fence, origin=Origin(decision=decision))
        patch = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": None}}
        with suppress(OperatingError):  # the next attempt clears it, or the pod is gone
            await self._client.patch(pod.key, patch, subresource="status", options=options)

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
        options = WriteOptions(fence=fence, origin=Origin(decision=decision))
        self._spawn(self._try_event(pod, reason, message, options), name=f"event about {pod.key}")

    def forget(self, uid: str) -> None:
        if not self._written and not self._delayed:
            return
        for reason in (UNSCHEDULABLE, GATED, HELD):
            self._written.pop((uid, reason), None)
            self._delayed.pop((uid, reason), None)

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any, *, name: str) -> None:
        task = self._env.spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, pod: Object, reason: str, message: str, decision: str, fence: Fence | None) -> None:
        options = WriteOptions(fence=fence, origin=Origin(decision=decision))
        try:
            await self._write_condition(pod, reason, message, options)
            if reason != GATED:
                await self._write_event(pod, FAILED, message, options)
        except (Fenced, NotFound):
            self._written.pop((pod.uid, reason), None)  # another process leads, or the pod is gone
        except OperatingError:
            if self._written.pop((pod.uid, reason), ("", 0.0))[0] == message:
                # The pod changed, or the call failed: write it again later, on the latest version.
                self._write_later(pod.uid, reason, message, decision, fence)

    async def _write_condition(self, pod: Object, reason: str, message: str, options: WriteOptions) -> None:
        written = condition(
            "PodScheduled",
            status=False,
            reason=reason,
            message=message,
            observed_generation=pod.metadata.generation,
        )
        conditions = set_condition(status_of(pod).get("conditions") or (), written, self._env.now())
        patch = {"metadata": {"resourceVersion": str(pod.revision)}, "status": {"conditions": conditions}}
        await self._client.patch(pod.key, patch, subresource="status", options=options)
        self._writes.labels("condition").inc()

    async def _try_event(self, pod: Object, reason: str, message: str, options: WriteOptions) -> None:
        with suppress(OperatingError):  # an Event may be lost: metrics count the same
            await self._write_event(pod, reason, message, options)

    async def _write_event(self, pod: Object, reason: str, message: str, options: WriteOptions) -> None:
        now = format_time(self._env.now())
        name = f"{pod.key.name[:200]}.{zlib.crc32(f'{pod.uid}{reason}{self._component}'.encode()):08x}"
        key = Key(self._events.key_kind, pod.key.namespace, name)
        known = await self._client.find(key)
        try:
            if known is not None:
                count = int(known.edit().get("count") or 1) + 1
                patch = {"message": message, "count": count, "lastTimestamp": now}
                await self._client.patch(key, patch, options=options)
            else:
                await self._client.create(self._events, self._body(pod, name, reason, message, now), options=options)
            self._writes.labels("event").inc()
        except (AlreadyExists, NotFound, Conflict):
            return  # written by another attempt meanwhile

    def _body(self, pod: Object, name: str, reason: str, message: str, now: str) -> dict[str, Any]:
        return {
            "metadata": {"name": name, "namespace": pod.key.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.key.namespace,
                "name": pod.key.name,
                "uid": pod.uid,
                "resourceVersion": str(pod.revision),
            },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }
