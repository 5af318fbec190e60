"""The runtime of controllers: watchers, caches, queue, leases, context and recheck."""

from kedge.runtime.action import Action, Next
from kedge.runtime.context import Context, Held, Reconciler
from kedge.runtime.controller import Controller, ControllerRuntime, ControllerStatistics
from kedge.runtime.recheck import CutOff, ReceivedEvidence, RecordedEvidence, recheck
from kedge.runtime.spec import ControllerSpec, WatchSpec, WriteRight, wake_itself, wake_owner, writes

__all__ = [
    "Action",
    "Context",
    "Controller",
    "ControllerRuntime",
    "ControllerSpec",
    "ControllerStatistics",
    "CutOff",
    "Held",
    "Next",
    "ReceivedEvidence",
    "Reconciler",
    "RecordedEvidence",
    "WatchSpec",
    "WriteRight",
    "recheck",
    "wake_itself",
    "wake_owner",
    "writes",
]
