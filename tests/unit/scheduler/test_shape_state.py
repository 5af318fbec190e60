"""Filters and scores about other pods follow each claim that is added or removed. Small cases, written out."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.objects import node, pod

from kedge.api.views import NodeView, PodView, decode_as
from kedge.scheduler import Snapshot, decide, snapshot_of

ZONE = "topology.kubernetes.io/zone"
WEB = {"matchLabels": {"app": "web"}}


def three_zones() -> Snapshot:
    return snapshot_of(
        decode_as(NodeView, msgspec.json.encode(node(f"node-{zone}", zone=zone))) for zone in ("a", "b", "c")
    )


def replica(*, gone: bool = False, **spec: Any) -> PodView:
    document = pod(cpu="1m", memory="1Mi", **spec)
    if gone:
        document["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return decode_as(PodView, msgspec.json.encode(document))


def spread(action: str) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": action, "labelSelector": WEB}
    return {"topologySpreadConstraints": [rule]}


def near_web() -> dict[str, Any]:
    rule = {"labelSelector": WEB, "topologyKey": ZONE}
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}}


def feasible(snapshot: Snapshot, asking: PodView) -> int:
    return decide(snapshot, asking, 0).feasible


def test_a_zone_is_feasible_again_when_the_emptiest_has_caught_up() -> None:
    snapshot, asking = three_zones(), replica(**spread("DoNotSchedule"))
    seen = []
    for i, zone in enumerate("abcab"):
        seen.append(feasible(snapshot, asking))
        snapshot.add_claim(f"u{i}", f"node-{zone}", asking)
    seen.append(feasible(snapshot, asking))
    assert seen == [3, 2, 1, 3, 2, 1]
    snapshot.remove_claim("u2")  # the third zone is empty again: the others are two ahead of it already
    assert decide(snapshot, asking, 0).node == "node-c"
    snapshot.remove_claim("u3")
    snapshot.remove_claim("u4")
    snapshot.remove_claim("u0")
    assert feasible(snapshot, asking) == 2


def test_a_terminating_pod_does_not_count_for_spread() -> None:
    snapshot, asking = three_zones(), replica(**spread("DoNotSchedule"))
    snapshot.add_claim("u", "node-a", replica(gone=True))
    assert feasible(snapshot, asking) == 3
    snapshot.add_claim("u", "node-a", replica())
    assert feasible(snapshot, asking) == 2


def test_the_spread_score_follows_each_claim() -> None:
    snapshot, asking = three_zones(), replica(**spread("ScheduleAnyway"))
    chosen = []
    for i in range(6):
        found = decide(snapshot, asking, 0).node
        assert found is not None
        chosen.append(found)
        snapshot.add_claim(f"u{i}", found, asking)
    assert sorted(chosen[:3]) == sorted(chosen[3:]) == ["node-a", "node-b", "node-c"]
    for i in range(6):
        if chosen[i] == "node-b":
            snapshot.remove_claim(f"u{i}")
    assert decide(snapshot, asking, 0).node == "node-b"


def test_affinity_starts_with_the_first_matching_pod_and_ends_with_the_last() -> None:
    snapshot, asking = three_zones(), replica(**near_web())
    assert feasible(snapshot, asking) == 3, "the first may go anywhere"
    snapshot.add_claim("one", "node-b", asking)
    assert decide(snapshot, asking, 0).node == "node-b"
    assert feasible(snapshot, asking) == 1
    snapshot.add_claim("two", "node-c", replica())
    assert feasible(snapshot, asking) == 2
    snapshot.remove_claim("one")
    assert decide(snapshot, asking, 0).node == "node-c"
    assert feasible(snapshot, asking) == 1
    snapshot.remove_claim("two")
    assert feasible(snapshot, asking) == 3
