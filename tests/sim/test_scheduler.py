"""Schedulers under faults: accounts balance at every commit; once faults stop, pods that fit are bound, then silence.

Every kept attempt of every process is rechecked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.kit.committed import State
from tests.kit.disturbed_fleet import FAULTS, ROUNDS, cluster_of, disturbed_fleet
from tests.kit.scheduler_fleet import run_agents, settle
from tests.kit.scheduler_invariants import NODES, OTHER, PODS, could_be_bound
from tests.kit.scheduler_users import User
from tests.objects import POD, ZONE_QUOTA, pod, zone_quota

from kedge.api.requests import Binding, DeleteOptions, WriteOptions
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.scheduler import Scheduler
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.scheduler.state.unreleased_claims import UnreleasedClaims
from kedge.server.service import claims, zones
from kedge.server.service.core import Staged, staged_value
from kedge.sim.kernel import FaultPlan, RunOutcome, Simulation, Swarm, run

AT_THE_BIND = Swarm(
    without=(
        "duplicate", "hide", "partition", "crash", "crash caller", "crash callee", "pause", "pause caller",
        "pause callee",
    )
)  # fmt: skip
"""No lasting faults: the ambush makes its own."""


async def under_faults_and_users(sim: Simulation, make: Any = Scheduler) -> int:
    return (await disturbed_fleet(sim, make)).recheck()


def hunt(seeds: range, faults: FaultPlan = FAULTS) -> tuple[dict[str, int], int]:
    """Run every seed without a violation. Returns the events reached, and the number of rechecked attempts."""
    reached: dict[str, int] = {}
    rechecked = 0
    for seed in seeds:
        outcome = run(under_faults_and_users, seed, faults=faults)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        rechecked += outcome.result or 0
        for mark, times in outcome.marks.items():
            reached[mark] = reached.get(mark, 0) + times
    return reached, rechecked


def first_violation(program: Any, seeds: range) -> RunOutcome | None:
    return next((found for seed in seeds if (found := run(program, seed, faults=FAULTS)).violation is not None), None)


def test_every_invariant_holds_under_faults_and_every_attempt_rechecks() -> None:
    reached, rechecked = hunt(range(200))
    assert rechecked > 200 * 5
    for needed in (
        "a bind was refused",
        "a bind's outcome was unknown",
        "a pod was replaced under its name",
        "a node was replaced under its name",
        "a gang was committed",
        "quota",
        "resize",
        "refused: Resource",
        "a scheduler was stopped in the middle of a bind",
        "relabel",
        "move",
    ):
        assert reached.get(needed), f"no seed ever reached {needed!r}: {reached}"


async def at_the_bind(sim: Simulation) -> int:
    """Binds take long, and every fault of a bind strikes while it is in flight."""
    fleet = await cluster_of(sim)
    fleet.holds = ("late",)
    for host_name, name in (("one", "default-scheduler"), ("two", "default-scheduler"), ("three", OTHER)):
        fleet.boot(host_name, name)
    fleet.boot_quotas()
    agents = sim.driver.spawn(run_agents(fleet), name="agents")
    user = User(fleet, fleet.client(sim.host("user"), 0))
    for n in range(3):
        for name in PODS[2 * n : 2 * n + 2]:
            with suppress(OperatingError):  # a pod of that name exists
                await fleet.cluster.authority.create(POD, pod(name, cpu=sim.choose("cpu", ("400m", "700m"))))
        with suppress(OperatingError):
            await user.ambush()
        await asyncio.sleep(sim.choose("pause", (0.05, 1.0, 4.0)))
    while any(life.host.paused for life in fleet.living()):  # noqa: ASYNC110  healing would wake them too soon
        await asyncio.sleep(0.5)
    await settle(fleet)
    agents.cancel()
    return fleet.recheck()


def test_every_invariant_holds_where_rare_faults_of_binds_are_frequent() -> None:
    seeds = range(40)
    found = [run(at_the_bind, seed, faults=AT_THE_BIND) for seed in seeds]
    for seed, outcome in zip(seeds, found, strict=True):
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
    for needed in (
        "a bind's outcome was unknown",
        "a bind was fenced off",
        "a standby took over with binds in flight",
        "a pod was replaced under its name",
        "refused: PodReplaced",
        "a scheduler was stopped in the middle of a bind",
    ):
        reached = sum(needed in outcome.marks for outcome in found)
        assert reached >= len(seeds) // 5, f"only {reached} of {len(seeds)} seeds reached {needed!r}"


async def by_the_rules(sim: Simulation) -> int:
    """Pods with rules about each other; domains and labels change one by one, and nothing else happens."""
    sim.heal()
    fleet = await cluster_of(sim, cpu="2")
    for host_name, name in (("one", "default-scheduler"), ("three", OTHER)):
        fleet.boot(host_name, name)
    agents = sim.driver.spawn(run_agents(fleet), name="agents")
    user = User(fleet, fleet.client(sim.host("user"), 0))
    for name in PODS:
        await fleet.cluster.authority.create(POD, user.body(name, ("apart", "apart", "near", "spread")))
    for _ in range(2 * ROUNDS):
        await asyncio.sleep(8)
        left = could_be_bound(State(fleet.cluster.store))
        if left:
            sim.violate("what fits is bound", f"{left} could be bound, and are not")
        if any(not found.view.spec.node_name for found in State(fleet.cluster.store).of("Pod").values()):
            sim.sometimes("a pod is pending")
        await user.step("relabel", "move", "node", "delete", "end", "cordon", "resize")
    await settle(fleet)
    agents.cancel()
    return fleet.recheck()


def test_pods_with_rules_are_bound_as_soon_as_a_change_unblocks_them() -> None:
    reached = 0
    for seed in range(40):
        outcome = run(by_the_rules, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        reached += outcome.marks.get("a pod is pending", 0)
    assert reached > 40


@pytest.mark.soak
def test_every_invariant_holds_over_many_more_seeds() -> None:
    hunt(range(1_000, 2_500))


# -- bugs that the fleet finds ---------------------------------------------------------------------


def test_a_quota_charged_apart_from_the_bind_it_pays_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug 23 (kubernetes#70563): quota charged for creates that failed.

    A bind charges the tenant's zone quota in its own commit. Charged in one of its own, before, it stays charged when
    the bind is refused or lost, and the accounts show that at once.
    """
    assert first_violation(quota_in_the_way, range(3)) is None

    async def charge_apart(core: Any, _: Any, pod: Any, zone: str, asked: Any) -> None:
        async def attempt(alone: Any) -> Any:
            await zones.charge_zone(core, alone, pod, zone, asked)
            found = await alone.object(Key("ZoneQuota.kedge.dev", "default", "zones"))
            return Staged(found.kind, found.key, staged_value(alone, found), created=found.created)

        await core.prove(attempt, WriteOptions())

    monkeypatch.setattr(claims, "charge_zone", charge_apart)
    found = first_violation(quota_in_the_way, range(3))
    assert found is not None
    assert found.violation is not None
    assert found.violation.cause == "quota"


async def quota_in_the_way(sim: Simulation) -> None:
    fleet = await cluster_of(sim)
    await fleet.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}, zone_b={"cpu": "1"}))
    fleet.boot("one", "default-scheduler")
    for name in PODS[:4]:
        await fleet.cluster.authority.create(POD, pod(name, cpu="400m"))
    await settle(fleet)


def test_schedulers_that_forget_refusals_are_found_by_their_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug 8 (nomad#13017) in the fleet: without learning from ledgers, a pod is refused and written for ever."""

    async def ghost(sim: Simulation) -> None:
        sim.heal()  # no fault is needed for it
        fleet = await cluster_of(sim)
        for name in NODES[1:]:
            await fleet.cluster.authority.delete(Key("Node", "", name))
        found = (await fleet.cluster.authority.create(POD, pod("ghost", cpu="800m"))).object
        await fleet.cluster.authority.bind(Binding(pod=found.key, node=NODES[0]))
        fleet.boot("one", "default-scheduler")
        while not any(life.scheduler.leading for life in fleet.processes):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        await fleet.cluster.authority.create(POD, pod("web", cpu="800m"))
        await fleet.cluster.authority.delete(found.key, DeleteOptions(grace_s=0))
        await asyncio.sleep(60)
        refused = sim.world.marks.get("refused: Resource", 0)
        if refused > 2:
            sim.violate("refusals end", f"{refused} refusals of one pod")

    assert first_violation(ghost, range(2)) is None
    monkeypatch.setattr(ClusterState, "_release", lambda self, uid, _: self._drop_claim(uid))
    monkeypatch.setattr(UnreleasedClaims, "adopt", lambda *_: None)
    found = first_violation(ghost, range(2))
    assert found is not None
    assert found.violation is not None
    assert found.violation.invariant == "refusals end"
