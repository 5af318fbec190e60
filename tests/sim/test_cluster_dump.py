"""A real cluster's dump as the initial state: nothing is lost, ledgers are made, and what is wrong is named."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest
from tests.objects import deployment, make_env, node, pod, pod_key, resource_quota

from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS
from kedge.controllers import all_controllers
from kedge.keys import Key
from kedge.runtime import ControllerRuntime
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.dump import BadDump, objects_of, plan_dump
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run


def item(body: dict[str, Any], uid: str, **status: Any) -> dict[str, Any]:
    """An object as `kubectl get -o json` shows it."""
    shown = copy.deepcopy(body)
    shown["metadata"] |= {"uid": uid, "resourceVersion": "123456", "creationTimestamp": "2025-05-05T05:05:05Z"}
    shown["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update"}]
    apply_defaults(KINDS.of_api(body["apiVersion"], body["kind"]), shown)
    return {**shown, **({"status": status} if status else {})}


def dump() -> dict[str, Any]:
    running = pod("web-0", nodeName="node-a", serviceAccountName="web", dnsPolicy="ClusterFirst")
    items = [
        item(running, "p-1", phase="Running", podIP="10.0.0.9", qosClass="Burstable"),
        item(node("node-a"), "n-1"),
        item(deployment(), "d-1"),
        item(resource_quota(pods="5"), "q-1"),
        {"apiVersion": "metrics.k8s.io/v1", "kind": "PodMetrics", "metadata": {"name": "web-0"}},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def test_everything_is_kept_but_the_other_stores_versions() -> None:
    shown = dump()

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

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation.detail


def test_a_loaded_cluster_lives_on_under_the_invariants() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.load(objects_of(dump()))
        await cluster.set_up()
        Judge(cluster)
        await asyncio.sleep(60)
        assert [process.pod for process in cluster.nodes["node-a"].driver.live()] == ["web-0"]
        await cluster.create(pod("web-1", nodeName="node-a"))
        await asyncio.sleep(30)
        assert len(list(cluster.nodes["node-a"].driver.live())) == 2

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation.detail


# -- owners that the dump leaves out ---------------------------------------------------------------

SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True, "blockOwnerDeletion": True}


def owned(name: str, uid: str, place: str, owner: dict[str, Any], *, image: str = "web:1") -> dict[str, Any]:
    """A pod as Kubernetes has made it: its name is random, and admission has filled in what it likes."""
    body = pod(name, nodeName=place, serviceAccountName="default", enableServiceLinks=True)
    body["spec"]["containers"][0]["image"] = image
    body["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}
    ]
    body["spec"]["volumes"] = [{"name": "token", "emptyDir": {}}]
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"app": "web"}}
    if owner["kind"] == "ReplicaSet":
        body["metadata"]["labels"]["pod-template-hash"] = owner["name"].rpartition("-")[2]
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2025-05-05T05:05:05Z"}]
    return item(body, uid, phase="Running", podIP="10.0.0.9", startTime="2025-05-05T05:05:05Z", conditions=ready)


def real_dump() -> dict[str, Any]:
    """What `kubectl get nodes,pods,deployments -A -o json` shows: no ReplicaSets, no DaemonSets, no Jobs."""
    web = item(deployment("web", replicas=3), "d-1")
    web["metadata"] |= {"generation": 4, "annotations": {"deployment.kubernetes.io/revision": "4"}}
    current, old = {**SET, "name": "web-5d4f8c7b9d", "uid": "rs-4"}, {**SET, "name": "web-77c6d8f9b5", "uid": "rs-3"}
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "ds-1", "controller": True}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "sums", "uid": "j-1", "controller": True}
    items = [
        *(item(node(f"node-{n}"), f"n-{n}") for n in "ab"),
        web,
        owned("web-5d4f8c7b9d-x2x4z", "p-1", "node-a", current),
        owned("web-5d4f8c7b9d-8kq7w", "p-2", "node-b", current),
        owned("web-77c6d8f9b5-lm4n5", "p-3", "node-a", old, image="web:0"),
        owned("logs-abcde", "p-4", "node-a", daemon),
        owned("sums-vwxyz", "p-5", "node-b", job),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def test_owners_that_a_dump_leaves_out_are_made_again_and_nobody_else_is_an_orphan() -> None:
    plan = plan_dump(objects_of(real_dump()), make_env())
    assert [key.name for key in plan.sets] == ["web-5d4f8c7b9d", "web-77c6d8f9b5"]
    assert [key.name for key in plan.orphaned] == ["sums-vwxyz"]
    current, old = (msgspec.json.decode(plan.values[key]) for key in plan.sets)
    assert (current["metadata"]["uid"], current["spec"]["replicas"]) == ("rs-4", 2)
    assert (old["metadata"]["uid"], old["spec"]["replicas"]) == ("rs-3", 1)
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in (current, old)} == {"d-1"}
    # The current one has the Deployment's own template, and not what admission had made of it in the pods.
    template = real_dump()["items"][2]["spec"]["template"]
    assert current["spec"]["template"]["spec"] == template["spec"]
    assert old["spec"]["template"]["spec"]["containers"][0]["image"] == "web:0"


def test_a_real_clusters_dump_goes_on_where_it_was_under_every_controller() -> None:
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
            assert uids <= {each.uid for each in cluster.all("Pod")}, "what ran was taken for garbage"
        # A rollout was under way: it comes to its end, with the replicas that there were.
        web = cluster.find(Key("Deployment.apps", "default", "web"))
        assert web is not None
        assert (web.view.status.updated_replicas, web.view.status.ready_replicas) == (3, 3)
        assert "p-3" not in {each.uid for each in cluster.all("Pod")}
        sets = {each.key.name: each.view.spec.replicas for each in cluster.all("ReplicaSet.apps")}
        assert sets == {"web-5d4f8c7b9d": 3, "web-77c6d8f9b5": 0}
        await cluster.authority.patch(web.key, {"spec": {"replicas": 1}})
        await asyncio.sleep(60)
        assert len([each for each in cluster.all("Pod") if each.metadata.labels.get("pod-template-hash")]) == 1

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"


def without_name(items: list[dict[str, Any]]) -> None:
    del items[1]["metadata"]["name"]


def without_node(items: list[dict[str, Any]]) -> None:
    del items[1]


def twice(items: list[dict[str, Any]]) -> None:
    items.append(items[0])


def broken(items: list[dict[str, Any]]) -> None:
    items[0]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "many"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_name, "item 1 has no metadata.name"),
        (without_node, "Pod default/web-0 is bound to node node-a, which is not in the dump"),
        (twice, "Pod default/web-0 is in the dump twice"),
        (broken, "Pod default/web-0 cannot be loaded"),
    ],
)
def test_what_cannot_be_loaded_is_named(spoil: Any, words: str) -> None:
    shown = dump()
    spoil(shown["items"])
    with pytest.raises(BadDump, match=words):
        plan_dump(objects_of(shown), make_env())
