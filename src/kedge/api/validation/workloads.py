"""Rules of workloads and of related kinds: Deployment, ReplicaSet, Job, autoscaler, disruption budget."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from kedge.api.names import label_problem, qualified_name_problem
from kedge.api.selectors import label_selector
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_conditions, check_selector
from kedge.api.validation.pods import check_template
from kedge.api.views import (
    DeploymentView,
    HorizontalPodAutoscalerView,
    JobView,
    LabelSelectorSpec,
    PodDisruptionBudgetView,
    PodTemplate,
    ReplicaSetView,
)
from kedge.api.views.workloads import (
    DeploymentStrategy,
    ExitCodeRequirement,
    MetricSpec,
    MetricTarget,
    PodFailurePolicy,
    ScalingRules,
)

_PERCENT = re.compile(r"[0-9]{1,9}%", re.ASCII)


def check_deployment(errors: ErrorList, deployment: DeploymentView) -> None:
    spec = deployment.spec
    errors.at_least("spec.replicas", spec.replicas, 0)
    _check_owned_template(errors, spec.selector, spec.template, "deployment")
    _check_strategy(errors, spec.strategy)
    errors.at_least("spec.minReadySeconds", spec.min_ready_seconds, 0)
    errors.at_least("spec.revisionHistoryLimit", spec.revision_history_limit, 0)
    errors.at_least("spec.progressDeadlineSeconds", spec.progress_deadline_seconds, 0)
    if 0 <= spec.progress_deadline_seconds <= spec.min_ready_seconds:
        errors.invalid(
            "spec.progressDeadlineSeconds", spec.progress_deadline_seconds, "must be greater than minReadySeconds"
        )
    status = deployment.status
    _check_counts(
        errors,
        ("observedGeneration", status.observed_generation),
        ("replicas", status.replicas),
        ("updatedReplicas", status.updated_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
        ("unavailableReplicas", status.unavailable_replicas),
    )
    check_conditions(errors, status.conditions)


def check_replica_set(errors: ErrorList, replica_set: ReplicaSetView) -> None:
    spec, status = replica_set.spec, replica_set.status
    errors.at_least("spec.replicas", spec.replicas, 0)
    errors.at_least("spec.minReadySeconds", spec.min_ready_seconds, 0)
    _check_owned_template(errors, spec.selector, spec.template, "replicaset")
    _check_counts(
        errors,
        ("observedGeneration", status.observed_generation),
        ("replicas", status.replicas),
        ("fullyLabeledReplicas", status.fully_labeled_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
    )
    check_conditions(errors, status.conditions)


def _check_counts(errors: ErrorList, *counts: tuple[str, int]) -> None:
    for name, count in counts:
        if count < 0:
            errors.at_least(f"status.{name}", count, 0)


def _check_owned_template(
    errors: ErrorList, selector: LabelSelectorSpec | None, template: PodTemplate, owner: str
) -> None:
    """The selector must match the template's labels, and the pods must restart always."""
    if selector is None:
        errors.required("spec.selector")
    else:
        known = len(errors.found)
        check_selector(errors, selector, "spec.selector")
        if not selector.match_labels and not selector.match_expressions:
            errors.invalid("spec.selector", {}, f"empty selector is invalid for {owner}")
        elif len(errors.found) == known and not label_selector(selector).matches(template.metadata.labels):
            errors.invalid(
                "spec.template.metadata.labels",
                dict(template.metadata.labels),
                "`selector` does not match template `labels`",
            )
    check_template(errors, template)
    if template.spec.restart_policy in ("OnFailure", "Never"):
        errors.unsupported("spec.template.spec.restartPolicy", template.spec.restart_policy, ("Always",))
    if template.spec.active_deadline_seconds is not None:
        errors.forbidden(
            "spec.template.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
        )


def _check_strategy(errors: ErrorList, strategy: DeploymentStrategy) -> None:
    rolling = strategy.rolling_update
    match strategy.type:
        case "Recreate":
            if rolling is not None:
                errors.forbidden(
                    "spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'"
                )
        case "RollingUpdate":
            if rolling is None:
                return
            surge, unavailable = rolling.max_surge, rolling.max_unavailable
            path = "spec.strategy.rollingUpdate"
            fine = check_count_or_percent(errors, unavailable, f"{path}.maxUnavailable", percent_max=100)
            fine = check_count_or_percent(errors, surge, f"{path}.maxSurge") and fine
            if fine and _is_nothing(surge) and _is_nothing(unavailable):
                errors.invalid(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0")
        case _:
            errors.one_of("spec.strategy.type", strategy.type, ("Recreate", "RollingUpdate"))


def check_count_or_percent(errors: ErrorList, value: int | str, path: str, *, percent_max: int = 0) -> bool:
    """Whether it is a non-negative count, or a percentage (of at most `percent_max`, unless that is 0)."""
    if isinstance(value, int):
        errors.at_least(path, value, 0)
        return value >= 0
    if not _PERCENT.fullmatch(value):
        errors.invalid(
            path,
            value,
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%', or '93%', regex"
            " used for validation is '[0-9]+%')",
        )
        return False
    if percent_max and int(value[:-1]) > percent_max:
        errors.invalid(path, value, f"must not be greater than {percent_max}%")
        return False
    return True


def _is_nothing(value: int | str) -> bool:
    return value == 0 or (isinstance(value, str) and int(value[:-1]) == 0)


# -- Job -------------------------------------------------------------------------------------------


def check_job(errors: ErrorList, job: JobView) -> None:
    spec, status = job.spec, job.status
    for name, count in (
        ("parallelism", spec.parallelism),
        ("completions", spec.completions),
        ("backoffLimit", spec.backoff_limit),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished),
    ):
        errors.at_least(f"spec.{name}", count, 0)
    errors.one_of("spec.completionMode", spec.completion_mode, ("NonIndexed", "Indexed"))
    if spec.completion_mode == "Indexed" and spec.completions is None:
        errors.required("spec.completions", "when completion mode is Indexed")
    if spec.manual_selector and spec.selector is None:
        errors.required("spec.selector", "when manualSelector is true")
    if spec.selector is not None:
        known = len(errors.found)
        check_selector(errors, spec.selector, "spec.selector")
        labels = spec.template.metadata.labels
        if len(errors.found) == known and not label_selector(spec.selector).matches(labels):
            errors.invalid("spec.template.metadata.labels", dict(labels), "`selector` does not match template `labels`")
    check_template(errors, spec.template)
    if spec.template.spec.restart_policy == "Always":
        errors.unsupported("spec.template.spec.restartPolicy", "Always", ("OnFailure", "Never"))
    if spec.pod_failure_policy is not None:
        _check_failure_policy(errors, spec.pod_failure_policy, spec.template)
    _check_counts(
        errors,
        ("active", status.active),
        ("ready", status.ready),
        ("succeeded", status.succeeded),
        ("failed", status.failed),
    )
    check_conditions(errors, status.conditions)


_FAILURE_RULES_MAX = 20
_FAILURE_VALUES_MAX = 255


def _check_failure_policy(errors: ErrorList, policy: PodFailurePolicy, template: PodTemplate) -> None:
    path = "spec.podFailurePolicy"
    if template.spec.restart_policy != "Never":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        errors.invalid("spec.template.spec.restartPolicy", template.spec.restart_policy, why)
    if len(policy.rules) > _FAILURE_RULES_MAX:
        errors.invalid(f"{path}.rules", len(policy.rules), f"must have at most {_FAILURE_RULES_MAX} items")
    names = {each.name for each in (*template.spec.containers, *template.spec.init_containers)}
    for index, rule in enumerate(policy.rules):
        where = f"{path}.rules[{index}]"
        errors.one_of(f"{where}.action", rule.action, ("Count", "FailJob", "Ignore"))
        if (rule.on_exit_codes is None) == (not rule.on_pod_conditions):
            errors.invalid(where, rule.action, "must specify one of onExitCodes and onPodConditions")
        for place, pattern in enumerate(rule.on_pod_conditions):
            at = f"{where}.onPodConditions[{place}]"
            errors.one_of(f"{at}.status", pattern.status, ("False", "True", "Unknown"))
            if not pattern.type:
                errors.required(f"{at}.type", "the type of the condition")
        if rule.on_exit_codes is not None:
            _check_exit_codes(errors, rule.on_exit_codes, f"{where}.onExitCodes", names)


def _check_exit_codes(errors: ErrorList, required: ExitCodeRequirement, path: str, names: Collection[str]) -> None:
    errors.one_of(f"{path}.operator", required.operator, ("In", "NotIn"))
    if required.container_name and required.container_name not in names:
        errors.invalid(f"{path}.containerName", required.container_name, "must be a container of the pod template")
    values = required.values
    if not 1 <= len(values) <= _FAILURE_VALUES_MAX:
        errors.invalid(f"{path}.values", len(values), f"must have 1 to {_FAILURE_VALUES_MAX} items")
    if list(values) != sorted(set(values)):
        errors.invalid(f"{path}.values", list(values), "must be ordered, without duplicates")
    if required.operator == "In" and 0 in values:
        errors.invalid(f"{path}.values", 0, "must not be 0 for the In operator")


# -- HorizontalPodAutoscaler -----------------------------------------------------------------------

_METRIC_TYPES = ("ContainerResource", "External", "Object", "Pods", "Resource")
_SCALING_PERIOD_S_MAX = 1800
_STABILIZATION_S_MAX = 3600


def check_autoscaler(errors: ErrorList, autoscaler: HorizontalPodAutoscalerView) -> None:
    spec = autoscaler.spec
    if not spec.scale_target_ref.kind:
        errors.required("spec.scaleTargetRef.kind")
    if not spec.scale_target_ref.name:
        errors.required("spec.scaleTargetRef.name")
    errors.at_least("spec.minReplicas", spec.min_replicas, 1)
    if spec.max_replicas < 1:
        errors.invalid("spec.maxReplicas", spec.max_replicas, "must be greater than 0")
    elif spec.max_replicas < spec.min_replicas:
        errors.invalid("spec.maxReplicas", spec.max_replicas, "must be greater than or equal to `minReplicas`")
    _check_metrics(errors, spec.metrics)
    if spec.behavior is not None:
        _check_scaling(errors, spec.behavior.scale_up, "spec.behavior.scaleUp")
        _check_scaling(errors, spec.behavior.scale_down, "spec.behavior.scaleDown")
    check_conditions(errors, autoscaler.status.conditions)


def _check_metrics(errors: ErrorList, metrics: Sequence[MetricSpec]) -> None:
    for index, metric in enumerate(metrics):
        path = f"spec.metrics[{index}]"
        errors.one_of(f"{path}.type", metric.type, _METRIC_TYPES)
        match metric.type:
            case "Resource":
                if metric.resource is None:
                    errors.required(f"{path}.resource", "must populate information for the given metric source")
                else:
                    _check_metric(errors, metric.resource.name, metric.resource.target, f"{path}.resource")
            case "ContainerResource":
                source = metric.container_resource
                if source is None:
                    errors.required(
                        f"{path}.containerResource", "must populate information for the given metric source"
                    )
                else:
                    _check_metric(errors, source.name, source.target, f"{path}.containerResource")
                    errors.name(
                        f"{path}.containerResource.container", source.container, label_problem(source.container)
                    )
            case _:
                pass  # stored, with a warning: kedge scales on resources only


def _check_metric(errors: ErrorList, name: str, target: MetricTarget, path: str) -> None:
    if not name:
        errors.required(f"{path}.name", "must specify a resource name")
    else:
        errors.name(f"{path}.name", name, qualified_name_problem(name))
    errors.one_of(f"{path}.target.type", target.type, ("AverageValue", "Utilization", "Value"))
    if target.average_utilization is None and target.average_value is None:
        errors.required(
            f"{path}.target.averageUtilization", "must set either a target raw value or a target utilization"
        )
    if target.average_utilization is not None and target.average_utilization < 1:
        errors.invalid(f"{path}.target.averageUtilization", target.average_utilization, "must be greater than 0")
    if target.average_utilization is not None and target.average_value is not None:
        errors.forbidden(f"{path}.target.averageValue", "may not set both a target raw value and a target utilization")
    for attribute, amount in (("averageValue", target.average_value), ("value", target.value)):
        if amount is not None and amount.nano <= 0:
            errors.invalid(f"{path}.target.{attribute}", amount, "must be positive")


def _check_scaling(errors: ErrorList, rules: ScalingRules | None, path: str) -> None:
    if rules is None:
        return
    errors.between(f"{path}.stabilizationWindowSeconds", rules.stabilization_window_seconds, 0, _STABILIZATION_S_MAX)
    errors.one_of(f"{path}.selectPolicy", rules.select_policy, ("Disabled", "Max", "Min"))
    for index, policy in enumerate(rules.policies):
        place = f"{path}.policies[{index}]"
        errors.one_of(f"{place}.type", policy.type, ("Percent", "Pods"))
        if policy.value <= 0:
            errors.invalid(f"{place}.value", policy.value, "must be greater than zero")
        errors.between(f"{place}.periodSeconds", policy.period_seconds, 1, _SCALING_PERIOD_S_MAX)


# -- PodDisruptionBudget ---------------------------------------------------------------------------


def check_disruption_budget(errors: ErrorList, budget: PodDisruptionBudgetView) -> None:
    spec, status = budget.spec, budget.status
    if spec.min_available is not None and spec.max_unavailable is not None:
        errors.invalid(
            "spec", {"minAvailable": spec.min_available, "maxUnavailable": spec.max_unavailable},
            "minAvailable and maxUnavailable cannot be both set",
        )  # fmt: skip
    for name, value in (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable)):
        if value is not None:
            check_count_or_percent(errors, value, f"spec.{name}", percent_max=100)
    if spec.selector is not None:
        check_selector(errors, spec.selector, "spec.selector")
    errors.one_of(
        "spec.unhealthyPodEvictionPolicy", spec.unhealthy_pod_eviction_policy, ("AlwaysAllow", "IfHealthyBudget")
    )
    _check_counts(
        errors,
        ("disruptionsAllowed", status.disruptions_allowed),
        ("currentHealthy", status.current_healthy),
        ("desiredHealthy", status.desired_healthy),
        ("expectedPods", status.expected_pods),
    )
    check_conditions(errors, status.conditions)
