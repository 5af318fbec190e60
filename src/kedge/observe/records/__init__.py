"""What a decision is: the record of one reconcile or scheduling attempt, as typed plain data, and its encoding."""

from kedge.observe.records.codec import (
    Version,
    decode_decision,
    encode_decision,
    encode_plain,
    with_objects,
    without_objects,
)
from kedge.observe.records.decision import (
    Budget,
    CacheMark,
    CacheRead,
    Call,
    Clock,
    Decision,
    DecisionStep,
    Measured,
    NotStarted,
)

__all__ = [
    "Budget",
    "CacheMark",
    "CacheRead",
    "Call",
    "Clock",
    "Decision",
    "DecisionStep",
    "Measured",
    "NotStarted",
    "Version",
    "decode_decision",
    "encode_decision",
    "encode_plain",
    "with_objects",
    "without_objects",
]
