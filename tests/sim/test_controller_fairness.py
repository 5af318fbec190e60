"""The failing keys of one tenant beside the single key of another, through watch, cache, queue and workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.kit.controllers import REPLICA_SET, FunctionReconciler, new_cluster, replica_set, until
from tests.objects import NAMESPACE

from kedge import Action, Context, Controller
from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import ControllerRuntime, ControllerSpec
from kedge.runtime.queue import WorkQueue
from kedge.sim.kernel import NO_FAULTS, Simulation, run

FAILING = 1_000
LONE = Key("ReplicaSet.apps", "quiet", "lone")
RUN_S = 0.05
LIMITS = Limits(relist_every_s=1e6, resync_every_s=1e6)


@dataclass
class FairnessProbe:
    """A reconciler whose runs take a moment; it measures when each change of the lone key was reconciled."""

    sim: Simulation
    slow_s: float
    seen: int = -1
    reconciled_s: float = 0.0
    failed: int = 0

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        if key != LONE:
            await asyncio.sleep(self.slow_s)
            self.failed += 1
            raise Unavailable("this tenant's backend is down")
        await asyncio.sleep(RUN_S)
        self.seen, self.reconciled_s = found.view.spec.replicas, self.sim.now_s
        return Action.await_change()


async def latencies(sim: Simulation, cluster: Any, probe: FairnessProbe, changes: int) -> list[float]:
    """The time from a change of the lone key to the end of the run that saw it."""
    found = []
    for n in range(probe.seen + 1, probe.seen + 1 + changes):
        await asyncio.sleep(sim.choose("pause", (0.31, 0.07, 1.3)))
        began_s = sim.now_s
        await cluster.authority.patch(LONE, {"spec": {"replicas": n}})
        await until(lambda n=n: probe.seen == n)  # type: ignore[misc]
        found.append(probe.reconciled_s - began_s)
    return found


async def measure(sim: Simulation, slow_s: float) -> tuple[float, float]:
    """The lone key's worst latency, alone and in a crowd."""
    cluster = await new_cluster(sim, servers=1)
    for tenant in ("noisy", "quiet"):
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": tenant}})
    await cluster.authority.create(REPLICA_SET, replica_set("lone", 0, namespace="quiet"))
    host = sim.host("controller")
    probe = FairnessProbe(sim, slow_s)
    controller = Controller(
        ControllerSpec(kind=REPLICA_SET),
        FunctionReconciler(probe.reconcile),
        ControllerRuntime(cluster.client(host), host.env(limits=LIMITS)),
    )
    host.spawn(controller.run(), name="controller")
    await until(lambda: probe.seen == 0)
    lonely_s = max(await latencies(sim, cluster, probe, 5))
    for n in range(FAILING):
        await cluster.authority.create(REPLICA_SET, replica_set(f"s{n}", 0, namespace="noisy"))
    crowded_s = max(await latencies(sim, cluster, probe, 8))
    assert probe.failed > 10
    assert controller.statistics().queue.keys > 900, "the crowd went away"
    return lonely_s, crowded_s


def in_a_crowd(slow_s: float) -> tuple[float, float]:
    async def program(sim: Simulation) -> tuple[float, float]:
        return await measure(sim, slow_s)

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}"
    alone_s, crowded_s = outcome.result
    return alone_s, crowded_s


@pytest.mark.parametrize("slow_s", [0.01, RUN_S, 1.0], ids=["quick", "alike", "slow"])
def test_a_thousand_failing_keys_of_one_tenant_delay_anothers_single_key_by_three_times_at_most(slow_s: float) -> None:
    """kubernetes#25744 (bug 16)."""
    alone_s, crowded_s = in_a_crowd(slow_s)
    assert crowded_s <= 3 * alone_s, f"alone {alone_s:.3f} s, in a crowd {crowded_s:.3f} s"


def test_without_tenants_the_single_key_waits_behind_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = WorkQueue.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "tenant_of", lambda _: "")
    alone_s, crowded_s = in_a_crowd(RUN_S)
    assert crowded_s > 3 * alone_s
