"""What every controller is written against."""

from kedge.runtime.action import Action, Next
from kedge.runtime.context import Context, Held, Reconciler
from kedge.runtime.controller import Controller, ControllerStatistics
from kedge.runtime.recheck import ReceivedEvidence, RecordedEvidence, recheck
from kedge.runtime.watches import Watch, wake_itself, wake_owner

__all__ = [
    "Action",
    "Context",
    "Controller",
    "ControllerStatistics",
    "Held",
    "Next",
    "ReceivedEvidence",
    "Reconciler",
    "RecordedEvidence",
    "Watch",
    "recheck",
    "wake_itself",
    "wake_owner",
]
