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
"""Those who make others go first, then what runs; what they stand on (quotas, settings) goes after them."""


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """What to delete of a namespace now, and what still stands."""

    delete: tuple[Key, ...] = ()
    remaining: Mapping[str, int] = field(default_factory=dict)
    """How many there are of each kind, those that are on their way out included."""
    finalizers: Mapping[str, int] = field(default_factory=dict)
    """What they wait for."""

    @property
    def empty(self) -> bool:
        return not self.remaining


def plan_namespace(
    found: Mapping[str, Sequence[tuple[Key, ObjectMeta]]], *, burst: int, held: Collection[Key] = ()
) -> NamespacePlan:
    """Delete what is there, stage by stage: a later one waits until the earlier ones are gone.

    What a person holds stays, and takes nobody's turn.
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
