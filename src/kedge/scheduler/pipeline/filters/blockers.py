"""What stands between a pod and a node: a reason code, and which one where there are several."""

from __future__ import annotations

from typing import NamedTuple

from kedge.placement.reasons import Reason

_WORDS = {
    Reason.NODE_TERMINATING: "being deleted",
    Reason.NODE_CORDONED: "cordoned",
    Reason.NODE_SUSPECT: "suspect",
    Reason.NODE_NAME: "node name",
    Reason.NODE_SELECTOR: "node selector",
    Reason.NODE_AFFINITY: "node affinity",
    Reason.TAINT: "taint",
    Reason.PORT: "host port",
    Reason.RESOURCE: "",
    Reason.ZONE_QUOTA: "zone quota",
    Reason.TOPOLOGY_SPREAD: "topology spread",
    Reason.POD_AFFINITY: "pod affinity",
    Reason.POD_ANTI_AFFINITY: "pod anti-affinity",
    Reason.ANTI_AFFINITY_OF_OTHERS: "anti-affinity of other pods",
    Reason.POLICY: "policy",
    Reason.REFUSED_LATELY: "refused lately",
}


class Blocker(NamedTuple):
    """One filter's answer. `detail` is the resource, the zone of a tenant's quota, the topology key or the policy."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return " ".join(word for word in (_WORDS[self.reason], self.detail) if word)
