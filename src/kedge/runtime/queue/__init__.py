"""The work queue that every controller takes its keys from."""

from kedge.runtime.queue.items import (
    FLOOR,
    REQUEUE,
    RESYNC,
    RETRY,
    SPIN,
    Item,
    ItemOutcome,
    KeyReport,
    KeyState,
    Loop,
    LoopKind,
    OutcomeKind,
    QueueClosed,
    QueueStatistics,
    RunEffects,
    WaitReason,
    Wake,
)
from kedge.runtime.queue.queue import RESYNC_PRIORITY, WorkQueue

__all__ = [
    "FLOOR",
    "REQUEUE",
    "RESYNC",
    "RESYNC_PRIORITY",
    "RETRY",
    "SPIN",
    "Item",
    "ItemOutcome",
    "KeyReport",
    "KeyState",
    "Loop",
    "LoopKind",
    "OutcomeKind",
    "QueueClosed",
    "QueueStatistics",
    "RunEffects",
    "WaitReason",
    "Wake",
    "WorkQueue",
]
