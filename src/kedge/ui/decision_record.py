"""The record of one decision as a document: inputs with age and writer, every node, requests and outcomes. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from kedge.api.objects import Object
from kedge.api.timestamps import format_micro_time
from kedge.api.wellknown import NODE_KIND
from kedge.observe.records import (
    AdmissionAct,
    Budget,
    CacheMark,
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
from kedge.ui.beliefs import CachedComponents
from kedge.ui.decision_list import outcome_of, summary_of
from kedge.ui.history import RecordedHistory

DECISION_KIND: Final = "DecisionRecord"
OBJECTS_MAX: Final = 100
"""Objects that are listed for one read."""
INTENT_CHARS_MAX: Final = 20_000
FEASIBLE: Final = ""


def decision_document(history: RecordedHistory, components: CachedComponents, decision: Decision) -> dict[str, Any]:
    """Everything that the record has, with its cause and its effects."""
    cause = history.causes.get(decision.id)
    return {
        "id": decision.id,
        "controller": decision.controller,
        "process": decision.process,
        "component": "" if (found := components.of_decision(decision)) is None else found.name,
        "key": str(decision.key),
        "uid": decision.uid,
        "generation": decision.generation or None,
        "tenant": decision.tenant,
        "priority": decision.priority,
        "t": history.t_of(decision.began),
        "at": format_micro_time(decision.began),
        "tookSeconds": round(decision.took_s, 6),
        "waitedSeconds": round(decision.waited_s, 6),
        "delayedSeconds": round(decision.delayed_s, 6),
        "attempt": decision.attempt,
        "outcome": outcome_of(decision),
        "text": summary_of(decision),
        "result": decision.result,
        "requeueSeconds": decision.delay_s,
        "reason": decision.reason,
        "error": decision.error,
        "kept": decision.kept,
        "fence": decision.fence or None,
        "partOf": decision.part_of,
        "wokenBy": [{"what": what, "writer": writer} for what, writer in decision.wakes],
        "cause": None
        if cause is None
        else {
            "text": str(cause),
            "key": str(cause.key),
            "revision": cause.revision or None,
            "t": None if cause.written is None else history.t_of(cause.written),
            "writer": cause.writer,
            "seenSeconds": cause.seen_s,
            "decision": cause.decision if cause.decision in history.by_id else "",
        },
        "effects": [_effect(history, each) for each in history.effects.get(decision.id, ())],
        "written": history.written.get(decision.id),
        "inputs": [_input(history, components, decision, each) for each in decision.marks],
        "steps": [_step(history, decision, each) for each in decision.steps],
        "scheduling": _scheduling(history, decision),
    }


def _effect(history: RecordedHistory, name: str) -> dict[str, Any]:
    found = history.by_id[name]
    return {"id": name, "controller": found.controller, "key": str(found.key), "t": history.t_of(found.began)}


# -- inputs ----------------------------------------------------------------------------------------


def _input(
    history: RecordedHistory, components: CachedComponents, decision: Decision, mark: CacheMark
) -> dict[str, Any]:
    """One cache: its revision and age, its newest write, and the newest write that it lacked."""
    component = components.of_decision(decision)
    held = None if component is None else component.content(mark.cache, mark.place)
    newest = max(held.values(), key=lambda each: each.revision) if held else None
    kind = mark.cache.partition("[")[0]
    lacked = None
    now = history.point(t=history.t_of(decision.began)).revision
    for key, versions in history.keys_of_kind(kind).items():
        found = versions.first_after(mark.revision, now)
        if found is not None and (lacked is None or found[0] > lacked[0]):
            lacked = (found[0], key, found[1])
    return {
        "cache": mark.cache,
        "place": mark.place,
        "revision": mark.revision,
        "ageSeconds": round(mark.age_s, 6),
        "objects": None if held is None else len(held),
        "newest": None if newest is None else _version(newest),
        "lacked": None
        if lacked is None
        else {
            "key": str(lacked[1]),
            "revision": lacked[0],
            "writer": "" if lacked[2] is None else lacked[2].origin.writer,
            "lateSeconds": max(0, history.t_of(decision.began) - history.time_of(lacked[0])) / 1e6,
        },
    }


def _version(found: Object) -> dict[str, Any]:
    return {
        "key": str(found.key),
        "revision": found.revision,
        "writer": found.origin.writer,
        "decision": found.origin.decision,
    }


# -- steps -----------------------------------------------------------------------------------------


def _step(history: RecordedHistory, decision: Decision, step: DecisionStep) -> dict[str, Any]:
    match step:
        case CacheRead():
            return {
                "step": "read",
                "verb": step.verb,
                "cache": step.cache,
                "about": " ".join(filter(None, step.about)),
                "revision": step.revision,
                "ageSeconds": round(step.age_s, 6),
                "found": int(bool(step.found)) if step.verb == "get" else step.found,
                "objects": [_version(each) for each in step.objects[:OBJECTS_MAX]],
            }
        case Call():
            return {
                "step": "call",
                "verb": step.verb,
                "key": str(step.key or decision.key),
                "check": step.check,
                "intent": _intent(step),
                "outcome": step.outcome,
                "revision": step.revision or None,
                "error": "" if step.error is None else str(step.error.get("message", step.outcome)),
                "t": history.t_of(decision.began) + round(step.began_s * 1e6),
                "tookSeconds": round(step.took_s, 6),
                "unansweredSeconds": round(step.unanswered_s, 6),
            }
        case Clock():
            return {"step": "clock", "text": f"the time was {format_micro_time(step.now)}"}
        case Budget():
            verdict = "young enough" if step.kept else "too old"
            return {
                "step": "age",
                "text": f"{step.cache} was {step.age_s:.1f} s old, {step.budget_s:.1f} s are allowed: {verdict}",
            }
        case Measured():
            return {"step": "measured", "text": f"{step.what}: {json.dumps(step.value, default=str)[:500]}"}
        case NotStarted():
            return {"step": "not started", "text": step.error}
        case PodAct() | AdmissionAct():
            return {"step": "act", "text": str(step)}
        case PodSync():
            return {"step": "saw", "text": f"{step.what}: {json.dumps(step.outcome, default=str)[:500]}"}


def _intent(call: Call) -> str:
    text = json.dumps(call.intent, indent=1, sort_keys=True)
    return text if len(text) <= INTENT_CHARS_MAX else f"{text[:INTENT_CHARS_MAX]}..."


# -- every node ------------------------------------------------------------------------------------


def _scheduling(history: RecordedHistory, decision: Decision) -> dict[str, Any] | None:
    attempt = decision.scheduling
    if attempt is None:
        return None
    choice, account = attempt.choice, attempt.account
    return {
        "node": attempt.node,
        "reservedNode": attempt.reserved_node,
        "nominatedNode": attempt.nominated_node,
        "victims": list(attempt.victims),
        "excluded": list(attempt.excluded),
        "unblockedBy": list(attempt.unblocked_by),
        "podRevision": attempt.pod_revision,
        "policy": "" if choice is None else f"{choice.policy} {choice.policy_version}".strip(),
        "canary": choice is not None and choice.canary,
        "feasible": None if choice is None else choice.feasible,
        "total": None if choice is None else choice.nodes,
        "blockers": [] if account is None else [{"blocker": b, "nodes": n} for b, n in account.counts.items()],
        "nearest": None
        if account is None or account.near_miss is None
        else {"node": account.near_miss.node, "blocker": account.near_miss.blocker},
        "nodes": _nodes(history, decision),
        "assumed": {uid: each.node for uid, each in attempt.local.assumed.items()},
    }


def _nodes(history: RecordedHistory, decision: Decision) -> list[dict[str, Any]]:
    """Every node by name, with its first blocker or its score; empty if the names are not known."""
    attempt = decision.scheduling
    account = None if attempt is None else attempt.account
    if account is None:
        return []
    revision = next((mark.revision for mark in decision.marks if mark.cache == NODE_KIND), 0)
    names = [each.key.name for each in history.of_kind(NODE_KIND, revision)]
    if len(names) != len(account.first_failing):
        return []
    scores = {each.node: each for each in account.top}
    made = []
    for name, code in zip(names, account.first_failing, strict=True):
        scored = scores.get(name)
        blocker = account.legend[code - 1] if code else FEASIBLE
        made.append(
            {
                "node": name,
                "blocker": blocker,
                "reason": account.reason_of(blocker) if blocker else "",
                "score": None if scored is None else scored.total,
                "parts": {} if scored is None else dict(scored.parts),
            }
        )
    return made
