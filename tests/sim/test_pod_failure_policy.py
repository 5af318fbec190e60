"""`podFailurePolicy` of a Job, with simulated agents: pods that end with exit code 42."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.cluster import run_without_faults

from kedge.api.conditions import find_condition
from kedge.api.views import JobView
from kedge.api.wellknown import JOB_KIND, SIM_EXIT_CODE_LABEL
from kedge.keys import Key
from kedge.sim.kernel import Simulation
from kedge.sim.standard import JudgedCluster, Size, job


def failing(name: str, action: str, backoff_limit: int) -> dict[str, Any]:
    """A Job whose pods all fail, with one rule for their exit code."""
    body = job(name, 1, run_s=1.0)
    body["spec"]["backoffLimit"] = backoff_limit
    body["spec"]["template"]["metadata"]["labels"][SIM_EXIT_CODE_LABEL] = "42"
    rule = {"action": action, "onExitCodes": {"operator": "In", "values": [42]}}
    body["spec"]["podFailurePolicy"] = {"rules": [rule]}
    return body


def test_each_action_of_a_pod_failure_policy_decides_what_a_failed_pod_means() -> None:
    async def program(sim: Simulation) -> None:
        world = JudgedCluster(sim, Size(nodes=2, zones=1, servers=1, schedulers=1, managers=1))
        await world.open(cluster_faults=False)
        cluster = world.cluster
        for body in (failing("ends", "FailJob", 6), failing("goes-on", "Ignore", 0), failing("counts", "Count", 1)):
            await cluster.create(body)
        made: dict[str, set[str]] = {}

        def view(name: str) -> JobView:
            found = cluster.find(Key(JOB_KIND, "default", name))
            assert found is not None
            return found.as_view(JobView)

        def failure(name: str) -> tuple[str, str]:
            found = find_condition(view(name).status.conditions, "Failed")
            return ("", "") if found is None else (found.reason, found.message)

        async with asyncio.timeout(600):
            while not (failure("ends")[0] and failure("counts")[0] and len(made.get("goes-on", ())) > 2):
                for uid, pod in world.judge.facts.pods.items():
                    made.setdefault(pod.metadata.labels["app"], set()).add(uid)
                await asyncio.sleep(0.5)
        assert failure("ends")[0] == "PodFailurePolicy"
        assert "failed with exit code 42 matching FailJob rule at index 0" in failure("ends")[1]
        assert (len(made["ends"]), view("ends").status.failed) == (1, 1)
        assert (failure("goes-on"), view("goes-on").status.failed) == (("", ""), 0)
        assert failure("counts")[0] == "BackoffLimitExceeded"
        assert view("counts").status.failed == 2

    run_without_faults(program)
