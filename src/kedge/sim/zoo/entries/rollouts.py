"""Safeguards of what goes on by itself: rollouts in stages, and the autoscaler.

Each function stands in for the one that has the safeguard; its docstring says what is missing.
"""

from __future__ import annotations

from typing import Any

from kedge.api.conditions import TRUE
from kedge.controllers.autoscaler import plan as scaling
from kedge.controllers.rollout import gates
from kedge.controllers.rollout import target as changes
from kedge.controllers.rollout.gates import HEALTH, GateStatus, Heartbeat, SampleOutcome
from kedge.sim.zoo.entry import without

WENT_ON = "no stage is left without good news"

_sample = gates.sample


@without(gates, "_health", source="rollouts: gates on health", breaks=WENT_ON, world="canary")
def health_not_asked(rules: Any, facts: Any) -> GateStatus:  # noqa: ARG001
    """A stage is left only if enough of what has the change is ready."""
    return GateStatus(HEALTH, TRUE, "Ready")


@without(changes, "sample", source="argo-rollouts#4479", breaks=WENT_ON, world="canary")
def errors_count_as_good(pod: Any, heartbeat: Any, **more: Any) -> SampleOutcome | None:
    """What nobody can tell of is not good."""
    found = _sample(pod, heartbeat, **more)
    return SampleOutcome.GOOD if found is SampleOutcome.ERROR else found


@without(changes, "sample", source="flagger#1011", breaks=WENT_ON, world="canary")
def old_news_is_good_news(pod: Any, heartbeat: Any, *, after: int, age_s_max: float) -> SampleOutcome | None:  # noqa: ARG001
    """Only what was said after the change, and lately, counts."""
    return _sample(pod, Heartbeat(after + 1, 0.0), after=after, age_s_max=age_s_max)


@without(
    scaling,
    "_why_not",
    source="testing: autoscaling does not amplify scheduler lag",
    breaks=("lag is not amplified", "the autoscaler waits for pending replicas"),
    world="autoscaled",
)
def scaling_without_reasons(target: Any) -> tuple[str, str]:  # noqa: ARG001
    """Nothing is added to replicas that wait for a node, or of which nothing is known."""
    return "", ""
