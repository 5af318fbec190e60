"""The writes of a workload controller, counted and kept for its status, and the time of its next reconcile."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from kedge.api.objects import Object
from kedge.controllers.shared.progress import LastAction
from kedge.errors import BadRequest, Forbidden, Invalid, NotFound, OperatingError, TooLarge
from kedge.metrics import Metrics
from kedge.runtime import Action, Context

REFUSALS = (Forbidden, Invalid, BadRequest, TooLarge, NotFound)
"""Errors that the owner's status shows. All others are about timing, and end the reconcile."""
_SOON_S = 0.05


POD_EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    "create": ("SuccessfulCreate", "Created pod"),
    "delete": ("SuccessfulDelete", "Deleted pod"),
    "release": ("ReleasedPod", "Recorded the end of a pod whose node is lost"),
}
"""By act: the reason and the text of the Event about the owner of a pod. Reasons are those of Kubernetes, if it has
one."""


class ActionRecorder:
    """Runs single writes, counts them, and keeps the last one for `status.progress`."""

    def __init__(
        self,
        ctx: Context,
        metrics: Metrics,
        controller: str,
        owner: Object | None = None,
        events: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """Writes of an act in `events` are noted as Events about `owner`."""
        self._ctx = ctx
        self._owner = owner
        self._events = events
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
            written = await write
            if self._owner is not None and act in self._events:
                reason, text = self._events[act]
                self._ctx.event(self._owner, reason, text, subject=about)
            return written
        except OperatingError as error:
            self.last = LastAction(f"{act} {about}", f"{type(error).__name__}: {error.message}", at)
            raise

    def refused(self, error: OperatingError) -> None:
        """Note that the last write was refused, as the status shows it too."""
        if self._owner is not None:
            act = self.last.action.partition(" ")[0].capitalize()
            self._ctx.event(self._owner, f"Failed{act}", f"{self.last.action}: {error.message}", warning=True)

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
