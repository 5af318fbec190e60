"""What a decision is: the record of one reconcile or scheduling attempt, as typed plain data, and its encoding."""

from kedge.observe.records.attempt import (
    AssumedBind,
    AttemptChoice,
    LocalState,
    NearestNode,
    NodeAccount,
    SchedulingAttempt,
    ScoredNode,
    UnreleasedClaim,
)
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
    "AssumedBind",
    "AttemptChoice",
    "Budget",
    "CacheMark",
    "CacheRead",
    "Call",
    "Clock",
    "Decision",
    "DecisionStep",
    "LocalState",
    "Measured",
    "NearestNode",
    "NodeAccount",
    "NotStarted",
    "SchedulingAttempt",
    "ScoredNode",
    "UnreleasedClaim",
    "Version",
    "decode_decision",
    "encode_decision",
    "encode_plain",
    "with_objects",
    "without_objects",
]
