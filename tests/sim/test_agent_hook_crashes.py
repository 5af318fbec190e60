"""Pods with init containers, a sidecar, hooks and files, and an agent that crashes at every possible point.

Init containers run once and in order, `preStop` precedes every SIGTERM, files follow their ConfigMap, and in the end
nothing is left: whenever the agent was killed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.agent import CALM, bind, claims, until
from tests.kit.agent_crashes import CrashPlan, crash_at_notes, crash_at_requests
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP, config_map, pod, pod_key

from kedge.agent.core import plan as agent_plan
from kedge.agent.core import volume_refresh
from kedge.agent.core.driver import Identity
from kedge.agent.core.hooks import PodHooks
from kedge.api.views import Container
from kedge.keys import Key
from kedge.sim.cluster import Cluster, Node
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run

LIMITS = replace(CALM, agent_refresh_s=4.0)
NOTES = ("prepare", "start", "stop", "forget", "run_hook", "update_volumes", "remove")
SETTINGS = Key("ConfigMap", "default", "settings")
LEASE = "Lease.coordination.k8s.io"


def body() -> dict[str, Any]:
    def container(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "image": "x", "command": ["run"], **more}

    hooks = {"postStart": {"exec": {"command": ["post"]}}, "preStop": {"exec": {"command": ["pre"]}}}
    mounts = [{"name": "files", "mountPath": "/files"}]
    return pod(
        "staged",
        terminationGracePeriodSeconds=20,
        initContainers=[
            container("init-1", volumeMounts=mounts),
            container("sidecar", restartPolicy="Always"),
            container("init-2"),
        ],
        containers=[container("main", lifecycle=hooks, volumeMounts=mounts)],
        volumes=[{"name": "files", "configMap": {"name": "settings"}}],
    )


async def staged_run(sim: Simulation, crash_plan: CrashPlan) -> None:
    cluster = Cluster(sim, limits=LIMITS)
    await cluster.set_up()
    Judge(cluster)
    await cluster.authority.create(CONFIG_MAP, config_map("settings", color="blue"), namespace="default")
    crash_at_requests(cluster, crash_plan)
    node = cluster.add_node("node-a")
    check_order(sim, node)
    crash_at_notes(node, crash_plan, NOTES)
    await until(lambda: cluster.find(node.key) is not None)
    uid = await bind(cluster, body())
    await asyncio.sleep(15)
    await cluster.authority.patch(SETTINGS, {"data": {"color": "red"}})
    await asyncio.sleep(15)
    files = node.driver.files.get((uid, "files"))
    if files != {"color": b"red"}:
        sim.violate("files follow their ConfigMap", f"{files}")
    await cluster.authority.delete(pod_key("staged"))
    await asyncio.sleep(60)
    check_end(sim, cluster, node)
    before = cluster.versions(but=(LEASE,))
    await asyncio.sleep(3 * LIMITS.agent_audit_s)
    if cluster.versions(but=(LEASE,)) != before:
        sim.violate("then silence", "an agent that has reported everything keeps writing")


def check_order(sim: Simulation, node: Node) -> None:
    """Check at each start and stop what must have happened before. The driver knows: no agent can hide it."""
    driver = node.driver
    start, stop = driver.start, driver.stop

    async def checked_start(identity: Identity, pod: Any, container: Container, *rest: Any, **named: Any) -> None:
        ended = {each.identity.container: each.exit_code for each in await driver.processes() if not each.running}
        needed = {"init-1": (), "sidecar": ("init-1",), "init-2": ("init-1",), "main": ("init-1", "init-2")}
        late = [name for name in needed[container.name] if ended.get(name) != 0]
        if late:
            sim.violate("init containers end first", f"{container.name} starts, and {late} have not succeeded")
        if not driver.files.get((identity.pod_uid, "files")) and container.name != "init-1":
            sim.violate("files are there first", f"{container.name} starts without its files")
        await start(identity, pod, container, *rest, **named)

    async def checked_stop(identity: Identity, *, grace_s: float, cause: str = "") -> None:
        began = [each for each, hook in driver.hooks if hook.exec is not None and hook.exec.command == ("pre",)]
        running = any(each.identity == identity and each.running for each in await driver.processes())
        if identity.container == "main" and running and identity not in began:
            sim.violate("preStop precedes SIGTERM", f"{identity.container} is stopped without it")
        await stop(identity, grace_s=grace_s, cause=cause)

    driver.start, driver.stop = checked_start, checked_stop  # type: ignore[method-assign]


def check_end(sim: Simulation, cluster: Cluster, node: Node) -> None:
    driver = node.driver
    names = [each.container for each in driver.started]
    if names != ["init-1", "sidecar", "init-2", "main"]:
        sim.violate("each is started once, in order", f"{names}")
    hooks = [hook.exec.command[0] for _, hook in driver.hooks if hook.exec is not None]
    if hooks.count("post") > 1 or hooks.count("pre") < 1:
        sim.violate("postStart at most once, preStop at least once", f"{hooks}")
    if cluster.all("Pod") or claims(cluster) or list(driver.live()):
        sim.violate("nothing is left", f"{cluster.all('Pod')} {claims(cluster)} {list(driver.live())}")
    if driver.files:
        sim.violate("volumes are removed", f"{driver.files}")


def outcome_of(crash_plan: CrashPlan) -> str:
    outcome = run(lambda sim: staged_run(sim, crash_plan), 1, faults=NO_FAULTS)
    return "" if outcome.violation is None else f"{outcome.violation}\n{outcome.timeline()[-3000:]}"


def test_an_agent_that_crashes_anywhere_keeps_the_order_of_init_containers_hooks_and_files() -> None:
    calm = CrashPlan()
    assert outcome_of(calm) == ""
    assert {act.what for act in calm.acts} >= {"patch", "delete", *NOTES}
    for number in range(len(calm.acts)):
        for before in (True, False):
            crash_plan = CrashPlan(number, before)
            found = outcome_of(crash_plan)
            where = f"{'before' if before else 'after'} {crash_plan.acts[number]}"
            assert found == "", f"{where}: {found}"
            assert crash_plan.crashes == 1


async def stop_at_once(self: PodHooks, identity: Identity, container: object, grace_s: float, cause: str) -> None:
    del container
    await self._driver.stop(identity, grace_s=grace_s, cause=cause)


@pytest.mark.parametrize(
    ("target", "name", "weak", "broken"),
    [
        (PodHooks, "stop", stop_at_once, "preStop precedes SIGTERM"),
        (volume_refresh, "has_files", lambda _: False, "files follow their ConfigMap"),
        (agent_plan, "_has_begun", lambda *_: True, "init containers end first"),
    ],
)
def test_the_checks_find_an_agent_without_a_safeguard(target: object, name: str, weak: object, broken: str) -> None:
    with replaced(target, name, weak):
        assert outcome_of(CrashPlan()).startswith(broken)
