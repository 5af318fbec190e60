"""Which pod and container `kedge logs` and `kedge exec` choose for a workload."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.cli.resources.catalog import ResourceType
from kedge.cli.resources.pod_choice import (
    Rank,
    chosen_container,
    pod_selector,
    rank_for_commands,
    rank_for_logs,
)
from kedge.errors import Terminal

DEPLOYMENT = ResourceType("apps", "v1", "Deployment", "deployments", "deployment", namespaced=True)
SERVICE = ResourceType("", "v1", "Service", "services", "service", namespaced=True)


def pod(
    name: str, *, node: str = "n", phase: str = "Running", ready: str = "", restarts: int = 0, born: str = "5"
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": ready or "0"}]
    return {
        "metadata": {"name": name, "creationTimestamp": born},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [{"restartCount": restarts}]},
    }


@pytest.mark.parametrize("rank", [rank_for_logs, rank_for_commands])
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (pod("a"), pod("b", node="")),
        (pod("a", phase="Unknown"), pod("b", phase="Pending", ready="1")),
        (pod("a"), pod("b", phase="Unknown", ready="1")),
        (pod("a", ready="9"), pod("b", born="1")),
        (pod("a", ready="1", born="9"), pod("b", ready="2", born="1")),
        (pod("a", born="1"), pod("b", born="2")),
        (pod("a"), pod("b", born="")),
    ],
)
def test_an_assigned_running_pod_that_is_ready_for_longest_comes_first(
    rank: Rank, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    assert rank(better) < rank(worse)


def test_logs_want_the_pod_that_restarted_and_commands_the_one_that_did_not() -> None:
    calm, restless = pod("calm"), pod("restless", restarts=3)
    assert rank_for_logs(restless) < rank_for_logs(calm)
    assert rank_for_commands(calm) < rank_for_commands(restless)


def test_an_ended_pod_has_logs_but_runs_no_commands() -> None:
    ended, waiting = pod("ended", phase="Succeeded"), pod("waiting", phase="Unknown")
    assert rank_for_logs(ended) < rank_for_logs(waiting)
    assert rank_for_commands(waiting) < rank_for_commands(ended)


def test_the_selector_of_a_workload_is_written_as_a_query() -> None:
    expressions = [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "old", "operator": "NotIn", "values": ["yes"]},
        {"key": "here", "operator": "Exists"},
        {"key": "gone", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": expressions}
    body = {"metadata": {"name": "web"}, "spec": {"selector": selector}}
    assert pod_selector(DEPLOYMENT, body) == "app=web,tier in (a,b),old notin (yes),here,!gone"
    assert pod_selector(SERVICE, {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}}}) == "app=web"


@pytest.mark.parametrize("spec", [{}, {"selector": {}}, {"selector": None}])
def test_an_object_without_a_selector_is_refused(spec: dict[str, Any]) -> None:
    for kind in (DEPLOYMENT, SERVICE):
        with pytest.raises(Terminal, match=r"/web selects no pods: name a pod, or a workload"):
            pod_selector(kind, {"metadata": {"name": "web"}, "spec": spec})


def test_the_container_is_the_named_the_annotated_or_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    two = pod("two")
    two["spec"]["containers"] = [{"name": "main"}, {"name": "side"}]
    two["spec"]["initContainers"] = [{"name": "prepare"}]
    assert chosen_container(two, "side") == "side"
    assert capsys.readouterr().err == ""
    assert chosen_container(two, "") == "main"
    assert capsys.readouterr().err == 'Defaulted container "main" out of: main, side, prepare (init)\n'
    two["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "side"}
    assert chosen_container(two, "") == "side"
    assert chosen_container(pod("one"), "") == "main"
    assert capsys.readouterr() == ("", "")
