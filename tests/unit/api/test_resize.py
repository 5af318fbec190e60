"""The rules of the resize subresource, with the texts of Kubernetes 1.36."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from tests.objects import POD

from kedge.api.codec import encode_object
from kedge.api.validation import check_object, check_resize
from kedge.api.validation.resize import qos_class
from kedge.api.views import PodView
from kedge.errors import Invalid

Edit = Callable[[dict[str, Any]], object]


def manifest(**spec: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    containers = [{"name": "main", "image": "web:1", "resources": resources}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"containers": containers, **spec},
    }


def view_of(pod: dict[str, Any]) -> PodView:
    view = check_object(POD, encode_object(pod)).view
    assert isinstance(view, PodView)
    return view


def resize(pod: dict[str, Any], edit: Edit) -> list[str]:
    """The errors of a resize, each with its field."""
    changed = deepcopy(pod)
    edit(changed)
    try:
        check_resize(POD, view_of(pod), view_of(changed))
    except Invalid as error:
        return [str(each) for each in error.errors]
    return []


def main(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def test_requests_and_limits_of_cpu_and_memory_may_change_and_be_added() -> None:
    def edit(pod: dict[str, Any]) -> None:
        main(pod)["resources"] = {
            "requests": {"cpu": "1500m", "memory": "512Mi"},
            "limits": {"cpu": "3", "memory": "4Gi"},
        }

    assert resize(manifest(), edit) == []
    pod = manifest()
    del main(pod)["resources"]["limits"]
    assert resize(pod, lambda each: main(each)["resources"].update(limits={"cpu": "2"})) == []


@pytest.mark.parametrize(
    ("edit", "errors"),
    [
        (
            lambda pod: main(pod)["resources"]["requests"].pop("memory"),
            ["spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"],
        ),
        (
            lambda pod: main(pod)["resources"].pop("limits"),
            ["spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"],
        ),
        (
            lambda pod: main(pod)["resources"]["requests"].update({"ephemeral-storage": "1Gi"}),
            ["spec: Forbidden: only cpu and memory resources are mutable"],
        ),
        (
            lambda pod: main(pod).update(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}]),
            ["spec: Forbidden: only cpu and memory resources are mutable"],
        ),
        (
            lambda pod: main(pod).update(name="other"),
            ["spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"],
        ),
        (
            lambda pod: pod["spec"]["containers"].append({"name": "b", "image": "b"}),
            ["spec.containers: Forbidden: containers may not be added or removed on resize"],
        ),
        (
            lambda pod: main(pod)["resources"].update(requests={"cpu": "2", "memory": "2Gi"}),
            ['spec: Invalid value: "Guaranteed": Pod QOS Class may not change as a result of resizing'],
        ),
    ],
)
def test_a_resize_that_kubernetes_forbids_is_refused_with_its_field(edit: Edit, errors: list[str]) -> None:
    assert resize(manifest(), edit) == errors


def test_init_containers_and_sidecars_are_resized_too() -> None:
    resources = {"requests": {"cpu": "100m"}}
    never = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    init = [
        {"name": "first", "image": "a", "resources": resources},
        {"name": "side", "image": "b", "resources": deepcopy(resources), "restartPolicy": "Always"},
    ]
    pod = manifest(initContainers=init)

    def grow(index: int) -> Edit:
        return lambda each: each["spec"]["initContainers"][index]["resources"]["requests"].update(cpu="200m")

    assert resize(pod, grow(0)) == []
    assert resize(pod, grow(1)) == []
    assert resize(pod, lambda each: each["spec"]["initContainers"][1].update(resizePolicy=never)) == [
        "spec.initContainers[1]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"
    ]


def test_resources_of_the_pod_itself_may_change_and_not_be_removed() -> None:
    own = {"requests": {"cpu": "2", "memory": "1Gi"}}
    assert resize(manifest(resources=own), lambda pod: pod["spec"]["resources"]["requests"].update(cpu="3")) == []
    assert resize(manifest(resources=own), lambda pod: pod["spec"].pop("resources")) == [
        "spec.resources: Forbidden: pod-level resources cannot be removed"
    ]
    assert resize(manifest(resources=own), lambda pod: pod["spec"]["resources"]["requests"].pop("memory")) == [
        "spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"
    ]


def test_a_pod_is_not_resized_on_a_node_that_reports_no_resources() -> None:
    running = {"name": "main", "image": "web:1", "imageID": "", "ready": True, "restartCount": 0}
    running["state"] = {"running": {"startedAt": "2030-01-01T00:00:00Z"}}
    pod = manifest() | {"status": {"phase": "Running", "containerStatuses": [running]}}

    def edit(pod: dict[str, Any]) -> None:
        main(pod)["resources"]["requests"]["cpu"] = "500m"

    assert resize(pod, edit) == ["spec: Forbidden: Pod running on node without support for resize"]
    running["resources"] = deepcopy(main(pod)["resources"])
    assert resize(pod, edit) == []


def test_a_static_pod_is_not_resized() -> None:
    pod = manifest()
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    found = resize(pod, lambda each: main(each)["resources"]["requests"].update(cpu="500m"))
    assert found == ["Forbidden: static pods cannot be resized"]


@pytest.mark.parametrize(
    ("policies", "restart", "error"),
    [
        ([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}], "Always", ""),
        ([{"resourceName": "gpu", "restartPolicy": "NotRequired"}], "Always", 'Unsupported value: "gpu"'),
        ([{"resourceName": "cpu", "restartPolicy": "Never"}], "Always", 'Unsupported value: "Never"'),
        ([{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2, "Always", 'Duplicate value: "cpu"'),
        (
            [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
            "Never",
            "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
        ),
    ],
)
def test_resize_policies_are_checked(policies: list[Any], restart: str, error: str) -> None:
    pod = manifest(restartPolicy=restart)
    main(pod)["resizePolicy"] = policies
    if not error:
        assert view_of(pod).spec.containers[0].resize_policy[0].restart_policy == "RestartContainer"
        return
    with pytest.raises(Invalid) as caught:
        view_of(pod)
    assert error in caught.value.message


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Mi"}}, "Burstable"),
        ({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}, "Burstable"),
        ({"requests": {"cpu": "0"}}, "BestEffort"),
    ],
)
def test_the_class_of_a_pod_is_that_of_kubernetes(resources: dict[str, Any], found: str) -> None:
    pod = manifest()
    main(pod)["resources"] = resources
    assert qos_class(view_of(pod).spec) == found
