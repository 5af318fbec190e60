"""Status that is written only when what it says changes, and says which generation it is about.

A status that holds the time of its writing would change with every write, wake its own writer and be written again:
times alone are no news. Pure; `Context.write_status` sends what is planned here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from kedge.api.conditions import set_condition
from kedge.api.objects import Object

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class _StatusOnly(msgspec.Struct):
    status: dict[str, Any] = {}


def status_of(found: Object) -> dict[str, Any]:
    """The status as JSON, and nothing else of the object."""
    return msgspec.json.decode(found.value, type=_StatusOnly).status


def plan_status(found: Object, status: Mapping[str, Any], now: datetime) -> dict[str, Any] | None:
    """The merge patch that makes `found` say `status`; None if it says so already.

    Conditions are set by type, and those of others stay. `observedGeneration` is the generation of `found`, which is
    what the caller read, and the patch is refused if `found` is no longer the newest.
    """
    old = status_of(found)
    wanted = dict(status)
    generation = found.metadata.generation
    if "conditions" in wanted:
        conditions = list(old.get("conditions") or ())
        for each in wanted["conditions"]:
            conditions = set_condition(conditions, {"observedGeneration": generation, **each}, now)
        wanted["conditions"] = conditions
    if generation:
        wanted.setdefault("observedGeneration", generation)
    changed = {field: value for field, value in wanted.items() if is_news(old.get(field), value)}
    if not changed:
        return None
    return {"metadata": {"resourceVersion": str(found.revision)}, "status": changed}


def is_news(old: Any, new: Any) -> bool:
    """Whether `new`, merged into `old`, would say anything else than `old` does. Two times say the same."""
    if old == new:  # what most of a status is, and soon told
        return False
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return any(is_news(old.get(field), value) for field, value in new.items())
    if isinstance(new, list | tuple) and isinstance(old, list):
        return len(old) != len(new) or any(
            is_news(a, b) or is_news(b, a)
            for a, b in zip(old, new, strict=True)  # a list is replaced whole
        )
    if isinstance(new, str) and isinstance(old, str) and new != old:
        return not (_TIME.fullmatch(old) and _TIME.fullmatch(new))
    return bool(old != new)
