"""The components that a scenario's world may be made of, by name: every controller and the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kedge.controllers.autoscaler import autoscaler_controller
from kedge.controllers.orphans import (
    binding_repair_controller,
    ledger_repair_controller,
    reservation_repair_controller,
)
from kedge.controllers.quotas import quota_controller
from kedge.keys import Key
from kedge.scheduler import Scheduler
from kedge.sim import standard
from kedge.sim.cluster import Component, Make, Seat

CONTROLLERS: Mapping[str, Callable[..., Component]] = {
    **standard.CONTROLLERS,
    "quotas": quota_controller,
    "autoscaler": autoscaler_controller,
    "reservation-repair": reservation_repair_controller,
    "ledger-repair": ledger_repair_controller,
    "binding-repair": binding_repair_controller,
}
REPAIR = ("reservation-repair", "ledger-repair", "binding-repair")


def controller_maker(name: str) -> Make:
    make = CONTROLLERS[name]
    lease = Key("Lease.coordination.k8s.io", "kube-system", name)
    return lambda seat: make(seat.client, seat.env, caches=seat.caches, recorder=seat.recorder, lease=lease)


def scheduler_maker(name: str) -> Make:
    def made(seat: Seat) -> Component:
        return Scheduler(seat.client, seat.env, name=name, caches=seat.caches, recorder=seat.recorder)

    return made
