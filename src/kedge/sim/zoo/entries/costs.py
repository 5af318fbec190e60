"""Safeguards whose loss harms no object: components that work too much, or decide on a view that is too old.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing. Fences,
fixed names and conditional writes keep the state right, so only the judges of cost and freshness find these.
"""

from __future__ import annotations

from typing import Any

from kedge.api.views import LeaseView
from kedge.errors import Conflict, NotFound
from kedge.runtime import controller
from kedge.runtime.cache.floors import WriteFloors
from kedge.runtime.lease import LeaderElection
from kedge.runtime.queue import ItemOutcome, OutcomeKind
from kedge.sim.zoo.entry import without

COST = "the cost of a minute is bounded"
FRESH = "decisions are based on fresh views"

_outcome = controller._outcome


@without(
    LeaderElection,
    "_try_once",
    source="issue: leadership terms are bounded",
    breaks=COST,
    world="crowded",
)
async def lease_taken_from_its_holder(self: LeaderElection) -> Any:
    """A candidate takes a lease only when its holder has not renewed it for its duration."""
    try:
        lease = await self._client.get(self._lease)
    except NotFound:
        return await self._create()
    try:
        return await self._write(lease, self._claim(lease.as_view(LeaseView).spec.lease_transitions + 1))
    except Conflict:
        return None


@without(
    controller,
    "_outcome",
    source="reconciliation: a key in a hot loop",
    breaks=COST,
    world="serving",
)
def done_keys_run_again(decision: Any, action: Any) -> ItemOutcome:
    """A key whose work is done does not run before something changes."""
    outcome = _outcome(decision, action)
    return ItemOutcome.requeue(delay_s=0.5) if outcome.kind is OutcomeKind.SUCCESS else outcome


@without(WriteFloors, "unmet", source="issue: freshness is judged", breaks=FRESH, world="workloads")
def own_writes_not_awaited(self: WriteFloors, key: Any) -> bool:  # noqa: ARG001
    """A controller whose children have fixed names waits for its own writes, too."""
    return False
