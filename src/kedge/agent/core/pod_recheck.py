"""Runs a recorded sync of an agent again: every plan on what the driver had listed, every status on the same clock.

Starts, stops and exits are facts of a machine, so they are not repeated. The plan that led to an act must come out the
same, the act must be in it, and the status that was written must be the one that is computed now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from kedge.agent.core import pod_acts
from kedge.agent.core.plan import Ending, PodObservation, PodPlan, plan_pod
from kedge.agent.core.pod_evidence import (
    PLAN,
    observation_of,
    planned_status,
    shown_plan,
    status_inputs_of,
)
from kedge.errors import Compacted, ReplayDiverged
from kedge.limits import Limits
from kedge.observe.records import Call, Decision, PodAct, PodSync, encode_intent

_STARTS = frozenset({"start", "restart"})
_PLANNED = frozenset({"stop", "back off", "fail"})


def recheck_sync(decision: Decision, limits: Limits) -> bool:
    """Run a sync again, and compare. False: it ended before it observed anything.

    Raises:
        ReplayDiverged: a plan, an act or a status differs; the message names the step.
        Compacted: the record lacks the pod that was observed.
    """
    if not any(isinstance(step, PodSync) for step in decision.steps):
        return False
    if decision.objects_dropped:
        raise Compacted(f"decision {decision.id} was too large to be kept with its pod", oldest=0)
    again = _SyncAgain(decision, limits)
    for number, step in enumerate(decision.steps):
        again.take(number, step)
    return True


class _SyncAgain:
    """The steps of one record, one after another."""

    def __init__(self, decision: Decision, limits: Limits) -> None:
        self._decision = decision
        self._limits = limits
        self._observation: PodObservation | None = None
        self._plan = PodPlan()
        self._acts: frozenset[PodAct] = frozenset()
        """The acts of the plan but its starts."""
        self._exits: set[PodAct] = set()
        self._patch: dict[str, Any] | None = None
        """The status that is to be written."""

    def take(self, number: int, step: object) -> None:
        try:
            if isinstance(step, PodSync) and step.what == PLAN:
                self._take_plan(number, step)
            elif isinstance(step, PodSync):
                self._take_status(number, step)
            elif isinstance(step, PodAct):
                self._take_act(number, step)
            elif isinstance(step, Call):
                self._take_call(number, step)
        except msgspec.ValidationError as error:
            raise Compacted(f"decision {self._decision.id} has inputs of another build: {error}", oldest=0) from error

    def _take_plan(self, number: int, step: PodSync) -> None:
        self._observation = observation_of(step)
        self._plan = plan_pod(self._observation, self._limits)
        now, then = shown_plan(self._plan), step.outcome
        if now != then:
            self._diverge(number, f"it plans {now}, but the record has {then}")
        self._acts = frozenset(each.act for each in pod_acts.planned(self._plan))
        ended = (each for each in self._observation.processes if not each.running)
        self._exits = {pod_acts.ended(each).act for each in ended}

    def _take_act(self, number: int, act: PodAct) -> None:
        if act.verb in _PLANNED and act not in self._acts:
            self._diverge(number, f"it does not plan to {act}")
        if act.verb == "exit" and act not in self._exits:
            self._diverge(number, f"no process was listed with this end: {act}")
        started = {(each.container.name, each.attempt) for each in self._plan.start}
        if act.verb in _STARTS and (act.container, act.attempt) not in started:
            self._diverge(number, f"it does not plan to {act}")

    def _take_status(self, number: int, step: PodSync) -> None:
        pod = None if self._observation is None else self._observation.pod
        if self._observation is None or pod is None:
            self._diverge(number, "it has a status of a pod that it did not observe")
        seen, observed = step.objects[0], self._observation
        _, patch = planned_status(seen, pod, observed, self._plan, status_inputs_of(step))
        if (patch is not None) != step.outcome:
            self._diverge(
                number, f"its status {'differs' if patch is not None else 'is the one there'}, and was not so"
            )
        if patch is not None:
            patch["metadata"]["uid"] = self._decision.uid
        self._patch = patch

    def _take_call(self, number: int, call: Call) -> None:
        """A write follows from the status, which may also wait for contact with the server, or from the plan's end."""
        now = self._intent(call.verb)
        if now is None or call.check:
            self._diverge(number, f"it does not {call.verb} {call.key} {call.check}".rstrip())
        if msgspec.json.decode(encode_intent(now)) != call.intent:
            self._diverge(number, f"its {call.verb} has {now}, but had {call.intent}")

    def _intent(self, verb: str) -> Mapping[str, Any] | None:
        uid, run = self._decision.uid, self._decision.pod_run
        if verb == "patch":
            return self._patch
        if verb == "delete" and self._plan.ending is Ending.REMOVE:
            return {"uid": uid}
        if verb == "confirm ended" and self._plan.ending is Ending.CONFIRM and run is not None:
            return {"nodeUid": run.node_uid, "podUid": uid}
        return None

    def _diverge(self, number: int, how: str) -> NoReturn:
        raise ReplayDiverged(f"decision {self._decision.id} about {self._decision.key}, step {number + 1}: {how}")
