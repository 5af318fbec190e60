"""Reservations and gangs: when a claim may be superseded, and that a gang is bound whole or not at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.objects import (
    World,
    asynchronous,
    gang_record,
    make_world,
    node,
    pod,
    pod_key,
    reservation,
    zone_quota,
)

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.requests import Binding, GangChunk, GangPlace, WriteOptions
from kedge.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound, Refused
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.placement.reasons import Reason
from kedge.store import Put

GANG = Key("Reservation.kedge.dev", "default", "gang")
LEDGER_A = Key("NodeAllocation.kedge.dev", "", "node-a")
PAST_THE_DEADLINE_S = 601


async def cluster(pods: int = 2, *, labelled: bool = True, limits: Limits | None = None, **fields: Any) -> World:
    """Two nodes, and the pods of one gang."""
    world = await make_world(limits=limits)
    await world.create(node(**fields))
    await world.create(node("node-b", zone="zone-b"))
    for n in range(pods):
        body = pod(f"web-{n}")
        if labelled:
            body["metadata"]["labels"]["kedge.dev/gang"] = "gang"
        await world.create(body)
    return world


async def chunk(world: World, *numbers: int, to: str = "node-a", size: int = 2, **more: Any) -> GangChunk:
    places = []
    for n in numbers:
        made = await world.get(pod_key(f"web-{n}"))
        places.append(GangPlace(pod=made.key.name, pod_uid=made.uid, node=to, slot=n))
    deadline = world.clock.now() + timedelta(minutes=10)
    return GangChunk(namespace="default", gang="gang", size=size, deadline=deadline, places=places, **more)


async def reserve(world: World, *numbers: int, **more: Any) -> Object:
    return (await world.service.reserve(await chunk(world, *numbers, **more))).object


async def bind(world: World, n: int, to: str = "node-a") -> Object:
    made = await world.get(pod_key(f"web-{n}"))
    return (await world.service.bind(Binding(pod=made.key, pod_uid=made.uid, node=to))).object


async def set_phase(world: World, phase: str) -> Object:
    return (await world.service.patch(GANG, {"status": {"phase": phase}}, subresource="status")).object


async def held(world: World, name: str = "node-a") -> dict[str, str]:
    """The claims on a node: their states, by pod."""
    return {entry.name: entry.state for entry in (await world.ledger(name)).entries.values()}


async def is_there(world: World, key: Key) -> bool:
    return (await world.store.get([key])).entries[0] is not None


async def refused(reason: Reason, call: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await call
    assert caught.value.refusal == reason
    return caught.value


# -- one pod ---------------------------------------------------------------------------------------


@asynchronous
async def test_a_deadline_alone_releases_nothing() -> None:
    world = await cluster(2, labelled=False, cpu="150m")
    first = await world.get(pod_key("web-0"))
    await world.create(reservation(first, "node-a"))
    world.clock.advance(PAST_THE_DEADLINE_S)
    await refused(Reason.RESOURCE, bind(world, 1))
    assert await held(world) == {"web-0": "Reserved"}
    await bind(world, 0)  # its own pod may still use it
    assert await held(world) == {"web-0": "Bound"}


@asynchronous
async def test_past_its_deadline_a_reservation_may_be_superseded() -> None:
    for how in ("bind elsewhere", "update", "remove"):
        world = await cluster(1, labelled=False)
        await world.create(zone_quota(zone_a={"pods": "1"}, zone_b={"pods": "1"}))
        first = await world.get(pod_key("web-0"))
        kept = await world.create(reservation(first, "node-a"))
        moved = reservation(first, "node-b")
        before = await refused(Reason.RESERVED_ELSEWHERE, bind(world, 0, to="node-b"))
        assert (before.key, before.revision) == (kept.key, kept.revision)
        await refused(Reason.RESERVED_ELSEWHERE, world.service.update(kept.key, moved))
        world.clock.advance(PAST_THE_DEADLINE_S)
        if how == "bind elsewhere":
            await bind(world, 0, to="node-b")
            with pytest.raises(NotFound):
                await world.get(kept.key)
        elif how == "update":
            await world.service.update(kept.key, moved)
        else:
            await world.service.delete(kept.key)
        assert await held(world) == {}, how
        quota = await world.get(Key("ZoneQuota.kedge.dev", "default", "zones"))
        used = {zone: str(use.used.get("pods", "0")) for zone, use in quota.view.status.zones.items()}
        assert used.get("zone-a") == "0", how
        if how != "remove":
            assert list((await held(world, "node-b")).values()) == [{"update": "Reserved"}.get(how, "Bound")]
            assert used.get("zone-b") == "1", how


@asynchronous
async def test_an_older_generation_never_supersedes_even_past_the_deadline() -> None:
    world = await cluster(1, labelled=False)
    first = await world.get(pod_key("web-0"))
    kept = await world.create(reservation(first, "node-a", generation=3))
    world.clock.advance(PAST_THE_DEADLINE_S)
    caught = await refused(
        Reason.SUPERSEDED, world.service.update(kept.key, reservation(first, "node-b", generation=2))
    )
    assert caught.revision == kept.revision


@asynchronous
async def test_a_deadline_can_be_moved_without_moving_the_claim() -> None:
    world = await cluster(1, labelled=False)
    first = await world.get(pod_key("web-0"))
    kept = await world.create(reservation(first, "node-a"))
    ledger = await world.get(LEDGER_A)
    await world.service.patch(kept.key, {"spec": {"deadline": "2030-01-01T02:00:00Z"}})
    assert (await world.get(LEDGER_A)).revision == ledger.revision
    world.clock.advance(PAST_THE_DEADLINE_S)
    await refused(Reason.RESERVED_ELSEWHERE, bind(world, 0, to="node-b"))


@asynchronous
async def test_a_reservation_cannot_change_its_pod() -> None:
    world = await cluster(2, labelled=False)
    first, second = [await world.get(pod_key(f"web-{n}")) for n in range(2)]
    kept = await world.create(reservation(first, "node-a", generation=1))
    other = reservation(second, "node-a", generation=2)
    other["metadata"]["name"] = kept.key.name
    with pytest.raises(Invalid):
        await world.service.update(kept.key, other)


@asynchronous
async def test_a_new_incarnation_of_a_node_drops_reservations_on_the_old_one() -> None:
    world = await cluster(2)
    await reserve(world, 0, 1)
    await world.service.delete(Key("Node", "", "node-a"))
    await world.create(node())
    record = await world.get(GANG)
    assert not record.view.status.members
    with pytest.raises(NotFound):
        await world.get(Key("Reservation.kedge.dev", "default", (await world.get(pod_key("web-0"))).uid))
    await refused(Reason.GANG_INCOMPLETE, set_phase(world, "Committed"))


# -- gangs: reserve, commit, bind ------------------------------------------------------------------


@asynchronous
async def test_a_gang_that_fits_one_chunk_reserves_and_commits_at_once() -> None:
    world = await cluster(2)
    record = await reserve(world, 0, 1, commit=True)
    assert record.view.status.phase == "Committed"
    assert {member.name: member.node_name for member in record.view.status.members.values()} == {
        "web-0": "node-a",
        "web-1": "node-a",
    }
    assert (await world.get(LEDGER_A)).revision == record.revision
    assert await held(world) == {"web-0": "Reserved", "web-1": "Reserved"}
    await bind(world, 0)
    await bind(world, 1)
    assert await held(world) == {"web-0": "Bound", "web-1": "Bound"}
    assert (await world.service.delete(GANG)).removed


@asynchronous
async def test_a_gang_reserves_in_chunks_and_is_bound_once_all_members_hold_a_place() -> None:
    world = await cluster(3)
    pending = await reserve(world, 0, 1, size=3)
    assert (pending.view.status.phase, len(pending.view.status.members)) == ("Pending", 2)
    caught = await refused(Reason.GANG_NOT_COMMITTED, bind(world, 0))
    assert (caught.key, caught.revision) == (GANG, pending.revision)
    short = await refused(Reason.GANG_INCOMPLETE, set_phase(world, "Committed"))
    assert (short.key, short.revision) == (GANG, pending.revision)
    await refused(Reason.GANG_INCOMPLETE, reserve(world, 0, 1, size=3, commit=True))
    await reserve(world, 2, to="node-b", size=3)
    await set_phase(world, "Committed")
    for n, to in enumerate(("node-a", "node-a", "node-b")):
        await bind(world, n, to)


@asynchronous
async def test_a_chunk_is_all_or_nothing() -> None:
    world = await cluster(2, cpu="150m")
    before = await world.store.revision()
    caught = await refused(Reason.RESOURCE, reserve(world, 0, 1))
    assert caught.key == Key("Node", "", "node-a")  # it has no ledger yet
    assert await world.store.revision() == before


@asynchronous
async def test_a_repeated_chunk_changes_nothing() -> None:
    world = await cluster(2)
    first = await world.service.reserve(await chunk(world, 0, 1, commit=True))
    before = await world.store.revision()
    again = await world.service.reserve(await chunk(world, 0, 1, commit=True))
    assert again.object.revision == first.object.revision
    world.clock.advance(5)
    await world.service.reserve(await chunk(world, 0, 1))
    assert await world.store.revision() == before


@asynchronous
async def test_a_chunk_repeated_under_its_operation_id_gets_the_first_outcome() -> None:
    world = await cluster(2)
    options = WriteOptions(origin=Origin(operation="op-1"))
    first = await world.service.reserve(await chunk(world, 0), options=options)
    await world.service.delete(GANG)
    again = await world.service.reserve(await chunk(world, 0), options=options)
    assert again.object.revision == first.object.revision
    with pytest.raises(NotFound):
        await world.get(GANG)


@asynchronous
async def test_a_chunk_under_the_record_of_another_attempt_is_a_conflict() -> None:
    world = await cluster(2)
    await reserve(world, 0)
    for other in ({"size": 3}, {"generation": 2}, {"workload_uid": "w"}):
        with pytest.raises(Conflict, match="another attempt"):
            await reserve(world, 1, **{"size": 2, **other})
    lone = await world.get(pod_key("web-1"))
    places = (await chunk(world, 1)).places
    uid_as_gang = GangChunk(
        namespace="default", gang=(await world.get(pod_key("web-0"))).uid, size=0, deadline=world.clock.now(),
        places=places,
    )  # fmt: skip
    with pytest.raises(Conflict, match="another gang"):
        await world.service.reserve(uid_as_gang)
    assert lone.uid not in (await world.ledger("node-a")).entries


@asynchronous
async def test_chunks_and_gangs_are_bounded() -> None:
    world = await cluster(3, limits=Limits(gang_chunk_max=2, gang_members_max=2))
    with pytest.raises(BadRequest, match="at most 2 members"):
        await reserve(world, 0, 1, 2)
    await reserve(world, 0, 1)
    with pytest.raises(Forbidden, match="most that a gang may have"):
        await reserve(world, 2)


@asynchronous
async def test_the_largest_chunk_fits_one_commit_with_the_most_quotas() -> None:
    limits = Limits()
    world = await cluster(limits.gang_chunk_max, cpu="100")
    for n in range(limits.namespace_quotas_max):
        await world.create(zone_quota(f"z{n}", zone_a={"pods": "99"}))
    for n in range(limits.gang_chunk_max):
        await world.create(node(f"n{n}"))
    sent = await chunk(world, *range(limits.gang_chunk_max), size=limits.gang_chunk_max, commit=True)
    apart = [
        GangPlace(pod=place.pod, pod_uid=place.pod_uid, node=f"n{n}", slot=n) for n, place in enumerate(sent.places)
    ]
    whole = GangChunk(
        namespace="default", gang="gang", size=len(apart), deadline=sent.deadline, places=apart, commit=True
    )
    written = await world.service.reserve(whole, options=WriteOptions(origin=Origin(operation="op")))
    assert len(written.object.view.status.members) == limits.gang_chunk_max
    world.clock.advance(PAST_THE_DEADLINE_S)
    for n in range(limits.gang_chunk_max):
        await world.service.patch(Key("Node", "", f"n{n}"), {"spec": {"unschedulable": True}})
    await world.service.delete(GANG)  # releases them, as many to a commit
    assert await held(world, "n0") == {}


@asynchronous
async def test_a_member_without_a_place_under_its_gang_is_not_bound() -> None:
    world = await cluster(3)
    await refused(Reason.GANG_NOT_COMMITTED, bind(world, 0))  # no record at all
    await reserve(world, 0, 1, commit=True)
    caught = await refused(Reason.NOT_RESERVED, bind(world, 2))
    assert caught.key == Key("Reservation.kedge.dev", "default", (await world.get(pod_key("web-2"))).uid)
    astray = await world.get(pod_key("web-2"))
    for gang in ("", "another"):
        with pytest.raises(Invalid, match=r"spec\.gang"):
            await world.create(reservation(astray, "node-a", gang=gang))
    await reserve(world, 2)  # a late member may join a committed gang
    await bind(world, 2)


@asynchronous
async def test_a_member_of_a_committed_gang_may_move_but_not_release_its_place() -> None:
    world = await cluster(2)
    await reserve(world, 0, 1, commit=True)
    first = await world.get(pod_key("web-0"))
    kept = await world.get(Key("Reservation.kedge.dev", "default", first.uid))
    with pytest.raises(Conflict, match="is committed"):
        await world.service.delete(kept.key)
    await world.service.update(kept.key, reservation(first, "node-b", generation=1, gang="gang"))
    assert await held(world) == {"web-1": "Reserved"}
    assert (await world.get(GANG)).view.status.members[first.uid].node_name == "node-b"
    await bind(world, 0, to="node-b")
    await bind(world, 1)


# -- gangs: abort ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["phase", "delete"])
@pytest.mark.parametrize("members", [2, 7])
def test_an_aborted_gang_releases_its_members_reservations(how: str, members: int) -> None:
    @asynchronous
    async def run() -> None:
        world = await cluster(members, limits=Limits(gang_chunk_max=3))
        for first in range(0, members, 2):
            await reserve(world, *range(first, min(first + 2, members)), size=members)
        assert len(await held(world)) == members
        if how == "phase":
            record = await set_phase(world, "Aborted")
            assert (record.view.status.phase, dict(record.view.status.members)) == ("Aborted", {})
            caught = await refused(Reason.GANG_ABORTED, reserve(world, 0, size=members))
            assert (caught.key, caught.revision) == (GANG, record.revision)
        else:
            assert (await world.service.delete(GANG)).removed
        assert await held(world) == {}
        await refused(Reason.GANG_NOT_COMMITTED, bind(world, 0))

    run()


@asynchronous
async def test_a_dry_run_of_an_abort_releases_nothing() -> None:
    world = await cluster(2)
    await reserve(world, 0, 1)
    before = await world.store.revision()
    dry = WriteOptions(dry_run=True)
    await world.service.patch(GANG, {"status": {"phase": "Aborted"}}, subresource="status", options=dry)
    assert await world.store.revision() == before


@asynchronous
async def test_a_new_leader_resumes_or_aborts_from_the_record() -> None:
    world = await cluster(3, limits=Limits(gang_chunk_max=1))
    for n in range(2):
        await reserve(world, n, size=3)
    left = (await world.get(GANG)).view
    assert (left.status.phase, {m.name for m in left.status.members.values()}) == ("Pending", {"web-0", "web-1"})
    await reserve(world, 2, size=3, commit=True)
    await bind(world, 1)
    # The old leader stops here. The new one binds the other members.
    resumed = (await world.get(GANG)).view
    assert resumed.status.phase == "Committed"
    for member in resumed.status.members.values():
        found = await world.get(pod_key(member.name))
        await world.service.bind(Binding(pod=found.key, pod_uid=found.uid, node=member.node_name))
    await world.service.delete(GANG)


@asynchronous
async def test_committed_and_aborted_are_final() -> None:
    world = await cluster(2)
    await reserve(world, 0, 1, commit=True)
    for phase in ("Aborted", "Pending"):
        with pytest.raises(Invalid, match="final"):
            await set_phase(world, phase)
    with pytest.raises(Invalid, match="start a new gang"):
        await world.service.patch(GANG, {"spec": {"gangSize": 1}})
    with pytest.raises(Conflict, match="not bound yet"):
        await world.service.delete(GANG)

    aborted = await cluster(2)
    await aborted.create(gang_record())
    await set_phase(aborted, "Aborted")
    with pytest.raises(Invalid, match="final"):
        await set_phase(aborted, "Committed")


@pytest.mark.parametrize("how", ["record", "reservation"])
def test_a_committed_gang_keeps_usable_reservations_past_the_deadline(how: str) -> None:
    """One member may be bound already, so the others must be bound too."""

    @asynchronous
    async def run() -> None:
        world = await cluster(2)
        await reserve(world, 0, 1, commit=True)
        await bind(world, 0)
        waiting = await world.get(pod_key("web-1"))
        key = GANG if how == "record" else Key("Reservation.kedge.dev", "default", waiting.uid)
        world.clock.advance(PAST_THE_DEADLINE_S)
        with pytest.raises(Conflict, match="is committed"):
            await world.service.delete(key)
        assert await held(world) == {"web-0": "Bound", "web-1": "Reserved"}
        await bind(world, 1)
        await world.service.delete(GANG)
        assert await held(world) == {"web-0": "Bound", "web-1": "Bound"}

    run()


@pytest.mark.parametrize("why", ["cordon", "gone", "another", "shrunk", "relabelled"])
@pytest.mark.parametrize("how", ["record", "reservation"])
def test_a_committed_gang_loses_unusable_reservations_past_the_deadline(how: str, why: str) -> None:
    @asynchronous
    async def run() -> None:
        world = await cluster(2)
        await reserve(world, 0, 1, commit=True)
        await bind(world, 0)
        waiting, home = await world.get(pod_key("web-1")), Key("Node", "", "node-a")
        match why:
            case "cordon":
                await world.service.patch(home, {"spec": {"unschedulable": True}})
            case "gone" | "another":
                await world.service.delete(home)
                if why == "another":
                    await world.create(node())
            case "shrunk":
                await world.service.patch(home, {"status": {"allocatable": {"cpu": "150m"}}}, subresource="status")
            case "relabelled":
                labels = {"metadata": {"labels": {"kedge.dev/gang": "others"}}}
                await world.service.patch(waiting.key, labels)
        reserved = Key("Reservation.kedge.dev", "default", waiting.uid)
        key = GANG if how == "record" else reserved
        if await is_there(world, reserved):  # it was not removed with its node
            with pytest.raises(Conflict, match="is committed"):
                await world.service.delete(key)
            world.clock.advance(PAST_THE_DEADLINE_S)
            await world.service.delete(key)
        assert not await is_there(world, reserved)
        assert "web-1" not in await held(world)

    run()


@asynchronous
async def test_only_the_service_writes_the_members_of_a_record() -> None:
    world = await cluster(2)
    await world.create(gang_record(size=2))
    forged = {"status": {"phase": "Committed", "members": {"a": {"name": "a"}, "b": {"name": "b"}}}}
    for subresource in ("", "status"):
        body = {**(await world.get(GANG)).edit(), **forged}
        if subresource:
            await refused(Reason.GANG_INCOMPLETE, world.service.update(GANG, body, subresource=subresource))
        else:
            await world.service.update(GANG, body)
            assert not (await world.get(GANG)).view.status.phase
    body = gang_record("born-committed")
    born = await world.create({**body, **forged})
    assert (born.view.status.phase, dict(born.view.status.members)) == ("", {})


@pytest.mark.parametrize("how", ["delete pod", "end pod", "delete reservation"])
def test_a_removed_member_no_longer_counts(how: str) -> None:
    @asynchronous
    async def run() -> None:
        world = await cluster(2)
        await reserve(world, 0, 1)
        first = await world.get(pod_key("web-0"))
        if how == "delete pod":
            await world.service.delete(first.key)
        elif how == "end pod":
            await world.record_end(first.key, "Failed")
        else:
            await world.service.delete(Key("Reservation.kedge.dev", "default", first.uid))
        assert await held(world) == {"web-1": "Reserved"}
        await refused(Reason.GANG_INCOMPLETE, set_phase(world, "Committed"))

    run()


@asynchronous
async def test_reservations_left_by_an_aborted_gang_may_be_superseded() -> None:
    """A server that stops after aborting the record, before releasing its members, blocks no other gang."""
    world = await cluster(1, labelled=False)
    first = await world.get(pod_key("web-0"))
    await world.create(gang_record(size=2))
    kept = await world.create(reservation(first, "node-a", gang="gang"))
    record = await world.get(GANG)
    document = record.edit()
    document["status"] = {"phase": "Aborted", "members": document["status"]["members"]}
    await world.store.commit([], [Put(GANG, encode_object(document))])
    await world.service.update(kept.key, reservation(first, "node-b"))
    assert await held(world) == {}
    await bind(world, 0, to="node-b")
    assert (await world.service.delete(GANG)).removed


@asynchronous
async def test_a_record_cannot_become_a_reservation_or_the_reverse() -> None:
    world = await cluster(1, labelled=False)
    first = await world.get(pod_key("web-0"))
    kept = await world.create(reservation(first, "node-a"))
    with pytest.raises(Invalid, match="immutable"):
        await world.service.update(kept.key, {"metadata": {}, "spec": gang_record()["spec"]})
    await world.create(gang_record())
    with pytest.raises(Invalid):
        await world.service.update(GANG, {"metadata": {}, "spec": reservation(first, "node-a")["spec"]})
    await refused(
        Reason.GANG_GONE, world.service.update(kept.key, reservation(first, "node-a", generation=2, gang="x"))
    )
