"""Pure parts of the verbs about objects: next steps of errors, orders, and rows of usage."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.cli.resources.next_steps import with_next_step
from kedge.cli.resources.sort_order import sorted_by
from kedge.cli.resources.usage import node_usage_rows, pod_usage_rows
from kedge.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Invalid,
    NotFound,
    OperatingError,
    TooManyRequests,
    Unavailable,
    from_status,
    to_status,
)
from kedge.keys import Key


def sent(error: OperatingError) -> OperatingError:
    """The error as it arrives from a server."""
    return from_status(to_status(error))


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (NotFound('pods "x" not found'), "`kedge get pods` lists those there are"),
        (NotFound('deployments.apps "x" not found'), "`kedge get deployments` lists those there are"),
        (NotFound('pods "x" not found', key=Key("Pod", "a", "x")), "`kedge get pods -n a` lists those there are"),
        (NotFound('pods "x" not found', key=Key("Pod", "default", "x")), "`kedge get pods` lists those there are"),
        (NotFound("no such path"), "check the type and the name"),
        (BadRequest('container "main" in pod "x" is waiting to start: PodInitializing'), "`kedge why x` explains it"),
        (Unavailable("the store does not answer"), "in a moment"),
        (AlreadyExists('pods "x" already exists'), "use another name"),
        (Conflict("modified"), "run the command again"),
        (Invalid("spec.replicas: must not be negative"), "correct that"),
        (TooManyRequests("budget"), "in a moment"),
        (OperatingError("broken"), "log of the server"),
    ],
)
def test_an_error_of_a_server_gets_a_next_step(error: OperatingError, step: str) -> None:
    said = with_next_step(sent(error))
    assert said.startswith(f"{error.message}: ")
    assert step in said


def test_an_error_of_the_command_line_has_its_own() -> None:
    assert with_next_step(NotFound("no kubeconfig: run `kedge up`")) == "no kubeconfig: run `kedge up`"
    assert with_next_step(Unavailable("it is down")) == "it is down"


def ordered(path: str, *values: Any) -> list[Any]:
    rows = [{"v": each} if each is not None else {} for each in values]
    return [each.get("v") for each in sorted_by(path, rows, lambda row: row)]


def test_values_are_sorted_as_what_they_are() -> None:
    assert ordered(".v", 10, 9, 2.5) == [2.5, 9, 10]
    assert ordered(".v", "10", "9") == ["9", "10"]
    assert ordered(".v", "1Gi", "100Mi", "2") == ["2", "100Mi", "1Gi"]
    assert ordered(".v", "b", "10", "a") == ["10", "a", "b"]
    assert ordered("{.v}", "2026-01-02T00:00:00Z", "2026-01-01T09:00:00Z")[0] == "2026-01-01T09:00:00Z"
    assert ordered(".v", 3, None, 1) == [None, 1, 3]


def test_equal_values_keep_their_order_and_a_path_without_values_is_an_error() -> None:
    rows = [("a", {"v": 1}), ("b", {"v": 0}), ("c", {"v": 1})]
    assert [name for name, _ in sorted_by(".v", rows, lambda row: row[1])] == ["b", "a", "c"]
    with pytest.raises(OperatingError, match=r"no object has a field \.w"):
        sorted_by(".w", rows, lambda row: row[1])
    assert sorted_by(".w", [], lambda row: row) == []


def test_a_node_without_a_report_is_listed() -> None:
    nodes = [{"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}} for name in "ab"]
    items = [{"metadata": {"name": "b"}, "usage": {"cpu": "500m", "memory": "256Mi"}}]
    _, rows = node_usage_rows(items, nodes)
    assert rows == [["a", *["<unknown>"] * 4], ["b", "500m", "25%", "256Mi", "25%"]]


def used(name: str, **parts: tuple[str, str]) -> dict[str, Any]:
    containers = [{"name": part, "usage": {"cpu": cpu, "memory": memory}} for part, (cpu, memory) in parts.items()]
    return {"metadata": {"name": name, "namespace": "default"}, "containers": containers}


def test_usage_of_pods_is_by_container_and_the_largest_first() -> None:
    pods = [used("small", a=("1m", "3Mi"), b=("2m", "4Mi")), used("big", a=("5m", "1Mi"), b=("10m", "2Mi"))]
    header, rows = pod_usage_rows(pods, namespaces=False, containers=True, sort_by="cpu")
    assert header == ["POD", "NAME", "CPU(cores)", "MEMORY(bytes)"]
    assert [row[:3] for row in rows] == [
        ["big", "b", "10m"], ["big", "a", "5m"], ["small", "b", "2m"], ["small", "a", "1m"],
    ]  # fmt: skip
    _, rows = pod_usage_rows(pods, namespaces=True, sort_by="memory")
    assert rows == [["default", "small", "3m", "7Mi"], ["default", "big", "15m", "3Mi"]]
    assert [row[0] for row in pod_usage_rows(pods, namespaces=False)[1]] == ["small", "big"]


def test_usage_of_nodes_has_the_largest_first_and_the_silent_last() -> None:
    nodes = [{"metadata": {"name": name}} for name in ("silent", "small", "big")]
    items = [{"metadata": {"name": name}, "usage": {"cpu": cpu}} for name, cpu in (("small", "1m"), ("big", "2m"))]
    assert [row[0] for row in node_usage_rows(items, nodes, sort_by="cpu")[1]] == ["big", "small", "silent"]
