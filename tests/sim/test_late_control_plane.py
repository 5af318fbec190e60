"""Faults of a whole control plane that no seed draws: watches an hour late, and a decision log without a disk."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.kit.controllers import LEASE, ControllerHarness, until, with_harness
from tests.kit.late_watches import HOUR_S, Delay, LateTransport

from kedge import Action, Context
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.segments import read_decisions
from kedge.sim.cluster import API, Cluster, RemoteTransport
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run
from kedge.sim.standard import LIMITS, JudgedCluster, Size, service, workload

WEB = Key("Deployment.apps", "default", "web")


def make_late(cluster: Cluster) -> Delay:
    """Every component that boots from now on has watches with this delay."""
    delay = Delay()

    def transport(host: Host, *, server: int = 0) -> RemoteTransport:
        return LateTransport(host.remote(cluster.servers[server], API), delay)

    cluster.transport = transport  # type: ignore[method-assign]
    return delay


async def an_hour_late(sim: Simulation, limits: Limits, *, for_s: float, lag_s: float, until_updated: bool) -> int:
    """A rollout, a scale and the loss of a machine, while every watch is an hour late, for `for_s`.

    With `until_updated`, only until all five pods are new. Returns how many are.
    """
    world = JudgedCluster(sim, Size(nodes=4, zones=1, servers=2, schedulers=2, limits=limits), lag_s=lag_s)
    delay = make_late(world.cluster)
    await world.open(cluster_faults=False)
    user = world.user
    await user.apply(service("web", "web"))
    await user.apply(workload("Deployment", "web", 3))
    await user.apply(workload("ReplicaSet", "ledger", 2, at_most_one=True))
    await asyncio.sleep(60)
    delay.become(HOUR_S)
    await user.roll_out(WEB, "web:2")
    await asyncio.sleep(60)
    world.pick_node("lost node").power_off(for_s=600)
    await user.scale(WEB, 5)
    updated, end_s = 0, sim.now_s + for_s
    while sim.now_s < end_s and not (until_updated and updated == 5):
        await asyncio.sleep(10)
        updated = sum(each.view.spec.containers[0].image == "web:2" for each in world.cluster.all("Pod"))
    delay.become(0.0)
    await world.close(within_s=1800, stays_s=30)
    return updated


def test_with_every_watch_an_hour_late_lists_keep_the_control_plane_working() -> None:
    """The lag is that of the watches: node lifecycle, blind by its watches, does not declare a silent node unready.

    A rollout that lists alone move waits for a list at every step: 370 s to 1140 s in 156 runs, 760 s on average, about
    the same with and without Events. Half an hour is still long before the first watch event arrives.
    """
    limits = replace(LIMITS, relist_every_s=30.0)
    for seed in range(2):
        outcome = run(
            lambda sim: an_hour_late(sim, limits, for_s=HOUR_S / 2, lag_s=HOUR_S, until_updated=True),
            seed,
            faults=NO_FAULTS,
        )
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2000:]}"
        assert outcome.result == 5, "a rollout that watches alone would move was not moved by lists"


def test_a_control_plane_with_late_caches_is_slow_but_breaks_no_invariant() -> None:
    """No safety net, so that caches really are an hour behind: commits prove themselves on any age of cache."""
    blind = replace(LIMITS, relist_every_s=1e6, watch_probe_s=1e6, watch_silence_s=1e6, resync_every_s=1e6)
    outcome = run(
        lambda sim: an_hour_late(sim, blind, for_s=1.5 * HOUR_S, lag_s=2 * HOUR_S, until_updated=False),
        1,
        faults=NO_FAULTS,
    )
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-2000:]}"


# -- a decision log that cannot be written -------------------------------------------------------------


def test_a_leader_whose_decisions_cannot_be_logged_leads_on_and_counts_its_losses(tmp_path: Path) -> None:
    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        directory = tmp_path / "decisions"
        log = DecisionLog(directory, harness.env)
        harness.recorder = Recorder(harness.env, log=log)
        harness.host.spawn(log.run(), name="log")
        failures = 0

        async def work(_: Context, key: Key) -> Action:
            nonlocal failures
            failures += 1
            if failures % 4:
                raise Unavailable(f"{key} fails for the {failures}. time")
            return Action.await_change()

        directory.rmdir()
        directory.touch()  # a file in its place: no segment can be created
        await harness.create("web")
        controller = harness.open(work, lease=LEASE)
        await until(lambda: failures == 4)
        await asyncio.sleep(10)
        kept = [each.result for each in harness.decisions()]
        assert kept == ["failed", "failed", "failed", "await change"], "what failed is kept, wherever it can be"
        assert controller.statistics().leading
        assert log.statistics().lost == log.statistics().appended == 4
        assert log.statistics().last_error
        assert not harness.reported, "a disk failure does not affect decisions"

        directory.unlink()
        directory.mkdir()
        controller.wake(Key("ReplicaSet.apps", "default", "web"))
        await until(lambda: failures == 8)
        await asyncio.sleep(10)
        assert controller.statistics().leading
        log.close()
        assert [each.result for each in read_decisions(directory)] == kept
        assert log.statistics().lost == 4

    test()
