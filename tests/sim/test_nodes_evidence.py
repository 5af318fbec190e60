"""No node is lost by the cache alone: the lease is read from the API server first, and a wrong cache is relisted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kit import nodes as kit
from tests.kit.controllers import REPLICA_SET, replica_set
from tests.kit.nodes import (
    QUICK,
    ControllerFleet,
    SimpleAgent,
    cluster_with_agents,
    has_condition,
    objects,
    ready_pods,
    write_conditions,
)
from tests.kit.safeguards import replaced

from kedge.api.conditions import condition, find_condition, is_true
from kedge.api.wellknown import UNREACHABLE_TAINT
from kedge.client.contract import Client
from kedge.controllers.node.controller import NodeLifecycle, lifecycle_controller
from kedge.controllers.node.evacuation import EvacuationPlan
from kedge.controllers.node.heartbeats import Heartbeats
from kedge.controllers.shared.node_leases import lease_key
from kedge.env import Env
from kedge.errors import ReplayDiverged
from kedge.keys import Key
from kedge.runtime import Context
from kedge.sim.cluster import Commit
from kedge.sim.kernel import NO_FAULTS, Simulation, run

PATIENT = replace(
    QUICK, relist_every_s=100_000.0, node_suspect_s=8.0, node_unknown_s=16.0, node_lost_s=40.0, node_blind_s=18.0
)
"""No cache relists by itself, and timeouts are short."""


class Released:
    """All pods whose release was ever requested."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == "Pod" for key in commit.keys):
            for pod in objects(commit.store, "Pod"):
                found = find_condition(pod.view.status.conditions, "DisruptionTarget")
                if found is not None and found.status == "True":
                    self.names.add(pod.key.name)
        return iter(())


OBSERVE = Heartbeats.observe


def without_reports(self: Heartbeats, node: str, age_s: float, *, report: str = "") -> dict[str, Any]:  # noqa: ARG001
    """Observes leases, but not the reports of agents."""
    return OBSERVE(self, node, age_s)


async def missed_renewals(sim: Simulation, *, replicas: int = 2, tolerated_s: int = 0) -> tuple[bool, set[str], bool]:
    """A node is alive, and the observer's watch hides that: at once, or when the node returns after it was lost.

    The reports of its agent are hidden too. Returns whether the node was lost meanwhile, which pods were released, and
    whether the node was ready again.
    """
    with replaced(Heartbeats, "observe", without_reports):
        return await _missed_renewals(sim, replicas, tolerated_s)


async def _missed_renewals(sim: Simulation, replicas: int, tolerated_s: int) -> tuple[bool, set[str], bool]:
    cluster, _, hosts, _ = await cluster_with_agents(sim, copies=0, names=("node-0", "node-1"))
    released = Released()
    sim.check_always(released)
    fleet = ControllerFleet(cluster, limits=PATIENT)
    fleet.boot(sim, lifecycle_controller)
    body = replica_set("web", replicas)
    tolerates = {
        "key": UNREACHABLE_TAINT,
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": tolerated_s,
    }
    body["spec"]["template"]["spec"]["tolerations"] = [tolerates]
    await cluster.authority.create(REPLICA_SET, body)
    await asyncio.sleep(15)
    victim = next(iter(ready_pods(cluster).values()), "node-0")
    lost = returned = False
    if tolerated_s:
        sim.network.partition([hosts[victim]], cluster.servers)
        await asyncio.sleep(60)
        assert has_condition(cluster, victim, "Lost")
        sim.network.heal()
    fleet.hidden.add(lease_key(victim))
    suspected = False
    for _ in range(30):
        await asyncio.sleep(2)
        lost = lost or has_condition(cluster, victim, "Lost")
        returned = returned or (suspected and not has_condition(cluster, victim, "Suspect"))
        suspected = has_condition(cluster, victim, "Suspect")
    return lost, released.names, returned


async def trusts_its_cache(*_: object) -> bool:
    return True


class MarkedUnknown:
    """Pods whose Ready condition was ever set to unknown."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == "Pod" for key in commit.keys):
            for pod in objects(commit.store, "Pod"):
                found = find_condition(pod.view.status.conditions, "Ready")
                if found is not None and found.status == "Unknown":
                    self.names.add(pod.key.name)
        return iter(())


async def suspected(sim: Simulation) -> set[str]:
    found = MarkedUnknown()
    sim.check_always(found)
    await missed_renewals(sim)
    return found.names


def test_pods_of_a_node_whose_renewals_a_cache_missed_stay_ready() -> None:
    """A node that was never lost: its pods would get no work for as long as the cache is wrong."""
    outcome = run(suspected, 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation
    assert outcome.result == set()
    with replaced(EvacuationPlan, "rests_on_silence", property(lambda _: False)):
        worse = run(suspected, 1, faults=NO_FAULTS)
    assert worse.result, worse.violation


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"replicas": 0}, id="of a node without pods"),
        pytest.param({}, id="of a node with pods"),
        pytest.param({"tolerated_s": 70}, id="of a node that was lost and returned"),
    ],
)
def test_a_node_whose_renewals_a_cache_missed_loses_no_pod(how: dict[str, Any]) -> None:
    outcome = run(partial(missed_renewals, **how), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    lost, released, returned = outcome.result
    assert not lost or how.get("tolerated_s")
    assert not released
    assert returned  # it found the difference, and relisted


def test_without_a_read_from_the_api_server_a_live_node_is_declared_lost() -> None:
    with replaced(NodeLifecycle, "_is_silent", trusts_its_cache):
        outcome = run(partial(missed_renewals, replicas=0), 1, faults=NO_FAULTS)
    lost, _, returned = outcome.result
    assert lost
    assert not returned


def test_without_a_read_from_the_api_server_pods_of_a_live_node_are_released() -> None:
    with replaced(EvacuationPlan, "rests_on_silence", property(lambda _: False)):
        outcome = run(partial(missed_renewals, tolerated_s=70), 1, faults=NO_FAULTS)
    _, released, returned = outcome.result
    assert released
    assert not returned


# -- an agent that reports --------------------------------------------------------------------------


class UnrenewedAgent(SimpleAgent):
    """An agent whose lease can no longer be renewed: it still reports its node as ready after another writer set it to
    unknown."""

    blocked = False

    async def _renew(self, client: Client, env: Env) -> None:
        if not self.blocked:
            await super()._renew(client, env)
            return
        found = await client.find(Key("Node", "", self.name))
        if found is not None and not is_true(found.view.status.conditions, "Ready"):
            await write_conditions(client, env, found, [condition("Ready", status=True, reason="AgentReady")])


async def reports_without_renewal(sim: Simulation) -> tuple[bool, bool, set[str], dict[str, str], dict[str, str]]:
    with replaced(kit, "SimpleAgent", UnrenewedAgent):
        cluster, _, _, agents = await cluster_with_agents(sim, copies=1)
    released = Released()
    sim.check_always(released)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 4))
    await asyncio.sleep(30)
    before = ready_pods(cluster)
    victim = next(iter(before.values()))
    agent = agents[victim]
    assert isinstance(agent, UnrenewedAgent)
    agent.blocked = True
    suspected = lost = False
    for _ in range(200):
        await asyncio.sleep(2)
        suspected = suspected or has_condition(cluster, victim, "Suspect")
        lost = lost or has_condition(cluster, victim, "Lost")
    return suspected, lost, released.names, before, ready_pods(cluster)


def test_a_node_whose_agent_reports_is_not_lost_although_its_lease_is_old() -> None:
    """Only the renewals of one node are rejected: it gets no new pods, and keeps its own."""
    outcome = run(reports_without_renewal, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    suspected, lost, released, before, after = outcome.result
    assert suspected
    assert (lost, released) == (False, set())
    assert {*after} <= {*before}
    with replaced(Heartbeats, "observe", without_reports):
        assert run(reports_without_renewal, 1, faults=NO_FAULTS).result[1]


# -- what only this process can know ---------------------------------------------------------------


async def decided_again(sim: Simulation) -> int:
    cluster, fleet, hosts, _ = await cluster_with_agents(sim, copies=1, names=("node-0", "node-1"))
    await asyncio.sleep(20)
    sim.network.partition([hosts["node-0"]], cluster.servers)
    await asyncio.sleep(60)
    return await fleet.recheck({"node-lifecycle": NodeLifecycle})


def not_recorded(_: Context, __: str, measure: Any) -> Any:
    return measure()


@pytest.mark.parametrize("recorded", [True, False])
def test_measured_silence_is_recorded_so_that_a_decision_rechecks(recorded: bool) -> None:
    with nullcontext() if recorded else replaced(Context, "measured", not_recorded):
        outcome = run(decided_again, 1, faults=NO_FAULTS)
    if recorded:
        assert outcome.violation is None, outcome.violation
        assert outcome.result
    else:
        assert outcome.violation is not None
        assert ReplayDiverged.__name__ in outcome.violation.message
