"""Pods of one shell program each, and how tests read their status."""

from __future__ import annotations

from typing import Any

from tests.e2e.torture_cluster import POD
from tests.e2e.up_cluster import condition

from kedge.client.contract import Client
from kedge.keys import Key


def key_of(name: str) -> Key:
    return Key("Pod", "default", name)


def node_key(name: str) -> Key:
    return Key("Node", "", name)


async def make(
    client: Client, name: str, program: str, *, zone: str = "", restart: str = "Always", **container: Any
) -> None:
    """A pod with one container that runs a shell program."""
    main = {"name": "main", "image": "label-only", "command": ["sh", "-c", program], **container}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1, "restartPolicy": restart, "containers": [main]}
    if zone:
        spec["nodeSelector"] = {"topology.kubernetes.io/zone": zone}
    await client.create(POD, {"metadata": {"name": name}, "spec": spec}, namespace="default")


def container(body: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = body.get("status", {}).get("containerStatuses", [])
    return found[0] if found else {}


def waits(body: dict[str, Any]) -> str:
    return str(container(body).get("state", {}).get("waiting", {}).get("reason", ""))


def restarts(body: dict[str, Any]) -> int:
    return int(container(body).get("restartCount", 0))


def is_ready(body: dict[str, Any]) -> bool:
    return condition(body, "Ready") == "True"
