"""A pod that a person holds off the scheduler: not placed, not asked to leave, and said to be held, until that ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.kit.controllers import until
from tests.objects import node
from tests.unit.scheduler.desk import Desk, at_a_desk

from kedge.api.holds import ALL, Hold
from kedge.keys import Key


def hold(desk: Desk, name: str = "default-scheduler", *, for_s: float = 60.0) -> dict[str, str]:
    return dict([Hold(name, "ada", "looking into it", desk.env.now() + timedelta(seconds=for_s)).annotation()])


@pytest.mark.parametrize("name", ["default-scheduler", ALL])
def test_a_held_pod_waits_until_the_hold_ends_by_itself_and_others_do_not(name: str) -> None:
    @at_a_desk()
    async def story(desk: Desk) -> None:
        await desk.open_for()
        ends_s = desk.sim.now_s + 60
        await desk.pod("held", annotations=hold(desk, name))
        await desk.pod("free")
        await until(lambda: desk.place("free"))
        await until(lambda: desk.said("held")[1] == "Held")
        assert desk.said("held")[2].startswith(f"ada holds {name} until ")
        assert desk.said("held")[2].endswith(": looking into it")
        while desk.sim.now_s < ends_s - 1:
            assert desk.place("held") == ""
            await asyncio.sleep(0.5)
        assert not desk.attempts("held")
        await until(lambda: desk.place("held"))
        assert desk.sim.now_s < ends_s + 5
        await until(desk.nothing_is_left)

    story()


@at_a_desk()
async def test_a_hold_that_is_taken_away_is_over_and_one_on_another_scheduler_is_none(desk: Desk) -> None:
    await desk.open_for()
    await desk.pod("held", annotations=hold(desk, for_s=3600))
    await desk.pod("theirs", annotations=hold(desk, "batch-scheduler", for_s=3600))
    await until(lambda: desk.place("theirs"))
    await asyncio.sleep(20)
    assert desk.place("held") == ""
    gone = {"metadata": {"annotations": {"hold.kedge.dev/default-scheduler": None}}}
    await desk.cluster.authority.patch(Key("Pod", "default", "held"), gone)
    await until(lambda: desk.place("held"))


@at_a_desk()
async def test_a_hold_put_on_a_pod_that_fits_nowhere_keeps_it_from_what_then_fits(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    await desk.pod("large", cpu="2")
    await until(lambda: desk.said("large")[1] == "Unschedulable")
    notes = {"metadata": {"annotations": hold(desk, for_s=120)}}
    await desk.cluster.authority.patch(Key("Pod", "default", "large"), notes)
    await asyncio.sleep(1)
    await desk.cluster.authority.create(desk.client.kinds.of_key_kind("Node"), node("node-b", cpu="4"))
    await asyncio.sleep(60)
    assert desk.place("large") == ""
    await until(lambda: desk.place("large") == "node-b")


@at_a_desk()
async def test_a_held_member_keeps_its_gang_waiting(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="4"))
    await desk.gang("one", size=2)
    notes = {"kedge.dev/gang-size": "2", **hold(desk)}
    await desk.pod("two", labels={"kedge.dev/gang": "crew"}, annotations=notes)
    await asyncio.sleep(40)
    assert (desk.place("one"), desk.place("two")) == ("", "")
    assert desk.said("one")[1] == desk.said("two")[1] == "Held"
    await until(lambda: desk.place("one") and desk.place("two"))


@at_a_desk()
async def test_a_held_pod_is_not_asked_to_leave_for_another(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    await desk.priority("high", 1000)
    await desk.pod("low", cpu="900m", annotations=hold(desk, for_s=60))
    await asyncio.sleep(1)
    assert desk.place("low") == ""
    await until(lambda: desk.place("low") == "node-a")
    again = {"metadata": {"annotations": hold(desk, for_s=600)}}
    await desk.cluster.authority.patch(Key("Pod", "default", "low"), again)
    await asyncio.sleep(1)
    await desk.pod("high", cpu="900m", priorityClassName="high")
    await asyncio.sleep(120)
    low = desk.find("low")
    assert low is not None
    assert low.metadata.deletion_timestamp is None
    gone = {"metadata": {"annotations": {"hold.kedge.dev/default-scheduler": None}}}
    await desk.cluster.authority.patch(Key("Pod", "default", "low"), gone)
    await until(lambda: (found := desk.find("low")) is None or found.view.terminating)
