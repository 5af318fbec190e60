"""Rules of pod specs: containers, probes and placement constraints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kedge.api.names import (
    env_name_problem,
    ip_problem,
    label_problem,
    label_value_problem,
    port_name_problem,
    port_number_problem,
    qualified_name_problem,
    subdomain_problem,
)
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_annotations, check_conditions, check_labels, check_selector
from kedge.api.validation.resize import check_resize_policies
from kedge.api.validation.resources import (
    check_container_amounts,
    check_pod_resources,
    check_reported_resources,
    check_requirements,
)
from kedge.api.views import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PodStatus,
    PodTemplate,
    PodView,
    Probe,
    Toleration,
    TopologySpreadConstraint,
)
from kedge.api.views.core import EnvVar, SchedulingGate

PROTOCOLS = ("TCP", "UDP", "SCTP")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


def check_pod(errors: ErrorList, pod: PodView) -> None:
    check_pod_spec(errors, pod.spec, "spec")
    check_pod_status(errors, pod.status)


def check_pod_status(errors: ErrorList, status: PodStatus) -> None:
    if status.phase and status.phase not in _PHASES:
        errors.unsupported("status.phase", status.phase, _PHASES)
    if status.conditions:
        check_conditions(errors, status.conditions)
    check_reported_resources(errors, status)
    if status.pod_ip:
        errors.name("status.podIP", status.pod_ip, ip_problem(status.pod_ip))


def check_template(errors: ErrorList, template: PodTemplate, path: str = "spec.template") -> None:
    check_labels(errors, template.metadata.labels, f"{path}.metadata.labels")
    check_annotations(errors, template.metadata.annotations, f"{path}.metadata.annotations")
    check_pod_spec(errors, template.spec, f"{path}.spec")


def check_pod_spec(errors: ErrorList, spec: PodSpec, path: str) -> None:
    if not spec.containers:
        errors.required(f"{path}.containers")
    check_containers(errors, spec, path)
    if spec.node_selector:
        check_labels(errors, spec.node_selector, f"{path}.nodeSelector")
    if spec.tolerations:
        _check_tolerations(errors, spec.tolerations, f"{path}.tolerations")
    if spec.affinity is not None:
        _check_affinity(errors, spec.affinity, f"{path}.affinity")
    if spec.topology_spread_constraints:
        _check_spread(errors, spec.topology_spread_constraints, f"{path}.topologySpreadConstraints")
    if spec.scheduling_gates:
        _check_gates(errors, spec, spec.scheduling_gates, path)
    if spec.overhead:
        check_container_amounts(errors, spec.overhead, f"{path}.overhead")
    _check_plain_fields(errors, spec, path)


def _check_plain_fields(errors: ErrorList, spec: PodSpec, path: str) -> None:
    if spec.restart_policy not in _RESTART_POLICIES:
        errors.one_of(f"{path}.restartPolicy", spec.restart_policy, _RESTART_POLICIES)
    if spec.preemption_policy not in PREEMPTION_POLICIES:
        errors.one_of(f"{path}.preemptionPolicy", spec.preemption_policy, PREEMPTION_POLICIES)
    if spec.termination_grace_period_seconds < 0:
        errors.at_least(f"{path}.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0)
    if spec.active_deadline_seconds is not None:
        errors.between(f"{path}.activeDeadlineSeconds", spec.active_deadline_seconds, 1, 2**31 - 1)
    for attribute, name in (
        ("nodeName", spec.node_name),
        ("schedulerName", spec.scheduler_name),
        ("priorityClassName", spec.priority_class_name),
    ):
        if name:
            problem = subdomain_problem(name)
            if problem:
                errors.invalid(f"{path}.{attribute}", name, problem)


# -- containers ------------------------------------------------------------------------------------


def check_containers(errors: ErrorList, spec: PodSpec, path: str) -> None:
    names: set[str] = set()
    host_ports: set[str] = set()
    for index, container in enumerate(spec.containers):
        place = f"{path}.containers[{index}]"
        _check_container(errors, container, place, names, host_ports, host_network=spec.host_network)
        if container.restart_policy:
            errors.forbidden(f"{place}.restartPolicy", "may not be set for non-init containers")
    check_resize_policies(errors, spec, path)
    if spec.resources.requests or spec.resources.limits:
        check_pod_resources(errors, spec, path)
    for index, container in enumerate(spec.init_containers):
        place = f"{path}.initContainers[{index}]"
        sidecar = container.restart_policy == "Always"
        ports = host_ports if sidecar else set()
        _check_container(errors, container, place, names, ports, host_network=spec.host_network)
        if container.restart_policy and not sidecar:
            errors.unsupported(f"{place}.restartPolicy", container.restart_policy, ("Always",))
        if not sidecar:
            for attribute, probe in (
                ("livenessProbe", container.liveness_probe),
                ("readinessProbe", container.readiness_probe),
                ("startupProbe", container.startup_probe),
            ):
                if probe is not None:
                    errors.forbidden(
                        f"{place}.{attribute}", "may not be set for init containers without restartPolicy=Always"
                    )


def _check_container(
    errors: ErrorList,
    container: Container,
    path: str,
    names: set[str],
    host_ports: set[str],
    *,
    host_network: bool,
) -> None:
    name = container.name
    if not name:
        errors.required(f"{path}.name")
    else:
        problem = label_problem(name)
        if problem:
            errors.invalid(f"{path}.name", name, problem)
        if name in names:
            errors.duplicate(f"{path}.name", name)
        names.add(name)
    if container.ports:
        _check_ports(errors, container.ports, f"{path}.ports", host_ports, host_network=host_network)
    if container.env:
        _check_env(errors, container.env, f"{path}.env")
    if container.resources.requests or container.resources.limits:
        check_requirements(errors, container.resources, f"{path}.resources")
    if container.liveness_probe is not None:
        _check_probe(errors, container.liveness_probe, f"{path}.livenessProbe", ready=False)
    if container.readiness_probe is not None:
        _check_probe(errors, container.readiness_probe, f"{path}.readinessProbe", ready=True)
    if container.startup_probe is not None:
        _check_probe(errors, container.startup_probe, f"{path}.startupProbe", ready=False)


def _check_ports(
    errors: ErrorList, ports: Sequence[ContainerPort], path: str, host_ports: set[str], *, host_network: bool
) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        place = f"{path}[{index}]"
        if port.name:
            errors.name(f"{place}.name", port.name, port_name_problem(port.name))
            if port.name in names:
                errors.duplicate(f"{place}.name", port.name)
            names.add(port.name)
        if port.container_port == 0:
            errors.required(f"{place}.containerPort")
        elif not 1 <= port.container_port <= 65535:
            errors.invalid(f"{place}.containerPort", port.container_port, port_number_problem(port.container_port))
        if port.protocol not in PROTOCOLS:
            errors.one_of(f"{place}.protocol", port.protocol, PROTOCOLS)
        if port.host_port:
            _check_host_port(errors, port, place, host_ports, host_network=host_network)
        if port.host_ip:
            errors.name(f"{place}.hostIP", port.host_ip, ip_problem(port.host_ip))


def _check_host_port(
    errors: ErrorList, port: ContainerPort, place: str, host_ports: set[str], *, host_network: bool
) -> None:
    problem = port_number_problem(port.host_port)
    if problem:
        errors.invalid(f"{place}.hostPort", port.host_port, problem)
    if host_network and port.host_port != port.container_port:
        errors.invalid(
            f"{place}.containerPort", port.container_port, "must match `hostPort` when `hostNetwork` is true"
        )
    taken = f"{port.protocol}/{port.host_ip}/{port.host_port}"
    if taken in host_ports:
        errors.duplicate(f"{place}.hostPort", taken)
    host_ports.add(taken)


def _check_env(errors: ErrorList, env: Sequence[EnvVar], path: str) -> None:
    for index, variable in enumerate(env):
        if not variable.name:
            errors.required(f"{path}[{index}].name")
        else:
            problem = env_name_problem(variable.name)
            if problem:
                errors.invalid(f"{path}[{index}].name", variable.name, problem)
        source = variable.value_from
        if source is not None:
            place = f"{path}[{index}].valueFrom"
            sources = (
                source.config_map_key_ref, source.secret_key_ref, source.field_ref, source.resource_field_ref
            )  # fmt: skip
            chosen = sum(each is not None for each in sources)
            if variable.value:
                errors.invalid(place, "", "may not be specified when `value` is not empty")
            if not chosen:
                errors.required(
                    place, "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
                )
            elif chosen > 1:
                errors.invalid(place, "", "may not have more than one field specified at a time")
            for attribute, reference in (
                ("configMapKeyRef", source.config_map_key_ref),
                ("secretKeyRef", source.secret_key_ref),
            ):
                if reference is not None and not reference.key:
                    errors.required(f"{place}.{attribute}.key")
            if source.field_ref is not None and not source.field_ref.field_path:
                errors.required(f"{place}.fieldRef.fieldPath")


def _check_probe(errors: ErrorList, probe: Probe, path: str, *, ready: bool) -> None:
    handlers = sum(each is not None for each in (probe.exec, probe.http_get, probe.tcp_socket, probe.grpc))
    if not handlers:
        errors.required(path, "must specify a handler type")
    elif handlers > 1:
        errors.forbidden(path, "may not specify more than 1 handler type")
    lowest = min(
        probe.initial_delay_seconds,
        probe.timeout_seconds,
        probe.period_seconds,
        probe.success_threshold,
        probe.failure_threshold,
    )
    if lowest < 0:
        _check_probe_numbers(errors, probe, path)
    if probe.success_threshold > 1 and not ready:
        errors.invalid(f"{path}.successThreshold", probe.success_threshold, "must be 1")
    grace = probe.termination_grace_period_seconds
    if grace is not None:
        if ready:
            errors.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
        elif grace <= 0:
            errors.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if probe.exec is not None and not probe.exec.command:
        errors.required(f"{path}.exec.command")
    if probe.http_get is not None:
        if not probe.http_get.path:
            errors.required(f"{path}.httpGet.path")
        if probe.http_get.scheme not in ("HTTP", "HTTPS"):
            errors.one_of(f"{path}.httpGet.scheme", probe.http_get.scheme, ("HTTP", "HTTPS"))
        check_port(errors, probe.http_get.port, f"{path}.httpGet.port")
    if probe.tcp_socket is not None:
        check_port(errors, probe.tcp_socket.port, f"{path}.tcpSocket.port")
    if probe.grpc is not None:
        check_port(errors, probe.grpc.port, f"{path}.grpc.port")


def _check_probe_numbers(errors: ErrorList, probe: Probe, path: str) -> None:
    errors.at_least(f"{path}.initialDelaySeconds", probe.initial_delay_seconds, 0)
    errors.at_least(f"{path}.timeoutSeconds", probe.timeout_seconds, 0)
    errors.at_least(f"{path}.periodSeconds", probe.period_seconds, 0)
    errors.at_least(f"{path}.successThreshold", probe.success_threshold, 0)
    errors.at_least(f"{path}.failureThreshold", probe.failure_threshold, 0)


def check_port(errors: ErrorList, port: int | str, path: str) -> None:
    """A port by number or by name."""
    problem = port_number_problem(port) if isinstance(port, int) else port_name_problem(port)
    if problem:
        errors.invalid(path, port, problem)


# -- placement constraints -------------------------------------------------------------------------


def _check_tolerations(errors: ErrorList, tolerations: Sequence[Toleration], path: str) -> None:
    for index, toleration in enumerate(tolerations):
        place = f"{path}[{index}]"
        if toleration.key:
            errors.name(f"{place}.key", toleration.key, qualified_name_problem(toleration.key))
        elif toleration.operator != "Exists":
            errors.invalid(
                f"{place}.operator",
                toleration.operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        match toleration.operator:
            case "Equal" | "":
                errors.name(f"{place}.operator", toleration.value, label_value_problem(toleration.value))
            case "Exists":
                if toleration.value:
                    errors.invalid(
                        f"{place}.operator", toleration.value, "value must be empty when `operator` is 'Exists'"
                    )
            case _:
                errors.unsupported(f"{place}.operator", toleration.operator, ("Equal", "Exists"))
        if toleration.effect and toleration.effect not in TAINT_EFFECTS:
            errors.unsupported(f"{place}.effect", toleration.effect, TAINT_EFFECTS)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            errors.invalid(
                f"{place}.effect", toleration.effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"
            )


def _check_affinity(errors: ErrorList, affinity: Affinity, path: str) -> None:
    if affinity.node_affinity is not None:
        _check_node_affinity(errors, affinity.node_affinity, f"{path}.nodeAffinity")
    if affinity.pod_affinity is not None:
        _check_pod_affinity(errors, affinity.pod_affinity, f"{path}.podAffinity")
    if affinity.pod_anti_affinity is not None:
        _check_pod_affinity(errors, affinity.pod_anti_affinity, f"{path}.podAntiAffinity")


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _check_node_affinity(errors: ErrorList, affinity: NodeAffinity, path: str) -> None:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        place = f"{path}.{_REQUIRED}.nodeSelectorTerms"
        if not required.node_selector_terms:
            errors.required(place, "must have at least one node selector term")
        for index, term in enumerate(required.node_selector_terms):
            check_node_term(errors, term, f"{place}[{index}]")
    for index, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        place = f"{path}.{_PREFERRED}[{index}]"
        _check_weight(errors, preferred.weight, place)
        check_node_term(errors, preferred.preference, f"{place}.preference")


def _check_weight(errors: ErrorList, weight: int, path: str) -> None:
    if not 1 <= weight <= 100:
        errors.invalid(f"{path}.weight", weight, "must be in the range 1-100")


def check_node_term(errors: ErrorList, term: NodeSelectorTerm, path: str) -> None:
    for index, requirement in enumerate(term.match_expressions):
        place = f"{path}.matchExpressions[{index}]"
        _check_operator(errors, requirement.operator, requirement.values, place)
        errors.name(f"{place}.key", requirement.key, qualified_name_problem(requirement.key))
        if requirement.operator in ("In", "NotIn"):
            for at, value in enumerate(requirement.values):
                errors.name(f"{place}.values[{at}]", value, label_value_problem(value))
    for index, requirement in enumerate(term.match_fields):
        place = f"{path}.matchFields[{index}]"
        if requirement.key != "metadata.name":
            errors.invalid(f"{place}.key", requirement.key, "not a valid field selector key")
        if requirement.operator not in ("In", "NotIn"):
            errors.invalid(f"{place}.operator", requirement.operator, "not a valid selector operator")
        if len(requirement.values) != 1:
            errors.required(
                f"{place}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )


def _check_operator(errors: ErrorList, operator: str, values: Sequence[str], path: str) -> None:
    match operator:
        case "In" | "NotIn":
            if not values:
                errors.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                errors.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        case "Gt" | "Lt":
            if len(values) != 1:
                errors.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
        case _:
            errors.invalid(f"{path}.operator", operator, "not a valid selector operator")


def _check_pod_affinity(errors: ErrorList, affinity: PodAffinity, path: str) -> None:
    for index, term in enumerate(affinity.required_during_scheduling_ignored_during_execution):
        _check_pod_term(errors, term, f"{path}.{_REQUIRED}[{index}]")
    for index, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        place = f"{path}.{_PREFERRED}[{index}]"
        _check_weight(errors, weighted.weight, place)
        _check_pod_term(errors, weighted.pod_affinity_term, f"{place}.podAffinityTerm")


def _check_pod_term(errors: ErrorList, term: PodAffinityTerm, path: str) -> None:
    if term.label_selector is not None:
        check_selector(errors, term.label_selector, f"{path}.labelSelector")
    if term.namespace_selector is not None:
        check_selector(errors, term.namespace_selector, f"{path}.namespaceSelector")
    for index, namespace in enumerate(term.namespaces):
        errors.name(f"{path}.namespaces[{index}]", namespace, label_problem(namespace))
    if not term.topology_key:
        errors.required(f"{path}.topologyKey", "can not be empty")
    else:
        errors.name(f"{path}.topologyKey", term.topology_key, qualified_name_problem(term.topology_key))
    for attribute, keys in (("matchLabelKeys", term.match_label_keys), ("mismatchLabelKeys", term.mismatch_label_keys)):
        _check_label_keys(errors, keys, f"{path}.{attribute}", selected=term.label_selector is not None)


def _check_label_keys(errors: ErrorList, keys: Sequence[str], path: str, *, selected: bool) -> None:
    if keys and not selected:
        errors.forbidden(path, "must not be specified when labelSelector is not set")
    for index, key in enumerate(keys):
        errors.name(f"{path}[{index}]", key, qualified_name_problem(key))


def _check_spread(errors: ErrorList, constraints: Sequence[TopologySpreadConstraint], path: str) -> None:
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        place = f"{path}[{index}]"
        if constraint.max_skew <= 0:
            errors.invalid(f"{place}.maxSkew", constraint.max_skew, "must be greater than zero")
        if not constraint.topology_key:
            errors.required(f"{place}.topologyKey", "can not be empty")
        else:
            errors.name(
                f"{place}.topologyKey", constraint.topology_key, qualified_name_problem(constraint.topology_key)
            )
        errors.one_of(f"{place}.whenUnsatisfiable", constraint.when_unsatisfiable, ("DoNotSchedule", "ScheduleAnyway"))
        pair = (constraint.topology_key, constraint.when_unsatisfiable)
        if pair in seen:
            errors.duplicate(f"{place}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {pair[1]}}}")
        seen.add(pair)
        if constraint.min_domains is not None:
            if constraint.min_domains <= 0:
                errors.invalid(f"{place}.minDomains", constraint.min_domains, "must be greater than zero")
            if constraint.when_unsatisfiable != "DoNotSchedule":
                errors.invalid(
                    f"{place}.minDomains",
                    constraint.min_domains,
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule",
                )
        for attribute, policy in (
            ("nodeAffinityPolicy", constraint.node_affinity_policy),
            ("nodeTaintsPolicy", constraint.node_taints_policy),
        ):
            errors.one_of(f"{place}.{attribute}", policy, ("Honor", "Ignore"))
        if constraint.label_selector is not None:
            check_selector(errors, constraint.label_selector, f"{place}.labelSelector")
        _check_label_keys(
            errors,
            constraint.match_label_keys,
            f"{place}.matchLabelKeys",
            selected=constraint.label_selector is not None,
        )


def _check_gates(errors: ErrorList, spec: PodSpec, gates: Sequence[SchedulingGate], path: str) -> None:
    check_unique_names(errors, [gate.name for gate in gates], f"{path}.schedulingGates", qualified_name_problem)
    if spec.node_name:
        errors.forbidden(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared")


def check_unique_names(errors: ErrorList, names: Sequence[str], path: str, problem_of: Callable[[str], str]) -> None:
    """A list of items with unique names."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not name:
            errors.required(f"{path}[{index}].name")
            continue
        errors.name(f"{path}[{index}].name", name, problem_of(name))
        if name in seen:
            errors.duplicate(f"{path}[{index}].name", name)
        seen.add(name)
