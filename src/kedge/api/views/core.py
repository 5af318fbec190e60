"""Views of the `v1` kinds that kedge acts on, and of related kinds in other groups.

Pods and nodes have the fields that the scheduler, the agent and the bind need; others are stored, with a warning.
"""

from __future__ import annotations

import msgspec

from kedge.api.views.base import (
    ApiStruct,
    Condition,
    Int32,
    Int64,
    IntOrString,
    Labels,
    LabelSelectorSpec,
    ObjectMeta,
    ResourceList,
    Time,
    View,
    map_field,
)
from kedge.api.views.probes import Lifecycle, Probe
from kedge.api.views.volumes import EnvFromSource, EnvVarSource, Volume, VolumeMount

# -- containers ------------------------------------------------------------------------------------


class ContainerPort(ApiStruct, frozen=True):
    name: str = ""
    container_port: Int32 = 0
    host_port: Int32 = 0
    host_ip: str = ""
    protocol: str = "TCP"


class EnvVar(ApiStruct, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class ResourceRequirements(ApiStruct, frozen=True):
    limits: ResourceList = map_field()
    requests: ResourceList = map_field()


class ContainerResizePolicy(ApiStruct, frozen=True):
    """Whether a resize of one resource restarts the container: `NotRequired` or `RestartContainer`."""

    resource_name: str = ""
    restart_policy: str = ""


class Container(ApiStruct, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    lifecycle: Lifecycle | None = None
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    restart_policy: str = ""
    """Only for an init container, and only `Always`: it is then a sidecar."""


# -- placement constraints -------------------------------------------------------------------------


class NodeSelectorRequirement(ApiStruct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelectorSpec(ApiStruct, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    weight: Int32 = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelectorSpec | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(ApiStruct, frozen=True):
    label_selector: LabelSelectorSpec | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelectorSpec | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(ApiStruct, frozen=True):
    weight: Int32 = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(ApiStruct, frozen=True):
    """Affinity or anti-affinity to other pods: the two have the same form."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(ApiStruct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: Int64 | None = None


class TopologySpreadConstraint(ApiStruct, frozen=True):
    max_skew: Int32 = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelectorSpec | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class SchedulingGate(ApiStruct, frozen=True):
    name: str = ""


# -- Pod -------------------------------------------------------------------------------------------


class PodSpec(ApiStruct, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    node_name: str = ""
    node_selector: Labels = map_field()
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    priority: Int32 | None = None
    priority_class_name: str = ""
    preemption_policy: str = "PreemptLowerPriority"
    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    overhead: ResourceList = map_field()
    resources: ResourceRequirements = ResourceRequirements()
    """For all containers together; it replaces the sum of theirs."""
    restart_policy: str = "Always"
    termination_grace_period_seconds: Int64 = 30
    active_deadline_seconds: Int64 | None = None
    host_network: bool = False
    volumes: tuple[Volume, ...] = ()
    enable_service_links: bool | None = None
    service_account_name: str = ""
    service_account: str = ""
    """The old name of `service_account_name`."""
    automount_service_account_token: bool | None = None


class ContainerStateWaiting(ApiStruct, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerStateRunning(ApiStruct, frozen=True):
    started_at: Time | None = None


class ContainerStateTerminated(ApiStruct, frozen=True):
    exit_code: Int32 = 0
    signal: Int32 = 0
    reason: str = ""
    message: str = ""
    started_at: Time | None = None
    finished_at: Time | None = None
    container_id: str = ""


class ContainerState(ApiStruct, frozen=True):
    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    restart_count: Int32 = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    image: str = ""
    image_id: str = ""
    container_id: str = ""
    allocated_resources: ResourceList = map_field()
    """The requests that the node has allocated."""
    resources: ResourceRequirements | None = None
    """The requests and limits that are applied to the container; None if its node does not report them."""


class PodIP(ApiStruct, frozen=True):
    ip: str = ""


class PodStatus(ApiStruct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    reason: str = ""
    message: str = ""
    host_ip: str = ""
    pod_ip: str = ""
    pod_ips: tuple[PodIP, ...] = ()
    nominated_node_name: str = ""
    start_time: Time | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    observed_generation: Int64 = 0
    allocated_resources: ResourceList = map_field()
    """The requests that the node has allocated to the pod itself, beside those of its containers."""
    resources: ResourceRequirements | None = None


class PodView(View, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Its containers have ended and will not run again."""
        return self.status.phase in ("Succeeded", "Failed")


class PodTemplate(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


# -- Node ------------------------------------------------------------------------------------------


class Taint(ApiStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: Time | None = None


class NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = ""
    pod_cidr: str = ""
    pod_cidrs: tuple[str, ...] = ()


class NodeAddress(ApiStruct, frozen=True):
    type: str = ""
    address: str = ""


class NodeSystemInfo(ApiStruct, frozen=True):
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = ""
    architecture: str = ""


class ContainerImage(ApiStruct, frozen=True):
    names: tuple[str, ...] = ()
    size_bytes: Int64 = 0


class DaemonEndpoint(ApiStruct, frozen=True):
    port: Int32 = msgspec.field(default=0, name="Port")


class NodeDaemonEndpoints(ApiStruct, frozen=True):
    kubelet_endpoint: DaemonEndpoint = DaemonEndpoint()


class NodeStatus(ApiStruct, frozen=True):
    capacity: ResourceList = map_field()
    allocatable: ResourceList = map_field()
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    images: tuple[ContainerImage, ...] = ()
    daemon_endpoints: NodeDaemonEndpoints = NodeDaemonEndpoints()


class NodeView(View, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# -- Namespace, ResourceQuota, LimitRange ----------------------------------------------------------


class NamespaceSpec(ApiStruct, frozen=True):
    finalizers: tuple[str, ...] = ()


class NamespaceStatus(ApiStruct, frozen=True):
    phase: str = "Active"
    conditions: tuple[Condition, ...] = ()
    resource_quotas: tuple[str, ...] = ()
    """The ResourceQuotas of this namespace, by name. Only the service writes it: a create checks its namespace,
    so no create can miss a quota."""
    zone_quotas: tuple[str, ...] = ()
    """The ZoneQuotas of this namespace, by name, for the same reason."""
    limit_ranges: tuple[str, ...] = ()
    """The LimitRanges of this namespace, by name, for the same reason."""


class NamespaceView(View, frozen=True):
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class ScopedSelectorRequirement(ApiStruct, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(ApiStruct, frozen=True):
    match_expressions: tuple[ScopedSelectorRequirement, ...] = ()


class ResourceQuotaSpec(ApiStruct, frozen=True):
    hard: ResourceList = map_field()
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(ApiStruct, frozen=True):
    hard: ResourceList = map_field()
    used: ResourceList = map_field()


class ResourceQuotaView(View, frozen=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class LimitRangeItem(ApiStruct, frozen=True):
    type: str = ""
    max: ResourceList = map_field()
    min: ResourceList = map_field()
    default: ResourceList = map_field()
    default_request: ResourceList = map_field()
    max_limit_request_ratio: ResourceList = map_field()


class LimitRangeSpec(ApiStruct, frozen=True):
    limits: tuple[LimitRangeItem, ...] = ()


class LimitRangeView(View, frozen=True):
    spec: LimitRangeSpec = LimitRangeSpec()


# -- Service, EndpointSlice ------------------------------------------------------------------------


class ServicePort(ApiStruct, frozen=True):
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str = ""
    port: Int32 = 0
    target_port: IntOrString = 0
    node_port: Int32 = 0


class ServiceSpec(ApiStruct, frozen=True):
    selector: Labels = map_field()
    ports: tuple[ServicePort, ...] = ()
    type: str = "ClusterIP"
    cluster_ip: str = ""
    cluster_ips: tuple[str, ...] = ()
    external_name: str = ""
    publish_not_ready_addresses: bool = False


class ServiceView(View, frozen=True):
    spec: ServiceSpec = ServiceSpec()


class ObjectReference(ApiStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""


class EndpointConditions(ApiStruct, frozen=True):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(ApiStruct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()
    hostname: str = ""
    node_name: str = ""
    zone: str = ""
    target_ref: ObjectReference | None = None


class EndpointPort(ApiStruct, frozen=True):
    name: str = ""
    protocol: str = "TCP"
    port: Int32 | None = None
    app_protocol: str = ""


class EndpointSliceView(View, frozen=True):
    address_type: str = ""
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[EndpointPort, ...] = ()
