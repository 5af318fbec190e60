"""Gangs: bound whole or not at all, whoever leads, and whatever is left of earlier attempts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.kit.controllers import until
from tests.objects import gang_record, node, reservation
from tests.unit.scheduler.desk import LIMITS, Desk, at_a_desk

from kedge.api.requests import Binding, GangChunk, GangPlace
from kedge.errors import Refused
from kedge.keys import Key
from kedge.server.service import gangs

CREW = Key("Reservation.kedge.dev", "default", "crew")
FAR = datetime(2060, 1, 1, tzinfo=UTC)


def places(desk: Desk, *names: str) -> list[str]:
    return [desk.place(name) for name in names]


@at_a_desk()
async def test_a_gang_is_bound_whole_and_its_record_goes(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    await desk.gang("a", "b", "c", size=3, cpu="400m")
    await until(lambda: all(places(desk, "a", "b", "c")))
    await until(lambda: desk.cluster.find(CREW) is None)
    await until(desk.nothing_is_left)
    assert not desk.cluster.all("Reservation.kedge.dev")


@at_a_desk()
async def test_a_gang_waits_for_its_last_member(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="4"))
    await desk.gang("a", "b", size=3)
    await until(lambda: desk.reason("a") == "gang crew: 2 of its 3 members are here")
    assert places(desk, "a", "b") == ["", ""]
    await desk.gang("c", size=3)
    await until(lambda: all(places(desk, "a", "b", "c")))


@at_a_desk()
async def test_a_member_that_somebody_else_has_placed_is_here_too(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    await desk.gang("a", size=2)
    await until(lambda: desk.reason("a"))
    await desk.gang("b", size=2, nodeName="node-a")
    await until(lambda: desk.place("a"))


@at_a_desk()
async def test_a_pod_joins_a_gang_and_leaves_it_with_its_label(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1", unschedulable=True))
    for name in ("a", "b", "c"):
        await desk.pod(name, annotations={"kedge.dev/gang-size": "3"})
    await until(lambda: all(desk.reason(name) for name in ("a", "b", "c")))
    for name in ("a", "b"):
        label = {"metadata": {"labels": {"kedge.dev/gang": "crew"}}}
        await desk.cluster.authority.patch(Key("Pod", "default", name), label)
    await until(lambda: desk.reason("a") == "gang crew: 2 of its 3 members are here")
    await desk.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": False}})
    await until(lambda: desk.place("c"))
    assert places(desk, "a", "b") == ["", ""]
    await desk.cluster.authority.patch(Key("Pod", "default", "b"), {"metadata": {"labels": {"kedge.dev/gang": None}}})
    await until(lambda: desk.place("b"))
    assert desk.place("a") == ""


@at_a_desk()
async def test_the_largest_member_chooses_first_and_the_small_one_takes_what_is_left(desk: Desk) -> None:
    """In order of coming the small one would take the only place that is large enough for the other."""
    await desk.open_for(node("node-a", cpu="4"), node("node-b", cpu="1"))
    await desk.gang("small", size=2, cpu="1")
    await desk.gang("large", size=2, cpu="4")
    await until(lambda: desk.place("large") == "node-a" and desk.place("small") == "node-b")


@at_a_desk()
async def test_a_gang_that_does_not_say_its_size_is_told_to(desk: Desk) -> None:
    await desk.open_for()
    await desk.pod("a", labels={"kedge.dev/gang": "crew"})
    await until(lambda: "kedge.dev/gang-size" in desk.reason("a"))


@at_a_desk()
async def test_a_size_that_is_no_number_stops_nobody_but_its_gang(desk: Desk) -> None:
    """An annotation may hold anything, and a scheduler that fails at it would fail again at every start."""
    garbage = ("", "0", "-1", "2.0", "1e3", " 2", "two", "\u00b2", "\u0662", "9" * 5000)
    await desk.open_for(node("node-a", cpu="4"))
    for n, size in enumerate(garbage):
        labels, annotations = {"kedge.dev/gang": f"gang-{n}"}, {"kedge.dev/gang-size": size}
        await desk.pod(f"garbled-{n}", labels=labels, annotations={**annotations, "kedge.dev/slot": size})
    await desk.gang("a", "b", size=2)
    await until(lambda: all(places(desk, "a", "b")))
    await until(lambda: all("kedge.dev/gang-size" in desk.reason(f"garbled-{n}") for n in range(len(garbage))))
    assert desk.scheduler.leading


@at_a_desk()
async def test_members_who_do_not_agree_on_the_size_are_not_tried(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="4"))
    await desk.gang("a", size=2)
    await desk.gang("b", size=1)
    await until(lambda: all("the same on each" in desk.reason(name) for name in ("a", "b")))
    assert places(desk, "a", "b") == ["", ""]
    await desk.cluster.authority.patch(
        Key("Pod", "default", "b"), {"metadata": {"annotations": {"kedge.dev/gang-size": "2"}}}
    )
    await until(lambda: all(places(desk, "a", "b")))


@at_a_desk()
async def test_a_gang_that_fits_only_in_part_claims_nothing_and_is_quiet(desk: Desk) -> None:
    """What it tried and took back wakes nobody: not itself, nor another gang that fits no better."""
    await desk.open_for(node("node-a", cpu="1"))
    await desk.gang("a", "b", "c", size=3, cpu="400m")
    await desk.gang("d", "e", "f", size=3, cpu="400m", gang="others")
    await until(lambda: all(desk.reason(name) for name in "abcdef"))
    await asyncio.sleep(2)
    before = desk.scheduler.statistics().attempts
    await asyncio.sleep(60)
    assert desk.scheduler.statistics().attempts == before
    assert desk.scheduler.statistics().claims == 0
    assert places(desk, *"abc") == ["", "", ""]
    await desk.cluster.create(node("node-b", cpu="1"))
    await until(lambda: all(places(desk, *"abc")) or all(places(desk, *"def")))


async def left_behind(desk: Desk, *, commit: bool) -> None:
    """A leader that died has reserved for a gang."""
    await desk.cluster.create(node("node-a", cpu="1"))
    members = await desk.gang("a", "b", size=2, cpu="400m")
    reserved = [GangPlace(pod=each.key.name, pod_uid=each.uid, node="node-a") for each in members]
    await desk.cluster.authority.reserve(
        GangChunk(namespace="default", gang="crew", size=2, deadline=FAR, places=reserved, commit=commit)
    )


@at_a_desk()
async def test_a_new_leader_brings_a_committed_gang_to_its_end(desk: Desk) -> None:
    await left_behind(desk, commit=True)
    await desk.open_for(node("node-b", cpu="4"))
    await until(lambda: all(places(desk, "a", "b")))
    assert places(desk, "a", "b") == ["node-a", "node-a"], "where they hold their places"
    await until(lambda: desk.cluster.find(CREW) is None)


@at_a_desk()
async def test_a_new_leader_gives_up_a_gang_that_was_not_committed_and_begins_anew(desk: Desk) -> None:
    await left_behind(desk, commit=False)
    await desk.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": True}})
    await desk.open_for(node("node-b", cpu="4"))
    await until(lambda: all(places(desk, "a", "b")))
    assert places(desk, "a", "b") == ["node-b", "node-b"]
    (ledger,) = [each for each in desk.cluster.all("NodeAllocation.kedge.dev") if each.key.name == "node-a"]
    assert not ledger.view.status.entries


@at_a_desk()
async def test_a_record_that_outlived_its_members_is_no_obstacle_to_those_who_replace_them(desk: Desk) -> None:
    await left_behind(desk, commit=True)
    for name in ("a", "b"):
        await desk.remove(name)
    assert desk.cluster.find(CREW) is not None
    await desk.gang("a", "b", size=2, cpu="400m")
    await desk.open_for(node("node-b", cpu="1"))
    await until(lambda: all(places(desk, "a", "b")))
    await until(lambda: desk.cluster.find(CREW) is None)


@at_a_desk()
async def test_the_bind_of_one_member_does_not_outlive_the_term_that_another_has_lost(desk: Desk) -> None:
    """It would come back, whenever it does, to a pod that a later term is trying."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.fences, desk.wire.binds_held = "a", True
    await desk.gang("a", "b", size=2, cpu="400m")
    await until(lambda: (found := desk.cluster.find(CREW)) and found.view.status.phase == "Committed")
    await asyncio.sleep(1)
    desk.running.cancel()
    await asyncio.wait([desk.running])
    desk.wire.binds_held = False
    await asyncio.sleep(5)
    assert not [about for verb, about in desk.wire.asked if verb == "bind"]
    assert places(desk, "a", "b") == ["", ""]


@at_a_desk(replace(LIMITS, gang_wait_s=20.0))
async def test_a_member_whose_place_went_with_its_node_is_placed_anew_after_the_deadline(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="500m"), node("node-b", cpu="500m"))
    desk.wire.binds_held = True
    await desk.gang("a", "b", size=2, cpu="400m")
    await until(lambda: (found := desk.cluster.find(CREW)) and found.view.status.phase == "Committed")
    await desk.cluster.authority.delete(Key("Node", "", "node-b"))
    desk.wire.binds_held = False
    await until(lambda: any(places(desk, "a", "b")))
    await asyncio.sleep(5)
    assert not all(places(desk, "a", "b"))
    await desk.cluster.create(node("node-c", cpu="1"))
    await until(lambda: all(places(desk, "a", "b")), within_s=120)


@at_a_desk()
async def test_a_place_refused_to_one_member_is_not_asked_for_again_by_all(desk: Desk) -> None:
    """Bug 8 (nomad#13017) for gangs: a reservation that is refused is remembered too."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.reserves_held = True
    await desk.gang("a", "b", size=2, cpu="400m")
    await until(lambda: desk.scheduler.statistics().assumed == 2)
    desk.wire.deaf = desk.wire.ledgers_held = True
    await desk.pod("theirs", cpu="800m", nodeName="node-a", schedulerName="other")
    desk.wire.reserves_held = False
    await asyncio.sleep(60)
    assert sum(verb == "reserve" for verb, _ in desk.wire.asked) == 1
    refused = [each for each in desk.decisions() if each.error.startswith("Refused")]
    assert {each.key.name for each in refused} == {"a", "b"}, "attempts that came to nothing leave their records too"
    assert len(desk.decisions()) == desk.scheduler.statistics().attempts
    desk.wire.deaf = desk.wire.ledgers_held = False
    await until(lambda: "cpu" in desk.reason("a") + desk.reason("b"))


# -- bug 4 -----------------------------------------------------------------------------------------


async def late_bind(desk: Desk) -> None:
    """A leader saw a gang committed, slept, and binds one member by what it saw: the gang is another by now.

    1. The old leader's cache shows the gang committed with `a` and `b`. It sleeps.
    2. The members are deleted and come again under their names; only `a` holds a place, under a pending record.
    3. The old leader wakes up and binds `a`.
    """
    await desk.cluster.create(node("node-a", cpu="1"))
    (first, _) = await desk.gang("a", "b", size=2, cpu="400m")
    record = await desk.cluster.create(gang_record("crew", size=2))
    await desk.cluster.create(reservation(first, "node-a", gang="crew"))
    assert record.view.status.phase in ("", "Pending")
    await desk.cluster.authority.bind(Binding(pod=first.key, pod_uid=first.uid, node="node-a"))


def test_a_bind_by_a_stale_gang_places_no_part_of_it() -> None:
    """Bug 4 (volcano#6010): a stale gang object binds part of the gang."""

    @at_a_desk()
    async def scene(desk: Desk) -> None:
        with pytest.raises(Refused, match="not committed"):
            await late_bind(desk)
        assert places(desk, "a", "b") == ["", ""]

    scene()


def test_without_the_proof_of_the_record_a_stale_gang_places_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 4 bites: with the safeguard removed a part is bound."""
    monkeypatch.setattr(gangs, "check_committed", lambda *_: None)

    @at_a_desk()
    async def scene(desk: Desk) -> None:
        await late_bind(desk)
        assert places(desk, "a", "b") == ["node-a", ""]

    scene()
