"""Shared by the worlds of the zoo: limits without periodic work, and a plain pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kedge.sim.standard import LIMITS, template

NEVER_S = 1e6
NO_PERIODIC_WORK = {"relist_every_s": NEVER_S, "resync_every_s": NEVER_S, "scheduler_flush_s": NEVER_S}
"""Resync, relist and flush would hide a lost wake-up."""
SETTLES_S = 20.0
"""How long after the faults an agent may still restart a process that lost its contact during them."""
QUIET = replace(LIMITS, **NO_PERIODIC_WORK)  # type: ignore[arg-type]


def plain_pod(name: str, *, app: str = "plain", **spec: Any) -> dict[str, Any]:
    """A pod without an owner."""
    body = template(app, **spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**body["metadata"], "name": name}, "spec": body["spec"]}
