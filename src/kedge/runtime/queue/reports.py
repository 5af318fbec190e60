"""Reports of a queue: one key, or the whole queue at one moment. Reads the queue and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.runtime.queue.entries import READY, RUNNING, QueueEntry
from kedge.runtime.queue.items import K, KeyReport, KeyState, Loop, QueueStatistics, WaitReason
from kedge.runtime.queue.loops import LoopDetector

if TYPE_CHECKING:
    from kedge.runtime.queue.queue import WorkQueue


def report_entry(entry: QueueEntry[K], detector: LoopDetector[K], now_s: float) -> KeyReport[K]:
    """The report of a key that is queued or running."""
    match entry.state:
        case KeyState.RUNNING:
            next_run_s = entry.again_s
        case KeyState.WAITING:
            next_run_s = entry.due_s
        case _:
            next_run_s = entry.ready_s
    terminal = detector.terminal(entry.key)
    return KeyReport(
        key=entry.key,
        state=entry.state,
        tenant=entry.tenant,
        priority=entry.priority,
        failures=entry.failures,
        wait_reason=WaitReason.QUEUED if entry.state is READY else entry.reason,
        next_run_s=next_run_s,
        age_s=now_s - (entry.begun_s if entry.state is RUNNING else entry.added_s),
        woken_again=entry.again_s is not None,
        wakes=tuple(entry.wakes),
        last_error=entry.last_error or terminal,
        terminal=terminal is not None,
        loop=detector.loop(entry.key),
    )


def report_idle(
    key: K, tenant: str, priority: int, loop: Loop[K] | None, terminal: BaseException | None
) -> KeyReport[K]:
    """The report of a key that is not queued and is remembered for its last runs."""
    return KeyReport(
        key=key,
        state=KeyState.IDLE,
        tenant=tenant,
        priority=priority,
        failures=0,
        wait_reason=WaitReason.NONE,
        next_run_s=None,
        age_s=0.0,
        woken_again=False,
        wakes=(),
        last_error=terminal,
        terminal=terminal is not None,
        loop=loop,
    )


def report_queue(queue: WorkQueue[K]) -> QueueStatistics[K]:
    ready_by_tenant: dict[str, int] = {}
    running_by_tenant: dict[str, int] = {}
    for tenant in queue.order.tenants.values():
        if tenant.entries:
            ready_by_tenant[tenant.name] = tenant.entries
        if tenant.in_flight:
            running_by_tenant[tenant.name] = tenant.in_flight
    return QueueStatistics(
        keys=len(queue),
        ready=queue.order.ready,
        waiting=queue.waiting,
        running=queue.running,
        failing=queue.failing,
        ready_by_priority=queue.order.by_priority(),
        ready_by_tenant=ready_by_tenant,
        running_by_tenant=running_by_tenant,
        oldest_ready_s=queue.oldest_ready_s,
        adds=queue.adds,
        gets=queue.gets,
        aged=queue.aged,
        refused=queue.refused,
        resync_owed=queue.resync_owed,
        closed=queue.closed,
        loops=tuple(queue.detector.loops()),
    )
