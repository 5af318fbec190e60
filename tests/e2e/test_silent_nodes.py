"""Nodes whose agents are killed, paused or cut off, and come back. The simulator's invariants judge each history.

A short silence changes nothing that runs. After a long one the pods are replaced elsewhere, and the returning node
stops what it still runs of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.e2e.bare_pods import container, is_ready, key_of, make, node_key, restarts
from tests.e2e.far_nodes import FarNode, far_nodes
from tests.e2e.torture_cluster import DEPLOYMENT, POD, TortureCluster
from tests.e2e.up_cluster import SHORT, condition, eventually, holds, judged, shown, up_cluster
from tests.kit.process_nodes import alive

from kedge.api.requests import DeleteOptions, ListOptions
from kedge.api.wellknown import AT_MOST_ONE
from kedge.keys import Key

LOSING = {**SHORT, "node_lost_s": 20.0, "agent_contact_s": 12.0}
SILENT = ("killed", "paused", "cut")


@asynccontextmanager
async def cluster_with(
    folder: Path, limits: dict[str, float], *names: str
) -> AsyncIterator[tuple[TortureCluster, list[FarNode]]]:
    """`kedge up` with `node-1`, which stays reachable, and far nodes; judged at the end."""
    state = folder / "state"
    state.mkdir(mode=0o700)
    async with (
        up_cluster(state, nodes=1, limits=limits) as cluster,
        judged(cluster.client, limits),
        far_nodes(cluster, *names) as nodes,
    ):
        yield cluster, nodes
        cluster.check_no_doubles()
        cluster.check_parts()


def test_a_node_whose_agent_is_killed_paused_or_cut_off_comes_back_with_the_same_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster_with(tmp_path, SHORT, *SILENT) as (cluster, every):
            killed, paused, cut = every
            await asyncio.gather(*(each.run_pod() for each in every))
            pids = [each.pid() for each in every]
            for each in every:
                await each.silence()
            await asyncio.gather(*(each.is_silent() for each in every))
            assert [each.pid() for each in every] == pids, "what runs keeps running"

            await cluster.client.delete(key_of("cut"), DeleteOptions())
            assert (await shown(cluster.client, key_of("cut")))["metadata"]["deletionTimestamp"]
            for each in every:
                await each.resume()
            await asyncio.gather(killed.is_back(), paused.is_back())
            assert [killed.pid(), paused.pid()] == pids[:2]
            await eventually(cluster.client, key_of("cut"), lambda b: not b, "the deleted pod is gone")
            assert not alive(pids[2])
            assert cut.processes() == {}
            pods = await cluster.client.list(POD, ListOptions(namespace="default"))
            assert sorted(each.key.name for each in pods.objects) == ["killed", "paused"]

    asyncio.run(run())


def test_a_node_that_was_cut_off_reports_what_ended_meanwhile(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster_with(tmp_path, SHORT, "cut") as (cluster, (cut,)):
            stop = tmp_path / "stop"
            await cut.run_pod()
            crashed = cut.pid()
            program = f"until test -e {stop}; do sleep 0.1; done; echo done early >$KEDGE_TERMINATION_LOG; exit 3"
            await make(cluster.client, "task", program, zone=cut.zone, restart="Never")
            await eventually(cluster.client, key_of("task"), is_ready, "the task runs")

            await cut.silence()
            await cut.is_silent()
            os.kill(crashed, signal.SIGKILL)
            stop.touch()
            await holds(
                lambda: not alive(crashed) and cut.ended("task"), "both have ended, and the keeper has it on record"
            )
            before = await shown(cluster.client, key_of("task"))
            assert before["status"]["phase"] == "Running", "the API cannot know yet"
            healed = datetime.now(UTC)
            await cut.resume()

            task = await eventually(
                cluster.client, key_of("task"), lambda b: b["status"]["phase"] == "Failed", "its end is reported"
            )
            last = container(task)["state"]["terminated"]
            assert (last["exitCode"], last["message"]) == (3, "done early\n")
            assert datetime.fromisoformat(last["finishedAt"]) <= healed
            pod = await eventually(
                cluster.client, key_of("cut"), lambda b: restarts(b) == 1 and is_ready(b), "its restart is counted"
            )
            last = container(pod)["lastState"]["terminated"]
            assert (last["exitCode"], last.get("signal", 9)) == (137, 9)
            assert datetime.fromisoformat(last["finishedAt"]) <= healed
            assert cut.pid() != crashed

    asyncio.run(run())


# -- lost ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """One replica as it runs: the pod, its node, and its process."""

    uid: str
    node: str
    pid: int


def workload(cluster: TortureCluster, name: str, node: FarNode, *, single: bool) -> dict[str, Any]:
    """One replica that may run on a far node and on `node-1`.

    Its process holds a lock: named after the pod's uid, or after the Deployment if it wants at most one in all.
    """
    program = f"{cluster.locking(name if single else '$POD_UID')}; exec sleep 100000"
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    main = {"name": "main", "image": "label-only", "command": ["sh", "-c", program], "env": [uid]}
    zones = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [node.zone, "zone-a"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {AT_MOST_ONE: "true"} if single else {}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [main],
        },
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


async def running_on(cluster: TortureCluster, name: str, node: str) -> Running:
    """Wait until the only ready pod of a Deployment is on a node, with one live process."""
    found: list[Running] = []

    async def is_there() -> bool:
        listed = await cluster.client.list(POD, ListOptions(namespace="default", label_selector=f"app={name}"))
        bodies = [each.edit() for each in listed.objects]
        ready = [each for each in bodies if is_ready(each) and each["spec"].get("nodeName") == node]
        found[:] = [
            Running(each["metadata"]["uid"], node, pid)
            for each in ready
            for pid in cluster.pids(each["metadata"]["uid"])
        ]
        return len(found) == 1

    await holds(is_there, f"a replica of {name} is ready on {node}")
    return found[0]


async def cordon(cluster: TortureCluster, node: str, *, cordoned: bool) -> None:
    await cluster.client.patch(node_key(node), {"spec": {"unschedulable": cordoned}})


def is_lost(body: dict[str, Any]) -> bool:
    return condition(body, "Lost") == "True"


async def check_lost(
    cluster: TortureCluster, node: FarNode, plain: Running, single: Running
) -> tuple[Running, Running]:
    """The node is lost, and both workloads are replaced on `node-1`. Returns the replacements."""
    await eventually(cluster.client, node_key(node.name), is_lost, "the node is lost")
    new_single = await running_on(cluster, f"single-{node.name}", "node-1")
    assert not alive(single.pid), "the pod that allows no other was stopped before it was replaced"
    new_plain = await running_on(cluster, f"plain-{node.name}", "node-1")
    assert alive(plain.pid), "without contact the node keeps running what it has"
    assert {new_plain.uid, new_single.uid}.isdisjoint({plain.uid, single.uid})
    return new_plain, new_single


async def check_back(cluster: TortureCluster, node: FarNode, plain: Running) -> None:
    """The node is ready again, runs nothing of what was replaced, and holds no claim for it."""
    await eventually(
        cluster.client, node_key(node.name), lambda b: is_ready(b) and not is_lost(b), "the node is ready again"
    )
    await holds(lambda: not alive(plain.pid) and node.processes() == {}, f"{node.name} stops what was replaced")
    ledger = Key("NodeAllocation.kedge.dev", "", node.name)
    await eventually(cluster.client, ledger, lambda b: not b.get("status", {}).get("entries"), "no claim is left")


def test_the_pods_of_a_lost_node_are_replaced_once_and_stopped_when_it_returns(tmp_path: Path) -> None:
    async def run() -> None:
        async with cluster_with(tmp_path, LOSING, *SILENT) as (cluster, every):
            await cordon(cluster, "node-1", cordoned=True)
            for node in every:
                for kind in ("plain", "single"):
                    body = workload(cluster, f"{kind}-{node.name}", node, single=kind == "single")
                    await cluster.client.create(DEPLOYMENT, body, namespace="default")
            plain = [await running_on(cluster, f"plain-{node.name}", node.name) for node in every]
            single = [await running_on(cluster, f"single-{node.name}", node.name) for node in every]
            await cordon(cluster, "node-1", cordoned=False)

            for node in every:
                await node.silence()
            new = await asyncio.gather(*(check_lost(cluster, *each) for each in zip(every, plain, single, strict=True)))
            for node in every:
                await node.resume()
            await asyncio.gather(*(check_back(cluster, *each) for each in zip(every, plain, strict=True)))

            left = (await cluster.client.list(POD, ListOptions(namespace="default"))).objects
            assert {each.uid for each in left if not each.view.finished} == {each.uid for two in new for each in two}
            for node, (new_plain, new_single) in zip(every, new, strict=True):
                assert await running_on(cluster, f"plain-{node.name}", "node-1") == new_plain
                assert await running_on(cluster, f"single-{node.name}", "node-1") == new_single

    asyncio.run(run())
