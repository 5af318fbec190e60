"""A session with the official `kubernetes` package: typed client, dynamic client and watch."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable

import pytest
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, UnprocessibleEntityError
from kubernetes.informer import ADDED, DELETED, SharedInformer


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"session": "typed"}), data=data)


def typed(core: client.CoreV1Api, apps: client.AppsV1Api) -> None:
    """Create, read, update, patch, list in pages and delete with generated types."""
    made = core.create_namespaced_config_map("default", config_map("typed", a="1"))
    assert made.metadata.uid
    assert made.metadata.creation_timestamp.tzinfo is not None

    stale = core.read_namespaced_config_map("typed", "default")
    made.data["a"] = "2"
    assert core.replace_namespaced_config_map("typed", "default", made).data == {"a": "2"}
    check_fails(409, "Conflict", core.replace_namespaced_config_map, "typed", "default", stale)
    check_fails(409, "AlreadyExists", core.create_namespaced_config_map, "default", config_map("typed"))
    check_fails(422, "Invalid", core.create_namespaced_config_map, "default", config_map("No Such Name"))
    patched = core.patch_namespaced_config_map("typed", "default", {"data": {"b": "3"}})
    assert patched.data == {"a": "2", "b": "3"}

    for index in range(5):
        core.create_namespaced_config_map("default", config_map(f"page-{index}"))
    page = core.list_namespaced_config_map("default", label_selector="session=typed", limit=4)
    assert len(page.items) == 4
    rest = core.list_namespaced_config_map("default", label_selector="session=typed", _continue=page.metadata._continue)
    assert len(rest.items) == 2
    assert rest.metadata._continue is None

    deleted = core.delete_namespaced_config_map("typed", "default")
    assert (deleted["status"], deleted["details"]["kind"]) == ("Success", "configmaps")
    check_fails(404, "NotFound", core.read_namespaced_config_map, "typed", "default")
    core.delete_collection_namespaced_config_map("default", label_selector="session=typed")
    assert core.list_namespaced_config_map("default", label_selector="session=typed").items == []

    apps.create_namespaced_deployment("default", deployment("typed"))
    apps.patch_namespaced_deployment_scale("typed", "default", {"spec": {"replicas": 3}})
    assert apps.read_namespaced_deployment_scale("typed", "default").spec.replicas == 3
    status = {"status": {"observedGeneration": 1}}
    assert apps.patch_namespaced_deployment_status("typed", "default", status).status.observed_generation == 1
    apps.delete_namespaced_deployment("typed", "default", propagation_policy="Background")


def deployment(name: str) -> client.V1Deployment:
    labels = {"app": name}
    pod = client.V1PodSpec(containers=[client.V1Container(name="main", image="x")])
    template = client.V1PodTemplateSpec(metadata=client.V1ObjectMeta(labels=labels), spec=pod)
    spec = client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template)
    return client.V1Deployment(metadata=client.V1ObjectMeta(name=name, labels=labels), spec=spec)


def check_fails(code: int, reason: str, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(ApiException) as failed:
        call(*arguments)
    assert failed.value.status == code, failed.value
    assert json.loads(failed.value.body)["reason"] == reason, failed.value
    assert failed.value.headers["Content-Type"] == "application/json"


def watched(core: client.CoreV1Api) -> None:
    """A watch after a list gets every later change once, and a compacted or future start is reported."""
    start = core.list_namespaced_config_map("default").metadata.resource_version
    core.create_namespaced_config_map("default", config_map("watched", a="1"))
    core.patch_namespaced_config_map("watched", "default", {"data": {"a": "2"}})
    core.delete_namespaced_config_map("watched", "default")
    seen = []
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_config_map, "default", resource_version=start, timeout_seconds=30):
        seen.append((event["type"], event["object"].metadata.name, event["object"].data))
        if event["type"] == "DELETED":
            stream.stop()
    assert seen == [
        ("ADDED", "watched", {"a": "1"}),
        ("MODIFIED", "watched", {"a": "2"}),
        ("DELETED", "watched", {"a": "2"}),
    ], seen
    ended = list(watch.Watch().stream(core.list_namespaced_config_map, "default", timeout_seconds=1))
    assert all(event["type"] == "ADDED" for event in ended)


def informed(core: client.CoreV1Api) -> None:
    """The shared informer fills its cache from a list and follows by watch."""
    informer = SharedInformer(core.list_namespaced_config_map, namespace="default", label_selector="session=typed")
    seen: queue.Queue[tuple[str, str]] = queue.Queue()
    informer.add_event_handler(ADDED, lambda found: seen.put((ADDED, found.metadata.name)))
    informer.add_event_handler(DELETED, lambda found: seen.put((DELETED, found.metadata.name)))
    core.create_namespaced_config_map("default", config_map("listed"))
    informer.start()
    assert seen.get(timeout=20) == (ADDED, "listed")
    core.create_namespaced_config_map("default", config_map("followed"))
    assert seen.get(timeout=20) == (ADDED, "followed")
    assert informer.cache.get_by_key("default/followed").metadata.name == "followed"
    for name in ("listed", "followed"):
        core.delete_namespaced_config_map(name, "default")
        assert seen.get(timeout=20) == (DELETED, name)


def dynamically(api: client.ApiClient) -> None:
    """The dynamic client finds kinds by discovery and writes plain dictionaries."""
    found = dynamic.DynamicClient(api)
    maps = found.resources.get(api_version="v1", kind="ConfigMap")
    deployments = found.resources.get(api_version="apps/v1", kind="Deployment")
    assert "deploy" in deployments.short_names
    assert maps.namespaced
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dynamic"}, "data": {"a": "1"}}
    made = maps.create(body=body, namespace="default")
    stale = {**body, "metadata": {"name": "dynamic", "resourceVersion": made.metadata.resourceVersion}}
    maps.patch(
        body={"data": {"a": "2"}}, name="dynamic", namespace="default", content_type="application/merge-patch+json"
    )
    with pytest.raises(ConflictError):
        maps.replace(body=stale, namespace="default")
    with pytest.raises(UnprocessibleEntityError):
        maps.create(body={**body, "metadata": {"name": "No"}}, namespace="default")
    assert [each.metadata.name for each in maps.get(field_selector="metadata.name=dynamic").items] == ["dynamic"]
    for event in maps.watch(namespace="default", name="dynamic", timeout=5):
        assert event["object"].data.a == "2"
        break
    maps.delete(name="dynamic", namespace="default")
    with pytest.raises(NotFoundError):
        maps.get(name="dynamic", namespace="default")
    deployments.create(body=api.sanitize_for_serialization(deployment("dynamic")), namespace="default")
    scaled = deployments.scale.patch(
        body={"spec": {"replicas": 4}}, name="dynamic", namespace="default", content_type="application/merge-patch+json"
    )
    assert scaled.spec.replicas == 4
    deployments.delete(name="dynamic", namespace="default")


def main() -> None:
    config.load_kube_config()
    core = client.CoreV1Api()
    assert client.VersionApi().get_code().git_version.startswith("v1.")
    assert (
        client.AuthenticationV1Api().create_self_subject_review(client.V1SelfSubjectReview()).status.user_info.username
    )
    typed(core, client.AppsV1Api())
    watched(core)
    informed(core)
    with client.ApiClient() as api:
        dynamically(api)
    print("done", flush=True)
    os._exit(0)  # the informer's thread waits for its watch, which has no end


if __name__ == "__main__":
    main()
