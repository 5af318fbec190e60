"""Gangs are bound whole or not at all, under any leader, and whatever earlier attempts left behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.kit.controllers import until
from tests.kit.safeguards import replaced
from tests.kit.scheduler import LIMITS, SchedulerHarness, with_scheduler
from tests.objects import gang_record, node, reservation

from kedge.api.requests import Binding, DeleteOptions, GangChunk, GangPlace
from kedge.errors import Refused
from kedge.keys import Key
from kedge.server.service import gangs

CREW = Key("Reservation.kedge.dev", "default", "crew")
FAR = datetime(2060, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def places(harness: SchedulerHarness, *names: str) -> list[str]:
    return [harness.place(name) for name in names]


@with_scheduler()
async def test_a_gang_is_bound_whole_and_its_record_is_deleted(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    await harness.gang("a", "b", "c", size=3, cpu="400m")
    await until(lambda: all(places(harness, "a", "b", "c")))
    await until(lambda: harness.cluster.find(CREW) is None)
    await until(harness.nothing_is_left)
    assert not harness.cluster.all("Reservation.kedge.dev")
    (released,) = harness.attempts("crew")
    assert [(each.verb, each.key, each.outcome) for each in released.calls] == [("delete", CREW, "removed")]
    assert released.result == "await change"


@with_scheduler()
async def test_a_gang_waits_for_its_last_member(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="4"))
    await harness.gang("a", "b", size=3)
    await until(lambda: harness.reason("a") == "gang crew: 2 of its 3 members exist")
    assert places(harness, "a", "b") == ["", ""]
    await harness.gang("c", size=3)
    await until(lambda: all(places(harness, "a", "b", "c")))


@with_scheduler()
async def test_a_member_bound_by_another_scheduler_counts(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.gang("a", size=2)
    await until(lambda: harness.reason("a"))
    await harness.gang("b", size=2, nodeName="node-a")
    await until(lambda: harness.place("a"))


@with_scheduler()
async def test_a_pod_joins_a_gang_and_leaves_it_with_its_label(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1", unschedulable=True))
    for name in ("a", "b", "c"):
        await harness.pod(name, annotations={"kedge.dev/gang-size": "3"})
    await until(lambda: all(harness.reason(name) for name in ("a", "b", "c")))
    for name in ("a", "b"):
        label = {"metadata": {"labels": {"kedge.dev/gang": "crew"}}}
        await harness.cluster.authority.patch(Key("Pod", "default", name), label)
    await until(lambda: harness.reason("a") == "gang crew: 2 of its 3 members exist")
    await harness.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": False}})
    await until(lambda: harness.place("c"))
    assert places(harness, "a", "b") == ["", ""]
    await harness.cluster.authority.patch(
        Key("Pod", "default", "b"), {"metadata": {"labels": {"kedge.dev/gang": None}}}
    )
    await until(lambda: harness.place("b"))
    assert harness.place("a") == ""


@with_scheduler()
async def test_the_largest_member_chooses_first_and_the_small_one_takes_the_rest(harness: SchedulerHarness) -> None:
    """In order of arrival the small one would take the only node that is large enough for the other."""
    await harness.open_for(node("node-a", cpu="4"), node("node-b", cpu="1"))
    await harness.gang("small", size=2, cpu="1")
    await harness.gang("large", size=2, cpu="4")
    await until(lambda: harness.place("large") == "node-a" and harness.place("small") == "node-b")


@with_scheduler()
async def test_a_gang_without_a_size_gets_a_message(harness: SchedulerHarness) -> None:
    await harness.open_for()
    await harness.pod("a", labels={"kedge.dev/gang": "crew"})
    await until(lambda: "kedge.dev/gang-size" in harness.reason("a"))


@with_scheduler()
async def test_a_size_that_is_not_a_number_affects_only_its_gang(harness: SchedulerHarness) -> None:
    """An annotation may hold any text, and a scheduler that fails on it would fail at every start."""
    garbage = ("", "0", "-1", "2.0", "1e3", " 2", "two", "\u00b2", "\u0662", "9" * 5000)
    await harness.open_for(node("node-a", cpu="4"))
    for n, size in enumerate(garbage):
        labels, annotations = {"kedge.dev/gang": f"gang-{n}"}, {"kedge.dev/gang-size": size}
        await harness.pod(f"garbled-{n}", labels=labels, annotations={**annotations, "kedge.dev/slot": size})
    await harness.gang("a", "b", size=2)
    await until(lambda: all(places(harness, "a", "b")))
    await until(lambda: all("kedge.dev/gang-size" in harness.reason(f"garbled-{n}") for n in range(len(garbage))))
    assert harness.scheduler.leading


@with_scheduler()
async def test_members_with_different_sizes_are_not_tried(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="4"))
    await harness.gang("a", size=2)
    await harness.gang("b", size=1)
    await until(lambda: all("the same on every member" in harness.reason(name) for name in ("a", "b")))
    assert places(harness, "a", "b") == ["", ""]
    await harness.cluster.authority.patch(
        Key("Pod", "default", "b"), {"metadata": {"annotations": {"kedge.dev/gang-size": "2"}}}
    )
    await until(lambda: all(places(harness, "a", "b")))


@with_scheduler()
async def test_a_gang_that_fits_only_in_part_claims_nothing_and_is_not_retried(harness: SchedulerHarness) -> None:
    """Undone assumptions wake no pod: neither the gang itself nor another gang that does not fit."""
    await harness.open_for(node("node-a", cpu="1"))
    await harness.gang("a", "b", "c", size=3, cpu="400m")
    await harness.gang("d", "e", "f", size=3, cpu="400m", gang="others")
    await until(lambda: all(harness.reason(name) for name in "abcdef"))
    await asyncio.sleep(2)
    before = harness.scheduler.statistics().attempts
    await asyncio.sleep(60)
    assert harness.scheduler.statistics().attempts == before
    assert harness.scheduler.statistics().claims == 0
    assert places(harness, *"abc") == ["", "", ""]
    await harness.cluster.create(node("node-b", cpu="1"))
    await until(lambda: all(places(harness, *"abc")) or all(places(harness, *"def")))


async def left_behind(
    harness: SchedulerHarness, *, commit: bool, members: int = 2, deadline: datetime = FAR, second: str = "400m"
) -> None:
    """A crashed leader had reserved for the first members of a gang."""
    place = await harness.cluster.create(node("node-a", cpu="1"))
    gang = [*await harness.gang("a", size=2, cpu="400m"), *await harness.gang("b", size=2, cpu=second)]
    reserved = [
        GangPlace(pod=each.key.name, pod_uid=each.uid, node="node-a", node_uid=place.uid) for each in gang[:members]
    ]
    await harness.cluster.authority.reserve(
        GangChunk(namespace="default", gang="crew", size=2, deadline=deadline, places=reserved, commit=commit)
    )


@with_scheduler()
async def test_a_new_leader_binds_the_rest_of_a_committed_gang(harness: SchedulerHarness) -> None:
    await left_behind(harness, commit=True)
    await harness.open_for(node("node-b", cpu="4"))
    await until(lambda: all(places(harness, "a", "b")))
    assert places(harness, "a", "b") == ["node-a", "node-a"], "where they hold their places"
    await until(lambda: harness.cluster.find(CREW) is None)


@with_scheduler()
async def test_a_new_leader_completes_a_pending_gang_on_the_places_that_it_holds(harness: SchedulerHarness) -> None:
    await left_behind(harness, commit=False, members=1)
    await harness.open_for(node("node-b", cpu="4"))
    await until(lambda: all(places(harness, "a", "b")))
    assert places(harness, "a", "b") == ["node-a", "node-b"], "the first keeps its place, the other is placed now"
    await until(lambda: harness.cluster.find(CREW) is None)


@with_scheduler()
async def test_a_pending_gang_past_its_deadline_is_not_completed_on_its_places(harness: SchedulerHarness) -> None:
    await left_behind(harness, commit=False, deadline=LONG_AGO)
    await harness.open_for(node("node-b", cpu="4"))
    await until(lambda: all(places(harness, "a", "b")))
    assert places(harness, "a", "b") == ["node-b", "node-b"]


@with_scheduler()
async def test_a_pending_gang_that_does_not_fit_beside_its_places_gives_them_up(harness: SchedulerHarness) -> None:
    await left_behind(harness, commit=False, members=1, second="800m")
    await harness.open_for(node("node-b", cpu="500m"))
    await until(lambda: all(places(harness, "a", "b")))
    assert places(harness, "a", "b") == ["node-b", "node-a"]


@with_scheduler()
async def test_a_new_leader_abandons_an_uncommitted_gang_and_starts_again(harness: SchedulerHarness) -> None:
    await left_behind(harness, commit=False)
    await harness.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": True}})
    await harness.open_for(node("node-b", cpu="4"))
    await until(lambda: all(places(harness, "a", "b")))
    assert places(harness, "a", "b") == ["node-b", "node-b"]
    (ledger,) = [each for each in harness.cluster.all("NodeAllocation.kedge.dev") if each.key.name == "node-a"]
    assert not ledger.view.status.entries


@with_scheduler()
async def test_a_record_that_outlived_its_members_does_not_block_their_replacements(
    harness: SchedulerHarness,
) -> None:
    await left_behind(harness, commit=True)
    for name in ("a", "b"):
        await harness.remove(name)
    assert harness.cluster.find(CREW) is not None
    await harness.gang("a", "b", size=2, cpu="400m")
    await harness.open_for(node("node-b", cpu="1"))
    await until(lambda: all(places(harness, "a", "b")))
    await until(lambda: harness.cluster.find(CREW) is None)


@with_scheduler()
async def test_the_bind_of_one_member_does_not_outlive_a_term_that_another_ended(
    harness: SchedulerHarness,
) -> None:
    """It would end while a later term is trying its pod."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.fenced_pod, harness.wire.binds_held = "a", True
    await harness.gang("a", "b", size=2, cpu="400m")
    await until(lambda: (found := harness.cluster.find(CREW)) and found.view.status.phase == "Committed")
    await asyncio.sleep(1)
    harness.running.cancel()
    await asyncio.wait([harness.running])
    harness.wire.binds_held = False
    await asyncio.sleep(5)
    assert not [about for verb, about in harness.wire.asked if verb == "bind"]
    assert places(harness, "a", "b") == ["", ""]


@with_scheduler(replace(LIMITS, gang_wait_s=20.0))
async def test_a_member_whose_node_was_deleted_is_placed_again_after_the_deadline(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for(node("node-a", cpu="500m"), node("node-b", cpu="500m"))
    harness.wire.binds_held = True
    await harness.gang("a", "b", size=2, cpu="400m")
    await until(lambda: (found := harness.cluster.find(CREW)) and found.view.status.phase == "Committed")
    await harness.cluster.authority.delete(Key("Node", "", "node-b"))
    harness.wire.binds_held = False
    await until(lambda: any(places(harness, "a", "b")))
    await asyncio.sleep(5)
    assert not all(places(harness, "a", "b"))
    await harness.cluster.create(node("node-c", cpu="1"))
    await until(lambda: all(places(harness, "a", "b")), within_s=120)


@with_scheduler()
async def test_a_reservation_refused_for_one_member_is_not_requested_again_for_all(harness: SchedulerHarness) -> None:
    """Bug 8 (nomad#13017) for gangs: a reservation that is refused is remembered too."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.reserves_held = True
    await harness.gang("a", "b", size=2, cpu="400m")
    await until(lambda: harness.scheduler.statistics().assumed == 2)
    harness.wire.pod_watch_held = harness.wire.ledgers_held = True
    await harness.pod("theirs", cpu="800m", nodeName="node-a", schedulerName="other")
    harness.wire.reserves_held = False
    await asyncio.sleep(60)
    assert sum(verb == "reserve" for verb, _ in harness.wire.asked) == 1
    refused = [each for each in harness.decisions() if each.error.startswith("Refused")]
    assert {each.key.name for each in refused} == {"a", "b"}, "attempts that came to nothing leave their records too"
    assert len(harness.decisions()) == harness.scheduler.statistics().attempts
    harness.wire.pod_watch_held = harness.wire.ledgers_held = False
    await until(lambda: "cpu" in harness.reason("a") + harness.reason("b"))


# -- bug 4 -----------------------------------------------------------------------------------------


async def late_bind(harness: SchedulerHarness) -> None:
    """A leader saw a gang committed, slept, and binds one member of it: the gang has been replaced meanwhile.

    1. The old leader's cache shows the gang committed with `a` and `b`. It sleeps.
    2. The members are deleted and come again under their names; only `a` holds a place, under a pending record.
    3. The old leader wakes up and binds `a`.
    """
    await harness.cluster.create(node("node-a", cpu="1"))
    (first, _) = await harness.gang("a", "b", size=2, cpu="400m")
    record = await harness.cluster.create(gang_record("crew", size=2))
    await harness.cluster.create(reservation(first, "node-a", gang="crew"))
    assert record.view.status.phase in ("", "Pending")
    await harness.cluster.authority.bind(Binding(pod=first.key, pod_uid=first.uid, node="node-a"))


def test_a_bind_under_a_stale_gang_binds_no_part_of_it() -> None:
    """Bug 4 (volcano#6010): a stale gang object binds part of the gang."""

    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        with pytest.raises(Refused, match="before its gang is committed"):
            await late_bind(harness)
        assert places(harness, "a", "b") == ["", ""]

    scene()


def test_without_the_proof_of_the_record_a_stale_gang_is_bound_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 4 finds it: with the safeguard removed a part is bound."""
    monkeypatch.setattr(gangs, "check_committed", lambda *_: None)

    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        await late_bind(harness)
        assert places(harness, "a", "b") == ["node-a", ""]

    scene()


# -- preemption ------------------------------------------------------------------------------------


async def crowded(harness: SchedulerHarness, *members: str) -> None:
    """Two full nodes, and a gang of higher priority."""
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    await harness.priority("urgent", 10)
    for name in ("low-a", "low-b"):
        await harness.pod(name, cpu="800m")
    await until(lambda: all(places(harness, "low-a", "low-b")))
    await harness.gang(*members, size=len(members), cpu="800m", priorityClassName="urgent")


def leaving(harness: SchedulerHarness) -> list[str]:
    found = [(name, harness.find(name)) for name in ("low-a", "low-b")]
    return [name for name, each in found if each is None or each.view.terminating]


@with_scheduler()
async def test_a_gang_evicts_pods_of_lower_priority_and_is_bound_whole(harness: SchedulerHarness) -> None:
    await crowded(harness, "a", "b")
    await until(lambda: leaving(harness) == ["low-a", "low-b"])
    await harness.pod("late", cpu="800m")
    await harness.remove("low-a")
    await until(lambda: harness.reason("late"))
    assert places(harness, "a", "b", "late") == ["", "", ""], "room for a part of the gang is held, and not used"
    await harness.remove("low-b")
    await until(lambda: all(places(harness, "a", "b")))
    assert harness.place("late") == ""
    await until(lambda: not harness.scheduler.statistics().nominated)
    assert len(harness.events("Preempted")) == 2


@with_scheduler()
async def test_no_pod_is_evicted_for_a_gang_that_would_still_not_fit(harness: SchedulerHarness) -> None:
    await crowded(harness, "a", "b", "c")
    await until(lambda: all(harness.reason(name) for name in "abc"))
    await asyncio.sleep(20)
    assert leaving(harness) == []
    assert not harness.scheduler.statistics().nominated


@with_scheduler()
async def test_no_pod_is_evicted_for_a_gang_if_a_budget_protects_one_of_the_victims(harness: SchedulerHarness) -> None:
    await harness.budget(1, app="web")
    await crowded(harness, "a", "b")
    await until(lambda: all(harness.reason(name) for name in "ab"))
    await asyncio.sleep(20)
    assert leaving(harness) == []


@with_scheduler()
async def test_a_refused_eviction_spares_the_rest_and_the_record_names_the_pod_that_left(
    harness: SchedulerHarness,
) -> None:
    """A budget is used up between two evictions, by another client."""
    await harness.budget(2, app="web")
    evict, calls = harness.client.evict, list[Key]()

    async def racing(key: Key, options: DeleteOptions) -> object:
        if calls:
            used_up = {"status": {"disruptionsAllowed": 0}}
            budget = Key("PodDisruptionBudget.policy", "default", "budget")
            await harness.cluster.authority.patch(budget, used_up, subresource="status")
        calls.append(key)
        return await evict(key, options)

    with replaced(harness.client, "evict", racing):
        await crowded(harness, "a", "b")
        await until(lambda: leaving(harness))
        await until(lambda: not harness.scheduler.statistics().nominated)  # the client tries a spent budget again
    await asyncio.sleep(20)
    (left,) = leaving(harness)
    (record,) = [each for name in "ab" for each in harness.attempts(name) if each.error]
    assert record.reason.endswith(f"evicted for the gang: Pod/default/{left}")
    assert "spared: Pod/default/low-" in record.error
    assert record.scheduling is not None
    assert record.scheduling.victims == (f"Pod/default/{left}",)


@with_scheduler()
async def test_a_victim_that_is_already_gone_was_not_evicted(harness: SchedulerHarness) -> None:
    """Another client removes one between the plan and its eviction."""
    evict, calls = harness.client.evict, list[Key]()

    async def racing(key: Key, options: DeleteOptions) -> object:
        if not calls:
            await harness.cluster.authority.delete(key, DeleteOptions(grace_s=0))
        calls.append(key)
        return await evict(key, options)

    with replaced(harness.client, "evict", racing):
        await crowded(harness, "a", "b")
        await until(lambda: len(calls) == 2 and leaving(harness))
        await until(lambda: any("already gone" in each.reason for name in "ab" for each in harness.attempts(name)))
    (record,) = [each for name in "ab" for each in harness.attempts(name) if "already gone" in each.reason]
    assert record.reason.endswith(f"evicted for the gang: {calls[1]}; already gone: {calls[0]}")
    assert record.scheduling is not None
    assert record.scheduling.victims == (str(calls[1]),)
    await until(lambda: harness.events("Preempted"))
    await asyncio.sleep(5)
    assert len(harness.events("Preempted")) == 1


@with_scheduler()
async def test_a_gang_that_loses_a_member_holds_no_room(harness: SchedulerHarness) -> None:
    await crowded(harness, "a", "b")
    await until(lambda: leaving(harness) == ["low-a", "low-b"])
    await harness.pod("late", cpu="800m")
    await harness.remove("a")
    await harness.remove("low-a")
    await harness.remove("low-b")
    await until(lambda: harness.place("late"))
    assert harness.place("b") == ""
