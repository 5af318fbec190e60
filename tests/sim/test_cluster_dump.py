"""A real cluster's dump as the initial state: nothing is lost, ledgers are made, and what is wrong is named."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from tests.objects import deployment, make_env, node, pod, pod_key, resource_quota

from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.dump import BadDump, objects_of, plan_dump
from kedge.sim.invariants import Judge
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
