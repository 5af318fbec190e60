"""Cells of `kubectl get` that are computed from an object: pure functions of its JSON and the time.

One function a kind and column, with the texts of Kubernetes. `tables` puts them into a `Table`; columns that
only copy a field are in `api.kinds`, as paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.api.quantity import parse_quantity, sum_quantities
from kedge.api.timestamps import parse_time
from kedge.api.wellknown import NODE_ROLE_LABEL, NODE_ROLE_LABEL_PREFIX, SERVICE_ACCOUNT_KIND

Body = Mapping[str, Any]
Cell = str | int | bool

NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"


def age(text: Any, now: datetime) -> str:
    """How long ago a timestamp was, as kubectl shows it."""
    moment = _moment(text)
    return UNKNOWN if moment is None else duration((now - moment).total_seconds())


def duration(seconds: float) -> str:
    """Two units at the most, the smaller one only while it matters: `90s`, `4m30s`, `3h12m`, `5d`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{max(whole, 0)}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    years = days // 365
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"


def _moment(text: Any) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None


def at(body: Any, *path: str) -> Any:
    """The value at a path of names; None where any part is missing."""
    for name in path:
        if not isinstance(body, Mapping):
            return None
        body = body.get(name)
    return body


def items_at(body: Body, *path: str) -> Sequence[Any]:
    found = at(body, *path)
    return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def labels_text(labels: Any) -> str:
    """A label selector's `matchLabels`, or a plain map, as `a=1,b=2`."""
    if not isinstance(labels, Mapping) or not labels:
        return NONE
    return ",".join(f"{name}={labels[name]}" for name in sorted(labels))


def selector_text(selector: Any) -> str:
    parts = [f"{name}={value}" for name, value in sorted((at(selector, "matchLabels") or {}).items())]
    for rule in items_at(selector or {}, "matchExpressions"):
        values = ",".join(str(value) for value in items_at(rule, "values"))
        match rule.get("operator"):
            case "In":
                parts.append(f"{rule.get('key')} in ({values})")
            case "NotIn":
                parts.append(f"{rule.get('key')} notin ({values})")
            case "Exists":
                parts.append(str(rule.get("key")))
            case _:
                parts.append(f"!{rule.get('key')}")
    return ",".join(parts) or NONE


def condition(body: Body, type_name: str) -> Mapping[str, Any] | None:
    for each in items_at(body, "status", "conditions"):
        if each.get("type") == type_name:
            found: Mapping[str, Any] = each
            return found
    return None


# -- pods --------------------------------------------------------------------------------------------


class PodCells:
    """The cells of a pod. They share one pass over its container statuses."""

    def __init__(self, pod: Body, now: datetime) -> None:
        self._pod = pod
        self._now = now
        self.total = len(items_at(pod, "spec", "containers"))
        self.ready = 0
        self.reason = str(at(pod, "status", "reason") or at(pod, "status", "phase") or UNKNOWN)
        scheduled = condition(pod, "PodScheduled")
        if scheduled is not None and scheduled.get("reason") == "SchedulingGated":
            self.reason = "SchedulingGated"
        self._restarts = 0
        self._last_restart = ""
        sidecars = self._sidecars()
        self.total += len(sidecars)
        initialized = condition(pod, "Initialized")
        if not self._read_init(sidecars) or (initialized is not None and initialized.get("status") == "True"):
            self._read_containers(sidecars)
        if at(pod, "metadata", "deletionTimestamp"):
            if at(pod, "status", "reason") == "NodeLost":
                self.reason = UNKNOWN.strip("<>").capitalize()
            elif at(pod, "status", "phase") not in ("Succeeded", "Failed"):
                self.reason = "Terminating"

    @property
    def restarts(self) -> str:
        if self._restarts and self._last_restart:
            return f"{self._restarts} ({age(self._last_restart, self._now)} ago)"
        return str(self._restarts)

    @property
    def gates(self) -> str:
        gates = items_at(self._pod, "spec", "readinessGates")
        if not gates:
            return NONE
        open_gates = sum(1 for gate in gates if self._is_true(gate.get("conditionType")))
        return f"{open_gates}/{len(gates)}"

    def _is_true(self, type_name: Any) -> bool:
        found = condition(self._pod, str(type_name))
        return found is not None and found.get("status") == "True"

    def _sidecars(self) -> set[Any]:
        containers = items_at(self._pod, "spec", "initContainers")
        return {each.get("name") for each in containers if each.get("restartPolicy") == "Always"}

    def _count(self, status: Body) -> None:
        self._restarts += int(status.get("restartCount") or 0)
        finished = str(at(status, "lastState", "terminated", "finishedAt") or "")
        self._last_restart = max(self._last_restart, finished)

    def _read_init(self, sidecars: set[Any]) -> bool:
        """Count init containers up to the first that is not done. Returns whether there is one."""
        statuses = items_at(self._pod, "status", "initContainerStatuses")
        for index, status in enumerate(statuses):
            self._count(status)
            terminated, waiting = at(status, "state", "terminated"), at(status, "state", "waiting")
            if terminated is not None and terminated.get("exitCode", 0) == 0:
                continue
            if status.get("name") in sidecars and status.get("started"):
                self.ready += bool(status.get("ready"))
                continue
            if terminated is not None:
                self.reason = f"Init:{_ended(terminated)}"
            elif waiting is not None and waiting.get("reason") not in (None, "", "PodInitializing"):
                self.reason = f"Init:{waiting['reason']}"
            else:
                self.reason = f"Init:{index}/{len(items_at(self._pod, 'spec', 'initContainers'))}"
            return True
        return False

    def _read_containers(self, sidecars: set[Any]) -> None:
        self._restarts, self._last_restart = 0, ""
        for status in items_at(self._pod, "status", "initContainerStatuses"):
            if status.get("name") in sidecars:
                self._count(status)
        running = False
        for status in reversed(items_at(self._pod, "status", "containerStatuses")):
            self._count(status)
            state = status.get("state") or {}
            if at(state, "waiting", "reason"):
                self.reason = state["waiting"]["reason"]
            elif state.get("terminated") is not None:
                self.reason = _ended(state["terminated"])
            elif status.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        if self.reason == "Completed" and running:
            self.reason = "Running" if self._is_true("Ready") else "NotReady"


def _ended(terminated: Body) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


# -- other kinds -------------------------------------------------------------------------------------


def node_status(node: Body) -> str:
    ready = condition(node, "Ready")
    words = [{"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "NotReady") if ready else "Unknown"]
    if at(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def node_roles(node: Body) -> str:
    labels = at(node, "metadata", "labels") or {}
    roles = {name.removeprefix(NODE_ROLE_LABEL_PREFIX) for name in labels if name.startswith(NODE_ROLE_LABEL_PREFIX)}
    if labels.get(NODE_ROLE_LABEL):
        roles.add(labels[NODE_ROLE_LABEL])
    return ",".join(sorted(roles)) or NONE


def service_external(service: Body) -> str:
    spec = at(service, "spec") or {}
    match spec.get("type"):
        case "ExternalName":
            return str(spec.get("externalName") or NONE)
        case "LoadBalancer":
            found = items_at(service, "status", "loadBalancer", "ingress")
            return ",".join(str(each.get("ip") or each.get("hostname")) for each in found) or "<pending>"
        case _:
            return ",".join(spec.get("externalIPs") or ()) or NONE


def service_ports(service: Body) -> str:
    ports = []
    for port in items_at(service, "spec", "ports"):
        node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}")
    return ",".join(ports) or NONE


def slice_ports(body: Body) -> str:
    return _few((str(port.get("port")) for port in items_at(body, "ports")), 3) or UNSET


def slice_endpoints(body: Body) -> str:
    found = (address for each in items_at(body, "endpoints") for address in items_at(each, "addresses"))
    return _few((str(address) for address in found), 3) or UNSET


def _few(values: Iterable[str], most: int) -> str:
    every = list(values)
    more = f" + {len(every) - most} more..." if len(every) > most else ""
    return ",".join(every[:most]) + more


def job_status(job: Body) -> str:
    for type_name in ("Complete", "Failed"):
        if (found := condition(job, type_name)) is not None and found.get("status") == "True":
            return type_name
    if at(job, "metadata", "deletionTimestamp"):
        return "Terminating"
    for type_name, text in (
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet",) * 2,
    ):
        if (found := condition(job, type_name)) is not None and found.get("status") == "True":
            return text
    return "Running"


def job_completions(job: Body) -> str:
    succeeded = at(job, "status", "succeeded") or 0
    wanted = at(job, "spec", "completions")
    if wanted is not None:
        return f"{succeeded}/{wanted}"
    parallel = at(job, "spec", "parallelism") or 0
    return f"{succeeded}/1 of {parallel}" if parallel > 1 else f"{succeeded}/1"


def job_duration(job: Body, now: datetime) -> str:
    started = _moment(at(job, "status", "startTime"))
    if started is None:
        return ""
    ended = _moment(at(job, "status", "completionTime"))
    return duration(((ended or now) - started).total_seconds())


def autoscaler_reference(body: Body) -> str:
    target = at(body, "spec", "scaleTargetRef") or {}
    return f"{target.get('kind')}/{target.get('name')}"


def autoscaler_targets(body: Body) -> str:
    current = items_at(body, "status", "currentMetrics")
    shown = []
    for index, metric in enumerate(items_at(body, "spec", "metrics")):
        kind = str(metric.get("type", ""))
        source = metric.get(kind[:1].lower() + kind[1:]) or {}
        measured = current[index] if index < len(current) else {}
        value = at(measured.get(kind[:1].lower() + kind[1:]) or {}, "current") or {}
        target = source.get("target") or {}
        name = f"{source['name']}: " if source.get("name") else ""
        if target.get("averageUtilization") is not None:
            seen = value.get("averageUtilization")
            shown.append(f"{name}{UNKNOWN if seen is None else f'{seen}%'}/{target['averageUtilization']}%")
        else:
            wanted = target.get("averageValue") or target.get("value")
            shown.append(f"{name}{value.get('averageValue') or value.get('value') or UNKNOWN}/{wanted}")
    return ", ".join(shown) or NONE


def quota_text(quota: Body, *, limits: bool) -> str:
    hard, used = at(quota, "status", "hard") or {}, at(quota, "status", "used") or {}
    names = sorted(name for name in hard if name.startswith("limits.") == limits)
    return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in names)


def event_object(event: Body) -> str:
    about = at(event, "involvedObject") or at(event, "regarding") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def event_source(event: Body) -> str:
    source = at(event, "source") or at(event, "deprecatedSource") or {}
    reporter = at(event, "reportingComponent") or at(event, "reportingController")
    names = [source.get("component") or reporter, source.get("host")]
    return ", ".join(name for name in names if name)


def event_last_seen(event: Body) -> Any:
    series = at(event, "series", "lastObservedTime")
    last = at(event, "lastTimestamp") or at(event, "deprecatedLastTimestamp")
    return series or last or at(event, "eventTime") or event_first_seen(event)


def event_first_seen(event: Body) -> Any:
    first = at(event, "firstTimestamp") or at(event, "deprecatedFirstTimestamp")
    return first or at(event, "eventTime")


def usage_text(body: Body, resource: str) -> str:
    """The usage of a node, or of all containers of a pod."""
    used = [at(each, "usage", resource) for each in items_at(body, "containers") or (body,)]
    return str(sum_quantities(parse_quantity(each) for each in used if each is not None))


def templates(body: Body, part: str) -> str:
    containers = items_at(body, "spec", "template", "spec", "containers")
    return ",".join(str(each.get(part, "")) for each in containers) or NONE


def role_text(binding: Body) -> str:
    """The role that a binding grants: `ClusterRole/view`."""
    return f"{at(binding, 'roleRef', 'kind') or ''}/{at(binding, 'roleRef', 'name') or ''}"


def subjects_text(binding: Body, kind: str) -> str:
    """The subjects of one kind, service accounts with their namespaces."""
    found = [each for each in items_at(binding, "subjects") if at(each, "kind") == kind]
    names = (at(each, "name") or "" for each in found)
    if kind == SERVICE_ACCOUNT_KIND:
        names = (f"{at(each, 'namespace') or ''}/{at(each, 'name') or ''}" for each in found)
    return ", ".join(map(str, names))


def signing_condition(request: Body) -> str:
    """`Approved,Issued`, as kubectl shows it."""
    types = [str(at(each, "type")) for each in items_at(request, "status", "conditions")]
    found = [each for each in types if each in ("Approved", "Denied")] or ["Pending"]
    found += [each for each in types if each == "Failed"]
    return ",".join([*found, "Issued"] if at(request, "status", "certificate") else found)


def requested_duration(request: Body) -> str:
    seconds = at(request, "spec", "expirationSeconds")
    return NONE if seconds is None else duration(int(seconds))


Compute = Callable[[Body, datetime], Cell]

CELLS: dict[tuple[str, str], Compute] = {
    ("Node", "Status"): lambda body, _: node_status(body),
    ("Node", "Roles"): lambda body, _: node_roles(body),
    ("Event", "Last Seen"): lambda body, now: age(event_last_seen(body), now),
    ("Event", "First Seen"): lambda body, now: age(event_first_seen(body), now),
    ("Event", "Object"): lambda body, _: event_object(body),
    ("Event", "Source"): lambda body, _: event_source(body),
    ("ConfigMap", "Data"): lambda body, _: len(at(body, "data") or {}) + len(at(body, "binaryData") or {}),
    ("Secret", "Data"): lambda body, _: len(at(body, "data") or {}),
    ("Service", "External-IP"): lambda body, _: service_external(body),
    ("Service", "Port(s)"): lambda body, _: service_ports(body),
    ("Service", "Selector"): lambda body, _: labels_text(at(body, "spec", "selector")),
    ("ResourceQuota", "Request"): lambda body, _: quota_text(body, limits=False),
    ("ResourceQuota", "Limit"): lambda body, _: quota_text(body, limits=True),
    ("EndpointSlice", "Ports"): lambda body, _: slice_ports(body),
    ("EndpointSlice", "Endpoints"): lambda body, _: slice_endpoints(body),
    ("Deployment", "Ready"): lambda body, _: (
        f"{at(body, 'status', 'readyReplicas') or 0}/{at(body, 'spec', 'replicas') or 0}"
    ),
    ("Job", "Status"): lambda body, _: job_status(body),
    ("Job", "Completions"): lambda body, _: job_completions(body),
    ("Job", "Duration"): job_duration,
    ("HorizontalPodAutoscaler", "Reference"): lambda body, _: autoscaler_reference(body),
    ("HorizontalPodAutoscaler", "Targets"): lambda body, _: autoscaler_targets(body),
    ("ValidatingAdmissionPolicy", "Validations"): lambda body, _: len(items_at(body, "spec", "validations")),
    ("MutatingAdmissionPolicy", "Mutations"): lambda body, _: len(items_at(body, "spec", "mutations")),
    ("NodeMetrics", "CPU"): lambda body, _: usage_text(body, "cpu"),
    ("NodeMetrics", "Memory"): lambda body, _: usage_text(body, "memory"),
    ("PodMetrics", "CPU"): lambda body, _: usage_text(body, "cpu"),
    ("PodMetrics", "Memory"): lambda body, _: usage_text(body, "memory"),
    ("RoleBinding", "Role"): lambda body, _: role_text(body),
    ("ClusterRoleBinding", "Role"): lambda body, _: role_text(body),
    ("CertificateSigningRequest", "RequestedDuration"): lambda body, _: requested_duration(body),
    ("CertificateSigningRequest", "Condition"): lambda body, _: signing_condition(body),
    ("ZoneQuota", "Zones"): lambda body, _: ",".join(sorted(at(body, "spec", "zones") or {})) or NONE,
}
"""Cells of one kind, by kind and column."""

SHARED_CELLS: dict[str, Compute] = {
    "Containers": lambda body, _: templates(body, "name"),
    "Images": lambda body, _: templates(body, "image"),
    "Users": lambda body, _: subjects_text(body, "User"),
    "Groups": lambda body, _: subjects_text(body, "Group"),
    "ServiceAccounts": lambda body, _: subjects_text(body, "ServiceAccount"),
    "Selector": lambda body, _: selector_text(at(body, "spec", "selector")),
    "ParamKind": lambda body, _: _param(at(body, "spec", "paramKind")),
    "ParamRef": lambda body, _: _param(at(body, "spec", "paramRef")),
}
"""Cells that several kinds have, by column."""


def _param(value: Any) -> str:
    if not isinstance(value, Mapping):
        return UNSET
    return (
        "/".join(str(value[name]) for name in ("apiVersion", "kind", "namespace", "name") if value.get(name)) or UNSET
    )
