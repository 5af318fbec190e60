"""A policy's status shows the generation that each scheduler applies: a rollout waits for it."""

from __future__ import annotations

from tests.kit.agent import CALM, until, without_faults
from tests.kit.policy_status import CANARY, applied_generations, named, status
from tests.kit.rollouts import POLICY, SPREAD, policy

from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation


def test_the_leading_scheduler_writes_the_generation_and_versions_that_it_applies() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        hosts = cluster.boot("scheduler", [named("default-scheduler")], copies=2)
        await cluster.authority.create(POLICY, policy())
        await until(lambda: applied_generations(cluster) == {"default-scheduler": 1})
        assert (status(cluster).observed_generation, status(cluster).active_version) == (1, "v4")
        await cluster.authority.patch(SPREAD, {"spec": {"canary": CANARY}})
        await until(lambda: applied_generations(cluster) == {"default-scheduler": 2})
        assert (status(cluster).active_version, status(cluster).canary_version) == ("v4", "v5")
        for host in hosts:
            host.crash()
        await cluster.authority.patch(SPREAD, {"spec": {"active": False, "canary": None}})
        assert applied_generations(cluster) == {"default-scheduler": 2}
        hosts[0].restart()
        await until(lambda: applied_generations(cluster) == {"default-scheduler": 3})
        assert (status(cluster).active_version, status(cluster).canary_version) == ("", "")
        before = cluster.versions(but=("Lease.coordination.k8s.io",))
        await until(lambda: sim.now_s > 200)
        assert cluster.versions(but=("Lease.coordination.k8s.io",)) == before  # written once, then no more writes

    without_faults(program)


def test_the_oldest_generation_of_several_schedulers_counts() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        (batch,) = cluster.boot("batch", [named("batch")])
        cluster.boot("web", [named("web")])
        await cluster.authority.create(POLICY, policy())
        await until(lambda: applied_generations(cluster) == {"batch": 1, "web": 1})
        batch.crash()
        await cluster.authority.patch(SPREAD, {"spec": {"canary": CANARY}})
        await until(lambda: applied_generations(cluster) == {"batch": 1, "web": 2})
        assert (status(cluster).observed_generation, status(cluster).canary_version) == (1, "")
        batch.restart()
        await until(lambda: applied_generations(cluster) == {"batch": 2, "web": 2})
        assert (status(cluster).observed_generation, status(cluster).canary_version) == (2, "v5")

    without_faults(program)


def test_a_scheduler_writes_no_status_on_a_policy_for_others() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        for name in ("batch", "web"):
            cluster.boot(name, [named(name)])
        body = policy()
        body["spec"]["schedulerNames"] = ["web"]
        await cluster.authority.create(POLICY, body)
        await until(lambda: applied_generations(cluster) == {"web": 1})
        await until(lambda: sim.now_s > 100)
        assert applied_generations(cluster) == {"web": 1}

    without_faults(program)
