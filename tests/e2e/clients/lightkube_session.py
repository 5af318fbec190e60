"""A session with `lightkube`: typed resources, every patch, watch, subresources, conditions."""

from __future__ import annotations

import pytest
from lightkube import ApiError, Client
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Namespace
from lightkube.types import CascadeType, PatchType


def deployment(name: str) -> Deployment:
    labels = {"app": name}
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels=labels), spec=PodSpec(containers=[Container(name="main", image="x")])
    )
    spec = DeploymentSpec(replicas=1, selector=LabelSelector(matchLabels=labels), template=template)
    return Deployment(metadata=ObjectMeta(name=name, namespace="light"), spec=spec)


def main() -> None:
    client = Client(namespace="light")
    client.create(Namespace(metadata=ObjectMeta(name="light")))
    made = client.create(ConfigMap(metadata=ObjectMeta(name="light", labels={"session": "light"}), data={"a": "1"}))
    start = made.metadata.resourceVersion
    made.data["a"] = "2"
    client.replace(made)
    client.patch(ConfigMap, "light", {"data": {"b": "3"}}, patch_type=PatchType.MERGE)
    client.patch(ConfigMap, "light", {"data": {"c": "4"}}, patch_type=PatchType.STRATEGIC)
    add = [{"op": "add", "path": "/data/d", "value": "5"}]
    client.patch(ConfigMap, "light", add, patch_type=PatchType.JSON)
    assert client.get(ConfigMap, "light").data == {"a": "2", "b": "3", "c": "4", "d": "5"}
    client.set(ConfigMap, "light", annotations={"note": "x"})
    with pytest.raises(ApiError) as failed:
        client.replace(made)
    status = failed.value.status
    assert (status.reason, status.details.kind) == ("Conflict", "configmaps")

    names = {f"light-{index}" for index in range(12)}
    for name in names:
        client.create(ConfigMap(metadata=ObjectMeta(name=name, labels={"session": "light"})))
    listed = client.list(ConfigMap, labels={"session": "light"}, chunk_size=5)
    assert {each.metadata.name for each in listed} == names | {"light"}
    seen = []
    for operation, found in client.watch(ConfigMap, labels={"session": "light"}, resource_version=start):
        seen.append((operation, found.metadata.name))
        if len(seen) == 5 + len(names):
            break
    assert seen[:5] == [("MODIFIED", "light")] * 5, seen
    client.deletecollection(ConfigMap)
    assert list(client.list(ConfigMap)) == []

    client.create(deployment("light"))
    scale = client.get(Deployment.Scale, "light")
    scale.spec = ScaleSpec(replicas=2)
    client.replace(scale, "light")
    current = client.get(Deployment, "light")
    assert current.spec.replicas == 2
    condition = {"type": "Available", "status": "True", "reason": "Test", "message": ""}
    body = {"status": {"conditions": [condition]}}
    client.patch(Deployment.Status, "light", body, patch_type=PatchType.MERGE)
    client.wait(Deployment, "light", for_conditions=["Available"])
    client.delete(Deployment, "light", cascade=CascadeType.BACKGROUND)
    assert "default" in {each.metadata.name for each in client.list(Namespace)}
    print("done")


if __name__ == "__main__":
    main()
