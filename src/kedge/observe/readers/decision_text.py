"""One decision as lines for people: its trigger, its reads with their ages, its outcome and its writes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kedge.observe.readers.moments import clock_text, decided_on
from kedge.observe.records import (
    AdmissionAct,
    Budget,
    CacheRead,
    Call,
    Clock,
    Decision,
    DecisionStep,
    Measured,
    NotStarted,
    PodAct,
    PodSync,
)

_SHOWN: Final = 4
"""Objects of one read that are named; the others are counted."""


def title_of(decision: Decision) -> str:
    """One line: time, revision, controller and object."""
    reached = decided_on(decision)
    at = f"revision {reached}" if reached is not None else "no cache"
    return f"{clock_text(decision.began)}  {at}  {decision.controller}  {decision.key}"


def decision_lines(decision: Decision) -> Iterator[str]:
    """Everything else about it, in the order in which it happened."""
    yield f"id       {decision.id}" + (f", kept: {decision.kept}" if decision.kept else "")
    for what, by in decision.wakes:
        yield f"woken    {what}" + (f" by {by}" if by else "")
    attempt = decision.scheduling
    if attempt is not None:
        for mark in decision.marks:
            yield f"read     {mark.cache} at revision {mark.revision}, {mark.age_s:.3f} s old"
        if attempt.choice is not None and attempt.choice.node:
            yield f"decided  {attempt.choice.node}, of {attempt.choice.feasible} of {attempt.choice.nodes} nodes"
        elif attempt.node:
            yield f"decided  {attempt.node}, which a reservation held"
        elif attempt.choice is not None:
            counts = attempt.account.counts if attempt.account is not None else {}
            why = ", ".join(f"{count} {blocker}" for blocker, count in counts.items())
            yield f"decided  none of {attempt.choice.nodes} nodes" + (f": {why}" if why else "")
    for step in decision.steps:
        yield from _step_lines(step)
    yield f"result   {_result(decision)}"


def _step_lines(step: DecisionStep) -> Iterator[str]:
    match step:
        case CacheRead():
            yield f"read     {_read(step)}"
        case Call():
            yield f"{'read' if step.outcome in ('read', 'absent') else 'wrote':9}{_call(step)}"
        case Clock():
            yield f"clock    {clock_text(step.now)}"
        case Budget():
            verdict = "young enough" if step.kept else "TOO OLD"
            yield f"age      {step.cache}: {step.age_s:.3f} s of {step.budget_s:g} s, {verdict}"
        case Measured():
            yield f"measured {step.what}"
        case NotStarted():
            yield f"waited   {step.error}"
        case PodAct():
            yield f"did      {step}"
        case PodSync():
            yield f"saw      {_sight(step)}"
        case AdmissionAct():
            yield f"policy   {step}"


def _sight(step: PodSync) -> str:
    at = f"the pod at revision {step.objects[0].revision}" if step.objects else "no pod"
    if step.what != "plan":
        return f"{at}, whose status {'differs' if step.outcome else 'is as computed'}"
    listed = [
        f"{each['identity'][1]} {'runs' if each['running'] else 'ended with ' + str(each['exit_code'])}"
        for each in step.inputs["processes"]
    ]
    return f"{at} and {', '.join(listed) or 'no process'}"


def _read(step: CacheRead) -> str:
    about = " ".join(each for each in step.about if each)
    names = ", ".join(f"{each.key.name}@{each.revision}" for each in step.objects[:_SHOWN])
    more = f" and {len(step.objects) - _SHOWN} more" if len(step.objects) > _SHOWN else ""
    if step.verb == "get":
        found = f"revision {step.found}" if step.found else "absent"
    else:
        found = f"{step.found} objects" + (f": {names}{more}" if names else "")
    return f"{step.verb} {step.cache} {about}: {found} (cache at {step.revision}, {step.age_s:.3f} s old)"


def _call(step: Call) -> str:
    what = f"{step.verb} {step.key}" if step.key is not None else step.verb
    at = f" at revision {step.revision}" if step.revision else ""
    why = f": {step.error.get('message', '')}" if step.error else ""
    late = f", unanswered for {step.unanswered_s:.3f} s" if step.unanswered_s else ""
    return f"{what}: {step.outcome}{at} after {step.took_s:.3f} s{late}{why}"


def _result(decision: Decision) -> str:
    found = decision.result or f"cut off: {decision.cut_off or 'it had not ended'}"
    again = f" in {decision.delay_s:g} s" if decision.delay_s is not None else ""
    condition = f", {decision.condition}" if decision.condition else ""
    why = decision.error or decision.reason
    return f"{found}{again}{condition}" + (f": {why}" if why else "") + f", took {decision.took_s:.3f} s"
