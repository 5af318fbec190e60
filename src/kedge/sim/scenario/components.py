"""The components that a scenario may run: every controller by name, the scheduler, and others by `module:name`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from kedge.controllers import CONTROLLERS, lease_of
from kedge.controllers.repair.controller import BINDINGS, LEDGERS, RESERVATIONS
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Component, ComponentFactory, ProcessContext
from kedge.sim.kernel.targets import find_object
from kedge.sim.scenario.recorded_draws import RecordedDraws

__all__ = ["CONTROLLERS", "REPAIR", "controller_maker", "is_reference", "scheduler_maker", "source_of"]

REPAIR = (RESERVATIONS, LEDGERS, BINDINGS)


def controller_maker(name: str) -> ComponentFactory:
    """The factory of a controller: one of kedge, or `module:name`, a function of a `ControllerRuntime`.

    Raises:
        UnknownTarget: the module or the function does not exist.
    """
    own = is_reference(name)
    make = find_object(name, "a controller", "a function of a ControllerRuntime") if own else CONTROLLERS[name]
    lease = lease_of(re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") if own else name)
    return lambda context: make(context.runtime(lease))


def is_reference(name: str) -> bool:
    """Whether it is `module:name`, and not a name of kedge's own."""
    return ":" in name


def source_of(reference: str) -> Path | None:
    """The file of a part that is not of kedge: a run depends on it."""
    module = sys.modules.get(getattr(find_object(reference, "a function"), "__module__", ""))
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file)


def scheduler_maker(name: str, draws: RecordedDraws) -> ComponentFactory:
    def made(context: ProcessContext) -> Component:
        return Scheduler(
            context.client,
            context.env,
            name=name,
            caches=context.caches,
            recorder=context.recorder,
            draw_for=draws.of_scheduler(context.env),
        )

    return made
