"""`podFailurePolicy` of a Job: what a failed pod means, by its exit codes or conditions. Pure.

The rules and messages are those of Kubernetes: the first rule that matches decides, and a pod that none matches counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from kedge.api.views import JobView, PodView
from kedge.api.views.workloads import ExitCodeRequirement, PodFailureRule

COUNT, IGNORE, FAIL_JOB = "Count", "Ignore", "FailJob"


def is_ignored(job: JobView, pod: PodView) -> bool:
    """Whether the failure of a pod does not count towards the backoff limit."""
    return _first_match(job, pod)[0] == IGNORE


def fail_job_message(job: JobView, pods: Iterable[PodView]) -> str:
    """Why a failed pod ends the whole Job; empty if none does."""
    for pod in pods:
        action, message = _first_match(job, pod)
        if action == FAIL_JOB:
            return message
    return ""


def _first_match(job: JobView, pod: PodView) -> tuple[str, str]:
    """The action of the first rule that matches a failed pod, and the reason."""
    policy = job.spec.pod_failure_policy
    if policy is None or pod.status.phase != "Failed":
        return COUNT, ""
    for index, rule in enumerate(policy.rules):
        cause = _cause(rule, pod)
        if cause:
            return rule.action, f"{cause} matching {rule.action} rule at index {index}"
    return COUNT, ""


def _cause(rule: PodFailureRule, pod: PodView) -> str:
    if rule.on_exit_codes is not None:
        return _exit_cause(rule.on_exit_codes, pod)
    for pattern in rule.on_pod_conditions:
        for each in pod.status.conditions:
            if (each.type, each.status) == (pattern.type, pattern.status):
                return f"Pod {pod.namespace}/{pod.name} has condition {each.type}"
    return ""


def _exit_cause(required: ExitCodeRequirement, pod: PodView) -> str:
    for each in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = each.state.terminated
        if ended is None or ended.exit_code == 0 or required.container_name not in ("", each.name):
            continue
        if (ended.exit_code in required.values) == (required.operator == "In"):
            return f"Container {each.name} for pod {pod.namespace}/{pod.name} failed with exit code {ended.exit_code}"
    return ""
