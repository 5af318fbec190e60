"""Resizes in place on simulated nodes: applied, deferred, refused, with agents that crash and binds that race."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tests.kit.agent import CALM, LEDGER, NODE, bind, is_ready, new_cluster, until, without_faults
from tests.kit.agent_crashes import CrashPlan, crash_at_notes, crash_at_requests
from tests.objects import pod, pod_key

from kedge.api.conditions import find_condition
from kedge.api.requests import Binding, DeleteOptions, PatchType
from kedge.api.views import PodView
from kedge.errors import OperatingError
from kedge.placement.ledger import Claim, ledger_of
from kedge.placement.resources import add, node_allocatable, spec_requests, to_units
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run

SEEDS = 50


async def resize(cluster: Cluster, name: str = "web-0", **requests: str) -> None:
    body = {"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}}
    await cluster.authority.patch(pod_key(name), body, patch_type=PatchType.STRATEGIC, subresource="resize")


def view_of(cluster: Cluster, name: str = "web-0") -> PodView:
    found = cluster.find(pod_key(name))
    assert found is not None
    return found.as_view(PodView)


def applied(cluster: Cluster, name: str = "web-0") -> str:
    """The CPU that the status shows as applied; empty if it shows none."""
    statuses = view_of(cluster, name).status.container_statuses
    return str(statuses[0].resources.requests["cpu"]) if statuses and statuses[0].resources is not None else ""


def pending(cluster: Cluster, name: str = "web-0") -> str:
    found = find_condition(view_of(cluster, name).status.conditions, "PodResizePending")
    return found.reason if found is not None else ""


def claim_of(cluster: Cluster, name: str = "web-0") -> Claim:
    ledger = cluster.find(LEDGER)
    assert ledger is not None
    return next(each for each in ledger_of(ledger.view).claims.values() if each.name == name)


def is_settled(cluster: Cluster, name: str, cpu: str) -> bool:
    conditions = view_of(cluster, name).status.conditions
    shown = [each.type for each in conditions if each.type.startswith("PodResize")]
    return applied(cluster, name) == cpu and not shown


class NoMoreThanGranted:
    """No process of a node has more than its claim was granted, and all of them fit on the node, at every commit."""

    def __init__(self, sim: Simulation, cluster: Cluster, *nodes: str) -> None:
        self._cluster, self._nodes = cluster, nodes
        sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        del commit
        for name in self._nodes:
            found = self._cluster.find(LEDGER._replace(name=name))
            machine = self._cluster.nodes[name]
            if found is None:
                continue
            ledger = ledger_of(found.view)
            used: dict[str, dict[str, int]] = {}
            for process in machine.driver.live():
                if process.resources is not None and process.identity.node_uid == ledger.node_uid:
                    uid = process.identity.pod_uid
                    used[uid] = add(used.get(uid, {}), to_units(process.resources.requests))
            for uid, amounts in used.items():
                claim = ledger.claims.get(uid)
                if claim is not None and any(amount > claim.proved.get(r, 0) for r, amount in amounts.items()):
                    yield "granted", f"{claim.name} on {name} has {amounts}, and was granted {dict(claim.proved)}"


# -- one pod -----------------------------------------------------------------------------------------


def test_a_resize_is_applied_without_a_restart_and_counts_with_the_ledger() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        NoMoreThanGranted(sim, cluster, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        assert applied(cluster) == "100m"
        for cpu, milli in (("900m", 900), ("50m", 50)):
            await resize(cluster, cpu=cpu)
            await until(lambda cpu=cpu: is_settled(cluster, "web-0", cpu))  # type: ignore[misc]
            claim = claim_of(cluster)
            assert (claim.requests["cpu"], claim.granted) == (milli, None)
        (process,) = cluster.nodes["node-a"].driver.live()
        assert process.resources == view_of(cluster).spec.containers[0].resources
        assert len(cluster.nodes["node-a"].driver.started) == 1
        assert view_of(cluster).status.observed_generation == 3

    without_faults(program)


def test_a_container_whose_policy_demands_it_is_restarted_whatever_its_exit_code() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        body = pod(restartPolicy="OnFailure")
        body["spec"]["containers"][0]["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
        await bind(cluster, body)
        await until(lambda: is_ready(cluster))
        await resize(cluster, memory="128Mi", cpu="100m")
        await until(lambda: str(view_of(cluster).status.container_statuses[0].allocated_resources["memory"]) == "128Mi")
        assert len(cluster.nodes["node-a"].driver.started) == 1
        await resize(cluster, cpu="200m")
        await until(lambda: is_settled(cluster, "web-0", "200m") and is_ready(cluster))
        assert [each.attempt for each in cluster.nodes["node-a"].driver.started] == [0, 1]

    without_faults(program)


def test_a_resize_without_room_is_deferred_and_applied_when_a_pod_leaves() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        NoMoreThanGranted(sim, cluster, "node-a")
        offered = node_allocatable(cluster.find(NODE).view)["cpu"]  # type: ignore[union-attr]
        half = f"{offered // 2 - 1}m"
        for name in ("a", "b"):
            await bind(cluster, pod(name, cpu=half))
        await until(lambda: is_ready(cluster, "a") and is_ready(cluster, "b"))
        await resize(cluster, "a", cpu=f"{offered - 100}m")
        await until(lambda: pending(cluster, "a") == "Deferred")
        claim = claim_of(cluster, "a")
        assert claim.requests["cpu"] == offered - 100
        assert claim.proved["cpu"] == offered // 2 - 1
        assert applied(cluster, "a") == half
        cluster.nodes["node-a"].driver.crash_process(view_of(cluster, "a").uid)
        await until(lambda: len(cluster.nodes["node-a"].driver.started) == 3)
        restarted = [each for each in cluster.nodes["node-a"].driver.live() if each.pod == "a"]
        assert str(restarted[0].resources.requests["cpu"]) == half, "it restarts with the resources it has"  # type: ignore[union-attr]
        await cluster.authority.delete(pod_key("b"))
        await until(lambda: is_settled(cluster, "a", f"{offered - 100}m"), within_s=20)

    without_faults(program)


def test_a_resize_past_a_node_that_shrank_is_infeasible_and_counts_no_longer() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod())
        await until(lambda: is_ready(cluster))
        node = cluster.nodes["node-a"]
        node.host.crash()
        await resize(cluster, cpu="1")
        small = {"status": {"allocatable": {"cpu": "500m", "memory": "1Gi", "pods": "10"}}}
        await cluster.authority.patch(NODE, small, subresource="status")
        assert claim_of(cluster).requests["cpu"] == 1000
        node.host.restart()
        await until(lambda: pending(cluster) == "Infeasible")
        assert claim_of(cluster).requests["cpu"] == 100
        await resize(cluster, cpu="300m")
        await until(lambda: is_settled(cluster, "web-0", "300m"))
        assert claim_of(cluster).granted is None

    without_faults(program)


def test_a_pod_resized_before_its_first_start_is_started_only_with_what_was_granted() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        NoMoreThanGranted(sim, cluster, "node-a")
        offered = node_allocatable(cluster.find(NODE).view)["cpu"]  # type: ignore[union-attr]
        node = cluster.nodes["node-a"]
        node.host.crash()
        for name in ("fits", "large"):
            await bind(cluster, pod(name))
        await resize(cluster, "fits", cpu="500m")
        await resize(cluster, "large", cpu=f"{offered}m")
        node.host.restart()
        await until(lambda: is_ready(cluster, "fits") and is_settled(cluster, "fits", "500m"))
        await until(lambda: view_of(cluster, "large").finished)
        assert view_of(cluster, "large").status.reason == "OutOfcpu"

    without_faults(program)


# -- crashes -----------------------------------------------------------------------------------------

NOTES = ("start", "stop", "resize")


async def resizing_run(sim: Simulation, crash_plan: CrashPlan) -> None:
    """Two containers of different policies grow, exchange their room and shrink, and the agent crashes."""
    cluster = Cluster(sim, limits=CALM)
    await cluster.set_up()
    Judge(cluster)
    crash_at_requests(cluster, crash_plan)
    node = cluster.add_node("node-a")
    crash_at_notes(node, crash_plan, NOTES)
    NoMoreThanGranted(sim, cluster, "node-a")
    await until(lambda: cluster.find(node.key) is not None)
    body = pod()
    second: dict[str, Any] = {"name": "side", "image": "web:1", "resources": {"requests": {"cpu": "300m"}}}
    second["resizePolicy"] = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    body["spec"]["containers"].append(second)
    await bind(cluster, body)
    await asyncio.sleep(20)
    for main, side in (("200m", "300m"), ("400m", "100m"), ("50m", "200m")):
        sizes = [{"name": n, "resources": {"requests": {"cpu": c}}} for n, c in (("main", main), ("side", side))]
        await cluster.authority.patch(
            pod_key(), {"spec": {"containers": sizes}}, patch_type=PatchType.STRATEGIC, subresource="resize"
        )
        await asyncio.sleep(40)
    view = view_of(cluster)
    for container, status in zip(view.spec.containers, view.status.container_statuses, strict=True):
        if status.resources != container.resources or status.allocated_resources != container.resources.requests:
            sim.violate("applied", f"{container.name}: {status}")
    if any(each.type.startswith("PodResize") for each in view.status.conditions):
        sim.violate("settled", f"{view.status.conditions}")
    claim = claim_of(cluster)
    if claim.granted is not None or claim.requests != spec_requests(view.spec):
        sim.violate("counted", f"{claim}")
    attempts = [each.attempt for each in node.driver.started if each.container == "main"]
    if attempts != [0]:
        sim.violate("not restarted", f"{attempts}")


def check_run(crash_plan: CrashPlan) -> None:
    outcome = run(lambda sim: resizing_run(sim, crash_plan), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{crash_plan}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


def test_an_agent_that_crashes_at_any_step_of_a_resize_ends_with_the_same_result() -> None:
    calm = CrashPlan()
    check_run(calm)
    did = {act.what for act in calm.acts}
    assert did >= {"patch", *NOTES}, did
    for number in range(len(calm.acts)):
        for before in (True, False):
            crash_plan = CrashPlan(number, before)
            check_run(crash_plan)
            assert crash_plan.crashes == 1


# -- many pods, faults and binds ---------------------------------------------------------------------


async def _user(sim: Simulation, cluster: Cluster, names: list[str], sizes: list[str]) -> None:
    for step in range(16):
        name = sim.choose("pod", names)
        with suppress(OperatingError):
            match sim.choose("step", ("resize", "resize", "resize", "bind", "remove", "crash")):
                case "resize":
                    await resize(cluster, name, cpu=sim.choose("size", sizes))
                case "bind":
                    if cluster.find(pod_key(name)) is None:
                        await cluster.create(pod(name, cpu=sim.choose("size", sizes)))
                    node = sim.choose("node", ("node-a", "node-b"))
                    await cluster.authority.bind(Binding(pod=pod_key(name), node=node))
                case "remove":
                    options = DeleteOptions(grace_s=sim.choose("grace", (0, 5)))
                    await cluster.authority.delete(pod_key(name), options)
                case "crash":
                    host = cluster.nodes[sim.choose("node", ("node-a", "node-b"))].host
                    host.crash()
                    await asyncio.sleep(2)
                    host.restart()
        if not step % 3:
            await asyncio.sleep(sim.choose("pause", (0.05, 0.3, 3.0, 20.0)))


async def crowded(sim: Simulation) -> None:
    """Users resize pods at random on two full nodes, while pods are bound and removed and agents crash."""
    cluster = await new_cluster(sim, "node-a", "node-b", hostile=True)
    NoMoreThanGranted(sim, cluster, "node-a", "node-b")
    offered = node_allocatable(cluster.find(NODE).view)["cpu"]  # type: ignore[union-attr]
    sizes = [f"{offered * part // 10}m" for part in (1, 2, 4, 7)]
    names = [f"web-{number}" for number in range(6)]
    for number, name in enumerate(names[:4]):
        with suppress(OperatingError):
            await bind(cluster, pod(name, cpu=sim.choose("size", sizes)), ("node-a", "node-b")[number % 2])
    await asyncio.gather(*(_user(sim, cluster, names, sizes) for _ in range(2)))
    sim.faults.stop()
    await asyncio.sleep(240)
    _check_settled(sim, cluster)


def _check_settled(sim: Simulation, cluster: Cluster) -> None:
    """Every running pod has the resources of its spec, or reports a reason."""
    for found in cluster.all("Pod"):
        view = found.as_view(PodView)
        if not view.spec.node_name or view.finished or view.terminating:
            continue
        for container, status in zip(view.spec.containers, view.status.container_statuses, strict=True):
            waits: Any = find_condition(view.status.conditions, "PodResizePending")
            if status.resources != container.resources and waits is None:
                sim.violate("settled", f"{found.key} has {status.resources}, wants {container.resources}")


def test_resizes_among_faults_binds_and_crashes_keep_every_invariant() -> None:
    for seed in range(SEEDS):
        outcome = run(crowded, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-3000:]}"
