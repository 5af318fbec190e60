"""Revisioned object stores: one contract, three backends, one conformance suite."""

from kedge.keys import NO_ORIGIN, Fence, Origin
from kedge.store.contract import (
    Absent,
    AtRevision,
    Batch,
    Change,
    Check,
    DeleteKey,
    Entry,
    Listing,
    Present,
    Put,
    Reading,
    Store,
    StoreStatistics,
    StoreWatch,
    Write,
)

__all__ = [
    "NO_ORIGIN",
    "Absent",
    "AtRevision",
    "Batch",
    "Change",
    "Check",
    "DeleteKey",
    "Entry",
    "Fence",
    "Listing",
    "Origin",
    "Present",
    "Put",
    "Reading",
    "Store",
    "StoreStatistics",
    "StoreWatch",
    "Write",
]
