"""The components that a scenario may run, by name: every controller and the scheduler."""

from __future__ import annotations

from kedge.controllers import CONTROLLERS, lease_of
from kedge.controllers.repair.controller import BINDINGS, LEDGERS, RESERVATIONS
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Component, ComponentFactory, ProcessContext

__all__ = ["CONTROLLERS", "REPAIR", "controller_maker", "scheduler_maker"]

REPAIR = (RESERVATIONS, LEDGERS, BINDINGS)


def controller_maker(name: str) -> ComponentFactory:
    make, lease = CONTROLLERS[name], lease_of(name)
    return lambda context: make(context.runtime(lease))


def scheduler_maker(name: str) -> ComponentFactory:
    def made(context: ProcessContext) -> Component:
        return Scheduler(context.client, context.env, name=name, caches=context.caches, recorder=context.recorder)

    return made
