"""Validation: valid manifests pass, with warnings where needed, and all errors are reported at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.checks import DELETE, check, errors_of, kind_of
from tests.unit.api.manifests import manifest, manifests

from kedge.api.codec import encode_json
from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS
from kedge.api.validation import REPORTED_FIELDS_MAX, check_object
from kedge.api.views import decode_view
from kedge.errors import Invalid

# -- what is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_a_valid_manifest_of_every_kind_passes_without_a_warning(obj: dict[str, Any]) -> None:
    checked = check(obj)
    assert checked.warnings == ()
    kind = kind_of(obj)
    if kind.view is not None:
        assert checked.view == decode_view(kind, encode_json(obj))
    assert checked.view.name == obj["metadata"]["name"]


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_defaults_keep_a_valid_manifest_valid(obj: dict[str, Any]) -> None:
    apply_defaults(kind_of(obj), obj)
    assert check(obj).warnings == ()


def test_nulls_in_a_manifest_count_as_absent() -> None:
    obj = manifest("Deployment")
    obj["metadata"]["creationTimestamp"] = None
    obj["spec"]["template"]["metadata"]["creationTimestamp"] = None
    obj["spec"]["paused"] = None
    obj["status"] = None
    assert check(obj) == check(manifest("Deployment"))


def test_empty_maps_and_lists_count_as_absent() -> None:
    obj = manifest("Pod")
    obj["metadata"] |= {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}
    obj["spec"] |= {"nodeSelector": {}, "overhead": {}, "tolerations": [], "topologySpreadConstraints": []}
    obj["spec"]["containers"][0]["resources"] = {"limits": {}, "requests": {}}
    obj["status"] = {}
    bare = manifest("Pod")
    for field in ("nodeSelector", "overhead", "tolerations", "topologySpreadConstraints"):
        del bare["spec"][field]
    del bare["spec"]["containers"][0]["resources"], bare["status"]
    assert check(obj) == check(bare)
    for kind, field in (("ZoneQuota", "spec"), ("NodeAllocation", "status"), ("ConfigMap", "data")):
        empty = manifest(kind)
        empty[field] = {"zones": {}, "entries": {}} if kind != "ConfigMap" else {}
        check(empty)


# -- warnings --------------------------------------------------------------------------------------


def test_every_field_that_is_not_acted_on_has_a_warning() -> None:
    obj = manifest("Pod")
    obj["spec"]["dnsPolicy"] = "ClusterFirst"
    obj["spec"]["containers"][0]["stdin"] = True
    obj["spec"]["affinity"]["podAffinity"]["nonsense"] = {"deep": [1]}
    obj["extra"] = 1
    obj["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    checked = check(obj)
    assert sorted(warning.split(":")[0] for warning in checked.warnings) == [
        "extra",
        "spec.affinity.podAffinity.nonsense",
        "spec.containers[0].stdin",
        "spec.dnsPolicy",
    ]
    assert all("does not act on it" in warning for warning in checked.warnings)
    assert checked.view == check(manifest("Pod")).view


def test_a_kind_that_is_only_stored_has_no_warnings() -> None:
    obj = manifest("ConfigMap")
    obj["anything"] = {"else": 1}
    assert check(obj).warnings == ()


def test_an_unknown_alternative_has_a_warning_and_is_accepted() -> None:
    obj = manifest("Pod")
    obj["spec"]["containers"][0]["livenessProbe"] = {"quic": {"port": 80}}
    obj["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}]
    assert [warning.split(":")[0] for warning in check(obj).warnings] == [
        "spec.containers[0].env[0].valueFrom.fileKeyRef",
        "spec.containers[0].livenessProbe.quic",
    ]


def test_a_variable_may_have_a_resource_as_its_source() -> None:
    obj = manifest("Pod")
    obj["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]
    assert not check(obj).warnings


# -- all at once -----------------------------------------------------------------------------------


def test_every_bad_field_is_reported_at_once() -> None:
    found = errors_of(
        "Pod",
        ("metadata/name", "Not_A_Name"),
        ("metadata/labels", {"-bad": "x"}),
        ("spec/containers/0/name", DELETE),
        ("spec/containers/0/ports/0/containerPort", 70000),
        ("spec/containers/0/resources/requests/cpu", "1 core"),
        ("spec/containers/-", 5),
        ("spec/containers/-", {"name": "other", "ports": "none"}),
        ("spec/containers/-", {"name": "other"}),
        ("spec/restartPolicy", "Sometimes"),
        ("spec/priority", "high"),
        ("status/phase", 3),
    )
    assert [each.split(": ")[0] for each in found] == [
        "spec.containers[0].resources.requests[cpu]",
        "spec.containers[1]",
        "spec.containers[2].ports",
        "spec.priority",
        "status.phase",
        "metadata.name",
        "metadata.labels",
        "spec.containers[0].name",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[3].name",
        "spec.restartPolicy",
    ]


def test_the_message_has_the_format_of_kubernetes() -> None:
    obj = manifest("Deployment")
    obj["spec"]["replicas"] = -1
    with pytest.raises(Invalid) as caught:
        check(obj)
    assert caught.value.message == (
        'Deployment.apps "web" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0'
    )
    assert str(caught.value.key) == "Deployment.apps/team-a/web"
    obj["spec"]["selector"] = None
    with pytest.raises(Invalid) as caught:
        check(obj)
    assert caught.value.message == (
        'Deployment.apps "web" is invalid: [spec.replicas: Invalid value: -1: must be greater than or equal to 0,'
        " spec.selector: Required value]"
    )
    assert [error.type for error in caught.value.errors] == ["FieldValueInvalid", "FieldValueRequired"]


def test_an_empty_object_gets_an_error_for_every_required_field() -> None:
    with pytest.raises(Invalid) as caught:
        check_object(KINDS.resolve("po"), b"{}")
    assert [str(error) for error in caught.value.errors] == [
        "metadata.name: Required value: name or generateName is required",
        "metadata.namespace: Required value",
        "spec.containers: Required value",
    ]


def test_long_lists_of_errors_and_warnings_are_truncated_and_counted() -> None:
    flood = manifest("Pod")
    flood["spec"]["containers"] = list(range(5000))
    with pytest.raises(Invalid, match="and 4900 more") as caught:
        check(flood)
    assert len(caught.value.errors) == REPORTED_FIELDS_MAX
    odd = manifest("Pod")
    odd["spec"] |= {f"x{n}": n for n in range(5000)}
    assert len(check(odd).warnings) == REPORTED_FIELDS_MAX


def test_a_long_value_is_truncated_in_an_error() -> None:
    (found,) = errors_of("Pod", ("metadata/labels", {"a": "x" * 100_000}))
    assert len(found) < 1000


# -- real clusters ---------------------------------------------------------------------------------


def test_a_pod_of_a_real_cluster_has_only_warnings() -> None:
    obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generateName": "coredns-7f9c-",
            "labels": {"k8s-app": "kube-dns", "pod-template-hash": "7f9c"},
            "managedFields": [{"manager": "kubelet", "operation": "Update"}],
            "name": "coredns-7f9c-2xkzq",
            "namespace": "kube-system",
            "ownerReferences": [
                {"apiVersion": "apps/v1", "blockOwnerDeletion": True, "controller": True, "kind": "ReplicaSet",
                 "name": "coredns-7f9c", "uid": "a"}
            ],
            "resourceVersion": "812",
            "uid": "b",
        },
        "spec": {
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"podAffinityTerm": {"labelSelector": {"matchExpressions": [
                    {"key": "k8s-app", "operator": "In", "values": ["kube-dns"]}]},
                    "topologyKey": "kubernetes.io/hostname"}, "weight": 100}]}},
            "containers": [{
                "args": ["-conf", "/etc/coredns/Corefile"], "image": "coredns:v1", "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {"failureThreshold": 5, "httpGet": {"path": "/health", "port": 8080, "scheme": "HTTP"},
                                  "initialDelaySeconds": 60, "periodSeconds": 10, "successThreshold": 1,
                                  "timeoutSeconds": 5},
                "name": "coredns",
                "ports": [{"containerPort": 53, "name": "dns", "protocol": "UDP"},
                          {"containerPort": 53, "name": "dns-tcp", "protocol": "TCP"}],
                "resources": {"limits": {"memory": "170Mi"}, "requests": {"cpu": "100m", "memory": "70Mi"}},
                "securityContext": {"allowPrivilegeEscalation": False},
                "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [{"mountPath": "/etc/coredns", "name": "config-volume", "readOnly": True}]}],
            "dnsPolicy": "Default",
            "enableServiceLinks": True,
            "nodeName": "node-1",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 2000000000,
            "priorityClassName": "system-cluster-critical",
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccountName": "coredns",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"},
                            {"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists",
                             "tolerationSeconds": 300}],
            "volumes": [{"configMap": {"defaultMode": 420, "name": "coredns"}, "name": "config-volume"}],
        },
        "status": {
            "conditions": [{"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:10Z", "status": "True",
                            "type": "Ready"}],
            "containerStatuses": [{"containerID": "containerd://x", "image": "coredns:v1", "imageID": "sha256:x",
                                   "lastState": {}, "name": "coredns", "ready": True, "restartCount": 0,
                                   "started": True, "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}}}],
            "hostIP": "10.0.0.1",
            "hostIPs": [{"ip": "10.0.0.1"}],
            "phase": "Running",
            "podIP": "10.1.0.5",
            "podIPs": [{"ip": "10.1.0.5"}],
            "qosClass": "Burstable",
            "startTime": "2026-01-01T00:00:00Z",
        },
    }  # fmt: skip
    checked = check(obj)
    assert {warning.split(":")[0] for warning in checked.warnings} == {
        "spec.containers[0].imagePullPolicy", "spec.containers[0].securityContext", "spec.dnsPolicy",
        "spec.securityContext", "status.hostIPs",
    }  # fmt: skip
