"""The standard simulation: a whole control plane for five virtual minutes, with a rollout and a node loss.

`JudgedCluster` composes the same parts in any size, so that a world of the zoo runs only the components it needs. Every
invariant is on in every world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kedge.api.views import HorizontalPodAutoscalerView, PodView
from kedge.api.wellknown import (
    AT_MOST_ONE,
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    EVENT_KIND,
    FENCE_KIND,
    JOB_KIND,
    KEDGE_API_VERSION,
    LEASE_KIND,
    OPERATION_KIND,
    REPLICA_SET_KIND,
    SIM_RUN_S_LABEL,
)
from kedge.controllers import CONTROLLERS, SHARED_LEASE, all_controllers, lease_of
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime.lease import SharedElection
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster, Component, ComponentFactory, Node, ProcessContext
from kedge.sim.cluster.faults import ClusterFaults, ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.judges.endings import check_silence, expect_settled
from kedge.sim.judges.facts import LAG_S
from kedge.sim.judges.invariants import Judge
from kedge.sim.judges.pod_facts import is_ready
from kedge.sim.kernel import Simulation, simulate

LIMITS = Limits(
    watch_progress_s=8.0,
    watch_probe_s=25.0,
    watch_silence_s=60.0,
    lease_retry_s=4.0,
    drain_s=4.0,
    relist_every_s=120.0,
    resync_every_s=120.0,
    queue_resync_spread_s=10.0,
    queue_backoff_s_max=15.0,
    scheduler_flush_s=60.0,
    scheduler_quarantine_s=60.0,
    agent_restart_s_max=20.0,
)
"""The limits of production, except that periodic resyncs and relists happen within a run."""
NOT_WORK = frozenset({LEASE_KIND, FENCE_KIND, OPERATION_KIND, EVENT_KIND})


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a control plane."""

    nodes: int = 12
    zones: int = 3
    servers: int = 3
    schedulers: int = 2
    names: tuple[str, ...] = ("default-scheduler",)
    """Schedulers of different names work in parallel; only the proof of the bind separates them."""
    managers: int = 2
    controllers: tuple[str, ...] | None = None
    """Controllers by name, each with its own lease; None: all of them, with one lease a manager."""
    cpu: str = "4"
    limits: Limits = LIMITS


class JudgedCluster:
    """A cluster with a judge, a user and cluster faults."""

    def __init__(self, sim: Simulation, size: Size, *, lag_s: float = LAG_S) -> None:
        self.sim = sim
        self.size = size
        self.cluster = Cluster(sim, servers=size.servers, limits=size.limits, hostile=True)
        self.judge = Judge(self.cluster, lag_s=lag_s)
        self.commits = 0
        """Commits that are more than lease renewals."""
        sim.check_always(self._count)
        self.user = User(self.cluster, "alice")
        self._cluster_faults: asyncio.Task[None] | None = None

    def _count(self, commit: Any) -> None:
        if any(key.kind not in NOT_WORK for key in commit.keys):
            self.commits += 1

    async def open(self, *namespaces: str, cluster_faults: bool = True) -> None:
        """Boot machines, managers and schedulers."""
        size, cluster = self.size, self.cluster
        await cluster.set_up(*namespaces)
        for n in range(size.nodes):
            cluster.add_node(f"node-{n}", zone=f"zone-{'abcdef'[n % size.zones]}", cpu=size.cpu)
        if size.managers:
            makers = _everything if size.controllers is None else [_maker(name) for name in size.controllers]
            cluster.boot("manager", makers, copies=size.managers)
        for name in size.names:
            if size.schedulers:
                cluster.boot(name, [_scheduler(name)], copies=size.schedulers)
        if cluster_faults:
            self._cluster_faults = asyncio.ensure_future(ClusterFaults(cluster).run())

    async def heal(self) -> None:
        """Stop all faults, and restore every machine to its full size."""
        self.sim.heal()
        if self._cluster_faults is not None:
            self._cluster_faults.cancel()
            with suppress(asyncio.CancelledError):
                await self._cluster_faults
        self.cluster.power_on_machines()
        await self.cluster.restore_sizes(self.cluster.nodes.values())

    async def close(self, *, within_s: float = 900.0, stays_s: float = 5.0, silence_s: float = 60.0) -> None:
        """Stop all faults, and require convergence and then silence."""
        if self.sim.faults.active:
            await self.heal()
        expect_settled(self.judge)
        await self.sim.converge(within_s=within_s, every_s=2.0, stays_s=stays_s, unrest_s=LAG_S)
        if silence_s and self.sim.world.violation is None:
            await check_silence(self.cluster, for_s=silence_s)

    def set_load(self, app: str, *, cores: float) -> None:
        """Let the ready replicas of an app share a load of `cores`."""
        pods = self.judge.facts.pods

        def load_of(uid: str) -> float:
            found = [each for each, pod in pods.items() if pod.metadata.labels.get("app") == app]
            ready = [each for each in found if is_ready(pods[each].as_view(PodView))]
            return cores / len(ready) if uid in ready else 0.0

        for node in self.cluster.nodes.values():
            node.driver.set_load(load_of)

    def pick_node(self, label: str = "node") -> Node:
        return self.sim.choose(label, list(self.cluster.nodes.values()))


def _maker(name: str) -> ComponentFactory:
    make, lease = CONTROLLERS[name], lease_of(name)
    return lambda context: make(context.runtime(lease))


def _everything(context: ProcessContext) -> Sequence[Component]:
    election = SharedElection(context.client, context.env, SHARED_LEASE, identity=context.env.new_uid())
    return all_controllers(context.runtime(election))


def _scheduler(name: str) -> ComponentFactory:
    def with_context(context: ProcessContext) -> Component:
        return Scheduler(context.client, context.env, name=name, caches=context.caches, recorder=context.recorder)

    return with_context


# -- manifests -------------------------------------------------------------------------------------


def template(app: str, *, cpu: str = "500m", image: str = "web:1", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


def workload(
    kind: str,
    name: str,
    replicas: int,
    *,
    namespace: str = "default",
    cpu: str = "500m",
    at_most_one: bool = False,
    strategy: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A Deployment or a ReplicaSet."""
    made = template(name, cpu=cpu, **spec)
    if at_most_one:
        made["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": made}
    if strategy is not None:
        body["strategy"] = strategy
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": body}


def job(name: str, completions: int, *, run_s: float = 5.0) -> dict[str, Any]:
    made = template(name, restartPolicy="Never")
    made["metadata"]["labels"][SIM_RUN_S_LABEL] = str(run_s)
    spec = {"completions": completions, "parallelism": completions, "template": made}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def service(name: str, app: str) -> dict[str, Any]:
    spec = {"selector": {"app": app}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def budget(name: str, app: str, max_unavailable: int) -> dict[str, Any]:
    spec = {"maxUnavailable": max_unavailable, "selector": {"matchLabels": {"app": app}}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def autoscaler(name: str, target: Key, least: int, most: int, *, percent: int = 50) -> dict[str, Any]:
    """An autoscaler that keeps the replicas of a Deployment at a share of their CPU request."""
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": target.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target.name},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": cpu}],
        },
    }


def quota(name: str, *, namespace: str = "default", **hard: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": {key.replace("__", "."): value for key, value in hard.items()}},
    }


def zone_quota(name: str, hard: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    spec = {"zones": {zone: {"hard": dict(each)} for zone, each in hard.items()}}
    return {
        "apiVersion": KEDGE_API_VERSION,
        "kind": "ZoneQuota",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


WEB = Key(DEPLOYMENT_KIND, "default", "web")
SHOP = Key(DEPLOYMENT_KIND, "default", "shop")
LEDGER = Key(REPLICA_SET_KIND, "default", "ledger")
SUMS = Key(JOB_KIND, "default", "sums")
AUTOSCALER = Key(AUTOSCALER_KIND, "default", "shop")

STANDARD = Size(
    limits=replace(
        LIMITS,
        lease_retry_s=5.0,
        node_renew_s=15.0,
        node_suspect_s=30.0,
        node_unknown_s=50.0,
        node_blind_s=60.0,
        agent_contact_s=45.0,
        store_silence_s=5.0,
        autoscaler_start_s=15.0,
        watch_progress_s=40.0,
        watch_probe_s=50.0,
        relist_every_s=900.0,
    )
)
"""Twelve nodes in three zones, two schedulers, three API servers, two managers with every controller."""
WORK_COMMITS = 300
"""The least work of a run: an idle cluster breaks no invariant."""
ROLLOUT_COMMITS = 80
"""The least commits of a rollout of the web Deployment."""
HOSTILE_S = 185.0
"""Long enough for a machine that was lost at the beginning to be marked lost."""


async def run_standard(sim: Simulation, size: Size = STANDARD) -> JudgedCluster:
    """Five virtual minutes of a busy cluster; see `standard`."""
    world = JudgedCluster(sim, size)
    await world.open()
    user, cluster = world.user, world.cluster
    begin_s = sim.now_s
    for body in (service("web", "web"), budget("web", "web", 2), quota("all", pods="40", requests__cpu="40")):
        await cluster.create(body)
    await user.apply(workload("Deployment", "web", 4))
    await user.apply(workload("ReplicaSet", "ledger", 2, at_most_one=True))
    await user.apply(workload("Deployment", "shop", 2, cpu="250m"))
    await user.apply(autoscaler("shop", SHOP, 2, 4))
    world.set_load("shop", cores=0.5)  # at half of its request each, that is the load of four replicas
    await asyncio.sleep(25)
    await user.roll_out(WEB, "web:2")
    await user.apply(job("sums", 2))
    await asyncio.sleep(sim.choose_int("rollout runs", 5, 25))
    world.pick_node("lost node").power_off(for_s=sim.choose("outage", (170.0, 20.0, 60.0)))
    await user.scale(LEDGER, sim.choose("replicas", (3, 1)))
    if sim.choose("regret", (True, False)):
        await asyncio.sleep(10)
        await user.roll_back(WEB)
    await user.apply(quota("all", pods="30", requests__cpu="30"))
    await asyncio.sleep(max(0.0, begin_s + HOSTILE_S - sim.now_s))
    await world.heal()
    await user.delete(SUMS, propagation="Background")
    await user.scale(LEDGER, 2)
    await asyncio.sleep(10)
    await _add_missing_work(world)

    def autoscaled_deployments_have_their_size() -> bool:
        return _is_autoscaled(world)

    sim.check_eventually(autoscaled_deployments_have_their_size)
    await world.close(stays_s=20.0, silence_s=45.0)
    sim.attach("commits", world.commits)
    return world


async def _add_missing_work(world: JudgedCluster) -> None:
    """Add work without faults until the run has made `WORK_COMMITS`, however little came through before."""
    user = world.user
    turn = 3
    while (missing := WORK_COMMITS - world.commits) > 0:
        if missing > ROLLOUT_COMMITS:
            await user.roll_out(WEB, f"web:{turn}")
            await asyncio.sleep(15)
        elif turn % 3 == 0:
            await user.apply(job(f"totals-{turn}", 1))
            await asyncio.sleep(6)
        else:
            await user.scale(WEB, 4 + turn % 2)
            await asyncio.sleep(6)
        turn += 1


def _is_autoscaled(world: JudgedCluster) -> bool:
    """The autoscaler has scaled to four replicas, and each uses half of its request."""
    found = world.cluster.find(AUTOSCALER)
    if found is None:
        return False
    status = found.as_view(HorizontalPodAutoscalerView).status
    used = [each.resource.current.average_utilization for each in status.current_metrics if each.resource is not None]
    return status.current_replicas == 4 and used == [50]


@simulate(faults=ClusterSwarm())
async def standard(sim: Simulation) -> tuple[int, int]:
    """The whole control plane: users apply, roll out, roll back, scale, delete, change a quota and run jobs; a
    Deployment is autoscaled, a machine is lost, and any other fault may strike.

    Returns the commits that were work, and all commits.
    """
    world = await run_standard(sim)
    return world.commits, world.judge.steps
