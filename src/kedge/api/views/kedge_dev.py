"""Views of the `kedge.dev/v1` kinds: the ledger, reservations, zone quotas, scheduling policies, rollouts."""

from __future__ import annotations

from kedge.api.views.base import (
    ApiStruct,
    Condition,
    FrozenMap,
    Int32,
    Int64,
    LabelSelectorSpec,
    ResourceList,
    Time,
    View,
    map_field,
)
from kedge.api.views.core import PodTemplate

# -- NodeAllocation: the ledger of one node; only the service writes it ----------------------------


class NodeAllocationSpec(ApiStruct, frozen=True):
    node_uid: str = ""


class AllocatedPort(ApiStruct, frozen=True):
    protocol: str = "TCP"
    host_ip: str = ""
    host_port: Int32 = 0


class AllocationEntry(ApiStruct, frozen=True):
    """The claim of one pod on a node, by the pod's uid."""

    namespace: str = ""
    name: str = ""
    state: str = ""
    """`Reserved` or `Unadmitted`, then `Bound`."""
    requests: ResourceList = map_field()
    ports: tuple[AllocatedPort, ...] = ()
    zone: str = ""
    """The node's zone when the claim was made. The tenant's zone quotas are charged for it until release."""
    granted: ResourceList | None = None
    """The part of `requests` that the node has room for; None if it is all of them. The rest is a pending resize."""


class NodeAllocationStatus(ApiStruct, frozen=True):
    allocated: ResourceList = map_field()
    """The sum of `entries`, `pods` included."""
    entries: FrozenMap[str, AllocationEntry] = map_field()


class NodeAllocationView(View, frozen=True):
    spec: NodeAllocationSpec = NodeAllocationSpec()
    status: NodeAllocationStatus = NodeAllocationStatus()


# -- ZoneQuota: a tenant's limits in each zone -----------------------------------------------------


class ZoneHard(ApiStruct, frozen=True):
    hard: ResourceList = map_field()


class ZoneUsed(ApiStruct, frozen=True):
    used: ResourceList = map_field()


class ZoneQuotaSpec(ApiStruct, frozen=True):
    zones: FrozenMap[str, ZoneHard] = map_field()


class ZoneQuotaStatus(ApiStruct, frozen=True):
    zones: FrozenMap[str, ZoneUsed] = map_field()


class ZoneQuotaView(View, frozen=True):
    spec: ZoneQuotaSpec = ZoneQuotaSpec()
    status: ZoneQuotaStatus = ZoneQuotaStatus()


# -- Reservation: a claim on a node for one pod, named by the pod's uid; or the record of a gang ----


class ReservedPod(ApiStruct, frozen=True):
    name: str = ""
    uid: str = ""


class ReservationSpec(ApiStruct, frozen=True):
    pod: ReservedPod = ReservedPod()
    """Empty in the record of a gang."""
    node_name: str = ""
    node_uid: str = ""
    workload_uid: str = ""
    generation: Int64 = 0
    """Generation of the workload that the decision is for: a newer one supersedes, an older one is rejected."""
    slot: Int32 = 0
    gang: str = ""
    """The gang record that this claim belongs to; empty for a single pod."""
    gang_size: Int32 = 0
    """In the record of a gang: how many members must have a reservation before any is bound."""
    deadline: Time | None = None
    """After it the reservation may be superseded or removed. It does not release anything by itself."""


class GangMember(ApiStruct, frozen=True):
    name: str = ""
    node_name: str = ""


class ReservationStatus(ApiStruct, frozen=True):
    phase: str = ""
    """In the record of a gang: `Pending`, then `Committed` or `Aborted`."""
    members: FrozenMap[str, GangMember] = map_field()
    """In the record of a gang, by pod uid: its members and their nodes. The service writes it."""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()


class ReservationView(View, frozen=True):
    spec: ReservationSpec = ReservationSpec()
    status: ReservationStatus = ReservationStatus()


# -- SchedulingPolicy: versioned, scoped, canaried -------------------------------------------------


class Scope(ApiStruct, frozen=True):
    """The pods that a policy or a stage applies to: those that match every field that is set. Empty matches all."""

    tenants: tuple[str, ...] = ()
    """Namespaces."""
    workloads: tuple[str, ...] = ()
    """Names of workloads, as in `risk-api`, or `tenant/risk-api`."""
    pod_selector: LabelSelectorSpec | None = None
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    percent: Int32 = 100
    """The share of the remaining workloads, chosen by a hash of their uid."""


class PolicyCanary(ApiStruct, frozen=True):
    """The next version, active in its own scope only. To roll back, remove it: one write."""

    version: str = ""
    scope: Scope = Scope()
    max_zone_skew: Int32 | None = None
    weights: FrozenMap[str, Int32] = map_field()


class SchedulingPolicySpec(ApiStruct, frozen=True):
    version: str = ""
    active: bool = True
    rank: Int32 = 0
    """Where the scopes of two policies overlap the higher rank wins, then the name."""
    scheduler_names: tuple[str, ...] = ()
    scope: Scope = Scope()
    max_zone_skew: Int32 | None = None
    """Largest difference of a workload's replica counts between zones; unset means no rule."""
    weights: FrozenMap[str, Int32] = map_field()
    """Weight of each score, by its name; a score without an entry keeps its default."""
    canary: PolicyCanary | None = None


class SchedulingPolicyStatus(ApiStruct, frozen=True):
    observed_generation: Int64 = 0
    active_version: str = ""
    canary_version: str = ""
    conditions: tuple[Condition, ...] = ()


class SchedulingPolicyView(View, frozen=True):
    spec: SchedulingPolicySpec = SchedulingPolicySpec()
    status: SchedulingPolicyStatus = SchedulingPolicyStatus()


# -- Rollout: a change, in stages, behind gates ----------------------------------------------------


class RolloutTarget(ApiStruct, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""


class RolloutPolicy(ApiStruct, frozen=True):
    """The SchedulingPolicy settings that are rolled out."""

    version: str = ""
    max_zone_skew: Int32 | None = None
    weights: FrozenMap[str, Int32] = map_field()


class RolloutStage(ApiStruct, frozen=True):
    name: str = ""
    scope: Scope = Scope()
    hold_seconds: Int32 = 0
    """How long the gates must pass before the next stage."""


class RolloutBurn(ApiStruct, frozen=True):
    """An objective for the pods with the change, and the burn rate of its error budget that is allowed."""

    slo: str = "TimeToReady"
    """Or `TimeToBound`: the stage that a pod must reach in time."""
    within_seconds: Int32 = 120
    objective_percent: Int32 = 99
    """The share of pods that must reach it in time."""
    rate_max: Int32 = 1
    window_seconds: Int32 = 3600


class RolloutGates(ApiStruct, frozen=True):
    """Conditions, on fresh data, for leaving a stage. Without data the rollout waits."""

    min_samples: Int32 = 1
    sample_age_seconds_max: Int32 = 60
    ready_percent_min: Int32 = 100
    pending_increase_max: Int32 = 0
    """How many more pending pods, by reason, than before the change count as a regression."""
    burn: RolloutBurn | None = None


class RolloutSpec(ApiStruct, frozen=True):
    target: RolloutTarget = RolloutTarget()
    policy: RolloutPolicy | None = None
    template: PodTemplate | None = None
    stages: tuple[RolloutStage, ...] = ()
    gates: RolloutGates = RolloutGates()
    paused: bool = False
    progress_deadline_seconds: Int32 = 600
    """After it the rollout pauses; only a regression rolls it back."""
    on_regression: str = "RollBack"


class RolloutGateStatus(ApiStruct, frozen=True):
    name: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PendingCount(ApiStruct, frozen=True):
    """The number of pods pending at a stage for a reason."""

    stage: str = ""
    reason: str = ""
    count: Int32 = 0


class RolloutBaseline(ApiStruct, frozen=True):
    """The pending pods in a stage's scope before the change."""

    name: str = ""
    pending: tuple[PendingCount, ...] = ()


class RolloutStatus(ApiStruct, frozen=True):
    observed_generation: Int64 = 0
    change: str = ""
    """A digest of the settings or template: another digest restarts the rollout."""
    phase: str = ""
    stage: Int32 = 0
    activation_revision: Int64 = 0
    """The revision that every cache of a gate must have reached. 0 while the stage is not active."""
    stage_started_at: Time | None = None
    healthy_since: Time | None = None
    """Since when every gate has passed without interruption."""
    regressing_since: Time | None = None
    """Since when there is a regression without interruption."""
    baselines: tuple[RolloutBaseline, ...] = ()
    previous_digest: str = ""
    """Digest of the previous template; the template itself is in `previousTemplate`."""
    active_digest: str = ""
    """Digest of the new template, after admission."""
    gates: tuple[RolloutGateStatus, ...] = ()
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()


class RolloutView(View, frozen=True):
    spec: RolloutSpec = RolloutSpec()
    status: RolloutStatus = RolloutStatus()


# -- RecordingWindow: a time in which more decisions are kept --------------------------------------


class RecordedObject(ApiStruct, frozen=True):
    """An object, and what it owns: objects of its namespace whose names begin with its name and a dash."""

    kind: str = ""
    namespace: str = ""
    """Empty for an object that belongs to no namespace."""
    name: str = ""


class RecordingWindowSpec(ApiStruct, frozen=True):
    """Decisions that a window keeps: about these tenants or objects, or all of them if it names none."""

    until: Time | None = None
    tenants: tuple[str, ...] = ()
    """Namespaces."""
    objects: tuple[RecordedObject, ...] = ()
    reason: str = ""
    collect: bool = False
    """When the window ends, every process sends its records to a server: `kedge incident` makes one file of them."""
    since: Time | None = None
    """Records from then on are collected, as far as processes have them; without it from when the window opened."""
    redact: tuple[str, ...] = ()
    """Fields whose values are hidden in the file of the incident, beside those of Secrets: `KIND:FIELD`."""
    stopped: bool = False
    """It ended by hand. A process whose clock is behind would wait for `until` long after."""
    live: bool = False
    """Processes send their records while the window is open too: the page of a server shows them."""


class RecordingWindowView(View, frozen=True):
    spec: RecordingWindowSpec = RecordingWindowSpec()
