"""Small worlds for the zoo, one a theme: only the parts that the theme is about, so that a seed costs little.

Each is a scenario like any other: clean, it must hold in every seed. The nets that come round by time (resync, relist,
flush) are off where an entry is about a wake-up, because a net would hide that one was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.requests import DeleteOptions
from kedge.errors import NotFound, OperatingError
from kedge.keys import Key
from kedge.scheduler.state.cluster_state import GANG_LABEL, GANG_SIZE
from kedge.sim.cluster import ZONE
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.kernel.calls import crash_for_a_while
from kedge.sim.standard import LIMITS, Size, World, quota, service, template, workload, zone_quota
from kedge.sim.zoo.ends import (
    NEVER_S,
    NO_NETS,
    GangsAreWhole,
    NeighboursStandEachOther,
    NothingComesBack,
    OnlyTheUnwantedIsStopped,
    RecreateNeverOverlaps,
    StoppingCopiesCount,
    expect,
    no_owner_is_a_ghost,
    nothing_is_on_its_way_out,
    nothing_outlives_its_namespace,
    pods_that_fit_are_bound,
    quotas_say_what_is_used,
    the_bound_have_claims,
)
from kedge.sim.zoo.paper import PAPER, STARTS_S, STUCK, PaperMachines, manage, place
from kedge.sim.zoo.plans import (
    BROKEN_WATCHES,
    CUT_OFF,
    GENERAL,
    OF_QUEUES,
    OF_RACES,
    OF_SILENCE,
    OF_VIEWS,
    OLD_LISTS,
    SLOW_RESERVES,
    Drawn,
    Strategy,
)

QUIET = replace(LIMITS, **NO_NETS)  # type: ignore[arg-type]
CONFIG_MAP, POD = KINDS.of_key_kind("ConfigMap"), KINDS.of_key_kind("Pod")


# -- workloads and rollouts: a Deployment on machines that exist on paper -----------------------------------

WEB = Key("Deployment.apps", "default", "web")
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}},
    {"type": "Recreate"},
)


async def _with_workloads(sim: Simulation) -> World:
    world = World(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    RecreateNeverOverlaps(world.judge)
    StoppingCopiesCount(world.judge)
    await PaperMachines(world).add_nodes(PAPER)
    manage(world, "deployment", "replicaset", "endpoints")
    await world.user.apply(service("web", "web"))
    return world


@simulate(faults=ClusterSwarm())
async def workloads(sim: Simulation) -> None:
    """A Deployment is made, rolled out, scaled, rolled back, and loses pods."""
    world = await _with_workloads(sim)
    user = world.user
    strategy = sim.choose("strategy", STRATEGIES)
    await user.apply(workload("Deployment", "web", sim.choose("replicas", (2, 1, 3)), strategy=strategy))
    await asyncio.sleep(sim.choose("first", (12, 3)))
    for n in range(sim.choose_int("steps", 1, 3)):
        match sim.choose("step", ("roll out", "scale", "roll back", "delete pod", "roll out")):
            case "roll out":
                await user.roll_out(WEB, f"web:{n + 2}")
            case "scale":
                await user.scale(WEB, sim.choose("size", (1, 4, 0)))
            case "roll back":
                await user.roll_back(WEB)
            case _:
                if pods := user.cluster.all("Pod"):
                    await user.delete(sim.choose("pod", pods).key, force=sim.choose("force", (False, True)))
        await asyncio.sleep(sim.choose("pause", (8, 1, 20)))
    await world.close(within_s=300, silence_s=20, stays_s=40)


@simulate(faults=ClusterSwarm())
async def rollouts(sim: Simulation) -> None:
    """A Deployment that has been well for a while is rolled out, and perhaps rolled back or out again at once."""
    world = await _with_workloads(sim)
    user = world.user
    strategy = sim.choose("strategy", STRATEGIES)
    await user.apply(workload("Deployment", "web", sim.choose("replicas", (1, 2, 3)), strategy=strategy))
    await asyncio.sleep(85)
    await user.roll_out(WEB, "web:2")
    if sim.choose("again", (False, True)):
        await asyncio.sleep(sim.choose("pause", (3, 0.3, 9)))
        await (user.roll_back(WEB) if sim.choose("back", (True, False)) else user.roll_out(WEB, "web:3"))
    await asyncio.sleep(10)
    await world.close(within_s=300, silence_s=0, stays_s=5)


# -- serving: pods come, become ready or never do, and go; a Service lists them ---------------------------


@simulate(faults=ClusterSwarm())
async def serving(sim: Simulation) -> None:
    world = World(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    await PaperMachines(world).add_nodes(PAPER)
    manage(world, "endpoints")
    user = world.user
    await user.apply(service("web", "web"))
    for _ in range(sim.choose_int("steps", 3, 6)):
        key = Key("Pod", "default", sim.choose("pod", ("a", "b")))
        if world.cluster.find(key) is None:
            image = sim.choose("image", ("web:1", STUCK))
            await user.apply(plain(key.name, app="web", image=image), namespace="default")
        else:
            await user.delete(key, force=sim.choose("force", (True, False)))
        await asyncio.sleep(sim.choose("pause", (6, 1, 12)))
    await asyncio.sleep(STARTS_S[-1] + 1)  # what is to become ready has
    await world.close(within_s=120, silence_s=8, stays_s=5)


# -- placement: plain pods on few paper nodes, two schedulers side by side, people who change their minds ----

SCHEDULERS = ("default-scheduler", "other-scheduler")


def plain(name: str, *, app: str = "plain", **spec: Any) -> dict[str, Any]:
    body = template(app, **spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**body["metadata"], "name": name}, "spec": body["spec"]}


@simulate(faults=ClusterSwarm())
async def placement(sim: Simulation) -> None:
    tight = sim.choose("what is scarce", ("capacity", "quota"))
    world = World(sim, Size(nodes=0, servers=2, schedulers=1, names=SCHEDULERS, managers=0, limits=QUIET))
    await world.open()
    expect(world, pods_that_fit_are_bound)
    NothingComesBack(world.judge)
    cpu = "1" if tight == "capacity" else "4"
    await PaperMachines(world, places=False).add_nodes({**PAPER, "paper-2": "zone-a"}, cpu=cpu)
    users = [world.user, User(world.cluster, "bob", server=1)]
    if tight == "quota":
        await world.cluster.create(zone_quota("zones", {zone: {"cpu": "1"} for zone in ("zone-a", "zone-b")}))
    await asyncio.sleep(2)

    async def churn(user: User, names: tuple[str, ...]) -> None:
        scheduler = SCHEDULERS[users.index(user)]
        for n in range(sim.choose_int("steps", 4, 7)):
            name = names[n] if n < 2 else sim.choose("pod", names)
            key = Key("Pod", "default", name)
            if world.cluster.find(key) is None:
                cpu = sim.choose("cpu", ("700m", "900m"))
                await user.apply(plain(name, cpu=cpu, schedulerName=scheduler), namespace="default")
            else:
                await user.delete(key, force=sim.choose("force", (False, True)))
            await asyncio.sleep(sim.choose("pause", (0.2, 2, 6, 0.03)))

    async with asyncio.TaskGroup() as group:
        group.create_task(churn(users[0], ("a-0", "a-1", "a-2")))
        group.create_task(churn(users[1], ("b-0", "b-1", "b-2")))
    await asyncio.sleep(3)
    if tight == "quota":
        await world.user.delete(Key("ZoneQuota.kedge.dev", "default", "zones"))
    await world.close(within_s=300, silence_s=0, stays_s=2)


@simulate(faults=ClusterSwarm())
async def apart(sim: Simulation) -> None:
    """Pods that must not share a node: no bind proves that, so the scheduler must know what it has bound."""
    limits = replace(QUIET, client_attempts_max=2, client_deadline_s=4.0, lease_s=60.0, lease_renew_s=45.0)
    world = World(sim, Size(nodes=0, servers=2, schedulers=1, managers=0, limits=limits))
    await world.open()
    NeighboursStandEachOther(world.judge)
    await PaperMachines(world, places=False).add_nodes(PAPER)
    await asyncio.sleep(2)
    term = {"labelSelector": {"matchLabels": {"app": "plain"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name in ("a", "b", "c"):
        await world.user.apply(plain(name, affinity=apart), namespace="default")
    for _ in range(sim.choose_int("steps", 1, 4)):
        await asyncio.sleep(sim.choose("pause", (6, 0.2, 20)))
        key = Key("Pod", "default", sim.choose("pod", ("a", "b", "c")))
        if world.cluster.find(key) is None:
            await world.user.apply(plain(key.name, affinity=apart), namespace="default")
        else:
            await world.user.delete(key, force=sim.choose("force", (False, True)))
    await asyncio.sleep(12)
    await world.close(within_s=120, silence_s=0, stays_s=2)


@simulate(faults=ClusterSwarm())
async def gangs(sim: Simulation) -> None:
    """Pods that are bound together or not at all reserve one after another, and some leave meanwhile."""
    world = World(sim, Size(nodes=0, servers=2, schedulers=2, managers=0, limits=replace(QUIET, gang_chunk_max=1)))
    await world.open()
    GangsAreWhole(world.judge)
    await PaperMachines(world, places=False).add_nodes(PAPER)
    await asyncio.sleep(2)
    names = ("a", "b", "c")
    for name in names:
        await world.user.apply(_member(name), namespace="default")
    for _ in range(sim.choose_int("steps", 1, 3)):
        await asyncio.sleep(sim.choose("pause", (0.3, 0.03, 2, 8)))
        key = Key("Pod", "default", sim.choose("pod", names))
        if world.cluster.find(key) is None:
            await world.user.apply(_member(key.name), namespace="default")
        else:
            await world.user.delete(key, force=True)
    await asyncio.sleep(10)


def _member(name: str) -> dict[str, Any]:
    body = plain(name, cpu="700m")
    body["metadata"]["labels"][GANG_LABEL] = "trio"
    body["metadata"]["annotations"] = {GANG_SIZE: "3"}
    return body


# -- agents and restarts: machines that reboot, agents that die, nodes that somebody removes ----------------


@simulate(faults=ClusterSwarm())
async def agents(sim: Simulation) -> None:
    size = Size(nodes=2, zones=1, servers=2, schedulers=0, managers=0, limits=replace(QUIET, agent_audit_s=12.0))
    world = World(sim, size)
    await world.open()
    expect(world, the_bound_have_claims)
    cluster, user = world.cluster, world.user
    await asyncio.sleep(2)
    OnlyTheUnwantedIsStopped(world)
    for _ in range(sim.choose_int("steps", 4, 7)):
        key = Key("Pod", "default", sim.choose("pod", ("a", "b")))
        node = world.pick_node()
        match sim.choose("step", ("pod", "pod", "agent dies", "node is removed", "reboot", "pod")):
            case "agent dies":
                crash_for_a_while(sim.world, node.host)
            case "node is removed":
                with suppress(NotFound):
                    await cluster.authority.delete(node.key)
            case "reboot":
                world.lose(node, for_s=3.0)
            case _ if (pod := cluster.find(key)) is None:
                made = await user.apply(plain(key.name), namespace="default")
                with suppress(OperatingError):  # the node may be away
                    await place(cluster.authority, made, node.name)
            case _:
                await user.delete(pod.key, force=sim.choose("force", (True, False)))
        await asyncio.sleep(sim.choose("pause", (4, 0.2, 12)))
    await world.heal()
    for pod in cluster.all("Pod"):
        if not pod.view.spec.node_name:
            await user.delete(pod.key)  # nobody places it any more
    await world.close(within_s=300, silence_s=0, stays_s=4)


@simulate(faults=Drawn())
async def restarts(sim: Simulation) -> None:
    """Pods that run are deleted by force while their agent is away: no audit comes round, so it must remember."""
    world = World(sim, Size(nodes=1, zones=1, servers=1, schedulers=0, managers=0, limits=QUIET_AGENTS))
    await world.open(weather=False)
    cluster, user = world.cluster, world.user
    node = world.pick_node()
    while cluster.find(node.key) is None:  # noqa: ASYNC110  in virtual time it costs nothing
        await asyncio.sleep(1)
    for name in ("a", "b", "c")[: sim.choose_int("pods", 1, 3)]:
        await place(cluster.authority, await user.apply(plain(name), namespace="default"), node.name)
    await asyncio.sleep(sim.choose("first", (5, 2)))
    for _ in range(sim.choose_int("steps", 1, 3)):
        if sim.choose("agent", ("dies", "stays")) == "dies":
            crash_for_a_while(sim.world, node.host)
            await asyncio.sleep(sim.choose("until", (0.1, 1)))
        running = {process.identity.pod_uid for process in node.driver.live()}
        pods = [pod for pod in cluster.all("Pod") if pod.uid in running]
        if pods:
            await cluster.authority.delete(sim.choose("pod", pods).key, DeleteOptions(grace_s=0))
        await asyncio.sleep(sim.choose("pause", (3, 0.3, 9)))
    await world.close(within_s=120, silence_s=0, stays_s=2)


QUIET_AGENTS = replace(QUIET, agent_audit_s=NEVER_S)


# -- quota: many creates at once against little quota; no nodes at all ----------------------------------


@simulate(faults=ClusterSwarm())
async def quotas(sim: Simulation) -> None:
    world = World(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open(weather=False)
    expect(world, quotas_say_what_is_used)
    await world.cluster.create(quota("few", pods="3", requests__cpu="2"))

    async def churn(user: User, n: int) -> None:
        client = user.cluster.client(user.host, server=n % 2, limits=world.size.limits)
        for step in range(sim.choose_int("steps", 2, 4)):
            name = f"p-{n}-{step}"
            with suppress(OperatingError):
                await user.host.run(client.create(POD, plain(name), namespace="default"))
            if sim.choose("delete", (False, True)):
                with suppress(NotFound, OperatingError):
                    await user.host.run(client.delete(Key("Pod", "default", name), DeleteOptions(grace_s=0)))

    people = [User(world.cluster, f"user-{n}", server=n % 2) for n in range(3)]
    async with asyncio.TaskGroup() as group:
        for n, user in enumerate(people):
            group.create_task(churn(user, n))
    await world.close(within_s=60, silence_s=0)


# -- garbage: families of objects, namespaces that go, finalizers ---------------------------------------


MUM = Key("Secret", "default", "mum")


@simulate(faults=ClusterSwarm())
async def garbage(sim: Simulation) -> None:
    world = World(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open("shop")
    manage(world, "garbage", "namespace")
    expect(world, nothing_outlives_its_namespace, nothing_is_on_its_way_out, no_owner_is_a_ghost)
    user = world.user
    parents = {}
    for name in ("mum", "dad"):
        parents[name] = await user.apply(_secret(name))
    for n in range(sim.choose_int("children", 1, 3)):
        names = sim.choose("owners", (("mum",), ("mum", "dad")))
        await user.apply(_child(f"kid-{n}", *(parents[name] for name in names)))
    await user.apply(_map("stuff", "shop"))
    await asyncio.sleep(sim.choose("pause", (5, 0, 20)))
    held = {**_map("held", "default")}
    held["metadata"]["finalizers"] = ["zoo.example/keep"]
    await user.apply(held)
    propagation = sim.choose("propagation", ("Background", "Foreground"))
    # One of that name comes back: its children are no children of the one that went.
    await user.delete(MUM, propagation=propagation)
    if sim.choose("again", (True, False)):
        made = await _again(user, MUM)
        await user.apply(_child("kid-9", made))
        await user.apply(_child("kid-0", made))
    await user.delete(Key("ConfigMap", "default", "held"))

    async def late() -> None:
        client = world.cluster.client(user.host, server=1)
        for n in range(12):
            with suppress(OperatingError):
                await user.host.run(client.create(CONFIG_MAP, _map(f"late-{n}", "shop")))
            await asyncio.sleep(0.4)

    async with asyncio.TaskGroup() as group:
        group.create_task(late())
        group.create_task(user.delete(Key("Namespace", "", "shop")))
    await asyncio.sleep(20)
    with suppress(NotFound):  # it may have gone with a request whose reply was lost
        await user.patch(Key("ConfigMap", "default", "held"), {"metadata": {"finalizers": []}})
    await world.close(within_s=300, silence_s=20)


def _map(name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


def _child(name: str, *owners: Any) -> dict[str, Any]:
    body = _map(name, "default")
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Secret", "name": each.key.name, "uid": each.uid, "blockOwnerDeletion": True}
        for each in owners
    ]
    return body


def _secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}


async def _again(user: User, key: Key) -> Any:
    """Create an object as soon as the one of its name is gone."""
    for _ in range(60):
        if user.cluster.find(key) is None:
            break
        await asyncio.sleep(0.3)
    return await user.apply(_secret(key.name))


# -- nodes: at most one of each, and a machine that is cut off ------------------------------------------

NODE_LIMITS = replace(
    QUIET,
    node_renew_s=4.0,
    node_suspect_s=9.0,
    node_unknown_s=14.0,
    node_lost_s=45.0,
    node_blind_s=20.0,
    agent_contact_s=12.0,
    agent_audit_s=20.0,
    node_loss_every_s=3.0,
    watch_progress_s=5.0,
    watch_probe_s=10.0,
)
LEDGER = Key("ReplicaSet.apps", "default", "ledger")


def _namesake(name: str) -> dict[str, Any]:
    """The node of another machine that is to have a dead one's name, and is not in use yet."""
    ready = {"type": "Ready", "status": "True", "reason": "OnPaper"}
    room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    metadata, spec = {"name": name, "labels": {ZONE: "zone-a"}}, {"unschedulable": True}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


@simulate(faults=ClusterSwarm())
async def nodes(sim: Simulation) -> None:
    world = World(sim, Size(nodes=4, zones=1, servers=2, schedulers=0, managers=0, limits=NODE_LIMITS))
    await world.open()
    PaperMachines(world, runs=False)
    manage(world, "replicaset", "node-lifecycle")
    cluster, user = world.cluster, world.user
    await user.apply(workload("ReplicaSet", "ledger", 2, at_most_one=True))
    await asyncio.sleep(8)
    victims = list(cluster.nodes.values())[: sim.choose("cut off", (1, 2, 4))]
    cuts = [sim.network.partition([node.host], cluster.servers) for node in victims]
    match sim.choose("person", ("waits", "is impatient", "buries the dead")):
        case "is impatient":
            await asyncio.sleep(3)
            for pod in cluster.all("Pod"):
                await user.delete(pod.key, force=True)
        case "buries the dead":  # long after whatever must not run twice has stopped
            await asyncio.sleep(60)
            for node in victims:
                await user.delete(node.key)
                if sim.choose("another takes its name", (True, False)):
                    await user.apply(_namesake(node.name))
            await asyncio.sleep(sim.choose("then", (10, 3)))
            for pod in cluster.all("Pod"):
                await user.delete(pod.key, force=sim.choose("force", (True, False)))
    await asyncio.sleep(sim.choose("for", (75, 20, 110)))
    for cut in cuts:
        cut.heal()
    for node in victims:
        with suppress(NotFound):  # it registers anew, and is in use then
            await user.cordon(node.name, cordoned=False)
    await asyncio.sleep(5)
    for node in victims:  # what has a dead one's name is taken into use
        with suppress(NotFound):
            await user.cordon(node.name, cordoned=False)
    await world.close(within_s=300, silence_s=0, stays_s=2)


# -- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Theme:
    """A world, and the ways to look for bugs in it."""

    reference: str
    strategies: tuple[Strategy, ...] = GENERAL


STANDARD = "standard"
RACES = (*GENERAL, *OF_RACES)
THEMES: Mapping[str, Theme] = {
    **{name: Theme(f"kedge.sim.zoo.crews:{name}", OF_VIEWS) for name in ("crews", "outage")},
    **{name: Theme(f"{__name__}:{name}") for name in ("workloads", "rollouts", "serving", "quotas")},
    **{name: Theme(f"{__name__}:{name}", RACES) for name in ("garbage", "placement", "nodes")},
    "unanswered": Theme("kedge.sim.zoo.crews:unanswered", OF_SILENCE),
    **{name: Theme(f"kedge.sim.zoo.neighbours:{name}", OF_QUEUES) for name in ("rivals", "tenants")},
    "replaced": Theme(f"{__name__}:placement", (BROKEN_WATCHES,)),
    "agents": Theme(f"{__name__}:agents", (*RACES, OLD_LISTS)),
    "apart": Theme(f"{__name__}:apart", (*GENERAL, CUT_OFF)),
    "gangs": Theme(f"{__name__}:gangs", (*GENERAL, SLOW_RESERVES)),
    "restarts": Theme(f"{__name__}:restarts", OF_VIEWS),
    **{name: Theme(f"kedge.sim.zoo.staged:{name}") for name in ("canary", "autoscaled")},
    **{name: Theme(f"kedge.sim.zoo.leftovers:{name}", RACES) for name in ("leftovers", "evictions")},
    STANDARD: Theme("kedge.sim.standard:standard"),
}
