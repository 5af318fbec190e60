"""Records of what was decided and why, and their readers."""

from kedge.api.field_notes import WHOLE
from kedge.observe.recording.aggregate import OTHER
from kedge.observe.recording.log import DecisionLog, LogStatistics
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.recorder_statistics import Coverage, RecorderStatistics
from kedge.observe.recording.rules import KeepReason, KeepRules, Window
from kedge.observe.recording.segments import SkippedPart, read_decisions
from kedge.observe.records import Budget, CacheMark, CacheRead, Call, Clock, Decision, DecisionStep, FieldCount

__all__ = [
    "OTHER",
    "WHOLE",
    "Budget",
    "CacheMark",
    "CacheRead",
    "Call",
    "Clock",
    "Coverage",
    "Decision",
    "DecisionLog",
    "DecisionStep",
    "FieldCount",
    "KeepReason",
    "KeepRules",
    "LogStatistics",
    "Recorder",
    "RecorderStatistics",
    "SkippedPart",
    "Window",
    "read_decisions",
]
