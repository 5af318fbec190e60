"""A node status write whose reply is lost: it is written again if another writer has overwritten it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.agent import CALM, NODE, new_cluster, until, without_faults

from kedge.api.conditions import is_true
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Simulation

UNKNOWN: dict[str, Any] = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2030-01-01T00:00:00Z"}


def is_well(cluster: Cluster) -> bool:
    found = cluster.find(NODE)
    return found is not None and is_true(found.view.status.conditions, "Ready")


@pytest.mark.parametrize("again", [False, True], ids=["and stands", "and is taken back"])
@pytest.mark.parametrize("cut_s", [3.0, 25.0])
def test_a_ready_condition_whose_reply_was_lost_is_written_again_if_it_was_overwritten(
    again: bool, cut_s: float
) -> None:
    """1. Another writer sets Ready to Unknown. 2. The agent writes Ready; that is committed, and the link is cut.
    3. Ready is overwritten again, perhaps before the agent receives anything. 4. The link is restored.
    """

    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await until(lambda: is_well(cluster))
        host, reported = cluster.nodes["node-a"].host, list[float]()

        def take_ready_back() -> Any:
            return cluster.authority.patch(NODE, {"status": {"conditions": [UNKNOWN]}}, subresource="status")

        def cut(commit: Commit) -> Iterator[tuple[str, str]]:
            if NODE in commit.keys and is_well(cluster):
                reported.append(sim.now_s)
                if len(reported) == 1:
                    down = sim.network.partition([host], cluster.servers)
                    world = sim.world
                    world.loop.call_later(cut_s, down.heal, context=world.context)
                    if again:
                        cluster.store_host.spawn(take_ready_back(), name="a lifecycle without lease events")
            yield from ()

        await asyncio.sleep(CALM.node_renew_s)
        sim.check_always(cut)
        await cluster.store_host.run(take_ready_back())
        await until(lambda: len(reported) == 1, within_s=2 * CALM.node_renew_s)
        await asyncio.sleep(cut_s + 3 * CALM.node_renew_s)
        assert is_well(cluster)
        assert len(reported) == (2 if again else 1)
        before = cluster.versions(but=("Lease.coordination.k8s.io",))
        await asyncio.sleep(5 * CALM.node_renew_s)
        assert cluster.versions(but=("Lease.coordination.k8s.io",)) == before

    without_faults(program)
