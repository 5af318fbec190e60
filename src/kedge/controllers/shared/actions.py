"""The writes of a workload controller, counted and kept for its status, and the time of its next reconcile."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime

from kedge.api.objects import Object
from kedge.controllers.shared.progress import LastAction
from kedge.errors import BadRequest, Forbidden, Invalid, NotFound, OperatingError, TooLarge
from kedge.metrics import Metrics
from kedge.runtime import Action, Context

REFUSALS = (Forbidden, Invalid, BadRequest, TooLarge, NotFound)
"""Errors that the owner's status shows. All others are about timing, and end the reconcile."""
_SOON_S = 0.05


class ActionRecorder:
    """Runs single writes, counts them, and keeps the last one for `status.progress`."""

    def __init__(self, ctx: Context, metrics: Metrics, controller: str) -> None:
        self._ctx = ctx
        self._count = metrics.counter(
            "kedge_workload_acts_total", "Writes of workload controllers, by controller and act", ("controller", "act")
        )
        self._controller = controller
        self.last = LastAction()

    async def run(self, act: str, about: str, write: Awaitable[Object]) -> Object:
        """Await one write. Its error is kept for the status, then raised."""
        self._count.labels(self._controller, act).inc()
        at = self._ctx.now()
        self.last = LastAction(f"{act} {about}", at=at)
        try:
            return await write
        except OperatingError as error:
            self.last = LastAction(f"{act} {about}", f"{type(error).__name__}: {error.message}", at)
            raise

    async def run_on(self, act: str, about: str, write: Awaitable[Object]) -> Object | None:
        """Await one write to an object that was read; None if it is gone. That is no failure: the cache is behind."""
        try:
            return await self.run(act, about, write)
        except NotFound:
            self.last = LastAction(f"{act} {about}", at=self.last.at)
            return None


def requeue_at(now: datetime, *moments: datetime | None, at_once: bool = False, reason: str = "") -> Action:
    """Reconcile again at the first of these moments, or when something changes."""
    if at_once:
        return Action.requeue(delay_s=0.0, reason="there is more to do")
    first = min((moment for moment in moments if moment is not None), default=None)
    if first is None:
        return Action.await_change(reason=reason)
    return Action.requeue(delay_s=max(_SOON_S, (first - now).total_seconds()), reason=reason)
