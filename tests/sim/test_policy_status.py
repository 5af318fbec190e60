"""A policy's status says which of its generations the schedulers go by: what a rollout waits for."""

from __future__ import annotations

from tests.kit.agent import CALM, until, without_faults
from tests.kit.policy_status import CANARY, named, obeyed, status
from tests.kit.rollouts import POLICY, SPREAD, policy

from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation


def test_the_leading_scheduler_says_which_generation_and_versions_it_goes_by() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        hosts = cluster.boot("scheduler", [named("default-scheduler")], copies=2)
        await cluster.authority.create(POLICY, policy())
        await until(lambda: obeyed(cluster) == {"default-scheduler": 1})
        assert (status(cluster).observed_generation, status(cluster).active_version) == (1, "v4")
        await cluster.authority.patch(SPREAD, {"spec": {"canary": CANARY}})
        await until(lambda: obeyed(cluster) == {"default-scheduler": 2})
        assert (status(cluster).active_version, status(cluster).canary_version) == ("v4", "v5")
        for host in hosts:
            host.crash()
        await cluster.authority.patch(SPREAD, {"spec": {"active": False, "canary": None}})
        assert obeyed(cluster) == {"default-scheduler": 2}
        hosts[0].restart()
        await until(lambda: obeyed(cluster) == {"default-scheduler": 3})
        assert (status(cluster).active_version, status(cluster).canary_version) == ("", "")
        before = cluster.versions(but=("Lease.coordination.k8s.io",))
        await until(lambda: sim.now_s > 200)
        assert cluster.versions(but=("Lease.coordination.k8s.io",)) == before  # said once, and then silence

    without_faults(program)


def test_of_several_schedulers_the_one_furthest_behind_counts() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        (batch,) = cluster.boot("batch", [named("batch")])
        cluster.boot("web", [named("web")])
        await cluster.authority.create(POLICY, policy())
        await until(lambda: obeyed(cluster) == {"batch": 1, "web": 1})
        batch.crash()
        await cluster.authority.patch(SPREAD, {"spec": {"canary": CANARY}})
        await until(lambda: obeyed(cluster) == {"batch": 1, "web": 2})
        assert (status(cluster).observed_generation, status(cluster).canary_version) == (1, "")
        batch.restart()
        await until(lambda: obeyed(cluster) == {"batch": 2, "web": 2})
        assert (status(cluster).observed_generation, status(cluster).canary_version) == (2, "v5")

    without_faults(program)


def test_a_scheduler_says_nothing_of_a_policy_that_is_for_others() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        for name in ("batch", "web"):
            cluster.boot(name, [named(name)])
        body = policy()
        body["spec"]["schedulerNames"] = ["web"]
        await cluster.authority.create(POLICY, body)
        await until(lambda: obeyed(cluster) == {"web": 1})
        await until(lambda: sim.now_s > 100)
        assert obeyed(cluster) == {"web": 1}

    without_faults(program)
