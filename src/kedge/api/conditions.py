"""Conditions: a controller's latest observations of an object, and the generation that it observed.

They are written as JSON in a patch; `lastTransitionTime` changes only when the status does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.api.timestamps import format_time
from kedge.api.views import Condition

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


def condition(
    type_: str, *, status: str | bool | None, reason: str, message: str = "", observed_generation: int = 0
) -> dict[str, Any]:
    """A condition as JSON, without its time: `set_condition` adds it."""
    if not isinstance(status, str):
        status = UNKNOWN if status is None else TRUE if status else FALSE
    made: dict[str, Any] = {"type": type_, "status": status, "reason": reason, "message": message}
    if observed_generation:
        made["observedGeneration"] = observed_generation
    return made


def set_condition(
    conditions: Sequence[Mapping[str, Any]], new: Mapping[str, Any], now: datetime | str
) -> list[dict[str, Any]]:
    """`conditions` with `new` in place of the condition of its type, or at the end. The input is not changed."""
    stamp = now if isinstance(now, str) else format_time(now)
    result = [dict(old) for old in conditions]
    for index, old in enumerate(result):
        if old.get("type") == new["type"]:
            moved = old.get("status") != new["status"] or not old.get("lastTransitionTime")
            since = stamp if moved else old["lastTransitionTime"]
            result[index] = {**old, **new, "lastTransitionTime": since}
            return result
    result.append({**new, "lastTransitionTime": stamp})
    return result


def remove_condition(conditions: Sequence[Mapping[str, Any]], type_: str) -> list[dict[str, Any]]:
    return [dict(old) for old in conditions if old.get("type") != type_]


def find_condition(conditions: Sequence[Condition], type_: str) -> Condition | None:
    for found in conditions:
        if found.type == type_:
            return found
    return None


def is_true(conditions: Sequence[Condition], type_: str) -> bool:
    found = find_condition(conditions, type_)
    return found is not None and found.status == TRUE


def keep_transition_times(old: Any, new: Any, now: str) -> Any:
    """A new status whose conditions keep `lastTransitionTime` unless their status changed, for any writer.

    Both are JSON as sent and may be malformed: a value that is not a list of conditions is left unchanged.
    """
    conditions = new.get("conditions") if isinstance(new, Mapping) else None
    if not isinstance(conditions, list):
        return new
    known = old.get("conditions") if isinstance(old, Mapping) else None
    before = {c["type"]: c for c in known if _is_condition(c)} if isinstance(known, list) else {}
    return {
        **new,
        "conditions": [_with_time(each, before, now) if _is_condition(each) else each for each in conditions],
    }


def _is_condition(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("type"), str)


def _with_time(condition: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]], now: str) -> Mapping[str, Any]:
    old = before.get(condition["type"])
    since = old.get("lastTransitionTime") if old is not None else None
    given = condition.get("lastTransitionTime")
    if old is not None and since and old.get("status") == condition.get("status"):
        return {**condition, "lastTransitionTime": since}
    return {**condition, "lastTransitionTime": given if given and given != since else now}
