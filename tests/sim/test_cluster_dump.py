"""A dump of a real cluster as the initial state: fields are kept, ledgers are made, errors name the object."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.kit.cluster import run_without_faults
from tests.kit.dumps import real_dump, small_dump
from tests.objects import make_env, pod, pod_key

from kedge.controllers import all_controllers
from kedge.keys import Key
from kedge.runtime import ControllerRuntime
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.dump import BadDump, objects_of, plan_dump
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import Simulation


def test_every_field_is_kept_but_the_resource_version() -> None:
    shown = small_dump()

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        plan = await cluster.load(objects_of(shown))
        assert (plan.skipped, plan.namespaces) == ({"PodMetrics": 1}, ["default"])
        for each, key in (
            (shown["items"][0], pod_key()),
            (shown["items"][2], Key("Deployment.apps", "default", "web")),
        ):
            found = cluster.find(key)
            assert found is not None
            expected = {name: value for name, value in each["metadata"].items() if name != "resourceVersion"}
            assert found.edit() == {**each, "metadata": expected}
        ledger = cluster.find(Key("NodeAllocation.kedge.dev", "", "node-a"))
        assert ledger is not None
        assert (ledger.view.spec.node_uid, list(ledger.view.status.entries)) == ("n-1", ["p-1"])
        namespace = cluster.find(Key("Namespace", "", "default"))
        assert namespace is not None
        assert namespace.view.status.resource_quotas == ("limits",)

    run_without_faults(program)


def test_a_loaded_cluster_runs_on_and_breaks_no_invariant() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.load(objects_of(small_dump()))
        await cluster.set_up()
        Judge(cluster)
        await asyncio.sleep(60)
        assert [process.pod for process in cluster.nodes["node-a"].driver.live()] == ["web-0"]
        await cluster.create(pod("web-1", nodeName="node-a"))
        await asyncio.sleep(30)
        assert len(list(cluster.nodes["node-a"].driver.live())) == 2

    run_without_faults(program)


# -- owners that are not in the dump ---------------------------------------------------------------


def test_missing_replica_sets_are_made_again_and_only_a_pod_of_a_missing_job_is_orphaned() -> None:
    plan = plan_dump(objects_of(real_dump()), make_env())
    assert [key.name for key in plan.sets] == ["web-5d4f8c7b9d", "web-77c6d8f9b5"]
    assert [key.name for key in plan.orphaned] == ["sums-vwxyz"]
    current, old = (msgspec.json.decode(plan.values[key]) for key in plan.sets)
    assert (current["metadata"]["uid"], current["spec"]["replicas"]) == ("rs-4", 2)
    assert (old["metadata"]["uid"], old["spec"]["replicas"]) == ("rs-3", 1)
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in (current, old)} == {"d-1"}
    # The current set has the template of the Deployment, without the fields that admission added to the pods.
    template = real_dump()["items"][2]["spec"]["template"]
    assert current["spec"]["template"]["spec"] == template["spec"]
    assert old["spec"]["template"]["spec"]["containers"][0]["image"] == "web:0"


def test_a_real_dump_continues_under_every_controller() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.load(objects_of(real_dump()))
        await cluster.set_up()
        Judge(cluster)
        cluster.boot(
            "manager", lambda context: all_controllers(ControllerRuntime(context.client, context.env, context.caches))
        )
        cluster.boot("scheduler", [lambda context: Scheduler(context.client, context.env, caches=context.caches)])
        uids = {"p-1", "p-2", "p-4", "p-5"}
        for _ in range(120):
            await asyncio.sleep(1)
            assert uids <= {each.uid for each in cluster.all("Pod")}, "a running pod was collected as garbage"
        # A rollout was in progress: it completes, with the replicas of the dump.
        web = cluster.find(Key("Deployment.apps", "default", "web"))
        assert web is not None
        assert (web.view.status.updated_replicas, web.view.status.ready_replicas) == (3, 3)
        assert "p-3" not in {each.uid for each in cluster.all("Pod")}
        sets = {each.key.name: each.view.spec.replicas for each in cluster.all("ReplicaSet.apps")}
        assert sets == {"web-5d4f8c7b9d": 3, "web-77c6d8f9b5": 0}
        await cluster.authority.patch(web.key, {"spec": {"replicas": 1}})
        await asyncio.sleep(60)
        assert len([each for each in cluster.all("Pod") if each.metadata.labels.get("pod-template-hash")]) == 1

    run_without_faults(program)


def without_name(items: list[dict[str, Any]]) -> None:
    del items[1]["metadata"]["name"]


def without_node(items: list[dict[str, Any]]) -> None:
    del items[1]


def twice(items: list[dict[str, Any]]) -> None:
    items.append(items[0])


def broken(items: list[dict[str, Any]]) -> None:
    items[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_name, "item 1 has no metadata.name"),
        (without_node, "Pod default/web-0 is bound to node node-a, which is not in the dump"),
        (twice, "Pod default/web-0 is in the dump twice"),
        (broken, "Pod default/web-0 cannot be loaded"),
    ],
)
def test_an_error_names_the_object_that_cannot_be_loaded(spoil: Any, message: str) -> None:
    shown = small_dump()
    spoil(shown["items"])
    with pytest.raises(BadDump, match=message):
        plan_dump(objects_of(shown), make_env())
