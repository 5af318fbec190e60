"""The scheduler: chooses a node for each pod, binds, and explains. `Scheduler` is the process.

The decision is pure and can be used alone: add nodes and claims to a `Snapshot`, call `decide`, then `explain`.
"""

from kedge.scheduler.cycle.decide import NodeDecision, ZoneRoom, blocked_zones, decide
from kedge.scheduler.pipeline.plugin import Blocker
from kedge.scheduler.pipeline.plugins import default_weights, weights_under
from kedge.scheduler.policy.settings import DEFAULT_SETTINGS, Settings, settings_for
from kedge.scheduler.report.explanation import Explanation, NearMiss, NodeScore, explain, summarize
from kedge.scheduler.scheduler import DEFAULT_NAME, Scheduler, SchedulerStatistics
from kedge.scheduler.state.shapes import PodRequest, request_of
from kedge.scheduler.state.snapshot import Snapshot, SnapshotClaim, snapshot_of

__all__ = [
    "DEFAULT_NAME",
    "DEFAULT_SETTINGS",
    "Blocker",
    "Explanation",
    "NearMiss",
    "NodeDecision",
    "NodeScore",
    "PodRequest",
    "Scheduler",
    "SchedulerStatistics",
    "Settings",
    "Snapshot",
    "SnapshotClaim",
    "ZoneRoom",
    "blocked_zones",
    "decide",
    "default_weights",
    "explain",
    "request_of",
    "settings_for",
    "snapshot_of",
    "summarize",
    "weights_under",
]
