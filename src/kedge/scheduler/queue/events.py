"""Cluster events: the changes that may unblock a pending pod. Filters name them; the queue wakes pods by them."""

from __future__ import annotations

from enum import IntFlag
from typing import Final


class ClusterEvent(IntFlag):
    """A change that may make an unschedulable pod schedulable."""

    NODE = 1
    """A node was added, uncordoned, or changed its labels or taints."""
    ROOM = 2
    """A node has more free resources: a claim was released, or its capacity grew."""
    POD_PLACED = 4
    POD_GONE = 8
    QUOTA = 16
    POLICY = 32
    NAMESPACE = 64
    GANG = 128
    SEEN = 256
    """The scheduler's caches now show the version behind a refusal. Only the refused pod is woken."""
    TOPOLOGY = 512
    """A node was added, removed or changed: domains, and the pods counted in them, may differ."""
    BUDGET = 1024
    """More pods may be evicted: a disruption budget allows more, a hold was removed, or a bind was confirmed."""


ANYTHING: Final = ClusterEvent(2047)
NOTHING: Final = ClusterEvent(0)


def event_names(events: ClusterEvent) -> list[str]:
    """For a record: "node", "room", "pod gone"."""
    return [(each.name or "").lower().replace("_", " ") for each in ClusterEvent if each & events]
