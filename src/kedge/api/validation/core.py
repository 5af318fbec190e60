"""Rules of nodes, namespaces, quotas, services, priorities, leases, and of kinds that kedge only stores."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping

from kedge.api.names import (
    config_key_problem,
    label_problem,
    label_value_problem,
    port_number_problem,
    qualified_name_problem,
    subdomain_problem,
)
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_conditions, check_labels
from kedge.api.validation.pods import PREEMPTION_POLICIES, PROTOCOLS, TAINT_EFFECTS, check_port
from kedge.api.validation.resources import check_amounts
from kedge.api.views import (
    EndpointSliceView,
    LeaseView,
    NamespaceView,
    NodeView,
    PriorityClassView,
    ResourceQuotaView,
    ServiceView,
    View,
)
from kedge.api.views.base import Annotations, Int32, Time, map_field
from kedge.api.views.core import ObjectReference, ServicePort

# -- Node, Namespace, ResourceQuota ----------------------------------------------------------------


def check_node(errors: ErrorList, node: NodeView) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(node.spec.taints):
        path = f"spec.taints[{index}]"
        errors.name(f"{path}.key", taint.key, qualified_name_problem(taint.key))
        errors.name(f"{path}.value", taint.value, label_value_problem(taint.value))
        errors.one_of(f"{path}.effect", taint.effect, TAINT_EFFECTS)
        if (taint.key, taint.effect) in seen:
            errors.duplicate(path, f"{taint.key}:{taint.effect}")
        seen.add((taint.key, taint.effect))
    check_amounts(errors, node.status.capacity, "status.capacity")
    check_amounts(errors, node.status.allocatable, "status.allocatable")
    check_conditions(errors, node.status.conditions)


def check_namespace(errors: ErrorList, namespace: NamespaceView) -> None:
    for index, finalizer in enumerate(namespace.spec.finalizers):
        errors.name(f"spec.finalizers[{index}]", finalizer, qualified_name_problem(finalizer))
        if "/" not in finalizer and finalizer != "kubernetes":
            errors.invalid(
                f"spec.finalizers[{index}]",
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            )
    errors.one_of("status.phase", namespace.status.phase, ("Active", "Terminating"))
    check_conditions(errors, namespace.status.conditions)


_SCOPES = (
    "BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass", "Terminating",
)  # fmt: skip


def check_resource_quota(errors: ErrorList, quota: ResourceQuotaView) -> None:
    check_amounts(errors, quota.spec.hard, "spec.hard")
    check_amounts(errors, quota.status.hard, "status.hard")
    check_amounts(errors, quota.status.used, "status.used")
    scopes = set(quota.spec.scopes)
    for index, scope in enumerate(quota.spec.scopes):
        errors.one_of(f"spec.scopes[{index}]", scope, _SCOPES)
    for one, other in (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")):
        if one in scopes and other in scopes:
            errors.invalid("spec.scopes", list(quota.spec.scopes), "conflicting scopes")
    if quota.spec.scope_selector is not None:
        for index, requirement in enumerate(quota.spec.scope_selector.match_expressions):
            path = f"spec.scopeSelector.matchExpressions[{index}]"
            errors.one_of(f"{path}.scopeName", requirement.scope_name, _SCOPES)
            errors.one_of(f"{path}.operator", requirement.operator, ("DoesNotExist", "Exists", "In", "NotIn"))
            if requirement.scope_name != "PriorityClass" and requirement.operator not in ("Exists", ""):
                errors.invalid(
                    f"{path}.operator",
                    requirement.operator,
                    f"must be 'Exists' when the scope is {requirement.scope_name}: only PriorityClass has values",
                )
            if requirement.operator in ("In", "NotIn") and not requirement.values:
                errors.required(f"{path}.values", "must be at least one value when `operator` is 'In' or 'NotIn'")
            if requirement.operator in ("Exists", "DoesNotExist") and requirement.values:
                errors.invalid(
                    f"{path}.values",
                    list(requirement.values),
                    "must be no value when `operator` is 'Exists' or 'DoesNotExist'",
                )


# -- Service, EndpointSlice ------------------------------------------------------------------------

_SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


def check_service(errors: ErrorList, service: ServiceView) -> None:
    spec = service.spec
    errors.one_of("spec.type", spec.type, _SERVICE_TYPES)
    check_labels(errors, spec.selector, "spec.selector")
    if spec.type == "ExternalName":
        if not spec.external_name:
            errors.required("spec.externalName")
        else:
            errors.name("spec.externalName", spec.external_name, subdomain_problem(spec.external_name))
    elif not spec.ports and spec.cluster_ip != "None":
        errors.required("spec.ports")
    if spec.cluster_ip not in ("", "None"):
        errors.name("spec.clusterIPs[0]", spec.cluster_ip, _ip_problem(spec.cluster_ip))
    names: set[str] = set()
    pairs: set[tuple[str, int]] = set()
    for index, port in enumerate(spec.ports):
        path = f"spec.ports[{index}]"
        if port.name in names and port.name:
            errors.duplicate(f"{path}.name", port.name)
        names.add(port.name)
        if (port.protocol, port.port) in pairs:
            errors.duplicate(path, f"{port.port}/{port.protocol}")
        pairs.add((port.protocol, port.port))
        _check_service_port(errors, port, path, alone=len(spec.ports) == 1)


def _check_service_port(errors: ErrorList, port: ServicePort, path: str, *, alone: bool) -> None:
    if port.name:
        errors.name(f"{path}.name", port.name, label_problem(port.name))
    elif not alone:
        errors.required(f"{path}.name")
    problem = port_number_problem(port.port)
    if problem:
        errors.invalid(f"{path}.port", port.port, problem)
    errors.one_of(f"{path}.protocol", port.protocol, PROTOCOLS)
    if port.target_port not in (0, ""):
        check_port(errors, port.target_port, f"{path}.targetPort")
    if port.node_port:
        errors.name(f"{path}.nodePort", str(port.node_port), port_number_problem(port.node_port))


def _ip_problem(address: str, family: str = "") -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
    if family and f"IPv{found.version}" != family:
        return f"must be an {family} address"
    return ""


_ENDPOINTS_MAX = 1000
_ENDPOINT_ADDRESSES_MAX = 100
_ENDPOINT_PORTS_MAX = 20_000


def check_endpoint_slice(errors: ErrorList, endpoint_slice: EndpointSliceView) -> None:
    family = endpoint_slice.address_type
    errors.one_of("addressType", family, ("FQDN", "IPv4", "IPv6"))
    if len(endpoint_slice.endpoints) > _ENDPOINTS_MAX:
        errors.too_many("endpoints", len(endpoint_slice.endpoints), _ENDPOINTS_MAX)
    for index, endpoint in enumerate(endpoint_slice.endpoints):
        path = f"endpoints[{index}]"
        if not endpoint.addresses:
            errors.required(f"{path}.addresses", "must contain at least 1 address")
        elif len(endpoint.addresses) > _ENDPOINT_ADDRESSES_MAX:
            errors.too_many(f"{path}.addresses", len(endpoint.addresses), _ENDPOINT_ADDRESSES_MAX)
        for at, address in enumerate(endpoint.addresses):
            problem = subdomain_problem(address) if family == "FQDN" else _ip_problem(address, family)
            errors.name(f"{path}.addresses[{at}]", address, problem)
        if endpoint.node_name:
            errors.name(f"{path}.nodeName", endpoint.node_name, subdomain_problem(endpoint.node_name))
    names: set[str] = set()
    if len(endpoint_slice.ports) > _ENDPOINT_PORTS_MAX:
        errors.too_many("ports", len(endpoint_slice.ports), _ENDPOINT_PORTS_MAX)
    for index, port in enumerate(endpoint_slice.ports):
        if port.name in names:
            errors.duplicate(f"ports[{index}].name", port.name)
        names.add(port.name)
        if port.name:
            errors.name(f"ports[{index}].name", port.name, label_problem(port.name))
        errors.one_of(f"ports[{index}].protocol", port.protocol, PROTOCOLS)
        if port.port is not None:
            errors.between(f"ports[{index}].port", port.port, 1, 65535)


# -- PriorityClass, Lease --------------------------------------------------------------------------

USER_PRIORITY_MAX = 1_000_000_000
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def check_priority_class(errors: ErrorList, priority: PriorityClassView) -> None:
    if priority.name.startswith("system-"):
        if _SYSTEM_PRIORITIES.get(priority.name) != priority.value:
            errors.forbidden(
                "metadata.name", "priority class names with 'system-' prefix are reserved for system use only"
            )
    elif priority.value > USER_PRIORITY_MAX:
        errors.forbidden("value", f"maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}")
    errors.one_of("preemptionPolicy", priority.preemption_policy, PREEMPTION_POLICIES)


def check_lease(errors: ErrorList, lease: LeaseView) -> None:
    spec = lease.spec
    if spec.lease_duration_seconds is not None and spec.lease_duration_seconds <= 0:
        errors.invalid("spec.leaseDurationSeconds", spec.lease_duration_seconds, "must be greater than 0")
    errors.at_least("spec.leaseTransitions", spec.lease_transitions, 0)


# -- kinds that kedge only stores: schemas to check, not views to act on ---------------------------

DATA_BYTES_MAX = 1024 * 1024
"""Kubernetes' limit on all the data of one ConfigMap or Secret."""


class ConfigMapSchema(View, frozen=True):
    data: Annotations = map_field()
    binary_data: Annotations = map_field()
    immutable: bool = False


class SecretSchema(View, frozen=True):
    data: Annotations = map_field()
    string_data: Annotations = map_field()
    type: str = "Opaque"
    immutable: bool = False


class EventSchema(View, frozen=True):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: Int32 = 0
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    event_time: Time | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    action: str = ""


def check_config_map(errors: ErrorList, config: ConfigMapSchema) -> None:
    size = _check_text(errors, config.data, "data") + _check_binary(errors, config.binary_data, "binaryData")
    for key in config.data:
        if key in config.binary_data:
            errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    if size > DATA_BYTES_MAX:
        errors.too_long("data", DATA_BYTES_MAX)


def check_secret(errors: ErrorList, secret: SecretSchema) -> None:
    size = _check_binary(errors, secret.data, "data", hidden=True) + _check_text(
        errors, secret.string_data, "stringData"
    )
    if size > DATA_BYTES_MAX:
        errors.too_long("data", DATA_BYTES_MAX)


def check_event(errors: ErrorList, event: EventSchema) -> None:
    if event.involved_object.namespace not in ("", event.namespace):
        errors.invalid("involvedObject.namespace", event.involved_object.namespace, "does not match event.namespace")
    errors.at_least("count", event.count, 0)


def _check_text(errors: ErrorList, values: Mapping[str, str], path: str) -> int:
    for key in values:
        errors.name(f"{path}[{key}]", key, config_key_problem(key))
    return sum(len(value.encode()) for value in values.values())


def _check_binary(errors: ErrorList, values: Mapping[str, str], path: str, *, hidden: bool = False) -> int:
    """The size of the values. Errors do not show `hidden` ones: an error may be recorded."""
    size = 0
    for key, value in values.items():
        errors.name(f"{path}[{key}]", key, config_key_problem(key))
        try:
            size += len(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            errors.invalid(f"{path}[{key}]", "(hidden)" if hidden else value[:64], "must be base64")
    return size
