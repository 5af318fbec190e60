"""Defaults: as Kubernetes stores them, and idempotent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.json_values import values
from tests.unit.api.manifests import manifests

from kedge.api.codec import Draft, encode_object, same_json
from kedge.api.defaults import apply_defaults, apply_draft_defaults
from kedge.api.kinds import KINDS, Kind


def defaulted(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    apply_defaults(KINDS.resolve(kind), obj)
    return obj


def test_a_pod_gets_its_defaults() -> None:
    pod = defaulted(
        "pod",
        {
            "spec": {
                "hostNetwork": True,
                "restartPolicy": "",
                "containers": [
                    {
                        "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82, "protocol": "UDP"}],
                        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
                        "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 3},
                        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    }
                ],
                "initContainers": [{"resources": {"limits": {"cpu": "1"}}}],
            }
        },
    )
    container = pod["spec"].pop("containers")[0]
    assert pod["spec"] == {
        "hostNetwork": True,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "initContainers": [{"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}],
    }
    assert container == {
        "ports": [
            {"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
            {"containerPort": 81, "hostPort": 82, "protocol": "UDP"},
        ],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}},
        "livenessProbe": {
            "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
            "periodSeconds": 3,
            "timeoutSeconds": 1,
            "successThreshold": 1,
            "failureThreshold": 3,
        },
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}}],
    }


def test_an_explicit_zero_grace_stays_zero() -> None:
    pod = defaulted("pod", {"spec": {"terminationGracePeriodSeconds": 0}})
    assert pod["spec"]["terminationGracePeriodSeconds"] == 0


def test_workloads_get_their_defaults() -> None:
    deployment = defaulted("deploy", {"spec": {"replicas": 0, "template": {"spec": {}}}})["spec"]
    assert deployment == {
        "replicas": 0,
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
        "template": {
            "spec": {
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "terminationGracePeriodSeconds": 30,
            }
        },
    }
    recreate = defaulted("deploy", {"spec": {"strategy": {"type": "Recreate"}}})["spec"]
    assert recreate["strategy"] == {"type": "Recreate"}
    assert recreate["replicas"] == 1
    assert defaulted("rs", {"spec": {}})["spec"] == {"replicas": 1}


def test_a_job_runs_once_by_default() -> None:
    once = defaulted("job", {"spec": {}})["spec"]
    assert (once["completions"], once["parallelism"], once["backoffLimit"], once["suspend"]) == (1, 1, 6, False)
    queue = defaulted("job", {"spec": {"parallelism": 3}})["spec"]
    assert "completions" not in queue
    counted = defaulted("job", {"spec": {"completions": 3}})["spec"]
    assert (counted["completions"], counted["parallelism"]) == (3, 1)


def test_an_autoscaler_scales_on_cpu_by_default() -> None:
    spec = defaulted("hpa", {"spec": {"behavior": {"scaleUp": {"selectPolicy": "Min"}}}})["spec"]
    assert spec["minReplicas"] == 1
    assert spec["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
    assert spec["behavior"]["scaleUp"]["selectPolicy"] == "Min"
    assert len(spec["behavior"]["scaleUp"]["policies"]) == 2
    assert spec["behavior"]["scaleDown"] == {
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    }


def test_the_defaults_of_one_object_are_not_shared_with_the_next() -> None:
    first = defaulted("hpa", {"spec": {"behavior": {}}})
    first["spec"]["behavior"]["scaleUp"]["policies"][0]["value"] = 99
    second = defaulted("hpa", {"spec": {"behavior": {}}})
    assert second["spec"]["behavior"]["scaleUp"]["policies"][0]["value"] == 4


def test_services_and_secrets_get_their_defaults() -> None:
    ports = [{"port": 80}, {"port": 81, "targetPort": "http"}]
    service = defaulted("svc", {"spec": {"ports": ports}})["spec"]
    assert service["type"] == "ClusterIP"
    assert [port["targetPort"] for port in service["ports"]] == [80, "http"]
    assert [port["protocol"] for port in service["ports"]] == ["TCP", "TCP"]
    secret = defaulted("secret", {"stringData": {"a": "secret"}, "data": {"b": "eA=="}})
    assert secret == {"type": "Opaque", "data": {"a": "c2VjcmV0", "b": "eA=="}}
    assert defaulted("pc", {})["preemptionPolicy"] == "PreemptLowerPriority"
    assert defaulted("endpointslice", {"ports": [{}]})["ports"] == [{"protocol": "TCP"}]


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_defaults_are_idempotent(obj: dict[str, Any]) -> None:
    kind = KINDS.of_api(obj["apiVersion"], obj["kind"])
    before = copy.deepcopy(obj)
    assert apply_defaults(kind, obj) is not same_json(obj, before)
    once = copy.deepcopy(obj)
    assert apply_defaults(kind, obj) is False
    assert same_json(obj, once)


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_a_draft_gets_the_same_defaults(obj: dict[str, Any]) -> None:
    kind = KINDS.of_api(obj["apiVersion"], obj["kind"])
    if kind.kind == "Secret":
        obj["stringData"] = {"a": "b"}
    draft = Draft.parse(encode_object(obj))
    drafted = apply_draft_defaults(kind, draft)
    assert apply_defaults(kind, obj) is drafted
    assert same_json(Draft.parse(draft.encode()).get("spec"), obj.get("spec"))
    assert same_json({**obj, "metadata": 0}, {**_whole(draft), "metadata": 0})


def _whole(draft: Draft) -> dict[str, Any]:
    return {"apiVersion": draft.api_version, "kind": draft.kind, **{name: draft.get(name) for name in draft.fields}}


names = st.sampled_from(
    ["containers", "template", "strategy", "ports", "behavior", "metrics", "completions", "spec", "resources", "limits",
     "livenessProbe", "requests", "httpGet", "rollingUpdate", "scaleUp", "type", "env", "valueFrom", "stringData"]
)  # fmt: skip
strange = st.recursive(
    values, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=4), max_leaves=8
)


@given(st.sampled_from(list(KINDS)), st.dictionaries(names, strange, max_size=4))
def test_defaults_leave_garbage_to_validation(kind: Kind, obj: dict[str, Any]) -> None:
    apply_defaults(kind, obj)
    once = copy.deepcopy(obj)
    assert apply_defaults(kind, obj) is False
    assert same_json(once, obj)


def test_a_pod_with_resources_of_its_own_requests_what_its_containers_do_and_else_its_limits() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "100m"}}}, {"resources": {"requests": {"cpu": "250m"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "300m", "example.com/gpu": "1"}}}],
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
    }
    pod = defaulted("pod", {"spec": spec})
    assert pod["spec"]["resources"]["requests"] == {"cpu": "350m", "memory": "1Gi"}


@pytest.mark.parametrize("resources", [{}, {"requests": {"cpu": "1"}}, {"requests": []}, {"limits": "x"}])
def test_resources_of_a_pod_are_left_alone_without_a_limit_or_a_request_to_take(resources: dict[str, Any]) -> None:
    pod = defaulted("pod", {"spec": {"containers": [{}], "resources": copy.deepcopy(resources)}})
    assert pod["spec"]["resources"] == resources


def test_a_grpc_probe_checks_the_whole_server_by_default() -> None:
    probes = {"livenessProbe": {"grpc": {"port": 1}}, "readinessProbe": {"grpc": {"port": 1, "service": "ready"}}}
    (container,) = defaulted("pod", {"spec": {"containers": [probes]}})["spec"]["containers"]
    assert container["livenessProbe"]["grpc"] == {"port": 1, "service": ""}
    assert container["readinessProbe"]["grpc"] == {"port": 1, "service": "ready"}
