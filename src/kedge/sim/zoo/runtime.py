"""Safeguards of the runtime: watches and caches that know what they missed, queues that lose nothing, honest status."""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.errors import Compacted, OperatingError
from kedge.keys import Fence
from kedge.runtime import context, status
from kedge.runtime.cache.cache import Cache, CacheRelist
from kedge.runtime.cache.floors import WriteFloors
from kedge.runtime.context import Context
from kedge.runtime.controller import Controller
from kedge.runtime.queue.entries import RUNNING
from kedge.runtime.queue.queue import WorkQueue
from kedge.runtime.watcher import Connecting, Reason, Watcher
from kedge.sim.zoo.entries import Entry, swapping

LATE = (
    "replicas converge",
    "stage counts equal the store",
    "endpoints are the ready",
    "processes are those of the bound",
    "nodes are well",
    "accounts are even",
)


def _resume_past_the_compacted(self: Watcher, error: OperatingError) -> Any:
    if isinstance(error, Compacted):
        return self._pause(Connecting(error.oldest), Reason.COMPACTED, error)
    return self._resume(Reason.UNAVAILABLE, error)


async def _no_guard(self: Watcher, _: object) -> Reason:  # noqa: ARG001
    await asyncio.get_running_loop().create_future()
    raise AssertionError("it never ends")


def _keep_what_a_list_lacks(self: CacheRelist, revision: int, *, asked_s: float) -> None:
    self._cache.replace({**self._known, **self._objects}, revision, asked_s=asked_s)


_list_pages = Watcher._list_pages


async def _any_version_will_do(self: Watcher, state: Any, asked_s: float, floor: int) -> Any:  # noqa: ARG001
    self._sink._revision = 0  # type: ignore[attr-defined]
    return await _list_pages(self, state, asked_s, 0)


_add = WorkQueue._add


def _drop_while_running(self: WorkQueue[Any], key: Any, wake: Any, delay_s: float, reason: Any, **more: Any) -> bool:
    entry = self._entries.get(key)
    if entry is not None and entry.state is RUNNING:
        return False
    return _add(self, key, wake, delay_s, reason, **more)


_plan_next = WorkQueue._plan_next


def _forget_failures(self: WorkQueue[Any], entry: Any, outcome: Any, now_s: float) -> None:
    from kedge.runtime.queue import Outcome, OutcomeKind

    failed = outcome.kind is OutcomeKind.FAILURE
    _plan_next(self, entry, Outcome.success() if failed else outcome, now_s)


async def _synced_is_enough(self: Controller, fence: Fence | None) -> None:  # noqa: ARG001
    for cache in self._by_kind.values():
        await cache.wait_synced(within_s=1e6)


_plan_status = status.plan_status


def _always_news(found: Any, said: Any, now: Any) -> dict[str, Any]:
    patch = _plan_status(found, said, now) or {"metadata": {"resourceVersion": str(found.revision)}, "status": {}}
    patch["status"]["lastLook"] = now.isoformat()
    return patch


def _of_any_version(found: Any, said: Any, now: Any) -> dict[str, Any] | None:
    patch = _plan_status(found, said, now)
    if patch is not None:
        del patch["metadata"]["resourceVersion"]
    return patch


_ctx_delete, _ctx_patch = Context.delete, Context.patch


async def _patch_any_version(self: Context, found: Any, body: Any, **more: Any) -> Any:
    return await _ctx_patch(self, found, body, **{**more, "any_version": True})


_apply = Cache.apply


def _deaf_to_deletions(self: Cache, event: Any) -> None:
    from kedge.api.requests import EventType

    if event.type is EventType.DELETED:
        self.progress(event.revision)
        return
    _apply(self, event)


ENTRIES = (
    Entry(
        name="resume-past-the-compacted",
        source="watch streams: resuming from a version that was compacted away; etcd#17529",
        safeguard="history that is gone is listed again",
        breaks=LATE,
        theme="workloads",
        patch=swapping(Watcher, "_after_failure", _resume_past_the_compacted),
    ),
    Entry(
        name="watch-that-died",
        source="kopf#996, #787",
        safeguard="a stream that says nothing is probed, and given up",
        breaks=LATE,
        theme="workloads",
        patch=swapping(Watcher, "_guard", _no_guard),
    ),
    Entry(
        name="ghosts-after-relist",
        source="watch streams: a missed delete, reconciling a ghost",
        safeguard="what a list lacks is gone",
        breaks=LATE,
        theme="workloads",
        patch=swapping(CacheRelist, "apply", _keep_what_a_list_lacks),
    ),
    Entry(
        name="back-in-time",
        source="kubernetes#59848",
        safeguard="a list older than what was seen is refused",
        breaks=(*LATE, "live copies are at most desired plus surge"),
        theme="workloads",
        patch=swapping(Watcher, "_list_pages", _any_version_will_do),
    ),
    Entry(
        name="deletions-missed",
        source="watch streams: the delete that was missed",
        safeguard="a deletion empties its place in the cache and wakes its owner",
        breaks=LATE,
        theme="workloads",
        patch=swapping(Cache, "apply", _deaf_to_deletions),
    ),
    Entry(
        name="wake-dropped-while-running",
        source="kube-rs#1322",
        safeguard="a key woken while it runs runs again",
        breaks=LATE,
        theme="workloads",
        patch=swapping(WorkQueue, "_add", _drop_while_running),
    ),
    Entry(
        name="failure-only-logged",
        source="reconciliation: hidden actuation failure",
        safeguard="a key that failed is tried again",
        breaks=LATE,
        theme="workloads",
        patch=swapping(WorkQueue, "_plan_next", _forget_failures),
    ),
    Entry(
        name="leader-with-old-eyes",
        source="k0smotron#1534, cluster-api#13649",
        safeguard="a new leader waits until its caches have what its predecessor wrote",
        breaks=(*LATE, "live copies are at most desired plus surge", "the last healthy replica is not taken"),
        theme="workloads",
        patch=swapping(Controller, "_wait_caches", _synced_is_enough),
    ),
    Entry(
        name="no-write-floors",
        source="cluster-api#13649",
        safeguard="a key does not run before it sees what it wrote",
        breaks=(*LATE, "live copies are at most desired plus surge"),
        theme="workloads",
        patch=swapping(WriteFloors, "unmet", lambda *_: False),
    ),
    Entry(
        name="now-in-status",
        source="kubeflow/notebooks PR 1343",
        safeguard="times alone are no news",
        breaks=("then silence",),
        theme="workloads",
        patch=swapping(context, "plan_status", _always_news),
    ),
    Entry(
        name="status-of-another-generation",
        source="observability: conditions without an observed generation",
        safeguard="a status lands only on the version that it is about",
        breaks=("conditions refer to the generation they observed", *LATE),
        theme="workloads",
        patch=swapping(context, "plan_status", _of_any_version),
    ),
    Entry(
        name="patch-any-version",
        source="argo-rollouts#4073",
        safeguard="a patch lands only on the version that was read",
        breaks=(*LATE, "live copies are at most desired plus surge", "the last healthy replica is not taken"),
        theme="workloads",
        patch=swapping(Context, "patch", _patch_any_version),
    ),
)
