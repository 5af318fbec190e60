"""Rollouts by zone or region: where new replicas run, and which old replicas are deleted first. Pure.

A rollout annotates the Deployment, which annotates its ReplicaSets: pods of the current one are restricted to those
zones, and old pods there are deleted first. Templates do not change, so that nothing is replaced twice.
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
    """Some zones, some regions, or both. `stage` only distinguishes the stages of a rollout."""

    zones: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    stage: str = ""

    def matches(self, node_labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in a selected zone and region."""
        if self.zones and node_labels.get(ZONE_LABEL, "") not in self.zones:
            return False
        return not self.regions or node_labels.get(REGION_LABEL, "") in self.regions

    def as_text(self) -> str:
        return encode_json(self).decode()


def parse_topology(text: str | None) -> TopologySelector | None:
    """Parse an annotation; None if it is empty or cannot be parsed: a person may have written it."""
    try:
        found = msgspec.json.decode(text, type=TopologySelector) if text else None
    except msgspec.MsgspecError:
        return None
    return found if found is not None and (found.zones or found.regions) else None


def pin_to_topology(spec: Mapping[str, Any], topology: TopologySelector) -> dict[str, Any]:
    """A pod's spec restricted to these zones and regions, in addition to its own constraints."""
    asked = [(ZONE_LABEL, topology.zones), (REGION_LABEL, topology.regions)]
    there = [{"key": key, "operator": "In", "values": list(names)} for key, names in asked if names]
    affinity = dict(spec.get("affinity") or {})
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    required = dict(of_nodes.get(_REQUIRED) or {})
    # Terms are alternatives, so each one gets the restriction.
    terms = [dict(each) for each in required.get("nodeSelectorTerms") or [{}]]
    for term in terms:
        term["matchExpressions"] = [*(term.get("matchExpressions") or []), *there]
    of_nodes[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    return {**spec, "affinity": {**affinity, "nodeAffinity": of_nodes}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class TopologyAnnotations:
    """The annotations of the current and the old ReplicaSets of a Deployment; None removes an annotation."""

    current: Mapping[str, str | None]
    old: Mapping[str, str | None]


def topology_annotations(deployment: Object) -> TopologyAnnotations:
    text = deployment.metadata.annotations.get(UPDATED_IN)
    return TopologyAnnotations(current={PODS_IN: text, GIVE_UP_IN: None}, old={PODS_IN: None, GIVE_UP_IN: text})
