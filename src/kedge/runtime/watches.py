"""What a controller follows: which kinds, which part of them, by what it finds things, and whom a change wakes.

Declared by controllers, made into caches by `runtime.controller`. A change only names keys to look at; what it said is
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet, Index

KeysOf = Callable[[CacheChange, CacheSet], Iterable[Key]]
"""The keys to look at after a change. Quick and pure: it may read caches, and does nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One kind that a controller reads, or a part of it."""

    kind: Kind
    keys_of: KeysOf | None = None
    """Whom a change wakes; None for a kind that is only read."""
    namespace: str = ""
    label_selector: str = ""
    indexes: tuple[Index, ...] = ()
    """What `ctx.by_index` may ask for."""
    max_age_s: float | None = None
    """How old its cache may be for any decision; None for as old as it is."""
    resync: Callable[[Object], bool] | None = None
    """Which of its objects are looked at now and then by their own keys, whatever was missed; None for none. Those of
    the controller's own kind always are."""


def wake_itself(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    return (change.key,)


def wake_owner(owner: Kind) -> KeysOf:
    """Wake the `owner` that controls the object: the one before the change and the one after."""

    def owners_of(found: Object | None) -> Iterable[Key]:
        if found is None:
            return ()
        namespace = found.key.namespace if owner.namespaced else ""
        return (
            Key(owner.key_kind, namespace, ref.name)
            for ref in found.metadata.owner_references
            if ref.controller and ref.kind == owner.kind and ref.api_version.rpartition("/")[0] == owner.group
        )

    def keys_of(change: CacheChange, _: CacheSet) -> Iterable[Key]:
        return dict.fromkeys((*owners_of(change.old), *owners_of(change.new)))

    return keys_of
