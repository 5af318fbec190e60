"""A pod with a hold on the scheduler: not placed, not evicted, and reported as held, until the hold ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, with_scheduler
from tests.objects import node

from kedge.api.holds import ALL, Hold
from kedge.keys import Key


def hold(harness: SchedulerHarness, name: str = "default-scheduler", *, for_s: float = 60.0) -> dict[str, str]:
    return dict([Hold(name, "ada", "looking into it", harness.env.now() + timedelta(seconds=for_s)).annotation()])


@pytest.mark.parametrize("name", ["default-scheduler", ALL])
def test_a_held_pod_waits_until_the_hold_ends_and_others_do_not(name: str) -> None:
    @with_scheduler()
    async def story(harness: SchedulerHarness) -> None:
        await harness.open_for()
        ends_s = harness.sim.now_s + 60
        await harness.pod("held", annotations=hold(harness, name))
        await harness.pod("free")
        await until(lambda: harness.place("free"))
        await until(lambda: harness.scheduled_condition("held")[1] == "Held")
        assert harness.scheduled_condition("held")[2].startswith(f"ada holds {name} until ")
        assert harness.scheduled_condition("held")[2].endswith(": looking into it")
        while harness.sim.now_s < ends_s - 1:
            assert harness.place("held") == ""
            await asyncio.sleep(0.5)
        assert not harness.attempts("held")
        await until(lambda: harness.place("held"))
        assert harness.sim.now_s < ends_s + 5
        await until(harness.nothing_is_left)

    story()


@with_scheduler()
async def test_a_removed_hold_is_over_and_a_hold_on_another_scheduler_has_no_effect(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for()
    await harness.pod("held", annotations=hold(harness, for_s=3600))
    await harness.pod("theirs", annotations=hold(harness, "batch-scheduler", for_s=3600))
    await until(lambda: harness.place("theirs"))
    await asyncio.sleep(20)
    assert harness.place("held") == ""
    gone = {"metadata": {"annotations": {"hold.kedge.dev/default-scheduler": None}}}
    await harness.cluster.authority.patch(Key("Pod", "default", "held"), gone)
    await until(lambda: harness.place("held"))


@with_scheduler()
async def test_a_hold_on_an_unschedulable_pod_keeps_it_from_a_node_that_then_fits(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("large", cpu="2")
    await until(lambda: harness.scheduled_condition("large")[1] == "Unschedulable")
    notes = {"metadata": {"annotations": hold(harness, for_s=120)}}
    await harness.cluster.authority.patch(Key("Pod", "default", "large"), notes)
    await asyncio.sleep(1)
    await harness.cluster.authority.create(harness.client.kinds.of_key_kind("Node"), node("node-b", cpu="4"))
    await asyncio.sleep(60)
    assert harness.place("large") == ""
    await until(lambda: harness.place("large") == "node-b")


@with_scheduler()
async def test_a_held_member_keeps_its_gang_waiting(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="4"))
    await harness.gang("one", size=2)
    notes = {"kedge.dev/gang-size": "2", **hold(harness)}
    await harness.pod("two", labels={"kedge.dev/gang": "crew"}, annotations=notes)
    await asyncio.sleep(40)
    assert (harness.place("one"), harness.place("two")) == ("", "")
    assert harness.scheduled_condition("one")[1] == harness.scheduled_condition("two")[1] == "Held"
    await until(lambda: harness.place("one") and harness.place("two"))


@with_scheduler()
async def test_a_held_pod_is_not_evicted_for_another(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("high", 1000)
    await harness.pod("low", cpu="900m", annotations=hold(harness, for_s=60))
    await asyncio.sleep(1)
    assert harness.place("low") == ""
    await until(lambda: harness.place("low") == "node-a")
    again = {"metadata": {"annotations": hold(harness, for_s=600)}}
    await harness.cluster.authority.patch(Key("Pod", "default", "low"), again)
    await asyncio.sleep(1)
    await harness.pod("high", cpu="900m", priorityClassName="high")
    await asyncio.sleep(120)
    low = harness.find("low")
    assert low is not None
    assert low.metadata.deletion_timestamp is None
    gone = {"metadata": {"annotations": {"hold.kedge.dev/default-scheduler": None}}}
    await harness.cluster.authority.patch(Key("Pod", "default", "low"), gone)
    await until(lambda: (found := harness.find("low")) is None or found.view.terminating)
