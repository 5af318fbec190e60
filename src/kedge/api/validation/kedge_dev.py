"""Rules of the `kedge.dev/v1` kinds."""

from __future__ import annotations

from collections.abc import Mapping

from kedge.api.names import label_problem, label_value_problem, qualified_name_problem, subdomain_problem
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_conditions, check_selector
from kedge.api.validation.pods import PROTOCOLS, check_template, check_unique_names
from kedge.api.validation.resources import check_amounts
from kedge.api.views import (
    NodeAllocationView,
    RecordingWindowView,
    ReservationView,
    RolloutView,
    SchedulingPolicyView,
    Scope,
    ZoneQuotaView,
)
from kedge.api.views.kedge_dev import RolloutBurn
from kedge.api.wellknown import KEDGE_API_VERSION

SCORE_WEIGHT_MAX = 100
_GANG_PHASES = ("Aborted", "Committed", "Pending")
_ROLLOUT_PHASES = ("Pending", "Progressing", "Holding", "Paused", "RollingBack", "RolledBack", "Complete")
_TARGETS = {"Deployment": "apps/v1", "SchedulingPolicy": KEDGE_API_VERSION}


def check_node_allocation(errors: ErrorList, allocation: NodeAllocationView) -> None:
    check_amounts(errors, allocation.status.allocated, "status.allocated")
    for uid, entry in allocation.status.entries.items():
        path = f"status.entries[{uid}]"
        if not entry.name:
            errors.required(f"{path}.name")
        if not entry.namespace:
            errors.required(f"{path}.namespace")
        errors.one_of(f"{path}.state", entry.state, ("Bound", "Reserved", "Unadmitted"))
        check_amounts(errors, entry.requests, f"{path}.requests")
        check_amounts(errors, entry.granted or {}, f"{path}.granted")
        for index, port in enumerate(entry.ports):
            errors.between(f"{path}.ports[{index}].hostPort", port.host_port, 1, 65535)
            errors.one_of(f"{path}.ports[{index}].protocol", port.protocol, PROTOCOLS)


def check_zone_quota(errors: ErrorList, quota: ZoneQuotaView) -> None:
    for zone, limit in quota.spec.zones.items():
        _check_zone(errors, zone, "spec.zones")
        check_amounts(errors, limit.hard, f"spec.zones[{zone}].hard")
    for zone, use in quota.status.zones.items():
        _check_zone(errors, zone, "status.zones")
        check_amounts(errors, use.used, f"status.zones[{zone}].used")


def _check_zone(errors: ErrorList, zone: str, path: str) -> None:
    if not zone:
        errors.invalid(path, zone, "a zone must have a name")
    else:
        errors.name(path, zone, label_value_problem(zone))


def check_reservation(errors: ErrorList, reservation: ReservationView) -> None:
    spec = reservation.spec
    gang_record = spec.gang_size > 0 and not (spec.gang or spec.pod.name or spec.pod.uid)
    for path, value in (
        ("spec.pod.name", spec.pod.name),
        ("spec.pod.uid", spec.pod.uid),
        ("spec.nodeName", spec.node_name),
    ):
        if not value and not gang_record:
            errors.required(path)
    if spec.pod.uid and reservation.name and reservation.name != spec.pod.uid:
        errors.invalid("metadata.name", reservation.name, "must be the uid of its pod")
    if spec.node_name:
        errors.name("spec.nodeName", spec.node_name, subdomain_problem(spec.node_name))
    if spec.deadline is None:
        errors.required("spec.deadline", "a claim without a deadline could be held for ever")
    errors.at_least("spec.generation", spec.generation, 0)
    errors.at_least("spec.slot", spec.slot, 0)
    errors.at_least("spec.gangSize", spec.gang_size, 0)
    if not gang_record and spec.gang_size:
        errors.invalid("spec.gangSize", spec.gang_size, "is only for the record of a gang, which has no pod")
    if gang_record:
        for path, text in (("spec.nodeName", spec.node_name), ("spec.nodeUID", spec.node_uid)):
            if text:
                errors.invalid(path, text, "the record of a gang reserves nothing itself")
    if reservation.status.phase:
        errors.one_of("status.phase", reservation.status.phase, _GANG_PHASES)
    check_conditions(errors, reservation.status.conditions)


# -- SchedulingPolicy ------------------------------------------------------------------------------


def check_scheduling_policy(errors: ErrorList, policy: SchedulingPolicyView) -> None:
    spec = policy.spec
    _check_version(errors, spec.version, "spec.version")
    for index, name in enumerate(spec.scheduler_names):
        errors.name(f"spec.schedulerNames[{index}]", name, subdomain_problem(name))
    _check_scope(errors, spec.scope, "spec.scope")
    _check_settings(errors, spec.max_zone_skew, spec.weights, "spec")
    if spec.canary is not None:
        _check_version(errors, spec.canary.version, "spec.canary.version")
        if spec.canary.version and spec.canary.version == spec.version:
            errors.invalid("spec.canary.version", spec.canary.version, "must differ from spec.version")
        _check_scope(errors, spec.canary.scope, "spec.canary.scope")
        _check_settings(errors, spec.canary.max_zone_skew, spec.canary.weights, "spec.canary")
    check_conditions(errors, policy.status.conditions)


def _check_version(errors: ErrorList, version: str, path: str) -> None:
    if not version:
        errors.required(path, "decisions record the version of their policy")
    else:
        errors.name(path, version, label_value_problem(version))


def _check_settings(errors: ErrorList, skew: int | None, weights: Mapping[str, int], path: str) -> None:
    errors.at_least(f"{path}.maxZoneSkew", skew, 1)
    for score, weight in weights.items():
        errors.name(f"{path}.weights[{score}]", score, qualified_name_problem(score))
        errors.between(f"{path}.weights[{score}]", weight, 0, SCORE_WEIGHT_MAX)


def _check_scope(errors: ErrorList, scope: Scope, path: str) -> None:
    errors.between(f"{path}.percent", scope.percent, 0, 100)
    for index, tenant in enumerate(scope.tenants):
        errors.name(f"{path}.tenants[{index}]", tenant, label_problem(tenant))
    for index, workload in enumerate(scope.workloads):
        tenant, slash, name = workload.rpartition("/")
        problem = subdomain_problem(name) or (label_problem(tenant) if slash else "")
        errors.name(f"{path}.workloads[{index}]", workload, problem)
    for attribute, places in (("regions", scope.regions), ("zones", scope.zones)):
        for index, place in enumerate(places):
            errors.name(f"{path}.{attribute}[{index}]", place, label_value_problem(place))
    if scope.pod_selector is not None:
        check_selector(errors, scope.pod_selector, f"{path}.podSelector")


# -- Rollout ---------------------------------------------------------------------------------------


def check_rollout(errors: ErrorList, rollout: RolloutView) -> None:
    spec, status = rollout.spec, rollout.status
    target = spec.target
    errors.one_of("spec.target.kind", target.kind, tuple(_TARGETS))
    if target.kind in _TARGETS and target.api_version != _TARGETS[target.kind]:
        errors.one_of("spec.target.apiVersion", target.api_version, (_TARGETS[target.kind],))
    if not target.name:
        errors.required("spec.target.name")
    _check_change(errors, rollout)
    if not spec.stages:
        errors.required("spec.stages", "a rollout has at least one stage")
    check_unique_names(errors, [stage.name for stage in spec.stages], "spec.stages", label_problem)
    for index, stage in enumerate(spec.stages):
        _check_scope(errors, stage.scope, f"spec.stages[{index}].scope")
        errors.at_least(f"spec.stages[{index}].holdSeconds", stage.hold_seconds, 0)
    errors.at_least("spec.gates.minSamples", spec.gates.min_samples, 1)
    errors.at_least("spec.gates.sampleAgeSecondsMax", spec.gates.sample_age_seconds_max, 1)
    errors.between("spec.gates.readyPercentMin", spec.gates.ready_percent_min, 0, 100)
    errors.at_least("spec.gates.pendingIncreaseMax", spec.gates.pending_increase_max, 0)
    if spec.gates.burn is not None:
        _check_burn(errors, spec.gates.burn)
    errors.at_least("spec.progressDeadlineSeconds", spec.progress_deadline_seconds, 1)
    errors.one_of("spec.onRegression", spec.on_regression, ("Pause", "RollBack"))
    if status.phase:
        errors.one_of("status.phase", status.phase, _ROLLOUT_PHASES)
    errors.between("status.stage", status.stage, 0, len(spec.stages))
    check_conditions(errors, status.conditions)


def _check_burn(errors: ErrorList, burn: RolloutBurn) -> None:
    errors.one_of("spec.gates.burn.slo", burn.slo, ("TimeToBound", "TimeToReady"))
    errors.at_least("spec.gates.burn.withinSeconds", burn.within_seconds, 1)
    errors.between("spec.gates.burn.objectivePercent", burn.objective_percent, 1, 99)
    errors.at_least("spec.gates.burn.rateMax", burn.rate_max, 1)
    errors.between("spec.gates.burn.windowSeconds", burn.window_seconds, 60, 86_400)


def _check_change(errors: ErrorList, rollout: RolloutView) -> None:
    """The rolled-out part must belong to the target's kind."""
    spec = rollout.spec
    if spec.target.kind == "SchedulingPolicy":
        if spec.policy is None:
            errors.required("spec.policy", "a rollout of a SchedulingPolicy needs its settings")
        if spec.template is not None:
            errors.forbidden("spec.template", "may not be specified when the target is a SchedulingPolicy")
    if spec.target.kind == "Deployment":
        if spec.template is None:
            errors.required("spec.template", "a rollout of a Deployment needs its pod template")
        if spec.policy is not None:
            errors.forbidden("spec.policy", "may not be specified when the target is a Deployment")
    if spec.policy is not None:
        _check_version(errors, spec.policy.version, "spec.policy.version")
        _check_settings(errors, spec.policy.max_zone_skew, spec.policy.weights, "spec.policy")
    if spec.template is not None:
        check_template(errors, spec.template)


# -- RecordingWindow -------------------------------------------------------------------------------


def check_recording_window(errors: ErrorList, window: RecordingWindowView) -> None:
    if window.spec.until is None:
        errors.required("spec.until", "a window that never ends would keep every decision")
    spec = window.spec
    if spec.since is not None and not spec.collect:
        errors.forbidden("spec.since", "may be set only if `collect` is true")
    if spec.live and not spec.collect:
        errors.forbidden("spec.live", "may be set only if `collect` is true")
    if spec.collect and (spec.tenants or spec.objects):
        errors.forbidden("spec.collect", "a window that collects covers the whole cluster: name no tenants or objects")
    for index, tenant in enumerate(window.spec.tenants):
        errors.name(f"spec.tenants[{index}]", tenant, label_problem(tenant))
    for index, each in enumerate(window.spec.objects):
        path = f"spec.objects[{index}]"
        if not each.kind:
            errors.required(f"{path}.kind")
        if not each.name:
            errors.required(f"{path}.name")
        if each.namespace:
            errors.name(f"{path}.namespace", each.namespace, label_problem(each.namespace))
