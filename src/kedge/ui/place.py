"""The place document: zones, nodes and pods at one point, with stage, reservation, claim and suspicion. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kedge.api.conditions import TRUE
from kedge.api.objects import Object
from kedge.api.quantity import Quantity
from kedge.api.views import NodeAllocationView, NodeView, PodView, ReservationView, ZoneQuotaView
from kedge.api.wellknown import (
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    RESERVATION_KIND,
    ZONE_LABEL,
    ZONE_QUOTA_KIND,
)
from kedge.observe.readers.why.pod import stage_of
from kedge.ui.history import Point, RecordedHistory

PLACE_KIND: Final = "Place"
NO_ZONE: Final = "no zone"
_SUSPECT: Final = "Suspect"


class _Claim(NamedTuple):
    node: str
    state: str
    requests: Mapping[str, Quantity]


def place_document(history: RecordedHistory, point: Point) -> dict[str, Any]:
    """Every zone with its nodes, every pod, and the claims that no pod explains."""
    revision = point.revision
    pods = list(history.of_kind(POD_KIND, revision))
    claims: dict[str, _Claim] = {}
    allocated: dict[str, Mapping[str, Quantity]] = {}
    for found in history.of_kind(NODE_ALLOCATION_KIND, revision):
        status = found.as_view(NodeAllocationView).status
        allocated[found.key.name] = status.allocated
        for uid, entry in status.entries.items():
            claims[uid] = _Claim(found.key.name, entry.state, entry.requests)
    reserved = _reservations(history, point)
    rows = [_pod(each, claims.get(each.uid), reserved.get(each.uid, "")) for each in pods]
    known = {each.uid for each in pods}
    leftover: dict[str, int] = {}
    for uid, claim in claims.items():
        if uid not in known:
            leftover[claim.node] = leftover.get(claim.node, 0) + 1
    zones: dict[str, list[dict[str, Any]]] = {}
    for found in history.of_kind(NODE_KIND, revision):
        name = found.key.name
        row = _node(found, allocated.get(name, {}), leftover.get(name, 0))
        zones.setdefault(row["zone"], []).append(row)
    return {
        "zones": [{"name": name, "nodes": nodes} for name, nodes in sorted(zones.items())],
        "pods": rows,
        "quotas": _quotas(history, point),
    }


def _reservations(history: RecordedHistory, point: Point) -> dict[str, str]:
    """The node on which a reservation holds room for a pod, by the pod's uid."""
    return {
        spec.pod.uid: spec.node_name
        for found in history.of_kind(RESERVATION_KIND, point.revision)
        if (spec := found.as_view(ReservationView).spec).pod.uid
    }


def _pod(found: Object, claim: _Claim | None, reserved: str) -> dict[str, Any]:
    view = found.as_view(PodView)
    owner = next((each for each in found.metadata.owner_references if each.controller), None)
    return {
        "key": str(found.key),
        "name": found.key.name,
        "namespace": found.key.namespace,
        "node": view.spec.node_name,
        "stage": stage_of(found),
        "why": _why(view),
        "claim": "" if claim is None else f"{claim.state} on {claim.node}: {_amounts(claim.requests)}",
        "reserved": reserved,
        "owner": "" if owner is None else owner.name,
        "revision": found.revision,
    }


def _why(view: PodView) -> str:
    """The reason that the pod's own status gives for not being ready."""
    for each in (*view.status.init_container_statuses, *view.status.container_statuses):
        if each.state.waiting is not None and each.state.waiting.reason:
            return each.state.waiting.reason
    for condition in view.status.conditions:
        if condition.status != TRUE and condition.message:
            return condition.message
    return ""


def _node(found: Object, allocated: Mapping[str, Quantity], leftover: int) -> dict[str, Any]:
    view = found.as_view(NodeView)
    conditions = {each.type: each for each in view.status.conditions}
    ready = conditions.get("Ready")
    suspect = conditions.get(_SUSPECT)
    return {
        "key": str(found.key),
        "name": found.key.name,
        "zone": found.metadata.labels.get(ZONE_LABEL, NO_ZONE),
        "ready": ready.status if ready is not None else "Unknown",
        "why": ready.message if ready is not None and ready.status != TRUE else "",
        "suspect": suspect is not None and suspect.status == TRUE,
        "suspicion": suspect.message if suspect is not None and suspect.status == TRUE else "",
        "cordoned": view.spec.unschedulable,
        "taints": [f"{each.key}:{each.effect}" for each in view.spec.taints],
        "room": _room(allocated, view.status.allocatable),
        "claimsWithoutPod": leftover,
        "revision": found.revision,
    }


def _quotas(history: RecordedHistory, point: Point) -> list[dict[str, Any]]:
    made = []
    for found in history.of_kind(ZONE_QUOTA_KIND, point.revision):
        view = found.as_view(ZoneQuotaView)
        for zone, limit in view.spec.zones.items():
            used = view.status.zones[zone].used if zone in view.status.zones else {}
            made.append(
                {
                    "key": str(found.key),
                    "namespace": found.key.namespace,
                    "zone": zone,
                    "room": _room(used, limit.hard),
                    "revision": found.revision,
                }
            )
    return made


def _room(used: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> list[dict[str, Any]]:
    """Each resource with its amount in use, its limit, and the share in use."""
    made = []
    for name, limit in limits.items():
        taken = used.get(name)
        share = 0.0 if taken is None or not limit.nano else taken.nano / limit.nano
        made.append(
            {"resource": name, "used": "0" if taken is None else str(taken), "of": str(limit), "share": round(share, 4)}
        )
    return made


def _amounts(requests: Mapping[str, Quantity]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in requests.items() if name != "pods") or "nothing"
