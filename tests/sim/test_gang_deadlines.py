"""Gangs whose schedulers are down past every deadline, while repair runs and other pods need the room.

At whatever moment they stop: once one member is bound, all others keep their reservations until they are bound too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.committed import State
from tests.kit.nodes import ControllerFleet
from tests.kit.scheduler_fleet import LIMITS, SchedulerFleet
from tests.kit.scheduler_invariants import OTHER, Accounts
from tests.objects import NODE, POD, ZONE_QUOTA, node, pod, zone_quota

from kedge.api.requests import DeleteOptions
from kedge.controllers.repair import controller as repair_controller
from kedge.controllers.repair import plan as repair_plan
from kedge.controllers.repair.controller import reservation_repair_controller
from kedge.keys import Key
from kedge.server.service import reservations
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import NO_FAULTS, FaultPlan, Host, Simulation, Swarm, run

CREW = tuple(f"fleet-{n}" for n in range(5))
NODES = ("node-a", "node-b", "node-c")
RECORD = Key("Reservation.kedge.dev", "default", "fleet")
HURRIED = replace(
    LIMITS,
    gang_chunk_max=2,
    orphan_s=5.0,
    watch_progress_s=15.0,
    lease_s=8.0,
    lease_renew_s=5.0,
    lease_retry_s=2.0,
)
LOSSY = Swarm(
    without=(
        "crash", "crash caller", "crash callee", "pause", "pause caller", "pause callee", "partition", "hide",
        "wrong clock",
    )
)  # fmt: skip
"""No crashes but those of the test, and no clocks a day ahead, which would move deadlines."""


class WholeGangInvariant:
    """After the bind of one member, each member of its gang is bound or holds its committed reservation.

    Nodes and members are not deleted in these runs, so nothing excuses a lost reservation.
    """

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if all(key.kind in ("Event", "Lease.coordination.k8s.io", "Operation.kedge.dev") for key in commit.keys):
            return
        state = State(commit.store)
        members = [found for found in state.of("Pod").values() if found.key.name in CREW]
        bound = [found for found in members if found.view.spec.node_name]
        if not bound or len(bound) == len(members):
            return
        self._sim.sometimes("a gang was bound in part")
        held = {uid for ledger in state.live_ledgers().values() for uid in ledger.claims}
        for found in members:
            if found.uid not in held or not (
                found.view.spec.node_name or found.uid in state.of("Reservation.kedge.dev")
            ):
                yield "in part", f"{found.key} has no place, and {len(bound)} of its gang are bound"


MOMENTS = (("Pending", 2), ("Pending", 4), *(("Committed", n) for n in range(len(CREW))))
"""The progress of a gang: members with a reservation or, once committed, bound members."""


class SchedulerStopper:
    """Stops every scheduler of the gang right after the commit with this progress."""

    def __init__(self, hosts: list[Host], cluster: Cluster, moment: tuple[str, int]) -> None:
        self._hosts = hosts
        self._cluster = cluster
        self._moment = moment
        self.done = asyncio.Event()

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if not self.done.is_set() and any(key == RECORD or key.name in CREW for key in commit.keys):
            phase, count = self._moment
            record = self._cluster.find(RECORD)
            if record is not None and record.view.status.phase == phase:
                held = len(record.view.status.members) if phase == "Pending" else _bound(self._cluster)
                if held >= count:
                    for host in self._hosts:
                        host.crash()
                    self.done.set()
        yield from ()


def member_body(name: str) -> dict[str, Any]:
    body = pod(name, cpu="400m")
    body["metadata"]["labels"]["kedge.dev/gang"] = "fleet"
    body["metadata"]["annotations"] = {"kedge.dev/gang-size": str(len(CREW))}
    return body


async def schedulers_down(sim: Simulation) -> str:
    """A gang in progress, stopped schedulers, rival pods that take free resources, and schedulers that return."""
    sim.check_always(WholeGangInvariant(sim))
    return await _schedulers_down(sim, faults=False)


async def schedulers_down_with_faults(sim: Simulation) -> str:
    """A node or a member is deleted meanwhile: the gang may be incomplete for a time, but not in the end."""
    return await _schedulers_down(sim, faults=True)


async def _schedulers_down(sim: Simulation, *, faults: bool) -> str:
    cluster = Cluster(sim)
    await cluster.set_up()
    fleet = SchedulerFleet(sim, cluster, limits=HURRIED, holds=("late", ""))  # else all binds are in flight at once
    sim.check_always(Accounts(sim))
    for name in NODES:
        await cluster.authority.create(NODE, node(name, cpu="1"))
    await cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "5"}))
    repair = ControllerFleet(cluster, limits=HURRIED)
    repair.boot(sim, reservation_repair_controller)
    hosts = [fleet.boot(name, "default-scheduler") for name in ("one", "two")]
    fleet.boot("three", OTHER)
    await asyncio.sleep(5)
    stops = SchedulerStopper(hosts, cluster, sim.choose("stopped at", MOMENTS))
    for name in CREW:
        await cluster.authority.create(POD, member_body(name))
    sim.check_always(stops)
    await asyncio.wait([asyncio.ensure_future(stops.done.wait())], timeout=20)
    stops.done.set()  # if it has not happened by now, it will not
    before = _story(cluster)
    rivals = [f"rival-{n}" for n in range(sim.choose_int("rivals", 0, 7))]
    for name in rivals:
        await cluster.authority.create(POD, pod(name, cpu="400m", schedulerName=OTHER))
    if faults:
        await _fault(sim, cluster)
    await asyncio.sleep(sim.choose("away for", (25.0, 60.0, 5.0)))
    sim.heal()
    for host in hosts:
        if not host.up:
            host.restart()
    await asyncio.sleep(35)
    bound = [name for name in CREW if _place(cluster, name)]
    if len(bound) not in (0, len(CREW)) and not faults:
        sim.violate("all or nothing", f"{bound} are bound, and the others are not")
    if not bound and cluster.all("Reservation.kedge.dev"):
        sim.violate("nothing is kept", f"{[each.key.name for each in cluster.all('Reservation.kedge.dev')]}")
    sim.sometimes("the rivals were first", not bound)
    for name in rivals:  # now there is room, and the gang must get it
        await _leave(cluster, name)
    if faults:
        await _restore_nodes(cluster)
    await asyncio.sleep(20)
    if not all(_place(cluster, name) for name in CREW):
        sim.violate("what fits is bound", "the gang has room, and waits")
    if cluster.all("Reservation.kedge.dev"):
        sim.violate("nothing is kept", f"{[each.key.name for each in cluster.all('Reservation.kedge.dev')]}")
    return before


async def _fault(sim: Simulation, cluster: Cluster) -> None:
    """A node is cordoned, deleted or replaced; or a member is replaced by a pod of the same name."""
    name, service = sim.choose("node", NODES), cluster.authority
    match sim.choose("accident", ("closed", "gone", "another", "namesake", "shrunk")):
        case "closed":
            await service.patch(Key("Node", "", name), {"spec": {"unschedulable": True}})
        case "shrunk":
            await service.patch(Key("Node", "", name), {"status": {"allocatable": {"cpu": "0"}}}, subresource="status")
        case "namesake":
            member = sim.choose("member", CREW)
            await _leave(cluster, member)
            await service.create(POD, member_body(member))
        case "gone" | "another" as what:
            await service.delete(Key("Node", "", name))
            for found in cluster.all("Pod"):  # as repair would
                if found.view.spec.node_name == name:
                    await service.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0))
                    if found.key.name in CREW:
                        await service.create(POD, member_body(found.key.name))
            if what == "another":
                await service.create(NODE, node(name, cpu="1"))


async def _restore_nodes(cluster: Cluster) -> None:
    """Add room elsewhere for members that lost theirs. Cordoned nodes stay cordoned."""
    await cluster.authority.create(NODE, node("node-d", cpu="2"))


def _place(cluster: Cluster, name: str) -> str:
    found = cluster.find(Key("Pod", "default", name))
    return found.view.spec.node_name if found is not None else ""


def _story(cluster: Cluster) -> str:
    """The progress of the gang."""
    record = cluster.find(RECORD)
    phase = record.view.status.phase if record is not None else "no record"
    return f"{phase}, {_bound(cluster)} bound"


def _bound(cluster: Cluster) -> int:
    return sum(bool(_place(cluster, name)) for name in CREW)


async def _leave(cluster: Cluster, name: str) -> None:
    found = cluster.find(Key("Pod", "default", name))
    if found is None:
        return
    await cluster.authority.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0))
    if found.view.spec.node_name:
        owner = cluster.find(Key("Node", "", found.view.spec.node_name))
        assert owner is not None
        await cluster.authority.confirm_ended(node=owner.key.name, node_uid=owner.uid, pod_uid=found.uid)


def hunt(
    seeds: range, faults: FaultPlan = NO_FAULTS, program: Callable[[Simulation], Any] = schedulers_down
) -> tuple[set[str], dict[str, int]]:
    """Run every seed without a violation. Returns the progress of gangs when schedulers stopped, and events reached."""
    endings, reached = set(), dict[str, int]()
    for seed in seeds:
        outcome = run(program, seed, faults=faults)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        endings.add(outcome.result or "")
        for mark, times in outcome.marks.items():
            reached[mark] = reached.get(mark, 0) + times
    return endings, reached


HOW_FAR = {"Pending, 0 bound", "Committed, 0 bound", "Committed, 1 bound", "Committed, 4 bound"}


def test_a_gang_whose_schedulers_are_down_past_its_deadline_is_bound_whole_or_not_at_all() -> None:
    endings, reached = hunt(range(25))
    assert endings >= HOW_FAR
    assert reached["a gang was bound in part"]
    assert reached["the rivals were first"]


def test_the_same_holds_with_lost_messages() -> None:
    endings, reached = hunt(range(100, 125), LOSSY)
    assert reached["a gang was bound in part"]
    assert len(endings) >= len(HOW_FAR)


def test_a_gang_that_loses_a_node_or_a_member_is_whole_in_the_end() -> None:
    endings, _ = hunt(range(200, 225), program=schedulers_down_with_faults)
    assert endings >= {"Pending, 0 bound", "Committed, 0 bound"}


def test_without_the_rule_of_deadlines_a_gang_would_be_left_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_pod(*_: object) -> bool:
        return False

    monkeypatch.setattr(reservations, "_could_be_bound", no_pod)
    found = (run(schedulers_down, seed, faults=NO_FAULTS).violation for seed in range(25))
    assert any(each is not None and each.cause == "in part" for each in found)


# -- clocks ----------------------------------------------------------------------------------------


async def behind(sim: Simulation) -> int:
    """A scheduler's clock is behind by more than a gang may take; repair's clock is right. Returns bound members."""
    cluster = Cluster(sim)
    await cluster.set_up()
    limits = replace(HURRIED, gang_chunk_max=1)
    fleet = SchedulerFleet(sim, cluster, limits=limits, holds=("",))
    for name in NODES:
        await cluster.authority.create(NODE, node(name, cpu="1"))
    ControllerFleet(cluster, limits=limits).boot(sim, reservation_repair_controller)
    fleet.boot("one", "default-scheduler").skew(offset_s=-2 * limits.gang_wait_s, rate=1.0)
    await asyncio.sleep(5)
    for name in CREW:
        await cluster.authority.create(POD, member_body(name))
    await asyncio.sleep(20)
    return _bound(cluster)


def bound_with_a_slow_clock() -> list[int]:
    counts = []
    for seed in range(4):
        outcome = run(behind, seed, faults=NO_FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        counts.append(outcome.result or 0)
    return counts


def test_a_gang_whose_deadline_has_passed_from_the_start_is_bound() -> None:
    assert bound_with_a_slow_clock() == [len(CREW)] * 4


def test_if_such_reservations_were_released_at_once_a_gang_would_restart_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (repair_controller, repair_plan):
        monkeypatch.setattr(module, "due_at", lambda reservation, *_: reservation.spec.deadline)
    assert min(bound_with_a_slow_clock()) == 0
