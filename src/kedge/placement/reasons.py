"""Why a pod does not fit, as codes that are stable across releases.

A refusal of the service, a filter of the scheduler, a condition and a metric all use these codes.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """One code for each cause that can keep a pod off a node."""

    # -- the pod
    POD_GONE = "PodGone"
    POD_REPLACED = "PodReplaced"
    POD_TERMINATING = "PodTerminating"
    POD_ENDED = "PodEnded"
    POD_BOUND = "PodBound"
    POD_GATED = "SchedulingGated"
    # -- the node, by itself
    NODE_GONE = "NodeGone"
    NODE_REPLACED = "NodeReplaced"
    NODE_TERMINATING = "NodeTerminating"
    NODE_CORDONED = "NodeCordoned"
    NODE_SUSPECT = "NodeSuspect"
    # -- the pair
    NODE_NAME = "NodeName"
    NODE_SELECTOR = "NodeSelector"
    NODE_AFFINITY = "NodeAffinity"
    TAINT = "Taint"
    PORT = "HostPort"
    RESOURCE = "Resource"
    # -- the pair, given the pods on other nodes: only in the scheduler
    TOPOLOGY_SPREAD = "TopologySpread"
    POD_AFFINITY = "PodAffinity"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    ANTI_AFFINITY_OF_OTHERS = "AntiAffinityOfOthers"
    POLICY = "SchedulingPolicy"
    REFUSED_LATELY = "RefusedLately"
    # -- claims
    ZONE_QUOTA = "ZoneQuota"
    RESERVED_ELSEWHERE = "ReservedElsewhere"
    SUPERSEDED = "Superseded"
    NOT_RESERVED = "NotReserved"
    GANG_NOT_COMMITTED = "GangNotCommitted"
    GANG_INCOMPLETE = "GangIncomplete"
    GANG_ABORTED = "GangAborted"
    GANG_GONE = "GangGone"


ROOM_REASONS = frozenset(
    {
        Reason.NODE_CORDONED,
        Reason.NODE_SUSPECT,
        Reason.PORT,
        Reason.RESOURCE,
        Reason.ZONE_QUOTA,
        Reason.REFUSED_LATELY,
    }
)
"""Reasons about the state of a node or a quota, which time or an operator may change.

The others are rules of the pod, of other pods or of a policy.
"""
BLOCKER_LABELS = {
    Reason.NODE_TERMINATING: "being deleted",
    Reason.NODE_CORDONED: "cordoned",
    Reason.NODE_SUSPECT: "suspect",
    Reason.NODE_NAME: "node name",
    Reason.NODE_SELECTOR: "node selector",
    Reason.NODE_AFFINITY: "node affinity",
    Reason.TAINT: "taint",
    Reason.PORT: "host port",
    Reason.TOPOLOGY_SPREAD: "topology spread",
    Reason.POD_AFFINITY: "pod affinity",
    Reason.POD_ANTI_AFFINITY: "pod anti-affinity",
    Reason.ANTI_AFFINITY_OF_OTHERS: "anti-affinity of other pods",
    Reason.POLICY: "policy",
    Reason.REFUSED_LATELY: "refused lately",
    Reason.ZONE_QUOTA: "zone quota",
}
"""The labels of filters in the scheduler's messages, such as "0/3 nodes: 2 taint, 1 cpu". A resource has no label."""
_MESSAGE = re.compile(r"\d+/\d+ nodes: \d+ (?P<blocker>[^,]+)")
_LONGEST_FIRST = sorted(BLOCKER_LABELS.items(), key=lambda item: -len(item[1]))


def refusal_reason(message: str) -> str:
    """The code of the first blocker in the scheduler's message about a pod: the decisive one, or that of most nodes.

    A resource is named: `InsufficientCpu`. Empty for a message of another form.
    """
    if message.startswith("gang "):
        return "Gang"
    if message.endswith("nodes: there are none"):
        return "NoNodes"
    found = _MESSAGE.match(message)
    if found is None:
        return ""
    blocker = found["blocker"]
    for reason, label in _LONGEST_FIRST:
        if blocker == label or blocker.startswith(f"{label} "):
            return reason
    words = re.split(r"[^a-zA-Z0-9]+", blocker.rpartition("/")[2])
    return "Insufficient" + "".join(word[:1].upper() + word[1:] for word in words)


QUOTA_EXCEEDED = "QuotaExceeded"
"""No pod may be created: a ResourceQuota has no room for it."""


def creation_blocker(error: str, message: str) -> str:
    """The code of what keeps a pod from being created, from the error's name and message."""
    return QUOTA_EXCEEDED if "exceeded quota: " in message else error


class Misfit(NamedTuple):
    """Why a pod does not fit a node: the code, and a message."""

    reason: Reason
    message: str
