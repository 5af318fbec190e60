"""Rollouts by zone: where new pods may run, and which old pods are deleted first."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.pod_views import NOW, a_pod, ready_pod

from kedge.api.wellknown import REGION_LABEL, ZONE_LABEL
from kedge.controllers.shared.pods import in_deletion_order
from kedge.controllers.shared.topology import TopologySelector, parse_topology, pin_to_topology

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def terms(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def test_a_pod_without_affinity_gets_the_zones() -> None:
    spec: dict[str, Any] = {"containers": []}
    assert terms(pin_to_topology(spec, TopologySelector(zones=("a", "b")))) == [
        {"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": ["a", "b"]}]}
    ]
    assert spec == {"containers": []}


def test_a_pod_with_affinity_gets_the_zones_in_every_term() -> None:
    disk = {"key": "disk", "operator": "In", "values": ["ssd"]}
    own = [{"matchExpressions": [disk]}, {"matchFields": [{"key": "metadata.name"}]}]
    spec = {
        "affinity": {
            "podAffinity": {"kept": True},
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": own}, "preferred": "kept"},
        }
    }
    made = pin_to_topology(spec, TopologySelector(zones=("a",), regions=("north",)))
    there = [
        {"key": ZONE_LABEL, "operator": "In", "values": ["a"]},
        {"key": REGION_LABEL, "operator": "In", "values": ["north"]},
    ]
    assert terms(made) == [
        {"matchExpressions": [disk, *there]},
        {"matchFields": [{"key": "metadata.name"}], "matchExpressions": there},
    ]
    assert made["affinity"]["podAffinity"] == {"kept": True}
    assert made["affinity"]["nodeAffinity"]["preferred"] == "kept"
    assert own[0] == {"matchExpressions": [disk]}


@pytest.mark.parametrize("text", [None, "", "zone-a", "[]", "{}", '{"zones": 3}'])
def test_an_annotation_without_zones_restricts_nothing(text: str | None) -> None:
    assert parse_topology(text) is None


def test_a_topology_survives_a_round_trip() -> None:
    topology = TopologySelector(zones=("a",), regions=("north",), stage="first")
    assert parse_topology(topology.as_text()) == topology
    assert topology.matches({ZONE_LABEL: "a", REGION_LABEL: "north"})
    assert not topology.matches({ZONE_LABEL: "a", REGION_LABEL: "south"})
    assert not topology.matches({ZONE_LABEL: "b", REGION_LABEL: "north"})
    assert not topology.matches({})


def test_pods_in_the_zones_are_deleted_first_but_unavailable_ones_before_them() -> None:
    here, there, waiting = ready_pod("web-0"), ready_pod("web-1"), a_pod("web-2", node="node-a", phase="Running")
    order = in_deletion_order([here, there, waiting], now=NOW, first={there.uid})
    assert [pod.name for pod in order] == ["web-2", "web-1", "web-0"]
