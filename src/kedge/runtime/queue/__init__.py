"""The work queue that every controller takes its keys from."""

from kedge.runtime.queue.items import (
    FLOOR,
    REQUEUE,
    RESYNC,
    RETRY,
    SPIN,
    Facts,
    Item,
    KeyReport,
    KeyState,
    Loop,
    LoopKind,
    Outcome,
    OutcomeKind,
    QueueStatistics,
    WaitReason,
    Wake,
)
from kedge.runtime.queue.queue import RESYNC_PRIORITY, QueueClosed, WorkQueue

__all__ = [
    "FLOOR",
    "REQUEUE",
    "RESYNC",
    "RESYNC_PRIORITY",
    "RETRY",
    "SPIN",
    "Facts",
    "Item",
    "KeyReport",
    "KeyState",
    "Loop",
    "LoopKind",
    "Outcome",
    "OutcomeKind",
    "QueueClosed",
    "QueueStatistics",
    "WaitReason",
    "Wake",
    "WorkQueue",
]
