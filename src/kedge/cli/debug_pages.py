"""The debug pages of a process: its work queues and caches as documents, for `kedge queue` and `kedge caches`.

`kedge up` serves them below `/kedge/debug/`, where controllers, schedulers and API server are one process. Reading one
changes nothing. Keys are bounded, the oldest first; a document states how many it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kedge.api.timestamps import format_time
from kedge.api.wellknown import KEDGE_API_VERSION
from kedge.cli.wiring import ControlPlane
from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.runtime import Controller
from kedge.runtime.queue import KeyReport, KeyState
from kedge.scheduler import Scheduler
from kedge.scheduler.queue.events import event_names
from kedge.scheduler.queue.scheduling_queue import QueuedPod, QueueStage

QUEUES_PATH: Final = "/kedge/debug/queues"
CACHES_PATH: Final = "/kedge/debug/caches"
KEYS_MAX: Final = 200
"""Keys of one queue in a document."""


def add_debug_pages(
    add_page: Callable[[str, Callable[[], Any]], None], plane: ControlPlane, env: Env, newest: Callable[[], Revision]
) -> None:
    """Serve the documents of `plane`; `newest` is the revision of the store."""
    add_page(QUEUES_PATH, lambda: queue_document(plane, env))
    add_page(CACHES_PATH, lambda: cache_document(plane, env, newest()))


def queue_document(plane: ControlPlane, env: Env) -> dict[str, Any]:
    """Every work queue of the process."""
    now_s = env.monotonic()
    queues = [_controller_queue(each, now_s) for each in plane.controllers]
    queues += [_scheduler_queue(each, now_s) for each in plane.schedulers]
    return {
        "apiVersion": KEDGE_API_VERSION,
        "kind": "QueueReport",
        "at": format_time(env.now()),
        "coverage": [
            f"one moment of one process, with {len(queues)} queues; nothing is sampled",
            f"at most {KEYS_MAX} keys of a queue, the oldest; keys that are done are not listed",
        ],
        "queues": queues,
    }


def _controller_queue(controller: Controller, now_s: float) -> dict[str, Any]:
    statistics = controller.statistics()
    queue = statistics.queue
    reports = sorted(controller.queue.reports(), key=lambda each: -each.age_s)
    return {
        "controller": controller.name,
        "leading": statistics.leading,
        "depth": queue.keys,
        "ready": queue.ready,
        "waiting": queue.waiting,
        "running": queue.running,
        "failing": queue.failing,
        "oldestSeconds": round(queue.oldest_ready_s, 3),
        "keys": [_key(each, now_s) for each in reports[:KEYS_MAX]],
        "keysLeftOut": max(0, len(reports) - KEYS_MAX),
    }


def _key(report: KeyReport[Key], now_s: float) -> dict[str, Any]:
    due = None if report.next_run_s is None or report.state is KeyState.RUNNING else report.next_run_s - now_s
    return {
        "key": str(report.key),
        "state": report.state.value,
        "reason": report.wait_reason.value,
        "ageSeconds": round(report.age_s, 3),
        "retries": report.failures,
        "nextRunSeconds": None if due is None else round(max(0.0, due), 3),
        "lastError": "" if report.last_error is None else f"{type(report.last_error).__name__}: {report.last_error}",
        "wokenBy": [{"what": wake.what, "writer": wake.writer} for wake in report.wakes],
        "loop": report.loop is not None,
    }


def _scheduler_queue(scheduler: Scheduler, now_s: float) -> dict[str, Any]:
    pods = sorted(scheduler.queue, key=lambda each: each.added_s)
    by_stage = {stage: [each for each in pods if each.stage is stage] for stage in QueueStage}
    active = by_stage[QueueStage.ACTIVE]
    return {
        "controller": scheduler.name,
        "leading": scheduler.leading,
        "depth": len(pods),
        "ready": len(active),
        "waiting": len(by_stage[QueueStage.BACKOFF]) + len(by_stage[QueueStage.UNSCHEDULABLE]),
        "running": len(by_stage[QueueStage.IN_FLIGHT]),
        "failing": sum(each.failures > 0 for each in pods),
        "oldestSeconds": round(max((now_s - each.since_s for each in active), default=0.0), 3),
        "keys": [_pod(each, now_s) for each in pods[:KEYS_MAX]],
        "keysLeftOut": max(0, len(pods) - KEYS_MAX),
    }


def _pod(queued: QueuedPod, now_s: float) -> dict[str, Any]:
    waits = queued.stage is QueueStage.UNSCHEDULABLE
    cause = queued.cause
    return {
        "key": str(queued.key),
        "state": queued.stage.value,
        "reason": f"waits for: {', '.join(event_names(queued.unblocked_by))}" if waits else queued.woken_by,
        "ageSeconds": round(now_s - queued.added_s, 3),
        "retries": max(0, queued.attempts - 1),
        "nextRunSeconds": None,
        "lastError": "",
        "wokenBy": [{"what": queued.woken_by, "writer": "" if cause is None else cause.writer}],
        "loop": False,
    }


def cache_document(plane: ControlPlane, env: Env, newest: Revision) -> dict[str, Any]:
    """Every cache of the process. The lag counts revisions, of which most may be about other kinds."""
    return {
        "apiVersion": KEDGE_API_VERSION,
        "kind": "CacheReport",
        "at": format_time(env.now()),
        "storeRevision": newest,
        "coverage": ["one moment of one process; every cache is listed, and nothing is sampled"],
        "caches": [
            {
                "cache": cache.cache,
                "objects": cache.objects,
                "revision": cache.revision,
                "lagRevisions": max(0, newest - cache.revision),
                "ageSeconds": round(cache.age_s, 3) if cache.revision else None,
                "relists": max(0, cache.relists - 1),  # the first list is none
                "watch": watcher.state,
                "healthy": watcher.healthy,
                "failures": watcher.failures,
                "lastError": watcher.last_error,
            }
            for cache, watcher in plane.caches.statistics()
        ],
    }
