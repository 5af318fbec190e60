"""The status that schedulers write on a SchedulingPolicy."""

from __future__ import annotations

from typing import Any

from tests.kit.rollouts import SPREAD

from kedge.api.wellknown import OBEYED_PREFIX
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster, ProcessContext

CANARY = {"version": "v5", "maxZoneSkew": 1}


def named(name: str) -> Any:
    def made(context: ProcessContext) -> Scheduler:
        return Scheduler(context.client, context.env, name=name, caches=context.caches, recorder=context.recorder)

    return made


def status(cluster: Cluster) -> Any:
    found = cluster.find(SPREAD)
    assert found is not None
    return found.view.status


def applied_generations(cluster: Cluster) -> dict[str, int]:
    """By scheduler: the generation that its condition names."""
    return {each.type.removeprefix(OBEYED_PREFIX): each.observed_generation for each in status(cluster).conditions}
