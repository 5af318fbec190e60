"""Safeguards of staged rollouts and of the autoscaler.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing.
"""

from __future__ import annotations

from typing import Any

from kedge.api.conditions import TRUE
from kedge.controllers.autoscaler import plan as scaling
from kedge.controllers.rollout import gates
from kedge.controllers.rollout import target as changes
from kedge.controllers.rollout.gates import HEALTH, GateStatus, Heartbeat, SampleOutcome
from kedge.sim.zoo.entry import without

LEFT_EARLY = "no stage is left without healthy samples"

_sample = gates.sample


@without(gates, "_health", source="rollouts: gates on health", breaks=LEFT_EARLY, world="canary")
def health_gate_skipped(rules: Any, facts: Any) -> GateStatus:  # noqa: ARG001
    """A stage is left only if enough pods with the change are ready."""
    return GateStatus(HEALTH, TRUE, "Ready")


@without(changes, "sample", source="argo-rollouts#4479", breaks=LEFT_EARLY, world="canary")
def errors_count_as_good(pod: Any, heartbeat: Any, **more: Any) -> SampleOutcome | None:
    """A sample of unknown health does not count as good."""
    found = _sample(pod, heartbeat, **more)
    return SampleOutcome.GOOD if found is SampleOutcome.ERROR else found


@without(changes, "sample", source="flagger#1011", breaks=LEFT_EARLY, world="canary")
def stale_samples_count(pod: Any, heartbeat: Any, *, after: int, age_s_max: float) -> SampleOutcome | None:  # noqa: ARG001
    """Only samples from after the change, and recent ones, count."""
    return _sample(pod, Heartbeat(after + 1, 0.0), after=after, age_s_max=age_s_max)


@without(
    scaling,
    "_why_not",
    source="testing: autoscaling does not amplify scheduler lag",
    breaks=("lag is not amplified", "the autoscaler waits for pending replicas"),
    world="autoscaled",
)
def scaling_while_pods_wait(target: Any) -> tuple[str, str]:  # noqa: ARG001
    """No replicas are added while some wait for a node or are unknown."""
    return "", ""
