"""Limit ranges, and pods with the resources that a test states."""

from __future__ import annotations

from typing import Any

from tests.objects import pod


def limit_range(*limits: dict[str, Any], name: str = "limits") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"limits": list(limits)},
    }


def for_containers(**fields: Any) -> dict[str, Any]:
    return {"type": "Container", **fields}


def bare_pod(name: str = "web-0", **resources: Any) -> dict[str, Any]:
    found = pod(name)
    found["spec"]["containers"][0]["resources"] = resources
    return found
