"""The lesson's debug view of pending replicas after a rollback, as patterns for simulated and real runs."""

from __future__ import annotations

from typing import Final

ADVICE: Final = "wait for the scheduler to catch up before adding capacity or rolling back"


def old_cache(node: str) -> str:
    """The part of the first sentence that names the cause: the agent of `node` released the quota."""
    return (
        rf"this was decided on an old cache: ZoneQuota risk was already at revision \d+, by agent-{node},"
        r" and the cache was at \d+; "
    )


def debug_view_fields(node: str, *, generation: int, pending: tuple[str, str] = ("6", "7")) -> tuple[str, ...]:
    """A pattern for each field. `node` is in zone-c, whose quota is used up; `pending` are two slots."""
    return (
        r"debug view +workload: risk-api$",
        rf"generation: {generation}$",
        r"ready replicas: 6 / 8$",
        r"rollback observed by scheduler: true, policy v4$",
        rf"pending replica: risk-api-\w+-{pending[0]}$",
        rf"pending replica: risk-api-\w+-{pending[1]}, for the same reason$",
        rf"last scheduling reason: zone quota risk/zone-c, without which {node} would fit; 0/3 nodes: ",
        r"scheduler cache revision: ZoneQuota@\d+, \d+s old$",
        r"quota latest revision: ZoneQuota risk@\d+$",
        r"autoscaler reason: low ready replicas, 6 / 8 at revision \d+; holds back: ScalingHeldBack=True",
        rf"repair condition: RepairComplete=True \(Repaired\), observedGeneration={generation}$",
    )
