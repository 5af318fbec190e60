"""Validation: clean manifests pass, every rule has its complaint, and all complaints come at once."""

from __future__ import annotations

import contextlib
import copy
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.api.json_values import values
from tests.unit.api.manifests import manifest, manifests

from kedge.api.codec import encode_json, encode_object, parse_object
from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS, Kind
from kedge.api.validation import REPORTED_FIELDS_MAX, Checked, _check_whole, check_object, check_update
from kedge.api.views import View, decode_view
from kedge.api.views.shapes import decoder_of, examine, strict_twin
from kedge.errors import BadRequest, Invalid

DELETE = object()


def kind_of(obj: dict[str, Any]) -> Kind:
    return KINDS.of_api(obj["apiVersion"], obj["kind"])


def check(obj: dict[str, Any]) -> Checked:
    return check_object(kind_of(obj), encode_json(obj))


def put(obj: Any, path: str, value: Any) -> None:
    """Set, or delete, what is at a JSON pointer; `-` appends to a list."""
    *parents, last = (part.replace("~1", "/") for part in path.split("/"))
    for part in parents:
        obj = obj[int(part)] if isinstance(obj, list) else obj.setdefault(part, {})
    if isinstance(obj, list):
        obj.append(value) if last == "-" else obj.__setitem__(int(last), value)
    elif value is DELETE:
        del obj[last]
    else:
        obj[last] = value


def complaints(kind: str, *changes: tuple[str, Any]) -> list[str]:
    obj = manifest(kind)
    for path, value in changes:
        put(obj, path, value)
    with pytest.raises(Invalid) as caught:
        check(obj)
    return [str(error) for error in caught.value.errors]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        found += places(item, (*at, name))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    result = copy.copy(value)
    result[at[0]] = replaced(value[at[0]], at[1:], new)
    return result


def mutated(kind: str, changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    obj = manifest(kind)
    for at, value in changes:
        try:
            obj = replaced(obj, at, copy.deepcopy(value))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return obj


# -- what is right ---------------------------------------------------------------------------------


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_a_clean_manifest_of_every_kind_passes_without_a_warning(obj: dict[str, Any]) -> None:
    checked = check(obj)
    assert checked.warnings == ()
    kind = kind_of(obj)
    if kind.view is not None:
        assert checked.view == decode_view(kind, encode_json(obj))
    assert checked.view.name == obj["metadata"]["name"]


@pytest.mark.parametrize("obj", manifests(), ids=lambda obj: str(obj["kind"]))
def test_defaults_keep_a_clean_manifest_clean(obj: dict[str, Any]) -> None:
    apply_defaults(kind_of(obj), obj)
    assert check(obj).warnings == ()


def test_a_manifest_with_nulls_passes_as_if_they_were_not_there() -> None:
    obj = manifest("Deployment")
    obj["metadata"]["creationTimestamp"] = None
    obj["spec"]["template"]["metadata"]["creationTimestamp"] = None
    obj["spec"]["paused"] = None
    obj["status"] = None
    assert check(obj) == check(manifest("Deployment"))


def test_empty_maps_and_lists_are_as_good_as_absent_ones() -> None:
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


def test_every_field_that_is_not_acted_on_is_named_in_a_warning() -> None:
    obj = manifest("Pod")
    obj["spec"]["dnsPolicy"] = "ClusterFirst"
    obj["spec"]["containers"][0]["volumeMounts"] = [{"name": "x"}]
    obj["spec"]["affinity"]["podAffinity"]["nonsense"] = {"deep": [1]}
    obj["extra"] = 1
    obj["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    checked = check(obj)
    assert sorted(warning.split(":")[0] for warning in checked.warnings) == [
        "extra",
        "spec.affinity.podAffinity.nonsense",
        "spec.containers[0].volumeMounts",
        "spec.dnsPolicy",
    ]
    assert all("does not act on it" in warning for warning in checked.warnings)
    assert checked.view == check(manifest("Pod")).view


def test_a_kind_that_is_only_kept_has_nothing_to_warn_about() -> None:
    obj = manifest("ConfigMap")
    obj["anything"] = {"else": 1}
    assert check(obj).warnings == ()


def test_a_choice_that_kedge_does_not_know_is_warned_about_and_not_refused() -> None:
    obj = manifest("Pod")
    obj["spec"]["containers"][0]["livenessProbe"] = {"grpc": {"port": 80}}
    obj["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "cpu"}}}]
    assert [warning.split(":")[0] for warning in check(obj).warnings] == [
        "spec.containers[0].env[0].valueFrom.resourceFieldRef",
        "spec.containers[0].livenessProbe.grpc",
    ]


# -- all at once -----------------------------------------------------------------------------------


def test_every_bad_field_is_named_at_once_whatever_is_wrong_with_it() -> None:
    found = complaints(
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


def test_the_message_is_the_one_that_users_of_kubectl_know() -> None:
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


def test_an_empty_object_is_told_all_that_it_lacks() -> None:
    with pytest.raises(Invalid) as caught:
        check_object(KINDS.resolve("po"), b"{}")
    assert [str(error) for error in caught.value.errors] == [
        "metadata.name: Required value: name or generateName is required",
        "metadata.namespace: Required value",
        "spec.containers: Required value",
    ]


def test_a_flood_of_errors_or_warnings_is_cut_short_and_counted() -> None:
    flood = manifest("Pod")
    flood["spec"]["containers"] = list(range(5000))
    with pytest.raises(Invalid, match="and 4000 more") as caught:
        check(flood)
    assert len(caught.value.errors) == REPORTED_FIELDS_MAX
    odd = manifest("Pod")
    odd["spec"] |= {f"x{n}": n for n in range(5000)}
    assert len(check(odd).warnings) == REPORTED_FIELDS_MAX


def test_a_long_value_is_not_sent_back_whole() -> None:
    (found,) = complaints("Pod", ("metadata/labels", {"a": "x" * 100_000}))
    assert len(found) < 1000


# -- each rule -------------------------------------------------------------------------------------

A_64 = "a" * 64

RULES: list[tuple[str, str, Any, str]] = [
    # metadata
    ("Pod", "metadata/name", "", "metadata.name: Required value"),
    ("Pod", "metadata/name", "a" * 254, "metadata.name: Invalid value"),
    ("Namespace", "metadata/name", "a.b", "metadata.name: Invalid value"),
    ("Service", "metadata/name", "1a", "metadata.name: Invalid value"),
    ("Pod", "metadata/generateName", "UP-", 'metadata.generateName: Invalid value: "UP-"'),
    ("Node", "metadata/namespace", "x", "metadata.namespace: Forbidden: not allowed on this type"),
    ("Pod", "metadata/labels", {"a": A_64}, f'metadata.labels: Invalid value: "{A_64}"'),
    ("Pod", "metadata/labels", {"/a": "b"}, "prefix part must be non-empty"),
    ("Pod", "metadata/labels", {"a/": "b"}, "name part must be non-empty"),
    ("Pod", "metadata/labels", {"a": 3}, "metadata.labels[a]: Invalid value: 3: must be a string"),
    ("Pod", "metadata/annotations", {"a b": ""}, 'metadata.annotations: Invalid value: "a b"'),
    ("Pod", "metadata/annotations", {"a": "x" * 262_144}, "metadata.annotations: Too long"),
    ("Pod", "metadata/finalizers", ["a b"], 'metadata.finalizers[0]: Invalid value: "a b"'),
    ("Pod", "metadata/finalizers", ["orphan", "foregroundDeletion"], "cannot be both set"),
    ("Pod", "metadata/ownerReferences", [{"kind": "X"}], "metadata.ownerReferences[0].uid: Required value"),
    ("Pod", "metadata/creationTimestamp", "yesterday", "metadata.creationTimestamp: Invalid value"),
    ("Pod", "metadata/generation", -1, "metadata.generation: Invalid value: -1"),
    # containers
    ("Pod", "spec/containers", [], "spec.containers: Required value"),
    ("Pod", "spec/containers/0/name", "A", "spec.containers[0].name: Invalid value"),
    ("Pod", "spec/initContainers/0/name", "main", 'spec.initContainers[0].name: Duplicate value: "main"'),
    ("Pod", "spec/containers/0/restartPolicy", "Always", "spec.containers[0].restartPolicy: Forbidden"),
    ("Pod", "spec/initContainers/0/restartPolicy", "Never", "spec.initContainers[0].restartPolicy: Unsupported value"),
    ("Pod", "spec/initContainers/0/livenessProbe", {"tcpSocket": {"port": 1}}, "livenessProbe: Forbidden"),
    ("Pod", "spec/containers/0/ports/0/name", "no_good", "ports[0].name: Invalid value"),
    ("Pod", "spec/containers/0/ports/0/name", "1", "must contain at least one letter"),
    ("Pod", "spec/containers/0/ports/0/containerPort", 0, "ports[0].containerPort: Required value"),
    ("Pod", "spec/containers/0/ports/0/hostPort", 65536, "ports[0].hostPort: Invalid value: 65536"),
    ("Pod", "spec/containers/0/ports/0/hostIP", "x", "ports[0].hostIP: Invalid value"),
    ("Pod", "spec/containers/0/ports/0/protocol", "ICMP", 'supported values: "TCP", "UDP", "SCTP"'),
    ("Pod", "spec/containers/0/ports/-", {"containerPort": 1, "hostPort": 18080}, "Duplicate value"),
    ("Pod", "spec/containers/0/ports/-", {"containerPort": 1, "name": "http"}, "ports[1].name: Duplicate value"),
    ("Pod", "spec/hostNetwork", True, "must match `hostPort` when `hostNetwork` is true"),
    ("Pod", "spec/containers/0/env/0/name", "", "env[0].name: Required value"),
    ("Pod", "spec/containers/0/env/0/name", "a=b", "env[0].name: Invalid value"),
    ("Pod", "spec/containers/0/env/1/value", "x", "may not be specified when `value` is not empty"),
    ("Pod", "spec/containers/0/env/1/valueFrom", {}, "env[1].valueFrom: Required value"),
    ("Pod", "spec/containers/0/env/1/valueFrom/secretKeyRef", {"key": "k"}, "more than one field"),
    ("Pod", "spec/containers/0/env/1/valueFrom", {"secretKeyRef": {"name": "n"}}, "secretKeyRef.key: Required value"),
    ("Pod", "spec/containers/0/env/1/valueFrom/fieldRef/fieldPath", "", "fieldRef.fieldPath: Required value"),
    ("Pod", "spec/containers/0/resources/requests/cpu", "2", "must be less than or equal to cpu limit of 1"),
    ("Pod", "spec/containers/0/resources/requests/cpu", "-1", "requests[cpu]: Invalid value"),
    ("Pod", "spec/containers/0/resources/limits/cpu", "-1", "limits[cpu]: Invalid value"),
    ("Pod", "spec/containers/0/resources/limits/cpu", [], "limits[cpu]: Invalid value: []: must be a quantity"),
    ("Pod", "spec/containers/0/resources/limits/cpu", "1X", "limits[cpu]: Invalid value"),
    ("Pod", "spec/containers/0/resources/requests/gpu", "1", "must be a standard resource type or fully qualified"),
    ("Pod", "spec/containers/0/resources/requests/b.c~d", "1", "name part must consist of"),
    ("Pod", "spec/containers/0/resources/limits/example.com~1gpu", 2, "must be equal to example.com/gpu limit of 2"),
    ("Pod", "spec/containers/0/resources/limits/example.com~1gpu", "1500m", "must be an integer"),
    ("Pod", "spec/containers/0/resources/requests/x.com~1y", 2, "Limit must be set for non overcommitable"),
    ("Pod", "spec/overhead/cpu", "-1", "spec.overhead[cpu]: Invalid value"),
    # probes
    ("Pod", "spec/containers/0/livenessProbe", {}, "livenessProbe: Required value: must specify a handler type"),
    ("Pod", "spec/containers/0/livenessProbe/tcpSocket", {"port": 1}, "may not specify more than 1 handler type"),
    ("Pod", "spec/containers/0/livenessProbe/successThreshold", 2, "successThreshold: Invalid value: 2: must be 1"),
    ("Pod", "spec/containers/0/livenessProbe/periodSeconds", -1, "periodSeconds: Invalid value: -1"),
    ("Pod", "spec/containers/0/livenessProbe/exec/command", [], "exec.command: Required value"),
    ("Pod", "spec/containers/0/livenessProbe/terminationGracePeriodSeconds", 0, "must be greater than 0"),
    ("Pod", "spec/containers/0/readinessProbe/terminationGracePeriodSeconds", 1, "must not be set for readinessProbes"),
    ("Pod", "spec/containers/0/readinessProbe/httpGet/port", 0, "httpGet.port: Invalid value: 0"),
    ("Pod", "spec/containers/0/readinessProbe/httpGet/port", "", "httpGet.port: Invalid value"),
    ("Pod", "spec/containers/0/readinessProbe/httpGet/path", "", "httpGet.path: Required value"),
    ("Pod", "spec/containers/0/readinessProbe/httpGet/scheme", "FTP", "httpGet.scheme: Unsupported value"),
    ("Pod", "spec/containers/0/startupProbe/tcpSocket/port", "x_y", "tcpSocket.port: Invalid value"),
    # placement
    ("Pod", "spec/nodeSelector", {"a b": "c"}, "spec.nodeSelector: Invalid value"),
    ("Pod", "spec/nodeName", "A", "spec.nodeName: Invalid value"),
    ("Pod", "spec/schedulerName", "A", "spec.schedulerName: Invalid value"),
    ("Pod", "spec/priorityClassName", "A", "spec.priorityClassName: Invalid value"),
    ("Pod", "spec/preemptionPolicy", "Maybe", "spec.preemptionPolicy: Unsupported value"),
    ("Pod", "spec/terminationGracePeriodSeconds", -1, "spec.terminationGracePeriodSeconds: Invalid value"),
    ("Pod", "spec/activeDeadlineSeconds", 0, "must be between 1 and 2147483647"),
    ("Pod", "spec/priority", 2**31, "spec.priority: Invalid value: 2147483648: is out of range"),
    ("Pod", "spec/tolerations/0/operator", "Like", "tolerations[0].operator: Unsupported value"),
    ("Pod", "spec/tolerations/0/key", "", "operator must be Exists when `key` is empty"),
    ("Pod", "spec/tolerations/0/value", "a b", "tolerations[0].operator: Invalid value"),
    ("Pod", "spec/tolerations/1/value", "x", "value must be empty when `operator` is 'Exists'"),
    ("Pod", "spec/tolerations/0/effect", "Never", "tolerations[0].effect: Unsupported value"),
    ("Pod", "spec/tolerations/0/tolerationSeconds", 1, "effect must be 'NoExecute'"),
    ("Pod", "spec/topologySpreadConstraints/0/maxSkew", 0, "must be greater than zero"),
    ("Pod", "spec/topologySpreadConstraints/0/topologyKey", "", "topologyKey: Required value"),
    ("Pod", "spec/topologySpreadConstraints/0/whenUnsatisfiable", "Cry", "whenUnsatisfiable: Unsupported value"),
    ("Pod", "spec/topologySpreadConstraints/0/whenUnsatisfiable", "ScheduleAnyway", "can only use minDomains if"),
    ("Pod", "spec/topologySpreadConstraints/0/minDomains", 0, "minDomains: Invalid value: 0"),
    ("Pod", "spec/topologySpreadConstraints/0/nodeTaintsPolicy", "x", "nodeTaintsPolicy: Unsupported value"),
    ("Pod", "spec/topologySpreadConstraints/0/labelSelector", DELETE, "must not be specified when labelSelector"),
    ("Pod", "spec/schedulingGates", [{"name": "g"}, {"name": "g"}], "schedulingGates[1].name: Duplicate value"),
    ("Pod", "spec/schedulingGates", [{}], "spec.schedulingGates[0].name: Required value"),
    (
        "Pod",
        "spec/topologySpreadConstraints/-",
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        'Duplicate value: "{zone, DoNotSchedule}"',
    ),
    ("Pod", "status/podIP", "x", "status.podIP: Invalid value"),
    ("Pod", "status/phase", "Napping", "status.phase: Unsupported value"),
    ("Pod", "status/conditions", [{"type": "Ready"}], "status.conditions[0].status: Required value"),
    ("Node", "status/conditions/-", {"type": "Ready", "status": "True"}, "conditions[1].type: Duplicate value"),
    ("Node", "status/conditions/0/status", "Yes", "conditions[0].status: Unsupported value"),
    # nodes, namespaces, quotas, services
    ("Node", "spec/taints/0/key", "", "spec.taints[0].key: Invalid value"),
    ("Node", "spec/taints/0/effect", "", "spec.taints[0].effect: Required value"),
    ("Node", "spec/taints/-", {"key": "dedicated", "effect": "NoSchedule"}, "spec.taints[1]: Duplicate value"),
    ("Node", "status/capacity/cpu", "-1", "status.capacity[cpu]: Invalid value"),
    ("Node", "status/allocatable/pods", "1.5", "status.allocatable[pods]: Invalid value"),
    ("Namespace", "spec/finalizers", ["mine"], "neither a standard finalizer name nor is it fully qualified"),
    ("ResourceQuota", "spec/hard/pods", "-1", "spec.hard[pods]: Invalid value"),
    ("ResourceQuota", "spec/scopes", ["BestEffort", "NotBestEffort"], "conflicting scopes"),
    ("ResourceQuota", "spec/scopes", ["Nice"], "spec.scopes[0]: Unsupported value"),
    ("Service", "spec/type", "Magic", "spec.type: Unsupported value"),
    ("Service", "spec/ports", [], "spec.ports: Required value"),
    ("Service", "spec/ports/0/port", 0, "spec.ports[0].port: Invalid value: 0"),
    ("Service", "spec/ports/-", {"port": 81}, "spec.ports[1].name: Required value"),
    ("Service", "spec/clusterIP", "x", "spec.clusterIPs[0]: Invalid value"),
    ("Service", "spec/type", "ExternalName", "spec.externalName: Required value"),
    ("EndpointSlice", "addressType", "IPv5", "addressType: Unsupported value"),
    ("EndpointSlice", "endpoints/0/addresses", [], "endpoints[0].addresses: Required value"),
    ("EndpointSlice", "endpoints/0/addresses/0", "::1", "must be an IPv4 address"),
    ("EndpointSlice", "endpoints", [{"addresses": ["10.0.0.1"]}] * 1001, "endpoints: Too many: 1001"),
    ("EndpointSlice", "ports/-", {"name": "http"}, "ports[1].name: Duplicate value"),
    # workloads
    ("Deployment", "spec/selector", {}, "empty selector is invalid for deployment"),
    ("Deployment", "spec/selector/matchLabels/app", "db", "`selector` does not match template `labels`"),
    ("Deployment", "spec/selector/matchExpressions", [{"key": "a", "operator": "Near"}], "not a valid selector"),
    ("Deployment", "spec/selector/matchExpressions", [{"key": "a", "operator": "In"}], "values: Required value"),
    ("Deployment", "spec/selector/matchExpressions", [{"key": "a", "operator": "Exists", "values": [""]}], "Forbidden"),
    ("Deployment", "spec/template/spec/restartPolicy", "Never", 'supported values: "Always"'),
    ("Deployment", "spec/template/spec/activeDeadlineSeconds", 5, "activeDeadlineSeconds: Forbidden"),
    ("Deployment", "spec/template/spec/containers/0/name", "", "spec.template.spec.containers[0].name: Required value"),
    ("Deployment", "spec/strategy/type", "Yolo", "spec.strategy.type: Unsupported value"),
    ("Deployment", "spec/strategy/type", "Recreate", "spec.strategy.rollingUpdate: Forbidden"),
    ("Deployment", "spec/strategy/rollingUpdate/maxSurge", 0, "may not be 0 when `maxSurge` is 0"),
    ("Deployment", "spec/strategy/rollingUpdate/maxSurge", "half", "a valid percent string"),
    ("Deployment", "spec/strategy/rollingUpdate/maxUnavailable", "101%", "must not be greater than 100%"),
    ("Deployment", "spec/progressDeadlineSeconds", 0, "must be greater than minReadySeconds"),
    ("Deployment", "status/replicas", -1, "status.replicas: Invalid value"),
    ("ReplicaSet", "spec/replicas", -1, "spec.replicas: Invalid value"),
    ("Job", "spec/template/spec/restartPolicy", "Always", 'supported values: "OnFailure", "Never"'),
    ("Job", "spec/completionMode", "Random", "spec.completionMode: Unsupported value"),
    ("Job", "spec/backoffLimit", -1, "spec.backoffLimit: Invalid value"),
    ("Job", "spec/manualSelector", True, "spec.selector: Required value"),
    ("HorizontalPodAutoscaler", "spec/maxReplicas", 0, "must be greater than 0"),
    ("HorizontalPodAutoscaler", "spec/minReplicas", 11, "must be greater than or equal to `minReplicas`"),
    ("HorizontalPodAutoscaler", "spec/minReplicas", 0, "spec.minReplicas: Invalid value"),
    ("HorizontalPodAutoscaler", "spec/scaleTargetRef/name", "", "spec.scaleTargetRef.name: Required value"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/resource", DELETE, "must populate information"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/type", "Guess", "spec.metrics[0].type: Unsupported value"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/resource/target", {"type": "Utilization"}, "must set either"),
    ("HorizontalPodAutoscaler", "spec/metrics/1/containerResource/target/averageValue", "0", "must be positive"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/policies/0/periodSeconds", 0, "between 1 and 1800"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/stabilizationWindowSeconds", 3601, "between 0 and 3600"),
    ("PodDisruptionBudget", "spec/maxUnavailable", 1, "cannot be both set"),
    ("PodDisruptionBudget", "spec/minAvailable", "101%", "must not be greater than 100%"),
    ("PodDisruptionBudget", "spec/minAvailable", -1, "spec.minAvailable: Invalid value"),
    ("PodDisruptionBudget", "spec/minAvailable", 1.5, "spec.minAvailable: Invalid value"),
    ("PriorityClass", "value", 1_000_000_001, "maximum allowed value of a user defined priority"),
    ("PriorityClass", "metadata/name", "system-x", "reserved for system use only"),
    ("Lease", "spec/leaseDurationSeconds", 0, "must be greater than 0"),
    ("Lease", "spec/renewTime", "soon", "spec.renewTime: Invalid value"),
    ("ConfigMap", "data", {"..": "x"}, "must not be '.', nor begin with '..'"),
    ("ConfigMap", "data", {"b": "x"}, "duplicate of key present in binaryData"),
    ("ConfigMap", "binaryData", {"b": "%"}, "must be base64"),
    ("ConfigMap", "data", {"a": "x" * 1_048_577}, "data: Too long"),
    ("ConfigMap", "data", [], "data: Invalid value: []: must be a map"),
    ("Secret", "data", {"a": "%%"}, "data[a]: Invalid value"),
    ("Event", "involvedObject/namespace", "other", "does not match event.namespace"),
    ("Pod", "metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Event", "name": "a", "uid": "u"}], "disallowed"),
    ("Deployment", "spec/selector/matchExpressions", [{"key": "a b", "operator": "Exists"}], "key: Invalid value"),
    ("Deployment", "spec/selector/matchExpressions", [{"key": "a", "operator": "In", "values": ["-"]}], "values[0]"),
    ("Deployment", "spec/minReadySeconds", -1, "spec.minReadySeconds: Invalid value"),
    ("Job", "spec/selector", {"matchLabels": {"app": "other"}}, "`selector` does not match template `labels`"),
    ("HorizontalPodAutoscaler", "spec/metrics/1/containerResource", DELETE, "containerResource: Required value"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/resource/name", "", "must specify a resource name"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/resource/target/averageUtilization", 0, "must be greater than 0"),
    ("HorizontalPodAutoscaler", "spec/metrics/0/resource/target/averageValue", "1", "may not set both"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/policies/0/value", 0, "must be greater than zero"),
    ("ResourceQuota", "spec/hard/a b", "1", "spec.hard[a b]: Invalid value"),
    ("ResourceQuota", "spec/scopeSelector", {"matchExpressions": [{"scopeName": "x"}]}, "scopeName: Unsupported value"),
    (
        "ResourceQuota",
        "spec/scopeSelector",
        {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]},
        "values: Required value",
    ),
    (
        "ResourceQuota",
        "spec/scopeSelector",
        {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]}]},
        "must be no value",
    ),
    ("Service", "spec/ports/0/name", "A", "spec.ports[0].name: Invalid value"),
    ("Service", "spec/ports/0/nodePort", 70000, "spec.ports[0].nodePort: Invalid value"),
    ("Service", "spec/ports", [{"name": "a", "port": 1}, {"name": "a", "port": 2}], "spec.ports[1].name: Duplicate"),
    ("Service", "spec/ports", [{"name": "a", "port": 1}, {"name": "b", "port": 1}], "spec.ports[1]: Duplicate value"),
    ("EndpointSlice", "endpoints/0/addresses", ["10.0.0.1"] * 101, "endpoints[0].addresses: Too many"),
    ("EndpointSlice", "endpoints/0/nodeName", "A", "endpoints[0].nodeName: Invalid value"),
    ("EndpointSlice", "ports/0/port", 0, "ports[0].port: Invalid value"),
    ("Secret", "data", {"a": "A" * 1_400_000}, "data: Too long"),
    ("Lease", "spec/leaseTransitions", -1, "spec.leaseTransitions: Invalid value"),
    # kedge's own
    ("ZoneQuota", "spec/zones", {"": {}}, "a zone must have a name"),
    ("NodeAllocation", "status/entries", {"u": {"ports": [{}]}}, "status.entries[u].ports[0].hostPort: Invalid value"),
    ("SchedulingPolicy", "spec/schedulerNames", ["A"], "spec.schedulerNames[0]: Invalid value"),
    ("SchedulingPolicy", "spec/scope/zones", ["a b"], "spec.scope.zones[0]: Invalid value"),
    ("SchedulingPolicy", "spec/scope/tenants", ["A"], "spec.scope.tenants[0]: Invalid value"),
    ("SchedulingPolicy", "spec/scope/podSelector", {"matchLabels": {"a b": ""}}, "podSelector.matchLabels: Invalid"),
    ("Rollout", "spec/template", {"spec": {}}, "spec.template: Forbidden"),
    ("Rollout", "spec/template", {"spec": {}}, "spec.template.spec.containers: Required value"),
    ("Rollout", "spec/target", {"kind": "Deployment", "apiVersion": "apps/v1", "name": "x"}, "spec.policy: Forbidden"),
    ("Rollout", "spec/target", {"kind": "Deployment", "apiVersion": "apps/v1"}, "spec.target.name: Required value"),
    ("Rollout", "spec/stages/0/holdSeconds", -1, "spec.stages[0].holdSeconds: Invalid value"),
    ("Reservation", "spec/pod/uid", "", "spec.pod.uid: Required value"),
    ("Reservation", "spec/deadline", DELETE, "spec.deadline: Required value"),
    ("Reservation", "metadata/name", "x", "must be the uid of the pod it is for"),
    ("Reservation", "spec/gangSize", 8, "spec.gangSize: Invalid value"),
    ("Reservation", "status", {"phase": "Lost"}, "status.phase: Unsupported value"),
    ("NodeAllocation", "spec/nodeUID", "", "spec.nodeUID: Required value"),
    ("NodeAllocation", "status/entries", {"u": {"state": "Gone"}}, "status.entries[u].state: Unsupported value"),
    ("NodeAllocation", "status/entries", {"u": 3}, "status.entries[u]: Invalid value: 3: must be an object"),
    ("NodeAllocation", "status/entries", {"u": {"requests": {"cpu": "x"}}}, "status.entries[u].requests[cpu]: Invalid"),
    ("ZoneQuota", "spec/zones", {"a b": {}}, 'spec.zones: Invalid value: "a b"'),
    ("ZoneQuota", "spec/zones/zone-a/hard/cpu", "-1", "spec.zones[zone-a].hard[cpu]: Invalid value"),
    ("SchedulingPolicy", "spec/version", "", "spec.version: Required value"),
    ("SchedulingPolicy", "spec/maxZoneSkew", 0, "spec.maxZoneSkew: Invalid value"),
    ("SchedulingPolicy", "spec/weights", {"x": 101}, "spec.weights[x]: Invalid value"),
    ("SchedulingPolicy", "spec/canary/version", "v4", "must differ from spec.version"),
    ("SchedulingPolicy", "spec/canary/scope/percent", 101, "spec.canary.scope.percent: Invalid value"),
    ("SchedulingPolicy", "spec/scope/workloads", ["a/b/c"], "spec.scope.workloads[0]: Invalid value"),
    ("Rollout", "spec/stages", [], "spec.stages: Required value"),
    ("Rollout", "spec/stages/1/name", "canary", "spec.stages[1].name: Duplicate value"),
    ("Rollout", "spec/policy", DELETE, "spec.policy: Required value"),
    ("Rollout", "spec/target/kind", "Pod", "spec.target.kind: Unsupported value"),
    ("Rollout", "spec/target/apiVersion", "v1", "spec.target.apiVersion: Unsupported value"),
    ("Rollout", "spec/onRegression", "Shrug", "spec.onRegression: Unsupported value"),
    ("Rollout", "spec/gates/readyPercentMin", 101, "spec.gates.readyPercentMin: Invalid value"),
    ("Rollout", "status/stage", 3, "status.stage: Invalid value"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "value", "expected"), RULES)
def test_each_rule_has_its_complaint(kind: str, path: str, value: Any, expected: str) -> None:
    found = complaints(kind, (path, value))
    assert any(expected in each for each in found), found


NODE_TERMS = "spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (NODE_TERMS, [], "nodeSelectorTerms: Required value"),
        (f"{NODE_TERMS}/0/matchExpressions/0/operator", "Like", "not a valid selector operator"),
        (f"{NODE_TERMS}/0/matchExpressions/0/values", [], "values: Required value"),
        (f"{NODE_TERMS}/0/matchExpressions/0/operator", "Exists", "values: Forbidden"),
        (f"{NODE_TERMS}/0/matchExpressions/1/values", ["1", "2"], "must be specified single value"),
        (f"{NODE_TERMS}/0/matchExpressions/1/values", ["x"], "must be an integer"),
        (f"{NODE_TERMS}/0/matchFields/0/key", "metadata.uid", "not a valid field selector key"),
        (f"{NODE_TERMS}/0/matchFields/0/values", ["a", "b"], "must be only one value"),
        (f"{NODE_TERMS}/0/matchFields/0/operator", "Exists", "not a valid selector operator"),
        (
            "spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight",
            0,
            "must be in the range 1-100",
        ),
        (
            "spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/topologyKey",
            "",
            "topologyKey: Required value: can not be empty",
        ),
        (
            "spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/namespaces",
            ["A"],
            "namespaces[0]: Invalid value",
        ),
    ],
)
def test_affinity_is_held_to_its_rules(path: str, value: Any, expected: str) -> None:
    assert any(expected in each for each in complaints("Pod", (path, value)))


def test_at_most_one_owner_is_the_controller() -> None:
    owner = {"apiVersion": "v1", "kind": "X", "name": "a", "uid": "u", "controller": True}
    (found,) = complaints("Pod", ("metadata/ownerReferences", [owner, {**owner, "name": "b"}]))
    assert 'Found "true" in references for a and b' in found


def test_a_gated_pod_has_no_node() -> None:
    (found,) = complaints("Pod", ("spec/schedulingGates", [{"name": "g"}]), ("spec/nodeName", "n"))
    assert found.startswith("spec.nodeName: Forbidden")


def test_system_priorities_keep_their_values() -> None:
    obj = manifest("PriorityClass")
    obj["metadata"]["name"], obj["value"] = "system-node-critical", 2_000_001_000
    check(obj)


def test_a_reservation_without_a_pod_is_a_gangs_record() -> None:
    obj = manifest("Reservation")
    obj["metadata"]["name"] = "gang-1"
    obj["spec"] = {"gangSize": 2, "deadline": "2030-01-01T00:00:00Z"}
    check(obj)
    obj["spec"]["nodeName"] = "node-1"
    with pytest.raises(Invalid, match="holds no place itself"):
        check(obj)


def test_an_indexed_job_must_say_how_many() -> None:
    (found,) = complaints("Job", ("spec/completionMode", "Indexed"), ("spec/completions", DELETE))
    assert found == "spec.completions: Required value: when completion mode is Indexed"


def test_an_external_name_must_be_one() -> None:
    found = complaints("Service", ("spec/type", "ExternalName"), ("spec/externalName", "A"))
    assert any("spec.externalName: Invalid value" in each for each in found)


# -- real clusters ---------------------------------------------------------------------------------


def test_a_pod_as_a_real_cluster_shows_it_loads_with_warnings_only() -> None:
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
        "spec.containers[0].terminationMessagePath", "spec.containers[0].volumeMounts", "spec.enableServiceLinks",
        "spec.securityContext", "spec.serviceAccountName", "spec.volumes", "status.hostIPs",
    }  # fmt: skip


# -- the short cut for replicas --------------------------------------------------------------------


def test_replicas_share_the_spec_that_was_judged_once() -> None:
    one, other = manifest("Pod"), manifest("Pod")
    other["metadata"]["name"] = "web-1"
    assert check(one).view.spec is check(other).view.spec  # type: ignore[attr-defined]
    other["metadata"]["name"] = "No"
    other["status"]["phase"] = "Napping"
    with pytest.raises(Invalid) as caught:
        check(other)
    assert [error.path for error in caught.value.errors] == ["metadata.name", "status.phase"]


@given(st.lists(st.tuples(st.sampled_from(places(manifest("Pod"))[1:]), values), max_size=2))
def test_the_short_cut_comes_to_what_the_long_way_comes_to(changes: list[tuple[Any, Any]]) -> None:
    kind, body = KINDS.resolve("po"), encode_json(mutated("Pod", changes))

    def outcome(check_one: Any) -> Any:
        try:
            return check_one(kind, body)
        except (Invalid, BadRequest) as error:
            return type(error), error.message

    assert outcome(check_object) == outcome(_check_whole)


# -- garbage ---------------------------------------------------------------------------------------


kinds = [each["kind"] for each in manifests()]
mutants = st.sampled_from(kinds).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.lists(st.tuples(st.sampled_from(places(manifest(kind))[1:]), values), min_size=1, max_size=3),
    )
)


@settings(max_examples=300)
@given(mutants)
def test_a_mutated_manifest_is_accepted_or_refused_and_never_breaks_anything(mutant: tuple[str, Any]) -> None:
    kind = kind_of(manifest(mutant[0]))
    plain = mutated(*mutant)
    defaulted = mutated(*mutant)
    apply_defaults(kind, defaulted)
    for body in (encode_json(plain), encode_json(defaulted)):
        refused = outcome = None
        try:
            outcome = check_object(kind, body)
        except (BadRequest, Invalid) as error:
            refused = error
        if isinstance(refused, Invalid):
            assert refused.errors
            assert all(e.path and e.type.startswith("FieldValue") and e.message for e in refused.errors)
        if outcome is not None and kind.view is not None:
            assert decode_view(kind, body) == outcome.view


NASTY: list[Any] = [None, True, 2**70, Decimal("1E+400"), "-", [None], {}, {"": {}}]


@pytest.mark.parametrize("kind_name", kinds)
def test_no_place_in_a_manifest_breaks_under_any_nasty_value(kind_name: str) -> None:
    clean = manifest(kind_name)
    kind = kind_of(clean)
    stored = encode_object(clean)
    for at in places(clean)[1:]:
        if at[0] in ("apiVersion", "kind") or at == ("metadata",):
            continue  # the service settles these before anything else looks at the object
        if at[:3] == ("spec", "template", "spec") and len(at) > 3:
            continue  # as in a pod
        for value in NASTY:
            obj = replaced(clean, at, copy.deepcopy(value))
            body = encode_object(obj)
            with contextlib.suppress(Invalid, BadRequest):
                check_object(kind, body)
            with contextlib.suppress(Invalid):
                check_update(kind, stored, body)
            with contextlib.suppress(Invalid):
                check_update(kind, body, stored)
            apply_defaults(kind, copy.deepcopy(obj))


@given(st.sampled_from(list(KINDS)), st.binary(max_size=40) | values.map(encode_json))
def test_no_bytes_whatever_give_another_error(kind: Kind, body: bytes) -> None:
    with pytest.raises((Invalid, BadRequest)):
        check_object(kind, body)


def test_an_object_that_is_nested_without_end_is_refused() -> None:
    deep = b'{"metadata":{"name":"a"},"spec":{"x":' + b"[" * 3000 + b"]" * 3000 + b"}}"
    for kind in KINDS:
        with pytest.raises((BadRequest, Invalid)):
            check_object(kind, deep)


# -- the strict twin and the walk ------------------------------------------------------------------


@given(
    st.sampled_from(kinds),
    st.lists(st.tuples(st.integers(0, 10**6), st.text("abXY", min_size=1, max_size=5)), max_size=2),
)
def test_the_strict_twin_refuses_exactly_the_objects_in_which_the_walk_finds_unknown_fields(
    name_of_kind: str, additions: list[tuple[int, str]]
) -> None:
    obj = manifest(name_of_kind)
    shape = kind_of(obj).view or View
    for at, name in additions:
        maps = [place for place in places(obj) if isinstance(dig(obj, place), dict)]
        dig(obj, maps[at % len(maps)])[name] = "x"
    findings = examine(shape, parse_object(encode_json(obj)))
    if findings.errors:
        return  # the twin looks at names alone, and has nothing to say about types
    try:
        decoder_of(strict_twin(shape)).decode(encode_json(obj))
    except msgspec.ValidationError:
        assert findings.unknown
    else:
        assert not findings.unknown


def dig(value: Any, at: tuple[Any, ...]) -> Any:
    for step in at:
        value = value[step]
    return value
