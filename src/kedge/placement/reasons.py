"""Why a pod does not fit, as codes that are stable across releases.

A refusal of the service, a filter of the scheduler, a condition and a metric all use these codes.
"""

from __future__ import annotations

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


class Misfit(NamedTuple):
    """Why a pod does not fit a node: the code, and a message."""

    reason: Reason
    message: str
