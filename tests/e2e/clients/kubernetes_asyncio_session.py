"""A session with `kubernetes_asyncio`: typed client, watch beside writes, dynamic client."""

from __future__ import annotations

import asyncio

import pytest
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.dynamic import DynamicClient


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"session": "asyncio"}), data=data)


async def follow(core: client.CoreV1Api, start: str, seen: list[tuple[str, str]]) -> None:
    async with watch.Watch() as stream:
        async for event in stream.stream(
            core.list_namespaced_config_map,
            "default",
            label_selector="session=asyncio",
            resource_version=start,
            timeout_seconds=30,
        ):
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                return


async def session(api: client.ApiClient) -> None:
    core = client.CoreV1Api(api)
    start = (await core.list_namespaced_config_map("default")).metadata.resource_version
    seen: list[tuple[str, str]] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(follow(core, start, seen))
        await core.create_namespaced_config_map("default", config_map("one", a="1"))
        body = await core.read_namespaced_config_map("one", "default")
        body.data["a"] = "2"
        await core.replace_namespaced_config_map("one", "default", body)
        # The label selector no longer matches: the watch reports a deletion, though the object lives.
        await core.patch_namespaced_config_map("one", "default", {"metadata": {"labels": {"session": "other"}}})
    assert seen == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")], seen
    await core.delete_namespaced_config_map("one", "default")
    with pytest.raises(ApiException) as failed:
        await core.read_namespaced_config_map("one", "default")
    assert failed.value.status == 404
    many = [core.create_namespaced_config_map("default", config_map(f"many-{index}")) for index in range(20)]
    await asyncio.gather(*many)
    found = await core.list_namespaced_config_map("default", label_selector="session=asyncio")
    assert len(found.items) == 20


async def dynamically(api: client.ApiClient) -> None:
    dynamic = await DynamicClient(api)
    leases = await dynamic.resources.get(api_version="coordination.k8s.io/v1", kind="Lease")
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "dynamic"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15},
    }
    await leases.create(body=body, namespace="default")
    assert (await leases.get(name="dynamic", namespace="default")).spec.holderIdentity == "a"
    await leases.delete(name="dynamic", namespace="default")


async def main() -> None:
    await config.load_kube_config()
    async with client.ApiClient() as api:
        await session(api)
        await dynamically(api)
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
