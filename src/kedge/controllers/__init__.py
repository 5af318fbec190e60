"""The controllers: each is a pure plan on frozen views, and a thin shell that carries it out through a `Context`.

`CONTROLLERS` lists them by name; `all_controllers` makes those of one process. They interact only through the objects
that they write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kedge.api.wellknown import CONTROLLERS_LEASE, LEASE_KIND, SYSTEM_NAMESPACE
from kedge.controllers import (
    autoscaler,
    budget,
    deployment,
    endpoints,
    garbage,
    job,
    namespace,
    node,
    quota,
    repair,
    replicaset,
    rollout,
)
from kedge.keys import Key
from kedge.runtime import Controller, ControllerRuntime

__all__ = ["CONTROLLERS", "SHARED_LEASE", "all_controllers", "lease_of"]

CONTROLLERS: Mapping[str, Callable[[ControllerRuntime], Controller]] = {
    deployment.NAME: deployment.deployment_controller,
    replicaset.NAME: replicaset.replica_set_controller,
    job.NAME: job.job_controller,
    autoscaler.NAME: autoscaler.autoscaler_controller,
    rollout.NAME: rollout.rollout_controller,
    node.NAME: node.lifecycle_controller,
    endpoints.NAME: endpoints.endpoints_controller,
    budget.NAME: budget.budget_controller,
    quota.NAME: quota.quota_controller,
    namespace.NAME: namespace.namespace_controller,
    garbage.NAME: garbage.garbage_controller,
    repair.RESERVATIONS: repair.reservation_repair_controller,
    repair.LEDGERS: repair.ledger_repair_controller,
    repair.BINDINGS: repair.binding_repair_controller,
}
"""Every controller of a control plane, by name. The name is used in records, holds, metrics and lease names."""

SHARED_LEASE: Final = Key(LEASE_KIND, SYSTEM_NAMESPACE, CONTROLLERS_LEASE)
"""The lease of a shared election: it stands for every controller of a process."""


def lease_of(name: str) -> Key:
    """The lease of the controller of this name. Each has its own, so that processes share the work."""
    return Key(LEASE_KIND, SYSTEM_NAMESPACE, f"{name}-controller")


def all_controllers(runtime: ControllerRuntime, *, leases: bool = True) -> list[Controller]:
    """Every controller, ready to run, on the caches and the recorder that a process has for all of them.

    With a shared election in `runtime` one lease, renewed once, stands for all of them. Without `leases` they are for a
    process that is alone: two such processes would work against each other.
    """
    return [
        make(replace(runtime, lease=runtime.lease or lease_of(name)) if leases else runtime)
        for name, make in CONTROLLERS.items()
    ]
