"""Priority levels, and the level and flow of a caller. Pure.

A flow is the unit of fairness inside a level: a user, or all ServiceAccounts of a namespace.
"""

from __future__ import annotations

from enum import Enum

from kedge.api.access import CONTROLLERS, MASTERS, NODES, SCHEDULERS, Caller, account_of_user
from kedge.api.wellknown import LEASES_GROUP
from kedge.caches import weighed
from kedge.limits import Limits
from kedge.server.http.routes import ResourcePath


class PriorityLevel(Enum):
    """In the order in which waiting requests are begun."""

    LEASES = "leases"
    """Renewals of leases and heartbeats of nodes, by agents and by the control plane."""
    CONTROL_PLANE = "control-plane"
    """All else from agents, controllers and schedulers."""
    ADMINISTRATORS = "administrators"
    WORKLOADS = "workloads"
    """ServiceAccounts: the programs in pods."""
    OTHERS = "others"


def seats_of(level: PriorityLevel, limits: Limits) -> int:
    """Requests of a level that may be under way at once; lists are counted by bytes instead."""
    match level:
        case PriorityLevel.LEASES:
            return limits.http_lease_seats_max
        case PriorityLevel.CONTROL_PLANE:
            return limits.http_plane_seats_max
        case PriorityLevel.ADMINISTRATORS:
            return limits.http_admin_seats_max
        case PriorityLevel.WORKLOADS:
            return limits.http_workload_seats_max
        case PriorityLevel.OTHERS:
            return limits.http_other_seats_max


def classify(caller: Caller, path: ResourcePath | None) -> tuple[PriorityLevel, str]:
    """The level and the flow of a request."""
    level, flow = _of_caller(caller.user, caller.groups)
    if level is PriorityLevel.CONTROL_PLANE and path is not None and _is_heartbeat(path):
        return PriorityLevel.LEASES, flow
    return level, flow


def _is_heartbeat(path: ResourcePath) -> bool:
    if not path.name:
        return False
    if path.resource == "leases":
        return path.group == LEASES_GROUP
    return path.resource == "nodes" and path.subresource == "status" and not path.group


@weighed(entries=4096, bytes_max=4 << 20)
def _of_caller(user: str, groups: tuple[str, ...]) -> tuple[PriorityLevel, str]:
    if MASTERS in groups:
        return PriorityLevel.ADMINISTRATORS, user
    if NODES in groups or CONTROLLERS in groups or SCHEDULERS in groups:
        return PriorityLevel.CONTROL_PLANE, user
    account = account_of_user(user)
    if account is not None:
        return PriorityLevel.WORKLOADS, account[0]
    return PriorityLevel.OTHERS, user
