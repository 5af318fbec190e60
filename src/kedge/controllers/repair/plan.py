"""The plans of repair: which reservations, claims and bindings have lost their pod or node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from kedge.api.views import NodeAllocationView, NodeView, PodView, ReservationView
from kedge.placement.ledger import ClaimState


def orphan_reason(
    reservation: ReservationView,
    pod: PodView | None,
    now: datetime,
    *,
    older: Iterable[ReservationView] = (),
    held: Callable[[str], bool] = lambda _: True,
    grace_s: float = 0.0,
) -> str:
    """Why a reservation is an orphan; empty if it is not. `older` are others of the same intent whose pods exist.

    `held` is whether a member of a gang still has its reservation: a committed record names all former members too.
    """
    spec = reservation.spec
    due = due_at(reservation, now, grace_s)
    is_past = due is not None and due <= now
    if not spec.pod.uid:
        # The record of a gang: members with a reservation still need it.
        return "the gang is over" if is_past and not any(map(held, reservation.status.members)) else ""
    if pod is None or pod.uid != spec.pod.uid:
        return "its pod is gone"
    if pod.finished:
        return "its pod has ended"
    if pod.spec.node_name:
        return "its pod is bound"
    if is_past:
        return "its deadline has passed"
    if any(each.uid != reservation.uid for each in older):
        return "an older reservation has the same intent"
    return ""


def due_at(reservation: ReservationView, now: datetime, grace_s: float) -> datetime | None:
    """When its deadline takes effect: not before it has existed for `grace_s`, by the server's clock.

    1. A scheduler whose clock is behind makes reservations for a gang, with a deadline that is already past. 2. Repair
    would free them. 3. The gang could not be committed and would start again, for ever.
    """
    deadline, made = reservation.spec.deadline, reservation.metadata.creation_timestamp
    if deadline is None or made is None or made > now:
        return deadline
    return max(deadline, made + timedelta(seconds=grace_s))


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """The claims of a ledger without a pod."""

    free: tuple[str, ...] = ()
    """Uids whose claim may be freed: their containers cannot run."""
    leaked: tuple[str, ...] = ()
    """Uids without a pod whose containers may still run: reported."""


def plan_ledger(
    ledger: NodeAllocationView, pods: Mapping[str, PodView], reserved: Iterable[str], *, out_of_service: bool
) -> LedgerPlan:
    """Compare a ledger with its pods and reservations. `pods` are the existing pods of its entries."""
    held = frozenset(reserved)
    free: list[str] = []
    leaked: list[str] = []
    for uid, entry in sorted(ledger.status.entries.items()):
        pod = pods.get(uid)
        if pod is not None and not pod.finished:
            continue
        if (entry.state == "Reserved" and uid not in held) or entry.state == ClaimState.UNADMITTED:
            free.append(uid)  # never bound, so no agent has started it
        elif entry.state != "Reserved":
            (free if out_of_service else leaked).append(uid)
    return LedgerPlan(tuple(free), tuple(leaked))


def has_lost_node(pod: PodView, node: NodeView | None, ledger: NodeAllocationView | None) -> bool:
    """Whether the node of a bound pod is gone, or has a new incarnation since the bind."""
    if not pod.spec.node_name or pod.finished:
        return False
    if node is None:
        # A pod that was created with this name waits for its node, unless it is being deleted.
        entry = ledger.status.entries.get(pod.uid) if ledger is not None else None
        return pod.terminating or entry is None or entry.state != ClaimState.UNADMITTED
    return ledger is None or (ledger.spec.node_uid == node.uid and pod.uid not in ledger.status.entries)
