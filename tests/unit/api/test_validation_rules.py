"""Validation, rule by rule: each has its error."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.checks import DELETE, check, errors_of
from tests.unit.api.manifests import manifest

from kedge.errors import Invalid


def on_exit(action: str = "FailJob", **required: Any) -> dict[str, Any]:
    """A podFailurePolicy of one rule about exit codes."""
    codes = {"operator": "In", "values": [42], **required}
    return {"rules": [{"action": action, "onExitCodes": codes}]}


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
    ("Pod", "spec/resources", {"requests": {"example.com/gpu": 1}}, 'requests[example.com/gpu]: Unsupported value'),
    ("Pod", "spec/resources", {"requests": {"cpu": "-1"}}, "spec.resources.requests[cpu]: Invalid value"),
    ("Pod", "spec/resources", {"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}}, "less than or equal to cpu limit"),
    ("Pod", "spec/resources", {"requests": {"cpu": "1m"}}, "greater than or equal to aggregate container requests of"),
    ("Pod", "spec/resources", {"limits": {"cpu": "1m"}}, "containers[0].resources.limits[cpu]: Invalid value"),
    # probes
    ("Pod", "spec/containers/0/livenessProbe", {}, "livenessProbe: Required value: must specify a handler type"),
    ("Pod", "spec/containers/0/livenessProbe/tcpSocket", {"port": 1}, "may not specify more than 1 handler type"),
    ("Pod", "spec/containers/0/livenessProbe/grpc", {"port": 1}, "may not specify more than 1 handler type"),
    ("Pod", "spec/containers/0/livenessProbe", {"grpc": {"port": 0}}, "livenessProbe.grpc.port: Invalid value: 0"),
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
    ("Job", "spec/podFailurePolicy", on_exit("FailIndex"), "spec.podFailurePolicy.rules[0].action: Unsupported value"),
    ("Job", "spec/podFailurePolicy", on_exit(values=[3, 2]), "must be ordered, without duplicates"),
    ("Job", "spec/podFailurePolicy", on_exit(values=[0, 2]), "must not be 0 for the In operator"),
    ("Job", "spec/podFailurePolicy", on_exit(values=[]), "must have 1 to 255 items"),
    ("Job", "spec/podFailurePolicy", on_exit(operator="Is"), "onExitCodes.operator: Unsupported value"),
    ("Job", "spec/podFailurePolicy", on_exit(containerName="none"), "must be a container of the pod template"),
    ("Job", "spec/podFailurePolicy", {"rules": [{"action": "Count"}]}, "one of onExitCodes and onPodConditions"),
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
    # kedge.dev
    ("RecordingWindow", "spec/until", DELETE, "spec.until: Required value"),
    ("RecordingWindow", "spec/tenants", ["A"], "spec.tenants[0]: Invalid value"),
    ("RecordingWindow", "spec/objects/0/name", "", "spec.objects[0].name: Required value"),
    ("RecordingWindow", "spec/objects/0/kind", "", "spec.objects[0].kind: Required value"),
    ("RecordingWindow", "spec/objects/0/namespace", "A", "spec.objects[0].namespace: Invalid value"),
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
    ("Reservation", "metadata/name", "x", "must be the uid of its pod"),
    ("Reservation", "spec/gangSize", 8, "spec.gangSize: Invalid value"),
    ("Reservation", "status", {"phase": "Lost"}, "status.phase: Unsupported value"),
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
def test_each_rule_has_its_error(kind: str, path: str, value: Any, expected: str) -> None:
    found = errors_of(kind, (path, value))
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
def test_affinity_is_checked(path: str, value: Any, expected: str) -> None:
    assert any(expected in each for each in errors_of("Pod", (path, value)))


def test_at_most_one_owner_is_the_controller() -> None:
    owner = {"apiVersion": "v1", "kind": "X", "name": "a", "uid": "u", "controller": True}
    (found,) = errors_of("Pod", ("metadata/ownerReferences", [owner, {**owner, "name": "b"}]))
    assert 'Found "true" in references for a and b' in found


def test_a_gated_pod_has_no_node() -> None:
    (found,) = errors_of("Pod", ("spec/schedulingGates", [{"name": "g"}]), ("spec/nodeName", "n"))
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
    with pytest.raises(Invalid, match="reserves nothing itself"):
        check(obj)


def test_an_indexed_job_needs_a_number_of_completions() -> None:
    (found,) = errors_of("Job", ("spec/completionMode", "Indexed"), ("spec/completions", DELETE))
    assert found == "spec.completions: Required value: when completion mode is Indexed"


def test_an_external_name_must_be_a_dns_name() -> None:
    found = errors_of("Service", ("spec/type", "ExternalName"), ("spec/externalName", "A"))
    assert any("spec.externalName: Invalid value" in each for each in found)


def test_an_operand_of_gt_that_is_no_integer_is_stored() -> None:
    obj = manifest("Pod")
    terms = obj["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms["nodeSelectorTerms"][0]["matchExpressions"][1]["values"] = ["x"]
    check(obj)
