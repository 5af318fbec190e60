"""Ghosts: copies that may still run although their pods are gone, because a pod was deleted by force.

Workloads with at-most-one count them until the claim on the node is released. They are read from the API server,
because a second running copy cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kedge.api.views import NodeAllocationView, PodView
from kedge.controllers.shared.kinds import NODE_ALLOCATION
from kedge.runtime import Context


async def find_ghosts(
    ctx: Context, namespace: str, is_own: Callable[[str], bool], pods: Iterable[PodView]
) -> tuple[str, ...]:
    """The names of claims in a namespace that `is_own` accepts, and whose pods are not among `pods`."""
    known = {pod.uid for pod in pods}
    return tuple(
        entry.name
        for ledger in await ctx.fresh_list(NODE_ALLOCATION)
        for uid, entry in ledger.as_view(NodeAllocationView).status.entries.items()
        if entry.state == "Bound" and entry.namespace == namespace and uid not in known and is_own(entry.name)
    )
