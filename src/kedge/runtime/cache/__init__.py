"""Caches with a known revision and age, shared by the controllers of a process; and read-your-writes."""

from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.cache_set import CacheSet
from kedge.runtime.cache.floors import Floor, WriteFloors
from kedge.runtime.cache.indexes import (
    BY_CONTROLLER,
    BY_NAMESPACE,
    BY_NODE,
    BY_OWNER,
    BY_POLICY_VERSION,
    BY_PRIORITY,
    BY_ZONE,
    Index,
    by_label,
)
from kedge.runtime.cache.marks import CurrentMarks, marks_of, pin_all
from kedge.runtime.cache.reads import Behind, CacheStatistics, Freshness, NotSynced, Read, Stale, Tombstone
from kedge.runtime.cache.received import CacheChange, ChangeType, Pin, Received, ReceivedLog, Source
from kedge.runtime.cache.subscribers import Handler, Subscription

__all__ = [
    "BY_CONTROLLER",
    "BY_NAMESPACE",
    "BY_NODE",
    "BY_OWNER",
    "BY_POLICY_VERSION",
    "BY_PRIORITY",
    "BY_ZONE",
    "Behind",
    "Cache",
    "CacheChange",
    "CacheSet",
    "CacheStatistics",
    "ChangeType",
    "CurrentMarks",
    "Floor",
    "Freshness",
    "Handler",
    "Index",
    "NotSynced",
    "Pin",
    "Read",
    "Received",
    "ReceivedLog",
    "Source",
    "Stale",
    "Subscription",
    "Tombstone",
    "WriteFloors",
    "by_label",
    "marks_of",
    "pin_all",
]
