"""One manifest of every built-in kind, as a user writes it: valid, with only fields that kedge acts on."""

from __future__ import annotations

import base64
import copy
from typing import Any

Json = dict[str, Any]

POD_SPEC: Json = {
    "containers": [
        {
            "name": "main",
            "image": "registry.example/web:1.27",
            "command": ["/bin/server"],
            "args": ["--port=8080"],
            "env": [
                {"name": "MODE", "value": "fast"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
            ],
            "ports": [{"name": "http", "containerPort": 8080, "hostPort": 18080, "protocol": "TCP"}],
            "resources": {
                "requests": {"cpu": "100m", "memory": "500Mi", "example.com/gpu": "1"},
                "limits": {"cpu": 1, "memory": "1Gi", "example.com/gpu": 1},
            },
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http", "scheme": "HTTP"}, "periodSeconds": 5},
            "livenessProbe": {"exec": {"command": ["true"]}, "failureThreshold": 2},
            "startupProbe": {"tcpSocket": {"port": 8080}},
        }
    ],
    "initContainers": [
        {"name": "setup", "image": "setup:1"},
        {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"},
    ],
    "nodeSelector": {"disk": "ssd"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "zone", "operator": "In", "values": ["a", "b"]},
                            {"key": "cores", "operator": "Gt", "values": ["4"]},
                        ],
                        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}],
                    }
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}
            ],
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        },
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "labelSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                        "namespaceSelector": {},
                        "topologyKey": "zone",
                    },
                }
            ]
        },
    },
    "tolerations": [
        {"key": "dedicated", "operator": "Equal", "value": "web", "effect": "NoSchedule"},
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
    ],
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 2,
            "labelSelector": {"matchLabels": {"app": "web"}},
            "matchLabelKeys": ["pod-template-hash"],
        }
    ],
    "priorityClassName": "high",
    "schedulerName": "default-scheduler",
    "overhead": {"cpu": "10m"},
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
}


def _object(api_version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
    metadata: Json = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _template(**spec: Any) -> Json:
    return {"metadata": {"labels": {"app": "web"}}, "spec": {**copy.deepcopy(POD_SPEC), **spec}}


_SELECTOR: Json = {"matchLabels": {"app": "web"}}
_REGISTRATION = "admissionregistration.k8s.io/v1"
_UID = "3b2f9a50-0000-4000-8000-1234567890ab"

_ALL: tuple[Json, ...] = (
    _object("v1", "Namespace", "team-a", spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"}),
    _object(
        "v1",
        "Node",
        "node-1",
        spec={"unschedulable": True, "taints": [{"key": "dedicated", "value": "web", "effect": "NoSchedule"}]},
        status={
            "capacity": {"cpu": "4", "memory": "32Gi", "pods": "110"},
            "allocatable": {"cpu": "3900m", "memory": "31Gi", "pods": 110},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"bootID": "b", "kubeletVersion": "v1"},
        },
    ),
    _object("v1", "Pod", "web-0", "team-a", spec=POD_SPEC, status={"phase": "Running", "podIP": "10.0.0.9"}),
    _object(
        "v1",
        "Event",
        "web-0.17",
        "team-a",
        involvedObject={"kind": "Pod", "namespace": "team-a", "name": "web-0"},
        reason="Scheduled",
        type="Normal",
        count=1,
    ),
    _object("v1", "ConfigMap", "settings", "team-a", data={"a.conf": "x"}, binaryData={"b": "AAE="}),
    _object("v1", "ServiceAccount", "builder", "team-a", automountServiceAccountToken=False),
    _object("v1", "Secret", "token", "team-a", type="Opaque", data={"password": "c2VjcmV0"}),
    _object(
        "v1",
        "Service",
        "web",
        "team-a",
        spec={"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http", "protocol": "TCP"}]},
    ),
    _object(
        "v1",
        "LimitRange",
        "limits",
        "team-a",
        spec={"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}}]},
    ),
    _object(
        "rbac.authorization.k8s.io/v1",
        "Role",
        "reader",
        "team-a",
        rules=[{"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"], "resourceNames": ["web-0"]}],
    ),
    _object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "system:all",
        rules=[{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}],
        aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]},
    ),
    _object(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "readers",
        "team-a",
        subjects=[
            {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ada"},
            {"kind": "ServiceAccount", "name": "builder", "namespace": "team-a"},
        ],
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
    ),
    _object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "system:all",
        subjects=[{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "people"}],
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:all"},
    ),
    _object(
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        "join",
        spec={
            "request": base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----").decode(),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
            "expirationSeconds": 600,
        },
    ),
    _object("v1", "ResourceQuota", "quota", "team-a", spec={"hard": {"requests.cpu": "10", "pods": "5"}}),
    _object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "web-abc",
        "team-a",
        addressType="IPv4",
        endpoints=[{"addresses": ["10.0.0.9"], "conditions": {"ready": True}, "nodeName": "node-1", "zone": "a"}],
        ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
    ),
    _object(
        "apps/v1",
        "Deployment",
        "web",
        "team-a",
        spec={
            "replicas": 3,
            "selector": _SELECTOR,
            "template": _template(),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "0%"}},
        },
    ),
    _object("apps/v1", "ReplicaSet", "web-abc", "team-a", spec={"selector": _SELECTOR, "template": _template()}),
    _object(
        "batch/v1",
        "Job",
        "sum",
        "team-a",
        spec={"completions": 3, "parallelism": 2, "template": _template(restartPolicy="Never")},
    ),
    _object(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "web",
        "team-a",
        spec={
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 10,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
                },
                {
                    "type": "ContainerResource",
                    "containerResource": {
                        "name": "memory",
                        "container": "main",
                        "target": {"type": "AverageValue", "averageValue": "1Gi"},
                    },
                },
            ],
            "behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}},
        },
    ),
    _object("policy/v1", "PodDisruptionBudget", "web", "team-a", spec={"minAvailable": "50%", "selector": _SELECTOR}),
    _object("scheduling.k8s.io/v1", "PriorityClass", "high", value=1000, preemptionPolicy="Never"),
    _object(
        "coordination.k8s.io/v1",
        "Lease",
        "scheduler",
        "team-a",
        spec={"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"},
    ),
    _object(_REGISTRATION, "ValidatingAdmissionPolicy", "policy", spec={"validations": [{"expression": "true"}]}),
    _object(_REGISTRATION, "ValidatingAdmissionPolicyBinding", "binding", spec={"policyName": "policy"}),
    _object(_REGISTRATION, "MutatingAdmissionPolicy", "policy", spec={"mutations": []}),
    _object(_REGISTRATION, "MutatingAdmissionPolicyBinding", "binding", spec={"policyName": "policy"}),
    _object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "boats.example.com",
        spec={"group": "example.com", "names": {"kind": "Boat", "plural": "boats"}, "scope": "Namespaced"},
    ),
    _object(
        "kedge.dev/v1",
        "Reservation",
        _UID,
        "team-a",
        spec={
            "pod": {"name": "web-0", "uid": _UID},
            "nodeName": "node-1",
            "nodeUID": "n",
            "workloadUID": "w",
            "generation": 2,
            "slot": 0,
            "gang": "g",
            "deadline": "2026-01-01T00:00:00Z",
        },
    ),
    _object(
        "kedge.dev/v1",
        "NodeAllocation",
        "node-1",
        spec={"nodeUID": "n"},
        status={
            "allocated": {"cpu": "1", "pods": "1"},
            "entries": {
                _UID: {
                    "namespace": "team-a",
                    "name": "web-0",
                    "state": "Bound",
                    "requests": {"cpu": "1", "pods": "1"},
                    "ports": [{"protocol": "TCP", "hostIP": "0.0.0.0", "hostPort": 80}],
                    "zone": "a",
                }
            },
        },
    ),
    _object(
        "kedge.dev/v1",
        "SchedulingPolicy",
        "spread",
        spec={
            "version": "v4",
            "scope": {"tenants": ["team-a"], "workloads": ["risk-api"], "regions": ["eu-central"]},
            "maxZoneSkew": 2,
            "weights": {"least-allocated": 3},
            "canary": {"version": "v5-canary", "scope": {"percent": 10}, "maxZoneSkew": 1},
        },
    ),
    _object(
        "kedge.dev/v1",
        "ZoneQuota",
        "zones",
        "team-a",
        spec={"zones": {"zone-a": {"hard": {"cpu": "10"}}}},
        status={"zones": {"zone-a": {"used": {"cpu": "1"}}}},
    ),
    _object(
        "kedge.dev/v1",
        "Rollout",
        "risk-api",
        "team-a",
        spec={
            "target": {"apiVersion": "kedge.dev/v1", "kind": "SchedulingPolicy", "name": "spread"},
            "policy": {"version": "v5", "maxZoneSkew": 1},
            "stages": [
                {"name": "canary", "scope": {"workloads": ["risk-api"], "percent": 5}, "holdSeconds": 60},
                {"name": "all"},
            ],
            "gates": {"minSamples": 3},
        },
        status={"phase": "Progressing", "stage": 1},
    ),
    _object(
        "kedge.dev/v1",
        "RecordingWindow",
        "incident",
        spec={
            "until": "2026-01-01T00:00:00Z",
            "tenants": ["team-a"],
            "objects": [{"kind": "Deployment.apps", "namespace": "team-a", "name": "risk-api"}],
            "reason": "an alert",
        },
    ),
)


def manifests() -> list[Json]:
    """A fresh copy of each."""
    return [copy.deepcopy(each) for each in _ALL]


def manifest(kind: str) -> Json:
    """A fresh copy of the manifest of this kind."""
    return next(copy.deepcopy(each) for each in _ALL if each["kind"] == kind)
