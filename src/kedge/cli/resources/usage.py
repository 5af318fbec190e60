"""Rows of `kedge top`, from `metrics.k8s.io` objects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kedge.api.quantity import Quantity, parse_quantity

Rows = tuple[list[str], list[list[str]]]


def node_usage_rows(
    items: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]], *, sort_by: str = ""
) -> Rows:
    """Header and a row for each node. A node without a report, as one without pods, is listed too, as in kubectl."""
    usages = {each["metadata"]["name"]: each["usage"] for each in items}
    header = ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"]
    ordered = _largest_first(nodes, lambda node: [usages.get(node["metadata"]["name"]) or {}], sort_by)
    return header, [_node_row(each, usages.get(each["metadata"]["name"])) for each in ordered]


def pod_usage_rows(
    items: Sequence[Mapping[str, Any]], *, namespaces: bool, containers: bool = False, sort_by: str = ""
) -> Rows:
    """Header and a row for each pod that a node has reported, or for each of its containers."""
    rows = []
    for each in _largest_first(items, _usages, sort_by):
        place = [each["metadata"].get("namespace", "")] if namespaces else []
        name = each["metadata"]["name"]
        if not containers:
            rows.append([*place, name, *_cells(_usages(each))])
            continue
        parts = _largest_first(each.get("containers") or (), lambda part: [part["usage"]], sort_by)
        rows += [[*place, name, part["name"], *_cells([part["usage"]])] for part in parts]
    names = ["POD", "NAME"] if containers else ["NAME"]
    return [*(["NAMESPACE"] if namespaces else []), *names, "CPU(cores)", "MEMORY(bytes)"], rows


def _usages(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [part["usage"] for part in pod.get("containers") or ()]


def _cells(usages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_cores(_sum(usages, "cpu")), _bytes(_sum(usages, "memory"))]


def _sum(usages: Sequence[Mapping[str, Any]], resource: str) -> float:
    return sum((_amount(each, resource) for each in usages), 0.0)


def _largest_first(
    items: Sequence[Mapping[str, Any]], usages: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]], sort_by: str
) -> list[Mapping[str, Any]]:
    """Items by the usage of a resource; as they were without one."""
    return sorted(items, key=lambda each: -_sum(usages(each), sort_by)) if sort_by else list(items)


def _node_row(node: Mapping[str, Any], usage: Mapping[str, Any] | None) -> list[str]:
    name = str(node["metadata"]["name"])
    if usage is None:
        return [name, *["<unknown>"] * 4]
    capacity = (node.get("status") or {}).get("allocatable") or (node.get("status") or {}).get("capacity") or {}
    cpu, memory = (_amount(usage, resource) for resource in ("cpu", "memory"))
    shares = [_share(used, _amount(capacity, resource)) for used, resource in ((cpu, "cpu"), (memory, "memory"))]
    return [name, _cores(cpu), shares[0], _bytes(memory), shares[1]]


def _amount(amounts: Mapping[str, Any], name: str) -> float:
    found: Quantity = parse_quantity(str(amounts.get(name) or "0"))
    return found.nano / 1e9


def _cores(cores: float) -> str:
    return f"{round(cores * 1000)}m"


def _bytes(amount: float) -> str:
    return f"{round(amount / (1 << 20))}Mi"


def _share(used: float, capacity: float) -> str:
    return f"{round(100 * used / capacity)}%" if capacity else "<unknown>"
