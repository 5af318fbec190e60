"""The autoscaler under faults: it keeps its bound however far the scheduler lags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.kit.autoscaling import NAMESPACE, MeteredNodes, autoscaler, failing, maker, recheck_all, without_faults
from tests.kit.controllers import QUICK, settle
from tests.kit.workloads import StoreReader, is_serving, new_cluster
from tests.objects import DEPLOYMENT, deployment

from kedge.api.conditions import condition, find_condition
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.controllers.autoscaler import plan as scaling
from kedge.controllers.autoscaler.controller import AutoscalerReconciler, autoscaler_controller
from kedge.controllers.deployment.controller import DeploymentReconciler, deployment_controller
from kedge.controllers.replicaset.controller import ReplicaSetReconciler, replica_set_controller
from kedge.controllers.shared.kinds import AUTOSCALER, REPLICA_SET
from kedge.env import Env
from kedge.keys import Key
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Simulation, run

WEB = Key("Deployment.apps", "default", "web")
HPA = Key(AUTOSCALER.key_kind, "default", "web")
LEASE = KINDS.of_key_kind("Lease.coordination.k8s.io")
RECONCILERS: dict[str, Callable[[Env], Any]] = {
    "deployment": DeploymentReconciler,
    "replicaset": ReplicaSetReconciler,
    "autoscaler": AutoscalerReconciler,
}
UNSERVED_MAX = QUICK.autoscaler_unserved_max


@dataclass
class UnservedBound:
    """The autoscaler requests at most `unserved_max` replicas beyond the ready ones of the version that it changed."""

    reader: StoreReader
    before: Object | None = None
    raised: int = 0
    sizes: list[int] = field(default_factory=list)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if WEB not in commit.keys:
            return
        entry = next(each for each in commit.store.entries() if each.key == WEB)
        old, new = self.before, self.reader.get(WEB)
        self.before = new
        if old is None or new is None or not entry.origin.decision.startswith("autoscaler:"):
            return
        was, now, ready = old.view.spec.replicas, new.view.spec.replicas, old.view.status.ready_replicas
        self.sizes.append(now)
        if now > was:
            self.raised += 1
            if now > ready + UNSERVED_MAX:
                yield "lag amplified", f"from {was} to {now} with {ready} ready"
            if any(each.stage == "queued" for each in old.view.status.progress.pending):
                yield "lag amplified", f"from {was} to {now} while some wait for a node"


MAKERS = [maker(each) for each in (deployment_controller, replica_set_controller, autoscaler_controller)]


async def setup(sim: Simulation) -> tuple[Cluster, MeteredNodes, StoreReader]:
    cluster = await new_cluster(sim)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "kube-node-lease"}})
    hands = MeteredNodes(cluster)
    cluster.boot("manager", MAKERS, copies=2, limits=QUICK)
    await cluster.authority.create(DEPLOYMENT, deployment("web", replicas=2))
    return cluster, hands, StoreReader(cluster.store)


def is_sized(reader: StoreReader, least: int, most: int) -> bool:
    found = reader.get(WEB)
    pods = reader.pods()
    if found is None or not all(is_serving(pod) for pod in pods):
        return False
    return bool(least <= found.view.spec.replicas <= most and len(pods) == found.view.spec.replicas)


async def lagging_scheduler(sim: Simulation) -> tuple[int, int, int]:
    """Load arrives while no pod finds a node, and continues when they do."""
    cluster, hands, reader = await setup(sim)
    bound = UnservedBound(reader)
    sim.check_always(bound)
    working = asyncio.create_task(hands.run())
    await asyncio.sleep(30)
    hands.load_milli = 600
    await cluster.authority.create(AUTOSCALER, autoscaler())
    await asyncio.sleep(sim.choose("without_faults before the lag", (5, 20, 40)))
    hands.binding = False
    await asyncio.sleep(120)
    hands.binding = True
    await asyncio.sleep(20)
    sim.heal()
    await asyncio.sleep(180)  # the windows pass
    await settle(sim, cluster, lambda: is_sized(reader, 11, 13), within_s=900)
    working.cancel()
    return bound.raised, max(bound.sizes), await recheck_all(cluster, RECONCILERS)


def test_the_autoscaler_does_not_amplify_scheduler_lag_and_then_meets_the_load() -> None:
    raised = rechecked = 0
    for seed in range(6):
        outcome = run(lagging_scheduler, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        ups, most, decisions = outcome.result
        assert most <= 14, f"seed {seed}: it overshot to {most}"
        raised, rechecked = raised + ups, rechecked + decisions
    assert raised >= 6
    assert rechecked > 6 * 50


def test_without_its_bound_it_amplifies_scheduler_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    free = condition(scaling.HELD_BACK, status=False, reason="NotHeldBack")
    monkeypatch.setattr(scaling, "_held_back", lambda desired, *_: (desired, free))
    found = failing(lagging_scheduler, range(12))
    assert found is not None
    assert found.violation is not None
    assert found.violation.cause == "lag amplified"


# -- what people see -------------------------------------------------------------------------------


def condition_of(reader: StoreReader, type_: str) -> tuple[str, str, int]:
    found = reader.get(HPA)
    assert found is not None
    statuses = find_condition(found.view.status.conditions, type_)
    assert statuses is not None, found.view.status.conditions
    return statuses.status, statuses.reason, statuses.observed_generation


def test_a_refusal_to_scale_up_has_a_reason_and_a_generation() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await asyncio.sleep(30)
        hands.binding, hands.load_milli = False, 600
        await cluster.authority.create(AUTOSCALER, autoscaler())
        await asyncio.sleep(60)
        found = reader.get(WEB)
        assert found is not None
        assert found.view.spec.replicas == 6  # one step, then it waits
        assert condition_of(reader, "ScalingHeldBack") == ("True", "ReplicasPending", 1)
        assert condition_of(reader, "ScalingActive") == ("True", "ValidMetricFound", 1)
        await cluster.authority.patch(HPA, {"spec": {"maxReplicas": 30}})
        await asyncio.sleep(20)
        assert condition_of(reader, "ScalingHeldBack") == ("True", "ReplicasPending", 2)
        working.cancel()

    without_faults(cluster_program)


def test_without_measurements_nothing_changes_and_the_status_shows_it() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        hands.measured = False
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(AUTOSCALER, autoscaler())
        await asyncio.sleep(60)
        found = reader.get(WEB)
        assert found is not None
        assert found.view.spec.replicas == 2
        assert condition_of(reader, "ScalingActive") == ("False", "FailedGetResourceMetric", 1)
        working.cancel()

    without_faults(cluster_program)


def test_a_replica_set_without_a_deployment_is_scaled_too() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        spec = deployment("set", replicas=2)["spec"]
        body = {
            "metadata": {"name": "set", "namespace": "default"},
            "spec": {name: spec[name] for name in ("replicas", "selector", "template")},
        }
        await cluster.authority.create(REPLICA_SET, body)
        hands.load_milli = 600
        target = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set"}
        scaled = autoscaler()
        scaled["metadata"]["name"], scaled["spec"]["scaleTargetRef"] = "set", target
        await cluster.authority.create(AUTOSCALER, scaled)
        await asyncio.sleep(120)
        found = reader.get(Key(REPLICA_SET.key_kind, "default", "set"))
        assert found is not None
        assert found.view.spec.replicas > 2
        working.cancel()

    without_faults(cluster_program)


def test_a_new_process_knows_the_earlier_advice() -> None:
    """The load ends, every process is killed, and the window still applies."""

    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await asyncio.sleep(20)
        hands.load_milli = 400
        await cluster.authority.create(AUTOSCALER, autoscaler())
        async with asyncio.timeout(300):
            while not is_sized(reader, 8, 8):  # noqa: ASYNC110  what it waits for is in a store
                await asyncio.sleep(1)
        await asyncio.sleep(30)
        hands.load_milli = 50
        await asyncio.sleep(20)
        for process in list(cluster.processes):
            process.host.crash()
            process.host.restart()
        await asyncio.sleep(25)  # 45 s since the load ended, and the window is 60 s
        found = reader.get(WEB)
        assert found is not None
        assert found.view.spec.replicas == 8
        async with asyncio.timeout(120):
            while not is_sized(reader, 1, 1):  # noqa: ASYNC110  what it waits for is in a store
                await asyncio.sleep(1)
        working.cancel()

    without_faults(cluster_program)


def test_the_younger_of_two_autoscalers_of_one_target_does_nothing() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(AUTOSCALER, autoscaler(least=3))
        await asyncio.sleep(5)
        rival = autoscaler(least=5)
        rival["metadata"]["name"] = "rival"
        await cluster.authority.create(AUTOSCALER, rival)
        await asyncio.sleep(40)
        found, other = reader.get(WEB), reader.get(Key(AUTOSCALER.key_kind, "default", "rival"))
        assert found is not None
        assert other is not None
        assert found.view.spec.replicas == 3
        statuses = find_condition(other.view.status.conditions, "ScalingActive")
        assert statuses is not None
        assert statuses.reason == "AmbiguousSelector"
        working.cancel()

    without_faults(cluster_program)
