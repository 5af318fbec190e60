"""The plan of garbage collection: whether an object goes with its owners, and what its finalizers need. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from kedge.api.views import ObjectMeta
from kedge.controllers.garbage.overrides import active_override

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


class OwnerState(StrEnum):
    """The state of one owner."""

    ALIVE = "alive"
    WAITING = "waiting"
    """Being deleted in the foreground: its blocking dependents are deleted first."""
    GONE = "gone"
    UNKNOWN = "unknown"
    """The kind is unknown and cannot be read, so the owner counts as alive."""


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """The consequence of its owners' state for one object."""

    delete: str = ""
    """The propagation to delete it with; empty to keep it."""
    drop: tuple[str, ...] = ()
    """The uids of owners that are gone, while another owner keeps the object."""


def plan_garbage(metadata: ObjectMeta, owners: Mapping[str, OwnerState], *, has_dependents: bool) -> GarbagePlan:
    """Whether an object is deleted with its owners. `owners` is by uid; a missing owner counts as alive."""
    if metadata.deletion_timestamp is not None or not metadata.owner_references:
        return GarbagePlan()
    known = {ref.uid: owners.get(ref.uid, OwnerState.ALIVE) for ref in metadata.owner_references}
    solid = [uid for uid, state in known.items() if state in (OwnerState.ALIVE, OwnerState.UNKNOWN)]
    if solid:
        return GarbagePlan(
            drop=tuple(uid for uid, state in known.items() if state in (OwnerState.GONE, OwnerState.WAITING))
        )
    if any(state is OwnerState.WAITING for state in known.values()):
        return GarbagePlan("Foreground" if has_dependents else "Background")
    if ORPHAN in metadata.finalizers:
        return GarbagePlan("Orphan")
    return GarbagePlan("Foreground" if FOREGROUND in metadata.finalizers else "Background")


@dataclass(frozen=True, slots=True)
class FinalizerPlan:
    """The finalizers to remove from an object that is being deleted, and those that are stuck."""

    remove: tuple[str, ...] = ()
    """Finalizers that an override permits to remove."""
    stuck: tuple[str, ...] = ()
    """Finalizers that no controller has removed for long: reported."""
    requeue_at: datetime | None = None


def plan_finalizers(metadata: ObjectMeta, now: datetime, *, stuck_s: float) -> FinalizerPlan:
    """Other controllers remove their own finalizers. Without an override these are only reported."""
    foreign = tuple(name for name in metadata.finalizers if name not in (FOREGROUND, ORPHAN))
    if metadata.deletion_timestamp is None or not foreign:
        return FinalizerPlan()
    override = active_override(metadata, now)
    remove = tuple(name for name in foreign if override is not None and name in override.finalizers)
    since = metadata.deletion_timestamp + timedelta(seconds=stuck_s)
    left = tuple(name for name in foreign if name not in remove)
    return FinalizerPlan(remove, left if since <= now else (), since if left and since > now else None)
