"""Where the replicas of a template that is rolled out by zone or region go, and which old ones make way for them. Pure.

A rollout says so on the Deployment, which passes it on: pods of the current ReplicaSet are made for those places only,
and old ones there are given up first. Templates stay as they are, so that nothing is replaced twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kedge.api.codec import encode_json
from kedge.api.objects import Object
from kedge.api.wellknown import GIVE_UP_IN, PODS_IN, REGION_LABEL, UPDATED_IN, ZONE_LABEL


class TopologySelector(msgspec.Struct, frozen=True):
    """Some zones, some regions, or both. `stage` only tells one stage of a rollout from another."""

    zones: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    stage: str = ""

    def has(self, node_labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is there."""
        if self.zones and node_labels.get(ZONE_LABEL, "") not in self.zones:
            return False
        return not self.regions or node_labels.get(REGION_LABEL, "") in self.regions

    def as_text(self) -> str:
        return encode_json(self).decode()


def parse_topology(text: str | None) -> TopologySelector | None:
    """What an annotation says; None for nothing, and for what cannot be read: a person may have written anything."""
    try:
        found = msgspec.json.decode(text, type=TopologySelector) if text else None
    except msgspec.MsgspecError:
        return None
    return found if found is not None and (found.zones or found.regions) else None


def pin_to_topology(spec: Mapping[str, Any], where: TopologySelector) -> dict[str, Any]:
    """A pod's spec that may run there only, and where it might have run before."""
    asked = [(ZONE_LABEL, where.zones), (REGION_LABEL, where.regions)]
    there = [{"key": key, "operator": "In", "values": list(names)} for key, names in asked if names]
    affinity = dict(spec.get("affinity") or {})
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    required = dict(of_nodes.get(_REQUIRED) or {})
    # Terms are alternatives, so each of them gets it.
    terms = [dict(each) for each in required.get("nodeSelectorTerms") or [{}]]
    for term in terms:
        term["matchExpressions"] = [*(term.get("matchExpressions") or []), *there]
    of_nodes[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    return {**spec, "affinity": {**affinity, "nodeAffinity": of_nodes}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class TopologyAnnotations:
    """The annotations that one ReplicaSet of a Deployment is to have; None for one that it is not to have."""

    current: Mapping[str, str | None]
    old: Mapping[str, str | None]


def topology_annotations(deployment: Object) -> TopologyAnnotations:
    text = deployment.metadata.annotations.get(UPDATED_IN)
    return TopologyAnnotations(current={PODS_IN: text, GIVE_UP_IN: None}, old={PODS_IN: None, GIVE_UP_IN: text})
