"""Records of what was decided and why, and their readers."""

from kedge.observe.aggregate import OTHER, WHOLE, Row
from kedge.observe.log import DecisionLog, LogStatistics
from kedge.observe.recorder import Coverage, Recorder, RecorderStatistics
from kedge.observe.records import Budget, CacheMark, CacheRead, Call, Clock, Decision, Step
from kedge.observe.rules import KeepRules, Rule, Window
from kedge.observe.segments import Skipped, read_decisions

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
    "KeepRules",
    "LogStatistics",
    "Recorder",
    "RecorderStatistics",
    "Row",
    "Rule",
    "Skipped",
    "Step",
    "Window",
    "read_decisions",
]
