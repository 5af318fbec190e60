"""Bounds of one run: a run that passes a bound makes no progress and is stopped as a failure.

`loop` calls `RunGuard.check` between rounds of steps; `simulation.run` takes the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kedge.sim.kernel.teardown import waiting_tasks
from kedge.sim.kernel.violations import Violation

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Where a run is stopped because it makes no progress."""

    virtual_s_max: float = 36_000.0
    """Longer than any program waits for anything."""
    steps_max: int = 5_000_000
    """A run this long is an endless loop."""
    steps_at_one_moment_max: int = 200_000
    """This many steps without time moving are a busy wait, which never ends in virtual time."""


class RunGuard:
    """Fails a run that has passed its bounds."""

    def __init__(self, world: SimWorld, bounds: RunBounds) -> None:
        self._world = world
        self._bounds = bounds
        self._moment = (0.0, 0)
        """The current moment, and the number of steps when it began."""

    def check(self) -> None:
        world, bounds, loop = self._world, self._bounds, self._world.loop
        steps = len(world.trace.steps)
        if loop.now != self._moment[0]:
            self._moment = (loop.now, steps)
        if steps - self._moment[1] > bounds.steps_at_one_moment_max:
            self._fail(f"{steps - self._moment[1]} steps and time has not moved: a busy wait", "busy wait")
        elif steps > bounds.steps_max:
            self._fail(f"{steps} steps, and no end", "steps")
        elif loop.now > bounds.virtual_s_max:
            self._fail(f"{loop.now:.0f} virtual seconds, and no end", "time")

    def _fail(self, message: str, cause: str) -> None:
        detail = "\n".join(waiting_tasks(self._world))
        self._world.violate(Violation("the program makes progress", message, cause, detail))
