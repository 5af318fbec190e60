"""Safeguards of store and service: what a commit proves, what a bind, a quota, a deletion and a fence are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kedge.api.views import NamespaceView, PodView
from kedge.keys import Fence
from kedge.placement import predicates, quota
from kedge.placement.reasons import Misfit, Reason
from kedge.server.service import claims, deletion, effects, namespaces, quotas
from kedge.server.service.core import Proof
from kedge.sim.zoo.entries import Entry, swapping
from kedge.store import Check, Write
from kedge.store.versions import Versions

OVERFULL = "no commit adds to an overfull node"
OVER_QUOTA = "no commit adds to an overfull quota"
OVER_ZONE = "no commit adds to an overfull zone quota"
LEDGER = "the ledger equals the bindings"
TWO_NODES = "a pod never has two nodes"
FINALIZERS = "finalizers are respected"
CONVERGE = "replicas converge"

_first_misfit = predicates.first_misfit
_checks = Proof.checks
_prove = Versions.prove
_quota_delta = quota.quota_delta


def _without_reason(*reasons: Reason) -> Any:
    def fits(*args: Any) -> Misfit | None:
        found = _first_misfit(*args)
        return None if found is not None and found.reason in reasons else found

    return fits


def _without_checks_of(*kinds: str) -> Any:
    def checks(self: Proof) -> list[Check]:
        return [each for each in _checks(self) if each.key.kind not in kinds]

    return checks


def _unfenced(self: Versions, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None) -> None:  # noqa: ARG001
    _prove(self, checks, writes, None)


def _never_refunded(*args: Any) -> dict[str, int]:
    return {name: amount for name, amount in _quota_delta(*args).items() if amount > 0}


async def _charge_nothing(*_: Any) -> None:
    return


async def _released_by_force(core: Any, proof: Proof, key: Any, old: Any, new: Any) -> None:
    before = old.as_view(PodView) if old is not None else None
    if before is not None and before.spec.node_name and not before.finished and new is None:
        await claims.release(core, proof, before.spec.node_name, before.uid)
        return
    await _follow_pod(core, proof, key, old, new)


_follow_pod = effects._follow_pod


def _no_finalizers(current: tuple[str, ...], propagation: str) -> tuple[str, ...]:  # noqa: ARG001
    return ()


def _always_active(namespace: Any, key: Any) -> NamespaceView:  # noqa: ARG001
    view: NamespaceView = namespace.as_view(NamespaceView)
    return view


ENTRIES = (
    Entry(
        name="bind-from-cache",
        source="watch streams: the stale policy during a canary",
        safeguard="the bind proves on committed state that the node has room",
        breaks=(OVERFULL,),
        theme="placement",
        patch=swapping(claims, "first_misfit", _without_reason(Reason.RESOURCE)),
    ),
    Entry(
        name="ledger-not-proved",
        source="watch streams: the cache finds, the commit proves",
        safeguard="the commit checks the ledger that the bind has read",
        breaks=(OVERFULL, LEDGER, "accounts are even", "processes are those of the bound"),
        theme="placement",
        patch=swapping(Proof, "checks", _without_checks_of("NodeAllocation.kedge.dev")),
    ),
    Entry(
        name="pod-not-proved",
        source="reconciliation: compare-and-swap updates",
        safeguard="the commit checks the pod that it read",
        breaks=(TWO_NODES, LEDGER, "accounts are even", "a slot has one unreleased binding", CONVERGE),
        theme="placement",
        patch=swapping(Proof, "checks", _without_checks_of("Pod")),
    ),
    Entry(
        name="quota-not-enforced",
        source="testing: quotas, reservations and tenant limits",
        safeguard="a create that overruns its quota is forbidden",
        breaks=(OVER_QUOTA,),
        theme="quotas",
        patch=swapping(quotas, "overruns", lambda *_: {}),
    ),
    Entry(
        name="quota-not-proved",
        source="watch streams: staleness is less acceptable when quota is consumed",
        safeguard="the commit checks the quota that it charges",
        breaks=(OVER_QUOTA, "quotas say what is used"),
        theme="quotas",
        patch=swapping(Proof, "checks", _without_checks_of("ResourceQuota")),
    ),
    Entry(
        name="quota-never-refunded",
        source="kubernetes#70563",
        safeguard="a removal gives back what its create was charged",
        breaks=("quotas say what is used",),
        theme="quotas",
        patch=swapping(quotas, "quota_delta", _never_refunded),
    ),
    Entry(
        name="quota-not-charged",
        source="kubernetes#70563",
        safeguard="quota is charged in the commit that creates",
        breaks=(OVER_QUOTA, "quotas say what is used"),
        theme="quotas",
        patch=swapping(effects, "charge_quotas", _charge_nothing),
    ),
    Entry(
        name="zone-quota-not-charged",
        source="observability: a quota controller consumed headroom",
        safeguard="a bind charges its tenant's zone quota",
        breaks=(OVER_ZONE,),
        theme="placement",
        patch=swapping(claims, "charge_zone", _charge_nothing),
    ),
    Entry(
        name="zone-quota-not-proved",
        source="testing: scheduler and quota controller",
        safeguard="the commit checks the zone quota that it charges",
        breaks=(OVER_ZONE,),
        theme="placement",
        patch=swapping(Proof, "checks", _without_checks_of("ZoneQuota.kedge.dev")),
    ),
    Entry(
        name="freed-by-force",
        source="kubernetes#30972",
        safeguard="a forced deletion keeps the claim until the agent confirms",
        breaks=(
            LEDGER,
            "an at most one slot has one live copy",
            "a process is started only for its binding",
            "processes are those of the bound",
        ),
        theme="nodes",
        patch=swapping(effects, "_follow_pod", _released_by_force),
    ),
    Entry(
        name="finalizers-ignored",
        source="watch streams: owner references, finalizers, tombstones",
        safeguard="a deletion waits for finalizers",
        breaks=(FINALIZERS,),
        theme="garbage",
        patch=swapping(deletion, "_finalizers", _no_finalizers),
    ),
    Entry(
        name="born-into-the-ending",
        source="design: a create proves that its namespace is active",
        safeguard="nothing is created in a namespace that is being deleted",
        breaks=("nothing outlives its namespace",),
        theme="garbage",
        patch=swapping(namespaces, "check_active", _always_active),
    ),
    Entry(
        name="namespace-not-proved",
        source="design: a create proves that its namespace is active",
        safeguard="the commit checks the namespace that it read",
        breaks=("nothing outlives its namespace",),
        theme="garbage",
        patch=swapping(Proof, "checks", _without_checks_of("Namespace")),
    ),
    Entry(
        name="unfenced",
        source="kubernetes#23731, #44887",
        safeguard="a deposed leader's write is refused by the store",
        breaks=("one leader writes in an epoch",),
        theme="workloads",
        patch=swapping(Versions, "prove", _unfenced),
    ),
)
