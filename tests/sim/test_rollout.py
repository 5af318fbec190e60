"""Rollouts under faults: they progress only with data, roll back only on a regression, and keep replicas serving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from tests.kit.autoscaling import NAMESPACE, MeteredNodes, failing, maker, recheck_all, without_faults
from tests.kit.controllers import QUICK, settle
from tests.kit.rollouts import NEXT, POLICY, ROLLOUT, SPREAD, policy, rollout
from tests.kit.safeguards import replaced
from tests.kit.workload_manifests import WEB, web
from tests.kit.workloads import StoreReader, is_serving, new_cluster
from tests.objects import DEPLOYMENT

from kedge.api.conditions import find_condition
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.wellknown import UPDATED_MAX
from kedge.controllers.deployment.controller import DeploymentReconciler, deployment_controller
from kedge.controllers.replicaset.controller import ReplicaSetReconciler, replica_set_controller
from kedge.controllers.rollout import gates
from kedge.controllers.rollout.controller import RolloutReconciler, rollout_controller
from kedge.controllers.rollout.plan import RollbackCapacity
from kedge.env import Env
from kedge.errors import Conflict
from kedge.runtime.status import plan_status
from kedge.scheduler.report.policy_status import plan_policy_status
from kedge.sim.cluster import Cluster, Commit, RemoteTransport
from kedge.sim.kernel import Simulation, run

RECONCILERS: dict[str, Callable[[Env], Any]] = {
    "deployment": DeploymentReconciler,
    "replicaset": ReplicaSetReconciler,
    "rollout": RolloutReconciler,
}
MAKERS = [maker(each) for each in (deployment_controller, replica_set_controller, rollout_controller)]


@dataclass
class CrashingNodes(MeteredNodes):
    """FakeNodes on which some pods keep crashing."""

    crashes: Callable[[Object], bool] = lambda _: False
    policies_are_used: bool = True
    """Whether schedulers report that they use the policies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.starts = lambda pod: not self.crashes(pod)

    async def work(self) -> None:
        await super().work()
        found = self.reader.get(SPREAD)
        status = plan_policy_status(found.view, "hands") if found is not None and self.policies_are_used else None
        patch = plan_status(found, status, self.cluster.store_host.env().now()) if found and status else None
        if patch is not None:
            with suppress(Conflict):
                await self.cluster.authority.patch(SPREAD, patch, subresource="status")

    async def _handle(self, pod: Object) -> None:
        await super()._handle(pod)
        view = pod.view
        if view.spec.node_name and not view.terminating and self.crashes(pod) and not view.status.container_statuses:
            waiting = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            await self._report(pod, {"phase": "Running", "containerStatuses": [waiting]})


def is_new(pod: Object) -> bool:
    return bool(pod.view.spec.containers[0].image == "web:2")


QUARTER = {"name": "quarter", "scope": {"percent": 25}, "holdSeconds": 10}
ALL = {"name": "all", "scope": {"percent": 100}, "holdSeconds": 5}


async def setup(sim: Simulation) -> tuple[Cluster, CrashingNodes, StoreReader]:
    cluster = await new_cluster(sim)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "kube-node-lease"}})
    cluster.boot("manager", MAKERS, copies=2, limits=QUICK)
    return cluster, CrashingNodes(cluster), StoreReader(cluster.store)


def status_of(reader: StoreReader) -> Any:
    found = reader.get(NEXT)
    assert found is not None
    return found.view.status


def all_serve(reader: StoreReader, image: str, replicas: int) -> bool:
    pods = reader.pods()
    of_it = [pod for pod in pods if pod.view.spec.containers[0].image == image]
    return len(pods) == len(of_it) == replicas and all(is_serving(pod) for pod in pods)


async def until(goal: Callable[[], bool], within_s: float = 400.0) -> None:
    async with asyncio.timeout(within_s):
        while not goal():  # noqa: ASYNC110  what it waits for is in a store, which has no event for it
            await asyncio.sleep(0.5)


# -- a template ------------------------------------------------------------------------------------


@dataclass
class StageBounds:
    """In the first stage no more than its share has the new template; and enough replicas always serve."""

    reader: StoreReader
    share: int = 1
    serving_min: int = 4
    armed: bool = False

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if not any(key.kind == "Pod" for key in commit.keys):
            return
        pods = self.reader.pods()
        new = [pod.key.name for pod in pods if is_new(pod) and not pod.view.finished]
        found = self.reader.get(NEXT)
        if found is not None and found.view.status.stage == 0 and len(new) > self.share:
            yield "past its share", f"{new} at revision {commit.revision}"
        serving = [pod.key.name for pod in pods if is_serving(pod)]
        self.armed = self.armed or len(serving) >= self.serving_min
        if self.armed and len(serving) < self.serving_min:
            yield "too few serve", f"{serving} at revision {commit.revision}"


async def template_by_stages(sim: Simulation) -> int:
    cluster, hands, reader = await setup(sim)
    sim.check_always(StageBounds(reader))
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
    await asyncio.sleep(25)
    await cluster.authority.create(ROLLOUT, rollout(QUARTER, ALL, progressDeadlineSeconds=3600))
    await asyncio.sleep(60)
    await settle(
        sim, cluster, lambda: status_of(reader).phase == "Complete" and all_serve(reader, "web:2", 4), within_s=900
    )
    working.cancel()
    return await recheck_all(cluster, RECONCILERS)


async def template_that_crashes(sim: Simulation) -> int:
    cluster, hands, reader = await setup(sim)
    hands.crashes = is_new
    sim.check_always(StageBounds(reader))
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
    await asyncio.sleep(25)
    await cluster.authority.create(ROLLOUT, rollout(QUARTER, ALL, progressDeadlineSeconds=3600))
    await asyncio.sleep(60)
    await settle(
        sim, cluster, lambda: status_of(reader).phase == "RolledBack" and all_serve(reader, "web:1", 4), within_s=900
    )
    working.cancel()
    found = reader.get(NEXT)
    assert found is not None
    observed = find_condition(found.view.status.conditions, "RollbackObserved")
    assert observed is not None
    assert (observed.status, observed.observed_generation) == ("True", found.view.generation)
    target = reader.get(WEB)
    assert target is not None
    assert UPDATED_MAX not in target.metadata.annotations
    return await recheck_all(cluster, RECONCILERS)


@pytest.mark.parametrize("program", [template_by_stages, template_that_crashes])
def test_a_template_is_rolled_out_in_stages_or_back_and_enough_serve_throughout(
    program: Callable[[Simulation], Any],
) -> None:
    rechecked = 0
    for seed in range(5):
        outcome = run(program, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        rechecked += outcome.result
    assert rechecked > 5 * 20


# -- the only healthy capacity ---------------------------------------------------------------------


@dataclass
class AlwaysServing:
    """During a rollback at least one replica keeps serving, if one did before."""

    reader: StoreReader
    served: bool = False

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if not any(key.kind in ("Pod", ROLLOUT.key_kind) for key in commit.keys):
            return
        found = self.reader.get(NEXT)
        if found is None or found.view.status.phase != "RollingBack":
            self.served = False
            return
        serving = [pod for pod in self.reader.pods() if is_serving(pod)]
        self.served = self.served or bool(serving)
        if self.served and not serving:
            yield "no replica serves", f"at revision {commit.revision}, while it is rolled back"


async def rollback_of_all_there_is(sim: Simulation) -> bool:
    """All replicas have the new template, some are healthy, and the strategy may remove all at once. Returns whether
    the rollback waited."""
    cluster, hands, reader = await setup(sim)
    hands.crashes = lambda pod: is_new(pod) and int(pod.uid[:2], 16) % 3 == 0
    sim.check_always(AlwaysServing(reader))
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(DEPLOYMENT, web(5, surge=0, unavailable=5))
    await asyncio.sleep(25)
    await cluster.authority.create(ROLLOUT, rollout(ALL, progressDeadlineSeconds=3600))
    await asyncio.sleep(90)
    sim.heal()
    await until(lambda: status_of(reader).phase in ("RollingBack", "RolledBack", "Complete"))
    await asyncio.sleep(20)
    waits = bool(status_of(reader).phase == "RollingBack")
    if waits:
        assert status_of(reader).reason == "OnlyHealthyCapacity", status_of(reader)
        rolling = {"maxSurge": 1, "maxUnavailable": 1}
        await cluster.authority.patch(WEB, {"spec": {"strategy": {"rollingUpdate": rolling}}})
    await until(lambda: status_of(reader).phase in ("RolledBack", "Complete"))
    working.cancel()
    return waits


def test_a_rollback_never_removes_the_only_healthy_capacity() -> None:
    waited = 0
    for seed in range(5):
        outcome = run(rollback_of_all_there_is, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        waited += outcome.result
    assert waited > 0


def test_without_its_safeguard_a_rollback_leaves_no_replica_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollbackCapacity, "is_safe", True)
    # The Deployment has a safeguard of its own.
    monkeypatch.setattr("kedge.controllers.deployment.controller._has_floor", lambda _: False)
    found = failing(rollback_of_all_there_is, range(5))
    assert found is not None
    assert found.violation is not None
    assert found.violation.cause == "no replica serves"


# -- a policy --------------------------------------------------------------------------------------


class ProgressWithData:
    """A stage ends only if some pod created since its start is ready in committed state."""

    def __init__(self) -> None:
        self.before: Any = None
        self.advanced = 0

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if NEXT not in commit.keys:
            return
        entries = list(commit.store.entries())
        status = next(_object(each).view.status for each in entries if each.key == NEXT)
        before, self.before = self.before, status
        if before is None or status.stage <= before.stage:
            return
        self.advanced += 1
        since = before.activation_revision
        samples = [each for each in entries if each.key.kind == "Pod" and each.created > since]
        if not any(is_serving(_object(each)) for each in samples):
            yield "advanced without data", f"from stage {before.stage}, active since revision {since}"


def _object(entry: Any) -> Object:
    return Object(KINDS.of_key_kind(entry.key.kind), entry.key, entry.value, revision=entry.modified)


def policy_rollout(**spec: Any) -> dict[str, Any]:
    made = rollout(
        {"name": "one", "scope": {"workloads": ["web"], "tenants": ["default"]}, "holdSeconds": 5},
        {"name": "everyone", "scope": {"percent": 100}, "holdSeconds": 0},
        target={"apiVersion": "kedge.dev/v1", "kind": "SchedulingPolicy", "name": "spread"},
        policy={"version": "v5", "maxZoneSkew": 1},
        progressDeadlineSeconds=3600,
        **spec,
    )
    del made["spec"]["template"]
    return made


async def policy_by_stages(sim: Simulation) -> tuple[int, int]:
    """New pods are rare: in between there is no data."""
    cluster, hands, reader = await setup(sim)
    judge = ProgressWithData()
    sim.check_always(judge)
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(POLICY, policy())
    await cluster.authority.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await asyncio.sleep(25)
    await cluster.authority.create(ROLLOUT, policy_rollout())
    for replicas in (4, 5, 6, 7):
        await asyncio.sleep(40)
        await cluster.authority.patch(WEB, {"spec": {"replicas": replicas}})
    sim.heal()
    replicas = 7
    while not is_promoted(reader) and replicas < 20:
        replicas += 1
        await cluster.authority.patch(WEB, {"spec": {"replicas": replicas}})
        await asyncio.sleep(60)
    await settle(sim, cluster, lambda: is_promoted(reader) and all_serve(reader, "web:1", replicas), within_s=900)
    working.cancel()
    return judge.advanced, await recheck_all(cluster, RECONCILERS)


def is_promoted(reader: StoreReader) -> bool:
    found = reader.get(SPREAD)
    if found is None or status_of(reader).phase != "Complete":
        return False
    spec = found.view.spec
    return bool(spec.version == "v5" and spec.max_zone_skew == 1 and spec.canary is None)


def test_a_policy_progresses_only_with_data() -> None:
    for seed in range(5):
        outcome = run(policy_by_stages, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        advanced, rechecked = outcome.result
        assert advanced == 2
        assert rechecked > 20


def test_without_its_safeguard_a_policy_advances_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    open_gate = gates.GateStatus("Samples", "True", "EnoughSamples")
    monkeypatch.setattr(gates, "_samples", lambda *_: open_gate)
    monkeypatch.setattr(gates, "_health", lambda *_: open_gate)
    found = failing(policy_by_stages, range(5))
    assert found is not None
    assert found.violation is not None
    assert found.violation.cause == "advanced without data"


# -- what people see -------------------------------------------------------------------------------


def test_a_policy_that_leaves_pods_without_a_node_is_rolled_back() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(POLICY, policy())
        await cluster.authority.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
        await asyncio.sleep(25)
        await cluster.authority.create(ROLLOUT, policy_rollout())
        await until(lambda: status_of(reader).activation_revision > 0)
        found = reader.get(SPREAD)
        assert found is not None
        assert (found.view.spec.version, found.view.spec.canary.version) == ("v4", "v5")
        assert found.view.spec.canary.scope.workloads == ("web",)
        hands.binding = False
        await cluster.authority.patch(WEB, {"spec": {"replicas": 4}})
        await until(lambda: len(reader.pods()) == 4)
        await asyncio.sleep(20)
        assert status_of(reader).phase == "Holding"  # it waits for its turn: that is no regression
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        for pod in reader.pods():
            if not pod.view.spec.node_name:
                await cluster.authority.patch(pod.key, {"status": {"conditions": [refused]}}, subresource="status")
        await until(lambda: status_of(reader).phase == "RolledBack")
        found = reader.get(SPREAD)
        assert found is not None
        assert (found.view.spec.version, found.view.spec.canary) == ("v4", None)
        assert len(reader.pods()) == 4
        working.cancel()

    without_faults(cluster_program)


def test_a_policy_that_no_scheduler_reports_is_not_evaluated() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        hands.policies_are_used = False
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(POLICY, policy())
        await cluster.authority.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
        await asyncio.sleep(25)
        await cluster.authority.create(ROLLOUT, policy_rollout())
        await until(lambda: status_of(reader).activation_revision > 0)
        await cluster.authority.patch(WEB, {"spec": {"replicas": 4}})
        await asyncio.sleep(60)
        assert (status_of(reader).stage, status_of(reader).reason) == (0, "ChangeNotObserved")
        assert "no scheduler" in status_of(reader).message
        hands.policies_are_used = True
        await until(lambda: status_of(reader).stage == 1)
        hands.policies_are_used = False
        await until(lambda: status_of(reader).activation_revision > 0)
        await cluster.authority.patch(WEB, {"spec": {"replicas": 5}})
        await asyncio.sleep(60)
        assert (status_of(reader).stage, status_of(reader).reason) == (1, "ChangeNotObserved")
        assert "not seen by hands" in status_of(reader).message
        working.cancel()

    without_faults(cluster_program)


def test_without_data_it_waits_then_pauses_and_never_rolls_back() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
        await asyncio.sleep(25)
        # The nodes fall silent as soon as the stage is active: the last reports are from before.
        gated = {"sampleAgeSecondsMax": 30}
        first = rollout({**QUARTER, "holdSeconds": 60}, ALL, gates=gated, progressDeadlineSeconds=120)
        await cluster.authority.create(ROLLOUT, first)
        await until(lambda: status_of(reader).healthy_since is not None)
        working.cancel()
        await until(lambda: status_of(reader).phase == "Holding")
        assert status_of(reader).reason in ("NoData", "TooFewSamples")
        await until(lambda: status_of(reader).phase == "Paused")
        assert status_of(reader).reason == "DeadlineExceeded"
        await asyncio.sleep(300)
        assert (status_of(reader).phase, status_of(reader).stage) == ("Paused", 0)
        assert len([pod for pod in reader.pods() if is_new(pod)]) == 1

    without_faults(cluster_program)


def test_a_stage_of_a_template_that_reaches_nothing_is_rejected_with_a_reason() -> None:
    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
        await asyncio.sleep(20)
        elsewhere = {"podSelector": {"matchLabels": {"app": "other"}}}
        await cluster.authority.create(ROLLOUT, rollout({"name": "a", "scope": elsewhere}))
        await asyncio.sleep(20)
        assert (status_of(reader).phase, status_of(reader).reason) == ("Pending", "NotPossible")
        assert "labels" in status_of(reader).message
        assert all_serve(reader, "web:1", 4)
        working.cancel()

    without_faults(cluster_program)


def test_without_one_history_no_stage_ends() -> None:
    """No revision shows whether a cache is past the change: without data the rollout waits."""

    async def cluster_program(sim: Simulation) -> None:
        cluster, hands, reader = await setup(sim)
        working = asyncio.create_task(hands.run())
        await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
        await asyncio.sleep(25)
        await cluster.authority.create(ROLLOUT, rollout(QUARTER, ALL))
        await until(lambda: status_of(reader).activation_revision > 0)
        await asyncio.sleep(60)
        assert (status_of(reader).stage, status_of(reader).reason) == (0, "CacheBehind")
        working.cancel()

    with replaced(RemoteTransport, "one_history", value=False):
        without_faults(cluster_program)


# -- a burn gate -----------------------------------------------------------------------------------

BURN: dict[str, object] = {
    "burn": {"slo": "TimeToReady", "withinSeconds": 20, "objectivePercent": 90, "windowSeconds": 600}
}


async def slow_change(sim: Simulation, gates: dict[str, object]) -> tuple[str, int]:
    """Pods of the new template are never ready, and no component reports a reason."""
    cluster, hands, reader = await setup(sim)
    working = asyncio.create_task(hands.run())
    hands.starts = lambda pod: not is_new(pod)
    await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
    await asyncio.sleep(25)
    body = rollout(QUARTER, ALL, progressDeadlineSeconds=3600, gates=gates)
    await cluster.authority.create(ROLLOUT, body)
    await asyncio.sleep(120)
    sim.heal()
    if gates:
        await settle(
            sim,
            cluster,
            lambda: status_of(reader).phase == "RolledBack" and all_serve(reader, "web:1", 4),
            within_s=600,
        )
    else:
        await asyncio.sleep(300)
    status = status_of(reader)
    working.cancel()
    return f"{status.phase} {status.stage}", await recheck_all(cluster, RECONCILERS)


async def good_change(sim: Simulation) -> tuple[str, int]:
    cluster, hands, reader = await setup(sim)
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(DEPLOYMENT, web(4, surge=1, unavailable=0))
    await asyncio.sleep(25)
    gates = {"burn": {"slo": "TimeToReady", "withinSeconds": 300, "objectivePercent": 50, "windowSeconds": 3600}}
    await cluster.authority.create(ROLLOUT, rollout(QUARTER, ALL, progressDeadlineSeconds=3600, gates=gates))
    sim.heal()
    await until(lambda: status_of(reader).phase == "Complete" and all_serve(reader, "web:2", 4), within_s=900)
    working.cancel()
    return status_of(reader).phase, await recheck_all(cluster, RECONCILERS)


def test_a_change_that_makes_pods_slow_is_rolled_back() -> None:
    for seed in range(4):
        outcome = run(lambda sim: slow_change(sim, BURN), seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        phase, rechecked = outcome.result
        assert phase == "RolledBack 0"
        assert rechecked > 20


def test_without_the_gate_the_same_change_only_waits() -> None:
    outcome = run(lambda sim: slow_change(sim, {}), 0)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-2500:]}"
    assert outcome.result[0] == "Holding 0"


def test_a_change_within_the_budget_is_completed() -> None:
    outcome = run(good_change, 0)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-2500:]}"
    assert outcome.result[0] == "Complete"
