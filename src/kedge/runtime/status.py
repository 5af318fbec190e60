"""Status that is written only when its content changes, with the generation it was observed on.

A status that contains its own write time would change with every write, wake its own writer and be written again: a
change of times alone does not count. Pure; `Context.write_status` sends the planned patch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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


def plan_status(
    found: Object, status: Mapping[str, Any], now: datetime, *, dropped: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The merge patch that sets `status` on `found`; None if `found` already has it.

    Conditions are set by type; conditions of other writers stay, and those of the types in `dropped` are removed.
    `observedGeneration` is the generation of `found`, which the caller read, and the patch is rejected if `found` is no
    longer the newest version.
    """
    old = status_of(found)
    wanted = dict(status)
    generation = found.metadata.generation
    if "conditions" in wanted:
        conditions = [each for each in old.get("conditions") or () if each.get("type") not in dropped]
        # Objects without a generation, such as nodes, have none that a condition could be about.
        observed = {"observedGeneration": generation} if generation else {}
        for each in wanted["conditions"]:
            conditions = set_condition(conditions, {**observed, **each}, now)
        wanted["conditions"] = conditions
    if generation:
        wanted.setdefault("observedGeneration", generation)
    changed = {field: value for field, value in wanted.items() if differs(old.get(field), value)}
    if not changed:
        return None
    return {"metadata": {"resourceVersion": str(found.revision)}, "status": changed}


def differs(old: Any, new: Any) -> bool:
    """Whether merging `new` into `old` changes anything. Two times count as equal."""
    if old == new:  # the common case, and cheap
        return False
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        return any(differs(old.get(field), value) for field, value in new.items())
    if isinstance(new, list | tuple) and isinstance(old, list):
        return len(old) != len(new) or any(
            differs(a, b) or differs(b, a)
            for a, b in zip(old, new, strict=True)  # a list is replaced whole
        )
    if isinstance(new, str) and isinstance(old, str) and new != old:
        return not (_TIME.fullmatch(old) and _TIME.fullmatch(new))
    return bool(old != new)
