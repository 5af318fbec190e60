"""A session with `kr8s`: objects with methods, label selection, watch, scale, wait."""

from __future__ import annotations

import asyncio
from typing import Any

import kr8s
import pytest
from kr8s.asyncio import api as connect
from kr8s.asyncio.objects import ConfigMap, Deployment, Node


async def followed(api: Any) -> None:
    """A watch by label gets the changes that are made beside it."""
    seen: list[str] = []
    started = asyncio.Event()

    async def follow() -> None:
        async for kind, found in api.watch("configmaps", namespace="default", label_selector="session=kr8s"):
            seen.append(kind)
            started.set()
            assert found.name == "followed"
            if kind == "DELETED":
                return

    body = {"metadata": {"name": "followed", "namespace": "default", "labels": {"session": "kr8s"}}, "data": {"a": "1"}}
    made = await ConfigMap(body, api=api)
    await made.create()
    task = asyncio.ensure_future(follow())
    await asyncio.wait_for(started.wait(), 30)
    await made.patch({"data": {"a": "2"}})
    await made.refresh()
    assert made.data["a"] == "2"
    await made.label(color="blue")
    await made.delete()
    await asyncio.wait_for(task, 30)
    assert seen == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"], seen


async def main() -> None:
    api = await connect()
    assert (await api.version())["major"] == "1"
    resources = [each["name"] for each in await api.api_resources()]
    assert "deployments" in resources
    assert [each async for each in api.get("pods", namespace="default")] == []
    with pytest.raises(kr8s.NotFoundError):
        await ConfigMap.get("missing", namespace="default", api=api)
    await followed(api)

    labels = {"app": "kr8s"}
    containers = [{"name": "main", "image": "x"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    deployment = await Deployment(
        {
            "metadata": {"name": "kr8s", "namespace": "default", "labels": labels},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
        api=api,
    )
    await deployment.create()
    found = [each async for each in api.get("deployments", namespace="default", label_selector=labels)]
    assert [each.name for each in found] == ["kr8s"]
    await deployment.patch({"status": {"conditions": [{"type": "Available", "status": "True"}]}}, subresource="status")
    await deployment.wait("condition=Available", timeout=20)
    await deployment.delete(propagation_policy="Background")

    node = await Node({"metadata": {"name": "kr8s"}}, api=api)
    await node.create()
    await node.cordon()
    assert node.unschedulable
    await node.uncordon()
    await node.delete()
    assert not await node.exists()
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
