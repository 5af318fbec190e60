"""The defaults of Kubernetes, for the fields that kedge acts on.

Defaults are stored, because clients read them back. They run before validation, on any input: a field of the wrong type
is left for `validation` to report.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.api.bootstrap_tokens import hash_token_secret
from kedge.api.codec import Draft, decode_json, encode_json
from kedge.api.pod_resources import is_set_for_pods, total_of_containers
from kedge.api.quantity import Quantity, parse_quantity
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    CLUSTER_ROLE_BINDING_KIND,
    DEPLOYMENT_KIND,
    ENDPOINT_SLICE_KIND,
    JOB_KIND,
    LIMIT_RANGE_KIND,
    NAMESPACE_KIND,
    NAMESPACE_NAME_LABEL,
    POD_KIND,
    PRIORITY_CLASS_KIND,
    RBAC_GROUP,
    REPLICA_SET_KIND,
    ROLE_BINDING_KIND,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
    SECRET_KIND,
    SERVICE_KIND,
)
from kedge.caches import weighed

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

_Json = dict[str, Any]


def apply_defaults(kind: Kind, obj: _Json) -> bool:
    """Set the defaults of `obj`, in place. Returns whether anything changed. Idempotent."""
    rule = _RULES.get(kind.key_kind)
    return rule is not None and rule(obj)


def has_defaults(kind: Kind) -> bool:
    """Whether any field of this kind has a default."""
    return kind.key_kind in _RULES


def apply_draft_defaults(kind: Kind, draft: Draft) -> bool:
    """As `apply_defaults`, decoding only the fields that have defaults."""
    rule = _RULES.get(kind.key_kind)
    if rule is None:
        return False
    if kind.key_kind == NAMESPACE_KIND:
        return rule({"metadata": draft.metadata})
    spec = draft.fields.get("spec")
    if kind.key_kind == POD_KIND and isinstance(spec, msgspec.Raw):
        raw = bytes(spec)
        if len(raw) <= SHARED_SPEC_BYTES_MAX:
            draft.fields["spec"], changed = filled_pod_spec(raw)
            return changed
    part = {name: draft.get(name) for name in _TOUCHED if name in draft.fields}
    if not rule(part):
        return False
    for name in [*part, *draft.fields]:
        if name in part:
            draft.fields[name] = part[name]
        elif name in _TOUCHED:
            del draft.fields[name]
    return True


SHARED_SPEC_BYTES_MAX = 8192
"""Larger specs are not cached, so that the cache stays small."""


@weighed(entries=1024, bytes_max=16 << 20)
def filled_pod_spec(raw: bytes) -> tuple[msgspec.Raw, bool]:
    """A spec with its defaults, and whether that changed it. Cached: replicas have the same spec, byte for byte."""
    spec = decode_json(raw)
    changed = isinstance(spec, dict) and _pod_spec(spec)
    return msgspec.Raw(encode_json(spec) if changed else raw), changed


_TOUCHED = ("spec", "preemptionPolicy", "ports", "type", "data", "stringData", "roleRef", "subjects")
"""Every top-level field that a default reads or writes."""


def _set(obj: _Json, name: str, value: Any) -> bool:
    """Set one field if it is absent. An empty string counts as absent, as in Go."""
    if obj.get(name) in (None, ""):
        obj[name] = value
        return True
    return False


def _set_number(obj: _Json, name: str, value: int) -> bool:
    """Set one number if it is absent or zero."""
    found = obj.get(name)
    if found is None or (found == 0 and found is not False):
        obj[name] = value
        return True
    return False


def _objects(obj: _Json, name: str) -> Iterator[_Json]:
    """The objects in a list; none if the value is not a list."""
    found = obj.get(name)
    if isinstance(found, list):
        for item in found:
            if isinstance(item, dict):
                yield item


# -- pods ------------------------------------------------------------------------------------------


def _pod(obj: _Json) -> bool:
    spec = obj.get("spec")
    return _pod_spec(spec) if isinstance(spec, dict) else False


def _pod_spec(spec: _Json) -> bool:
    changed = _set(spec, "restartPolicy", "Always")
    changed |= _set(spec, "schedulerName", "default-scheduler")
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = 30
        changed = True
    host_network = spec.get("hostNetwork") is True
    for field in ("containers", "initContainers"):
        if field in spec:
            for container in _objects(spec, field):
                changed |= _container(container, host_network=host_network)
    resources = spec.get("resources")
    if isinstance(resources, dict):
        changed |= _requests_of_pod(spec, resources)
    return changed


def _requests_of_pod(spec: _Json, resources: _Json) -> bool:
    """A pod with resources of its own requests what its containers do, and where they request nothing, its limit."""
    requests, limits = resources.get("requests"), resources.get("limits")
    if not isinstance(requests, dict | None) or not isinstance(limits, dict | None):
        return False
    try:
        total = total_of_containers(
            [_requests_in(each) for each in _objects(spec, "containers")],
            [(_requests_in(each), each.get("restartPolicy") == "Always") for each in _objects(spec, "initContainers")],
        )
    except ValueError:
        return False  # validation reports the quantity
    known = requests or {}
    missing = {
        resource: str(Quantity(nano, "BinarySI" if resource != "cpu" else "DecimalSI"))
        for resource, nano in total.items()
        if nano and resource not in known and is_set_for_pods(resource)
    }
    for resource, limit in (limits or {}).items():
        if resource not in known and is_set_for_pods(resource):
            missing.setdefault(resource, limit)
    if missing:
        resources["requests"] = {**known, **missing}
    return bool(missing)


def _requests_in(container: _Json) -> Mapping[str, Quantity]:
    resources = container.get("resources")
    requests = resources.get("requests") if isinstance(resources, dict) else None
    if not isinstance(requests, dict):
        return {}
    return {name: parse_quantity(amount) for name, amount in requests.items()}


def _container(container: _Json, *, host_network: bool) -> bool:
    changed = False
    if "ports" in container:
        for port in _objects(container, "ports"):
            changed |= _set(port, "protocol", "TCP")
            if host_network and "containerPort" in port:
                changed |= _set_number(port, "hostPort", port["containerPort"])
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if isinstance(probe, dict):
            changed |= _probe(probe)
    resources = container.get("resources")
    if isinstance(resources, dict) and isinstance(limits := resources.get("limits"), dict):
        changed |= _requests_from(limits, resources)
    for variable in _objects(container, "env"):
        source = variable.get("valueFrom")
        reference = source.get("fieldRef") if isinstance(source, dict) else None
        if isinstance(reference, dict):
            changed |= _set(reference, "apiVersion", "v1")
    return changed


def _requests_from(limits: _Json, resources: _Json) -> bool:
    """A container with a limit and no request requests its limit."""
    requests = resources.get("requests")
    if requests is None:
        requests = {}
    if not isinstance(requests, dict):
        return False
    missing = {name: limit for name, limit in limits.items() if name not in requests}
    if not missing:
        return False
    resources["requests"] = {**requests, **missing}
    return True


def _probe(probe: _Json) -> bool:
    changed = _set_number(probe, "timeoutSeconds", 1)
    changed |= _set_number(probe, "periodSeconds", 10)
    changed |= _set_number(probe, "successThreshold", 1)
    changed |= _set_number(probe, "failureThreshold", 3)
    get = probe.get("httpGet")
    if isinstance(get, dict):
        changed |= _set(get, "path", "/")
        changed |= _set(get, "scheme", "HTTP")
    call = probe.get("grpc")
    if isinstance(call, dict) and call.get("service") is None:
        call["service"] = ""  # the whole server
        changed = True
    return changed


def _template(spec: _Json) -> bool:
    template = spec.get("template")
    return _pod(template) if isinstance(template, dict) else False


# -- workloads -------------------------------------------------------------------------------------


def _deployment(spec: _Json) -> bool:
    changed = _set(spec, "replicas", 1)
    changed |= _set(spec, "revisionHistoryLimit", 10)
    changed |= _set(spec, "progressDeadlineSeconds", 600)
    changed |= _set(spec, "strategy", {})
    strategy = spec["strategy"]
    if isinstance(strategy, dict):
        changed |= _set(strategy, "type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            changed |= _set(strategy, "rollingUpdate", {})
            rolling = strategy["rollingUpdate"]
            if isinstance(rolling, dict):
                changed |= _set(rolling, "maxUnavailable", "25%")
                changed |= _set(rolling, "maxSurge", "25%")
    return _template(spec) or changed


def _replica_set(spec: _Json) -> bool:
    changed = _set(spec, "replicas", 1)
    return _template(spec) or changed


def _job(spec: _Json) -> bool:
    changed = False
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
        changed = True
    changed |= _set(spec, "parallelism", 1)
    changed |= _set(spec, "backoffLimit", 6)
    changed |= _set(spec, "completionMode", "NonIndexed")
    changed |= _set(spec, "suspend", False)  # noqa: FBT003 - a value of the manifest
    return _template(spec) or changed


_SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}


def _autoscaler(spec: _Json) -> bool:
    changed = _set(spec, "minReplicas", 1)
    if spec.get("metrics") in (None, []):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        changed = True
    behavior = spec.get("behavior")
    if isinstance(behavior, dict):
        for name, defaults in (("scaleUp", _SCALE_UP), ("scaleDown", _SCALE_DOWN)):
            changed |= _set(behavior, name, {})
            rules = behavior[name]
            if isinstance(rules, dict):
                for field, value in defaults.items():
                    copied = [dict(policy) for policy in value] if isinstance(value, list) else value
                    changed |= _set(rules, field, copied)
    return changed


# -- the rest --------------------------------------------------------------------------------------


def _service(spec: _Json) -> bool:
    changed = _set(spec, "type", "ClusterIP")
    for port in _objects(spec, "ports"):
        changed |= _set(port, "protocol", "TCP")
        if "port" in port:
            changed |= _set_number(port, "targetPort", port["port"])
            changed |= _set(port, "targetPort", port["port"])
    return changed


def _limit_range(spec: _Json) -> bool:
    """An item for containers: limits from their maximum, requests from the limits, else from their minimum."""
    changed = False
    for item in _objects(spec, "limits"):
        if item.get("type") == "Container":
            for target, source in (("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")):
                given, values = item.get(target) or {}, item.get(source)
                if not isinstance(given, dict) or not isinstance(values, dict):
                    continue  # absent, or malformed: validation names it
                added = {name: value for name, value in values.items() if name not in given}
                if added:
                    item[target] = {**given, **added}
                    changed = True
    return changed


def _endpoint_slice(obj: _Json) -> bool:
    changed = False
    for port in _objects(obj, "ports"):
        changed |= _set(port, "protocol", "TCP")
    return changed


def _secret(obj: _Json) -> bool:
    """`stringData` is stored encoded in `data`, and the secret part of a bootstrap token as its hash."""
    changed = _set(obj, "type", "Opaque")
    plain = obj.get("stringData")
    data = obj.get("data")
    texts = plain.values() if isinstance(plain, dict) else ()
    if isinstance(plain, dict) and isinstance(data, dict | None) and all(isinstance(text, str) for text in texts):
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
        obj["data"] = {**(data or {}), **encoded}
        del obj["stringData"]
        changed = True
    return hash_token_secret(obj) or changed


def _scheduling_policy(spec: _Json) -> bool:
    return _set(spec, "active", True)  # noqa: FBT003 - a value of the manifest


def _rollout(spec: _Json) -> bool:
    changed = _set(spec, "progressDeadlineSeconds", 600)
    changed |= _set(spec, "onRegression", "RollBack")
    return _template(spec) or changed


def _role_binding(obj: _Json) -> bool:
    ref = obj.get("roleRef")
    changed = isinstance(ref, dict) and _set(ref, "apiGroup", RBAC_GROUP)
    for subject in _objects(obj, "subjects"):
        if subject.get("kind") in ("User", "Group"):
            changed |= _set(subject, "apiGroup", RBAC_GROUP)
    return changed


def _in_spec(rule: Callable[[_Json], bool]) -> Callable[[_Json], bool]:
    def apply(obj: _Json) -> bool:
        spec = obj.get("spec")
        return rule(spec) if isinstance(spec, dict) else False

    return apply


def _namespace(obj: _Json) -> bool:
    """Its name as a label, so that selectors can choose namespaces by name."""
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str):
        return False
    labels = metadata.get("labels")
    if labels is not None and not isinstance(labels, dict):
        return False
    if labels and labels.get(NAMESPACE_NAME_LABEL) == name:
        return False
    metadata["labels"] = {**(labels or {}), NAMESPACE_NAME_LABEL: name}
    return True


_RULES: dict[str, Callable[[_Json], bool]] = {
    NAMESPACE_KIND: _namespace,
    POD_KIND: _pod,
    DEPLOYMENT_KIND: _in_spec(_deployment),
    REPLICA_SET_KIND: _in_spec(_replica_set),
    JOB_KIND: _in_spec(_job),
    AUTOSCALER_KIND: _in_spec(_autoscaler),
    SERVICE_KIND: _in_spec(_service),
    ENDPOINT_SLICE_KIND: _endpoint_slice,
    LIMIT_RANGE_KIND: _in_spec(_limit_range),
    PRIORITY_CLASS_KIND: lambda obj: _set(obj, "preemptionPolicy", "PreemptLowerPriority"),
    SECRET_KIND: _secret,
    SCHEDULING_POLICY_KIND: _in_spec(_scheduling_policy),
    ROLLOUT_KIND: _in_spec(_rollout),
    ROLE_BINDING_KIND: _role_binding,
    CLUSTER_ROLE_BINDING_KIND: _role_binding,
}
