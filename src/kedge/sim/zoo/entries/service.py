"""Safeguards of store and service: commit checks, binds, fences, quotas and deletions.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kedge.api.views import NamespaceView, PodView
from kedge.api.wellknown import NAMESPACE_KIND, NODE_ALLOCATION_KIND, POD_KIND, RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND
from kedge.keys import Fence
from kedge.placement import predicates, quota
from kedge.placement.reasons import Misfit, Reason
from kedge.server.service import claims, deletion, effects, gangs, namespaces, quotas
from kedge.server.service.core import Proof
from kedge.sim.zoo.entry import without
from kedge.store import Check, Write
from kedge.store.versions import Versions

OVERFULL = "no commit adds to an overfull node"
OVER_QUOTA = "no commit adds to an overfull quota"
OVER_ZONE = "no commit adds to an overfull zone quota"
LEDGER = ("the ledger equals the bindings", "claims belong to pods")
USED = "quota status equals usage"
ENDED = "nothing outlives its namespace"

_first_misfit = predicates.first_misfit
_checks = Proof.checks
_prove = Versions.prove
_quota_delta = quota.quota_delta
_follow_pod = effects._follow_pod


def _checks_but(proof: Proof, kind: str) -> list[Check]:
    return [each for each in _checks(proof) if each.key.kind != kind]


# -- binds -----------------------------------------------------------------------------------------


@without(
    claims,
    "first_misfit",
    source="watch streams: the stale policy during a canary",
    breaks=OVERFULL,
    world="placement",
)
def bind_from_cache(*args: Any) -> Misfit | None:
    """The bind proves on committed state that the node has room."""
    found = _first_misfit(*args)
    return None if found is not None and found.reason is Reason.RESOURCE else found


@without(
    Proof,
    "checks",
    source="watch streams: the cache finds, the commit proves",
    breaks=(OVERFULL, *LEDGER),
    world="placement",
    by="slow commits",
)
def ledger_not_proved(self: Proof) -> list[Check]:
    """The commit checks the ledger that the bind has read."""
    return _checks_but(self, NODE_ALLOCATION_KIND)


@without(
    Proof,
    "checks",
    source="reconciliation: compare-and-swap updates",
    breaks=("deleted pods stay deleted", "a pod never has two nodes", *LEDGER),
    world="placement",
    by="slow commits",
)
def pod_not_proved(self: Proof) -> list[Check]:
    """The commit checks the pod that it read."""
    return _checks_but(self, POD_KIND)


@without(
    Versions,
    "prove",
    source="kubernetes#23731, #44887",
    breaks="one leader writes in an epoch",
    world="groups",
    by="deposed leaders",
)
def unfenced(self: Versions, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None) -> None:  # noqa: ARG001
    """The store rejects a write of a deposed leader."""
    _prove(self, checks, writes, None)


@without(
    gangs,
    "check_complete",
    source="volcano#6010",
    breaks=("a gang is committed whole", "gangs are complete"),
    world="gangs",
    by="slow reserves",
)
def gang_committed_in_part(record: Any) -> None:
    """A gang is committed only when all of its members hold a reservation."""


# -- quota -----------------------------------------------------------------------------------------


@without(
    quotas, "overruns", source="testing: quotas, reservations and tenant limits", breaks=OVER_QUOTA, world="quotas"
)
def quota_not_enforced(*_: Any) -> list[str]:
    """A create that overruns its quota is forbidden."""
    return []


@without(
    Proof,
    "checks",
    source="watch streams: staleness is less acceptable when quota is consumed",
    breaks=(OVER_QUOTA, USED),
    world="quotas",
)
def quota_not_proved(self: Proof) -> list[Check]:
    """The commit checks the quota that it charges."""
    return _checks_but(self, RESOURCE_QUOTA_KIND)


@without(quotas, "quota_delta", source="kubernetes#70563", breaks=USED, world="quotas")
def quota_never_refunded(*args: Any) -> dict[str, int]:
    """A removal gives back what its create was charged."""
    return {name: amount for name, amount in _quota_delta(*args).items() if amount > 0}


@without(effects, "charge_quotas", source="kubernetes#70563", breaks=(OVER_QUOTA, USED), world="quotas")
async def quota_not_charged(*_: Any, **__: Any) -> None:
    """Quota is charged in the commit that creates."""


@without(
    claims,
    "charge_zone",
    source="observability: a quota controller consumed headroom",
    breaks=OVER_ZONE,
    world="placement",
)
async def zone_quota_not_charged(*_: Any) -> None:
    """A bind charges the zone quota of its tenant."""


@without(
    Proof,
    "checks",
    source="testing: scheduler and quota controller",
    breaks=OVER_ZONE,
    world="placement",
    by="slow commits",
)
def zone_quota_not_proved(self: Proof) -> list[Check]:
    """The commit checks the zone quota that it charges."""
    return _checks_but(self, ZONE_QUOTA_KIND)


# -- deletions -------------------------------------------------------------------------------------


@without(
    effects,
    "_follow_pod",
    source="kubernetes#30972",
    breaks=(*LEDGER, "an at most one slot has one live copy"),
    world="nodes",
)
async def freed_by_force(core: Any, proof: Proof, key: Any, old: Any, new: Any) -> None:
    """A forced deletion keeps the claim until the agent confirms."""
    before = old.as_view(PodView) if old is not None else None
    if before is not None and before.spec.node_name and not before.finished and new is None:
        await claims.release(core, proof, before.spec.node_name, before.uid)
        return
    await _follow_pod(core, proof, key, old, new)


@without(
    deletion,
    "_finalizers",
    source="watch streams: owner references, finalizers, tombstones",
    breaks="finalizers are respected",
    world="garbage",
)
def finalizers_ignored(current: tuple[str, ...], propagation: str) -> tuple[str, ...]:  # noqa: ARG001
    """A deletion waits for finalizers."""
    return ()


@without(
    namespaces,
    "check_active",
    source="design: a create proves that its namespace is active",
    breaks=ENDED,
    world="garbage",
)
def created_in_a_deleted_namespace(namespace: Any, key: Any) -> NamespaceView:  # noqa: ARG001
    """Nothing is created in a namespace that is being deleted."""
    view: NamespaceView = namespace.as_view(NamespaceView)
    return view


@without(
    Proof,
    "checks",
    source="design: a create proves that its namespace is active",
    breaks=ENDED,
    world="garbage",
    by="slow commits",
)
def namespace_not_proved(self: Proof) -> list[Check]:
    """The commit checks the namespace that it read."""
    return _checks_but(self, NAMESPACE_KIND)
