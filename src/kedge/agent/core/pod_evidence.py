"""The inputs and the outcome of a pod sync as steps of its record, and back again: `pod_recheck` plans it once more.

A step has the pod as the agent saw it, what the driver listed, the results of probes, and the clock. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec

from kedge.agent.core.plan import PodObservation, PodPlan
from kedge.agent.core.status import dropped_conditions, pod_status
from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.api.views.schema import dec_hook
from kedge.observe.records import PodSync
from kedge.runtime.status import plan_status

PLAN: Final = "plan"
STATUS: Final = "status"


class StatusInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a status beside those of the plan."""

    now: datetime
    address: str
    node_address: str
    waiting: Mapping[str, Mapping[str, str]]
    """By container: why it has not started."""
    resize_failed: str


def planned_status(
    seen: Object, pod: PodView, observation: PodObservation, plan: PodPlan, inputs: StatusInputs
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The status of a pod, and the patch that writes it to `seen`; None if `seen` has it already."""
    status = pod_status(
        pod,
        observation,
        plan,
        now=inputs.now,
        address=inputs.address,
        node_address=inputs.node_address,
        waiting=inputs.waiting,
        resize_failed=inputs.resize_failed,
    )
    return status, plan_status(seen, status, inputs.now, dropped=dropped_conditions(status))


def plan_step(seen: Object | None, observation: PodObservation, plan: PodPlan) -> PodSync:
    """A plan, and all of its inputs. `seen` is the version of the pod in the observation."""
    objects = () if seen is None or observation.pod is None else (seen,)
    # The steps of a resize in progress decide nothing in a plan, and hold whole containers.
    plain = replace(observation, pod=None, resize=replace(observation.resize, apply=()))
    return PodSync(PLAN, objects, _plain(plain), shown_plan(plan))


def status_step(seen: Object, inputs: StatusInputs, *, differs: bool) -> PodSync:
    """A status that was computed on `seen`, and whether it differs from the one there."""
    return PodSync(STATUS, (seen,), _plain(inputs), differs)


def observation_of(step: PodSync) -> PodObservation:
    """Raises `msgspec.ValidationError` for inputs that this build cannot read."""
    found: PodObservation = msgspec.convert(step.inputs, PodObservation, dec_hook=dec_hook)
    return replace(found, pod=step.objects[0].as_view(PodView) if step.objects else None)


def status_inputs_of(step: PodSync) -> StatusInputs:
    """Raises `msgspec.ValidationError` for inputs that this build cannot read."""
    return msgspec.convert(step.inputs, StatusInputs, dec_hook=dec_hook)


def shown_plan(plan: PodPlan) -> dict[str, Any]:
    """A plan as plain data, alike before and after it was in a file; empty fields are left out."""
    shown: dict[str, Any] = {
        "start": [[each.container.name, each.attempt] for each in plan.start],
        "stop": [
            [each.process.identity.container, each.process.identity.attempt, each.grace_s, each.why, each.cause]
            for each in plan.stop
        ],
        "ending": plan.ending.value,
        "failed": plan.failed,
        "message": plan.message,
        "resync_s": plan.resync_s,
        "paused": list(map(list, plan.paused)),
    }
    return {name: value for name, value in shown.items() if value not in ("", [], None)}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_encode)


def _encode(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
