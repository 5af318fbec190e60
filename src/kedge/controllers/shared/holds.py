"""Holds in the controllers: whether a person holds an object off a controller, and how its status shows that."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from kedge.api.holds import Hold, active_hold, hold_conditions
from kedge.api.objects import Object
from kedge.api.views import View
from kedge.controllers.shared.actions import requeue_at
from kedge.runtime import Action, Context


def held_until(view: View, controller: str, now: datetime) -> datetime | None:
    hold = active_hold(view, controller, now)
    return None if hold is None else hold.until


def split_held(found: Iterable[Object], controller: str, now: datetime) -> tuple[list[Object], list[datetime]]:
    """The objects without a hold on the controller, and the ends of the holds on the others. A held object does not
    delay the others."""
    free, ends = [], []
    for each in found:
        hold = active_hold(each.metadata, controller, now)
        if hold is None:
            free.append(each)
        else:
            ends.append(hold.until)
    return free, ends


async def hold_off(ctx: Context, found: Object, hold: Hold, now: datetime) -> Action:
    """Do nothing until the hold ends or is removed. The status shows the hold, if the kind has conditions.

    `observedGeneration` keeps its value: a status that was not updated must not look up to date.
    """
    view: Any = found.view
    status: Any = getattr(view, "status", None)
    if hasattr(status, "conditions"):
        shown: dict[str, Any] = {"conditions": hold_conditions(view, status.conditions, now)}
        if hasattr(status, "observed_generation"):
            shown["observedGeneration"] = status.observed_generation
        await ctx.write_status(found, shown)
    return requeue_at(now, hold.until, reason=str(hold))
