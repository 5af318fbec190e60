"""Safeguards of the runtime: watches, caches, work queues, leadership and status.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing. They are
hunted in the worlds of `worlds.runtime`, whose controller relies on the runtime alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.api.requests import EventType
from kedge.client.contract.breaker import Breaker
from kedge.errors import Compacted
from kedge.keys import Fence
from kedge.runtime import context, status
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.floors import WriteFloors
from kedge.runtime.cache.relist import CacheRelist
from kedge.runtime.context import Context
from kedge.runtime.controller import Controller
from kedge.runtime.queue import ItemOutcome, OutcomeKind
from kedge.runtime.queue.entries import RUNNING
from kedge.runtime.queue.queue import WorkQueue
from kedge.runtime.watch_states import ConnectingState, WatchReason
from kedge.runtime.watcher import Watcher
from kedge.sim.zoo.entry import without

TOO_MANY_MEMBERS = "no group has more members than its size"
SHORT = "groups are complete and report it"
FRESH = "decisions are based on fresh views"

_list_pages = Watcher._list_pages
_add, _plan_next = WorkQueue._add, WorkQueue._plan_next
_plan_status = status.plan_status
_patch = Context.patch
_apply = Cache.apply


@without(
    Watcher,
    "_after_failure",
    source="watch streams: resuming from a version that was compacted away; etcd#17529",
    breaks=SHORT,
    world="groups",
    by="broken watches",
)
def resume_past_a_compaction(self: Watcher, error: Any) -> Any:
    """A watch that falls behind a compaction lists again."""
    if isinstance(error, Compacted):
        return self._pause(ConnectingState(error.oldest), WatchReason.COMPACTED, error)
    return self._resume(WatchReason.UNAVAILABLE, error)


@without(Watcher, "_guard", source="kopf#996, #787", breaks=SHORT, world="groups", by="dead watches")
async def dead_watch_not_probed(self: Watcher, state: Any) -> WatchReason:  # noqa: ARG001
    """A silent watch is probed, and replaced if it is dead."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("it never ends")


@without(
    CacheRelist,
    "apply",
    source="watch streams: a missed delete, reconciling a ghost",
    breaks=SHORT,
    world="groups",
    by="broken watches",
)
def ghosts_after_relist(self: CacheRelist, revision: int, *, asked_s: float) -> None:
    """An object that is missing in a list is deleted from the cache."""
    self._cache.replace({**self._cache._objects, **self._objects}, revision, asked_s=asked_s)


@without(Watcher, "_list_pages", source="kubernetes#59848", breaks=TOO_MANY_MEMBERS, world="groups", by="old lists")
async def older_list_accepted(self: Watcher, state: Any, asked_s: float, floor: int) -> Any:  # noqa: ARG001
    """A list older than the cache is rejected."""
    self._sink._revision = self._sink._revision_seen = 0  # type: ignore[attr-defined]
    return await _list_pages(self, state, asked_s, 0)


@without(Cache, "apply", source="watch streams: the delete that was missed", breaks=SHORT, world="groups")
def deletions_missed(self: Cache, event: Any) -> None:
    """A deletion removes the object from the cache and wakes its owner."""
    if event.type is EventType.DELETED:
        self.progress(event.revision)
    else:
        _apply(self, event)


@without(WorkQueue, "_add", source="kube-rs#1322", breaks=SHORT, world="groups")
def wake_dropped_while_running(self: Any, key: Any, wake: Any, delay_s: float, reason: Any, **more: Any) -> bool:
    """A key that is woken while it runs, runs again."""
    entry = self._entries.get(key)
    if entry is not None and entry.state is RUNNING:
        return False
    return _add(self, key, wake, delay_s, reason, **more)


@without(
    WorkQueue,
    "_plan_next",
    source="reconciliation: hidden actuation failure",
    breaks=SHORT,
    world="groups",
    by="lost requests",
)
def failure_only_logged(self: Any, entry: Any, outcome: Any, now_s: float) -> None:
    """A key that failed is retried."""
    failed = outcome.kind is OutcomeKind.FAILURE
    _plan_next(self, entry, ItemOutcome.success() if failed else outcome, now_s)


@without(
    Controller,
    "_wait_caches",
    source="k0smotron#1534, cluster-api#13649",
    breaks=TOO_MANY_MEMBERS,
    world="groups",
    by="deposed leaders",
)
async def leader_with_stale_caches(self: Controller, fence: Fence | None) -> None:  # noqa: ARG001
    """A new leader waits until its caches have the writes of its predecessor."""
    for cache in self._by_kind.values():
        await cache.wait_synced(within_s=1e6)


@without(
    Breaker,
    "admit",
    source="failure detection: retry storm; kubernetes#87794",
    breaks="requests are bounded during an outage",
    world="outage",
)
def retry_storm(self: Breaker) -> bool:  # noqa: ARG001
    """Requests to an unreachable server back off."""
    return False


@without(WriteFloors, "unmet", source="cluster-api#13649", breaks=(TOO_MANY_MEMBERS, FRESH), world="groups")
def no_write_floors(self: WriteFloors, key: Any) -> bool:  # noqa: ARG001
    """A key does not run before its cache has its own writes."""
    return False


@without(
    context,
    "plan_status",
    source="kubeflow/notebooks PR 1343",
    breaks=("then silence", "no unhandled error"),
    message_part="writ",
    world="groups",
)
def now_in_status(found: Any, wanted: Any, now: Any, **dropped: Any) -> dict[str, Any]:
    """A status is not written if only times in it changed."""
    patch = _plan_status(found, wanted, now, **dropped) or {
        "metadata": {"resourceVersion": str(found.revision)},
        "status": {},
    }
    patch["status"]["lastLook"] = now.isoformat()
    return patch


@without(
    context,
    "plan_status",
    source="observability: conditions without an observed generation",
    breaks="conditions refer to the generation they observed",
    world="groups",
    by=("late views", "old lists"),
)
def status_of_another_generation(found: Any, wanted: Any, now: Any, **dropped: Any) -> dict[str, Any] | None:
    """A status is written only to the version that it describes."""
    patch = _plan_status(found, wanted, now, **dropped)
    if patch is not None:
        del patch["metadata"]["resourceVersion"]
    return patch


@without(
    Context,
    "patch",
    source="argo-rollouts#4073",
    breaks="no write reverts another",
    world="groups",
    by=("late views", "old lists"),
)
async def patch_any_version(self: Context, found: Any, body: Any, **more: Any) -> Any:
    """A patch is applied only to the version that was read."""
    return await _patch(self, found, body, **{**more, "any_version": True})
