"""A simulated cluster under test: its control plane, runs without faults, and how many seeds a test runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kedge.controllers.deployment.controller import deployment_controller
from kedge.controllers.node.controller import lifecycle_controller
from kedge.controllers.replicaset.controller import replica_set_controller
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import Controller
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster, ProcessContext
from kedge.sim.judges.endings import check_silence, expect_settled
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, RunOutcome, Simulation, run

WEB = Key("Deployment.apps", "default", "web")
PATIENT = Limits(watch_probe_s=60.0, watch_silence_s=200.0, lease_retry_s=3.0)
"""Limits with long timeouts, so that a hostile run spends its time on work."""
TIMELINE_CHARS = 2_500


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    """Give a test `seeds`: the first `few` on every run, the rest up to `many` in a soak."""
    others = pytest.param(range(few, many), id=f"{few}-{many}", marks=pytest.mark.soak)
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id=f"0-{few}"), others])


# -- runs ------------------------------------------------------------------------------------------


def assert_holds(outcome: RunOutcome) -> RunOutcome:
    """Fail the test if the run broke an invariant, with the end of its timeline."""
    timeline = "" if outcome.violation is None else outcome.timeline()[-TIMELINE_CHARS:]
    assert outcome.violation is None, f"seed {outcome.seed}: {outcome.violation}\n{timeline}"
    return outcome


def run_without_faults(program: Callable[[Simulation], Any], seed: int = 1) -> RunOutcome:
    """Run a program without faults; it must break no invariant."""
    return assert_holds(run(program, seed, faults=NO_FAULTS))


async def until(holds: Callable[[], bool], *, within_s: float = 300.0) -> None:
    """Wait in virtual time until a condition holds."""
    for _ in range(int(within_s * 4)):
        if holds():
            return
        await asyncio.sleep(0.25)
    raise AssertionError("the condition did not hold in time")


# -- the control plane -----------------------------------------------------------------------------


def led(make: Callable[..., Controller], name: str) -> Callable[[ProcessContext], Controller]:
    """A controller that works while it holds the lease of its name."""
    lease = Key("Lease.coordination.k8s.io", "kube-system", name)
    return lambda context: make(context.runtime(lease))


def scheduler(context: ProcessContext) -> Scheduler:
    return Scheduler(context.client, context.env, caches=context.caches, recorder=context.recorder)


CONTROLLERS = [
    led(deployment_controller, "deployment"),
    led(replica_set_controller, "replicaset"),
    led(lifecycle_controller, "node-lifecycle"),
]


async def faulty_cluster(sim: Simulation, *, nodes: int, zones: int) -> tuple[Cluster, Judge]:
    """Three servers, machines over the zones, two managers and two schedulers, judged from the first commit."""
    cluster = Cluster(sim, servers=3, hostile=True, limits=PATIENT)
    judge = Judge(cluster)
    await cluster.set_up()
    for n in range(nodes):
        cluster.add_node(f"node-{n}", zone=f"zone-{'abc'[n % zones]}")
    cluster.boot("manager", CONTROLLERS, copies=2)
    cluster.boot("scheduler", [scheduler], copies=2)
    return cluster, judge


async def check_settled(judge: Judge, *, every_s: float = 0.25) -> None:
    """After the faults: everything converges, and then no component writes."""
    sim = judge.cluster.sim
    expect_settled(judge)
    await sim.converge(within_s=900, every_s=every_s, stays_s=5.0)
    if sim.world.violation is None:
        await check_silence(judge.cluster)
