"""The plan for a namespace that is being deleted: which of its objects to delete now. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kedge.api.views import ObjectMeta
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    JOB_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
)
from kedge.keys import Key

_FIRST = (DEPLOYMENT_KIND, REPLICA_SET_KIND, JOB_KIND, POD_KIND)
"""Owners are deleted first, then pods; all other kinds (quotas, settings) after them."""


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """The objects of a namespace to delete now, and those that remain."""

    delete: tuple[Key, ...] = ()
    remaining: Mapping[str, int] = field(default_factory=dict)
    """The number of objects of each kind, those that are being deleted included."""
    finalizers: Mapping[str, int] = field(default_factory=dict)
    """The finalizers of objects that are being deleted, counted."""

    @property
    def empty(self) -> bool:
        return not self.remaining


def plan_namespace(
    found: Mapping[str, Sequence[tuple[Key, ObjectMeta]]], *, burst: int, held: Collection[Key] = ()
) -> NamespacePlan:
    """Delete objects stage by stage: a later stage waits until the earlier one is gone.

    Held objects stay, and do not count towards the burst.
    """
    remaining = {kind: len(each) for kind, each in found.items() if each}
    finalizers: dict[str, int] = {}
    for each in found.values():
        for _, metadata in each:
            for name in metadata.finalizers if metadata.deletion_timestamp is not None else ():
                finalizers[name] = finalizers.get(name, 0) + 1
    first = [kind for kind in _FIRST if kind in remaining]
    stage = first or sorted(remaining)
    delete = [
        key
        for kind in stage
        for key, metadata in found[kind]
        if metadata.deletion_timestamp is None and key not in held
    ]
    return NamespacePlan(tuple(delete[:burst]), remaining, finalizers)
