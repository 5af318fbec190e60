"""An attempt is run again from its record, and an input that is missing or wrong is found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.objects import ZONE_QUOTA, node, zone_quota
from tests.sim.controllers import until
from tests.unit.scheduler.desk import Desk, at_a_desk

from kedge.errors import Compacted, ReplayDiverged
from kedge.keys import Key
from kedge.observe.records import decode_decision, encode_decision
from kedge.scheduler.recheck import recheck_attempt


async def busy(desk: Desk) -> dict[str, Any]:
    """Binds under way, a quota, a pod that lingers, a place that is being made: all that a decision may rest on."""
    await desk.open_for(node("node-a", cpu="1"), node("node-b", cpu="1", zone="zone-b"))
    await desk.priority("urgent", 10)
    await desk.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "900m"}))
    await desk.pod("ghost", cpu="300m")
    await until(lambda: desk.place("ghost"))
    await desk.remove("ghost", confirm=False)
    desk.wire.binds_held = True
    for n in range(4):
        await desk.pod(f"web-{n}", cpu="400m")
    await until(lambda: len(desk.scheduler.picture.assumed) >= 2)
    await desk.pod("urgent", cpu="800m", priorityClassName="urgent")
    await asyncio.sleep(1)
    desk.wire.binds_held = False
    await asyncio.sleep(10)
    return {cache.name: cache.received for cache in desk.caches}


@at_a_desk()
async def test_every_attempt_comes_to_the_same_again_also_from_bytes(desk: Desk) -> None:
    logs = await busy(desk)
    count = 0
    for record in desk.decisions():
        count += recheck_attempt(decode_decision(encode_decision(record)), logs, desk.env)
    assert count >= 5
    assert any(record.details.get("lingering") for record in desk.decisions())
    assert any(record.details.get("assumed") for record in desk.decisions())


@at_a_desk()
async def test_a_record_without_one_of_its_inputs_comes_to_something_else(desk: Desk) -> None:
    """Each of them is needed: somewhere in a busy while an attempt differs without it."""
    logs = await busy(desk)
    for name, empty in (("assumed", {}), ("lingering", {}), ("draw", 1 << 30)):
        differs = False
        for record in desk.decisions():
            if name not in record.details:
                continue
            kept = record.details
            record.details = {**kept, name: empty}
            try:
                recheck_attempt(record, logs, desk.env)
            except ReplayDiverged:
                differs = True
            record.details = kept
        assert differs or name == "draw", name


@at_a_desk()
async def test_a_tampered_answer_is_found_and_a_lost_log_is_said_to_be_lost(desk: Desk) -> None:
    logs = await busy(desk)
    record = next(each for each in desk.decisions() if each.details.get("node"))
    record.details["score"] += 1
    with pytest.raises(ReplayDiverged, match="score is"):
        recheck_attempt(record, logs, desk.env)
    record.details["score"] -= 1
    with pytest.raises(Compacted, match="no received log"):
        recheck_attempt(record, {}, desk.env)


@at_a_desk()
async def test_the_zone_that_a_bind_was_counted_in_is_part_of_the_record(desk: Desk) -> None:
    """A node may be of another zone by the time that the next attempt asks what its tenant's quotas leave."""
    await desk.open_for(node("node-a", cpu="4", zone="zone-a"))
    await desk.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}, zone_b={"cpu": "1"}))
    await asyncio.sleep(2)
    desk.wire.binds_held = True
    await desk.pod("first", cpu="800m")
    await until(lambda: desk.scheduler.statistics().assumed)
    moved = {"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-b"}}}
    await desk.cluster.authority.patch(Key("Node", "", "node-a"), moved)
    await asyncio.sleep(2)
    await desk.pod("second", cpu="800m")
    await until(lambda: desk.attempts("second") or desk.scheduler.statistics().assumed == 2)
    desk.wire.binds_held = False
    await until(lambda: desk.attempts("second"))
    (attempt, *_) = desk.attempts("second")
    assert attempt.details["blockedZones"] == ["zone-a"]
    assert recheck_attempt(attempt, {cache.name: cache.received for cache in desk.caches}, desk.env)


APART_FROM_WEB = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


@at_a_desk()
async def test_a_pod_that_gets_other_labels_while_its_bind_is_under_way_counts_as_it_is(desk: Desk) -> None:
    """Who looks at it then, and who runs that attempt again, see the same pod; and who waited for it to go is woken."""
    await desk.open_for(node("node-a"))
    desk.wire.binds_held = True
    web = await desk.pod("web")
    await until(lambda: desk.scheduler.picture.assumed)
    await desk.pod("early", labels={"app": "early"}, affinity=APART_FROM_WEB)
    await until(lambda: desk.reason("early") == "0/1 nodes: 1 pod anti-affinity kubernetes.io/hostname")
    await desk.cluster.authority.patch(web.key, {"metadata": {"labels": {"app": "db"}}})
    await until(lambda: len(desk.scheduler.picture.assumed) == 2)
    await desk.pod("late", labels={"app": "late"}, affinity=APART_FROM_WEB)
    await until(lambda: len(desk.scheduler.picture.assumed) == 3)
    desk.wire.binds_held = False
    await until(desk.nothing_is_left)
    assert [desk.place(name) for name in ("web", "early", "late")] == ["node-a"] * 3
    assert desk.recheck_all() >= 4
