"""Views of workloads and of related kinds: Deployment, ReplicaSet, Job, autoscaler, budget, priority, Lease."""

from __future__ import annotations

from kedge.api.quantity import Quantity
from kedge.api.views.base import (
    ApiStruct,
    Condition,
    FrozenMap,
    Int32,
    Int64,
    IntOrString,
    LabelSelectorSpec,
    Time,
    View,
    map_field,
)
from kedge.api.views.core import PodTemplate

# -- progress: kedge's own part of a workload's status ---------------------------------------------


class StageCounts(ApiStruct, frozen=True):
    """How many replicas are at each stage now. Each is counted once, at the furthest stage it has reached."""

    admitted: Int32 = 0
    queued: Int32 = 0
    scheduled: Int32 = 0
    bound: Int32 = 0
    starting: Int32 = 0
    ready: Int32 = 0
    serving: Int32 = 0


class PendingReason(ApiStruct, frozen=True):
    """Why a number of replicas are at a stage."""

    stage: str = ""
    reason: str = ""
    count: Int32 = 0
    message: str = ""
    """The scheduler's message about one replica, if it could not place them."""


class WorkloadProgress(ApiStruct, frozen=True):
    desired: Int32 = 0
    stages: StageCounts = StageCounts()
    unknown: Int32 = 0
    """Replicas whose nodes are silent: they may run or not, and count for no stage."""
    leaving: Int32 = 0
    """Replicas that are draining or stopping: they still run, and count for no stage."""
    pending: tuple[PendingReason, ...] = ()
    last_action: str = ""
    """The last attempt, successful or not."""
    last_action_time: Time | None = None
    last_error: str = ""
    """Why the last attempt failed; empty once one has succeeded."""
    observed_generation: Int64 = 0
    deadline: Time | None = None
    """When a workload without progress counts as stuck."""


# -- apps/v1 ---------------------------------------------------------------------------------------


class RollingUpdate(ApiStruct, frozen=True):
    max_surge: IntOrString = "25%"
    max_unavailable: IntOrString = "25%"


class DeploymentStrategy(ApiStruct, frozen=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(ApiStruct, frozen=True):
    replicas: Int32 = 1
    selector: LabelSelectorSpec | None = None
    template: PodTemplate = PodTemplate()
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 = 10
    paused: bool = False
    progress_deadline_seconds: Int32 = 600


class DeploymentStatus(ApiStruct, frozen=True):
    observed_generation: Int64 = 0
    replicas: Int32 = 0
    updated_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    unavailable_replicas: Int32 = 0
    terminating_replicas: Int32 = 0
    collision_count: Int32 = 0
    conditions: tuple[Condition, ...] = ()
    progress: WorkloadProgress = WorkloadProgress()


class DeploymentView(View, frozen=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(ApiStruct, frozen=True):
    replicas: Int32 = 1
    min_ready_seconds: Int32 = 0
    selector: LabelSelectorSpec | None = None
    template: PodTemplate = PodTemplate()


class ReplicaSetStatus(ApiStruct, frozen=True):
    observed_generation: Int64 = 0
    replicas: Int32 = 0
    fully_labeled_replicas: Int32 = 0
    ready_replicas: Int32 = 0
    available_replicas: Int32 = 0
    terminating_replicas: Int32 = 0
    conditions: tuple[Condition, ...] = ()
    progress: WorkloadProgress = WorkloadProgress()


class ReplicaSetView(View, frozen=True):
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


# -- batch/v1 --------------------------------------------------------------------------------------


class ExitCodeRequirement(ApiStruct, frozen=True):
    container_name: str = ""
    """Empty for any container."""
    operator: str = ""
    values: tuple[Int32, ...] = ()


class PodConditionPattern(ApiStruct, frozen=True):
    type: str = ""
    status: str = "True"


class PodFailureRule(ApiStruct, frozen=True):
    action: str = ""
    on_exit_codes: ExitCodeRequirement | None = None
    on_pod_conditions: tuple[PodConditionPattern, ...] = ()


class PodFailurePolicy(ApiStruct, frozen=True):
    rules: tuple[PodFailureRule, ...] = ()


class JobSpec(ApiStruct, frozen=True):
    parallelism: Int32 = 1
    completions: Int32 | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: Int32 = 6
    active_deadline_seconds: Int64 | None = None
    ttl_seconds_after_finished: Int32 | None = None
    suspend: bool = False
    pod_failure_policy: PodFailurePolicy | None = None
    manual_selector: bool = False
    selector: LabelSelectorSpec | None = None
    template: PodTemplate = PodTemplate()


class UncountedTerminatedPods(ApiStruct, frozen=True):
    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class JobStatus(ApiStruct, frozen=True):
    active: Int32 = 0
    ready: Int32 = 0
    terminating: Int32 = 0
    succeeded: Int32 = 0
    failed: Int32 = 0
    start_time: Time | None = None
    completion_time: Time | None = None
    completed_indexes: str = ""
    uncounted_terminated_pods: UncountedTerminatedPods = UncountedTerminatedPods()
    conditions: tuple[Condition, ...] = ()
    progress: WorkloadProgress = WorkloadProgress()


class JobView(View, frozen=True):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


# -- autoscaling/v2 --------------------------------------------------------------------------------


class ScaleTargetRef(ApiStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class MetricTarget(ApiStruct, frozen=True):
    type: str = ""
    average_utilization: Int32 | None = None
    average_value: Quantity | None = None
    value: Quantity | None = None


class ResourceMetricSource(ApiStruct, frozen=True):
    name: str = ""
    target: MetricTarget = MetricTarget()


class ContainerResourceMetricSource(ApiStruct, frozen=True):
    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class MetricSpec(ApiStruct, frozen=True):
    type: str = ""
    resource: ResourceMetricSource | None = None
    container_resource: ContainerResourceMetricSource | None = None


class ScalingPolicy(ApiStruct, frozen=True):
    type: str = ""
    value: Int32 = 0
    period_seconds: Int32 = 0


class ScalingRules(ApiStruct, frozen=True):
    stabilization_window_seconds: Int32 | None = None
    select_policy: str = "Max"
    policies: tuple[ScalingPolicy, ...] = ()
    tolerance: Quantity | None = None


class ScalingBehavior(ApiStruct, frozen=True):
    scale_up: ScalingRules | None = None
    scale_down: ScalingRules | None = None


class AutoscalerSpec(ApiStruct, frozen=True):
    scale_target_ref: ScaleTargetRef = ScaleTargetRef()
    min_replicas: Int32 = 1
    max_replicas: Int32 = 0
    metrics: tuple[MetricSpec, ...] = ()
    behavior: ScalingBehavior | None = None


class MetricValue(ApiStruct, frozen=True):
    average_utilization: Int32 | None = None
    average_value: Quantity | None = None
    value: Quantity | None = None


class ResourceMetricStatus(ApiStruct, frozen=True):
    name: str = ""
    container: str = ""
    current: MetricValue = MetricValue()


class MetricStatus(ApiStruct, frozen=True):
    type: str = ""
    resource: ResourceMetricStatus | None = None
    container_resource: ResourceMetricStatus | None = None


class ScalingAdvice(ApiStruct, frozen=True):
    """The smallest and the largest recommendation from a time on, until the next entry."""

    since: Time | None = None
    low: Int32 = 0
    high: Int32 = 0


class ScalingEvent(ApiStruct, frozen=True):
    """A decided change of size, recorded before it is made."""

    time: Time | None = None
    before: Int32 = 0
    after: Int32 = 0


class AutoscalerStatus(ApiStruct, frozen=True):
    observed_generation: Int64 = 0
    current_replicas: Int32 = 0
    desired_replicas: Int32 = 0
    last_scale_time: Time | None = None
    current_metrics: tuple[MetricStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
    advice: tuple[ScalingAdvice, ...] = ()
    """Oldest first. History for stabilisation, in the status so that a new leader has it."""
    scaling_events: tuple[ScalingEvent, ...] = ()
    """Oldest first. The same, for the rates of scaling policies."""


class HorizontalPodAutoscalerView(View, frozen=True):
    spec: AutoscalerSpec = AutoscalerSpec()
    status: AutoscalerStatus = AutoscalerStatus()


# -- policy/v1, scheduling.k8s.io/v1, coordination.k8s.io/v1 ---------------------------------------


class DisruptionBudgetSpec(ApiStruct, frozen=True):
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    selector: LabelSelectorSpec | None = None
    unhealthy_pod_eviction_policy: str = "IfHealthyBudget"


class DisruptionBudgetStatus(ApiStruct, frozen=True):
    observed_generation: Int64 = 0
    disruptions_allowed: Int32 = 0
    current_healthy: Int32 = 0
    desired_healthy: Int32 = 0
    expected_pods: Int32 = 0
    disrupted_pods: FrozenMap[str, Time] = map_field()
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudgetView(View, frozen=True):
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


class PriorityClassView(View, frozen=True):
    value: Int32 = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"
    description: str = ""


class LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: Int32 | None = None
    acquire_time: Time | None = None
    renew_time: Time | None = None
    lease_transitions: Int32 = 0


class LeaseView(View, frozen=True):
    spec: LeaseSpec = LeaseSpec()
