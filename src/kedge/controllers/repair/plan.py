"""The plans of repair: which reservations, claims and bindings have lost their pod or node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from kedge.api.views import NodeAllocationView, NodeView, PodView, ReservationView


def orphan_reason(
    reservation: ReservationView,
    pod: PodView | None,
    now: datetime,
    *,
    older: Iterable[ReservationView] = (),
    held: Callable[[str], bool] = lambda _: True,
    grace_s: float = 0.0,
) -> str:
    """Why a reservation stands for nothing, if it does. `older` are others for the same intent, whose pods live.

    `held` says whether a member of a gang still has what it reserved: a committed record names all that ever did.
    """
    spec = reservation.spec
    due = due_at(reservation, now, grace_s)
    is_past = due is not None and due <= now
    if not spec.pod.uid:
        # The record of a gang: whoever holds something under it still needs it.
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
        return "another was made first for the same intent"
    return ""


def due_at(reservation: ReservationView, now: datetime, grace_s: float) -> datetime | None:
    """From when on its deadline counts: not before it has been there for `grace_s`, by the server's word.

    1. A scheduler whose clock is behind reserves for members of its gang, until a time that is past already. 2. Repair
    frees them. 3. The gang cannot be committed, and begins anew, for ever. A clock frees nothing, a wrong one least.
    """
    deadline, made = reservation.spec.deadline, reservation.metadata.creation_timestamp
    if deadline is None or made is None or made > now:
        return deadline
    return max(deadline, made + timedelta(seconds=grace_s))


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """What is wrong with a ledger."""

    free: tuple[str, ...] = ()
    """Uids whose claim may go: nothing of them can run."""
    leaked: tuple[str, ...] = ()
    """Uids whose claim nothing stands for, and that may still run: to be told."""


def plan_ledger(
    ledger: NodeAllocationView, pods: Mapping[str, PodView], reserved: Iterable[str], *, out_of_service: bool
) -> LedgerPlan:
    """Compare a ledger with the pods and reservations it accounts for. `pods` are those of its entries that exist."""
    held = frozenset(reserved)
    free: list[str] = []
    leaked: list[str] = []
    for uid, entry in sorted(ledger.status.entries.items()):
        pod = pods.get(uid)
        if pod is not None and not pod.finished:
            continue
        if entry.state == "Reserved" and uid not in held:
            free.append(uid)  # it was never bound, so nobody ever started it
        elif entry.state != "Reserved":
            (free if out_of_service else leaked).append(uid)
    return LedgerPlan(tuple(free), tuple(leaked))


def has_lost_node(pod: PodView, node: NodeView | None, ledger: NodeAllocationView | None) -> bool:
    """Whether a bound pod's node is gone, or is another incarnation than the one it was bound to."""
    if not pod.spec.node_name or pod.finished:
        return False
    if node is None:
        return True
    return ledger is None or (ledger.spec.node_uid == node.uid and pod.uid not in ledger.status.entries)
