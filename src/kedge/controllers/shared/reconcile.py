"""What the shells of the workload controllers share: acting with a memory of the last act, and when to look again."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from datetime import datetime
from typing import Any

from kedge.api.holds import Hold, active_hold, hold_conditions
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.views import View
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    ENDPOINT_SLICE_KIND,
    JOB_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
)
from kedge.controllers.shared.progress import Attempt
from kedge.errors import BadRequest, Forbidden, Invalid, NotFound, OperatingError, TooLarge
from kedge.metrics import Metrics
from kedge.runtime import Action, Context

POD = KINDS.of_key_kind(POD_KIND)
REPLICA_SET = KINDS.of_key_kind(REPLICA_SET_KIND)
DEPLOYMENT = KINDS.of_key_kind(DEPLOYMENT_KIND)
JOB = KINDS.of_key_kind(JOB_KIND)
ENDPOINT_SLICE = KINDS.of_key_kind(ENDPOINT_SLICE_KIND)
NODE = KINDS.of_key_kind(NODE_KIND)
NODE_ALLOCATION = KINDS.of_key_kind(NODE_ALLOCATION_KIND)

REFUSALS = (Forbidden, Invalid, BadRequest, TooLarge, NotFound)
"""Answers that the owner's status tells of. The others are about timing, and end the reconcile."""
_SOON_S = 0.05


class Acts:
    """Carries single acts out, counts them, and remembers the last one for the status."""

    def __init__(self, ctx: Context, metrics: Metrics, controller: str) -> None:
        self._ctx = ctx
        self._count = metrics.counter(
            "kedge_workload_acts_total", "What workload controllers did, by controller and act", ("controller", "act")
        )
        self._controller = controller
        self.last = Attempt()

    async def do(self, act: str, about: str, work: Awaitable[Object]) -> Object:
        """Await one act. Its refusal is remembered, then raised."""
        self._count.labels(self._controller, act).inc()
        at = self._ctx.now()
        self.last = Attempt(f"{act} {about}", at=at)
        try:
            return await work
        except OperatingError as error:
            self.last = Attempt(f"{act} {about}", f"{type(error).__name__}: {error.message}", at)
            raise


def look_again(now: datetime, *moments: datetime | None, at_once: bool = False, reason: str = "") -> Action:
    """Look again at the first of these moments, or when something changes."""
    if at_once:
        return Action.requeue(delay_s=0.0, reason="there is more to do")
    first = min((moment for moment in moments if moment is not None), default=None)
    if first is None:
        return Action.await_change(reason=reason)
    return Action.requeue(delay_s=max(_SOON_S, (first - now).total_seconds()), reason=reason)


def held_until(view: View, controller: str, now: datetime) -> datetime | None:
    hold = active_hold(view, controller, now)
    return None if hold is None else hold.until


def split_held(found: Iterable[Object], controller: str, now: datetime) -> tuple[list[Object], list[datetime]]:
    """Those that nobody holds off the controller, and when the holds on the others end: one that is held stops nobody
    but itself."""
    free, ends = [], []
    for each in found:
        hold = active_hold(each.metadata, controller, now)
        if hold is None:
            free.append(each)
        else:
            ends.append(hold.until)
    return free, ends


async def wait_out(ctx: Context, found: Object, hold: Hold, now: datetime) -> Action:
    """Hands off until the hold ends, or is taken away. Shown in the status, where the kind has a place for it.

    What was observed before stays what was observed: a status that nobody has brought up to date must not look so.
    """
    view: Any = found.view
    status: Any = getattr(view, "status", None)
    if hasattr(status, "conditions"):
        said: dict[str, Any] = {"conditions": hold_conditions(view, status.conditions, now)}
        if hasattr(status, "observed_generation"):
            said["observedGeneration"] = status.observed_generation
        await ctx.write_status(found, said)
    return look_again(now, hold.until, reason=str(hold))
