"""The pods that EndpointSlices send traffic to, and the owners to wake when that changes."""

from __future__ import annotations

from collections.abc import Iterable

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import EndpointSliceView
from kedge.controllers.shared.kinds import POD
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.runtime.spec import KeysOf


def listed_uids(slices: Iterable[EndpointSliceView]) -> frozenset[str]:
    """The uids of the pods that slices send work to. An endpoint without a `ready` condition counts as ready."""
    return frozenset(
        endpoint.target_ref.uid
        for each in slices
        for endpoint in each.endpoints
        if endpoint.target_ref is not None and endpoint.conditions.ready is not False
    )


def wake_listed(kind: Kind) -> KeysOf:
    """Wakes the owners, of that kind, of the pods that a change adds to an EndpointSlice or removes from it."""

    def keys_of(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
        listings = [_listed_names(each) for each in (change.old, change.new) if each is not None]
        moved = listings[0].symmetric_difference(*listings[1:]) if len(listings) > 1 else set().union(*listings)
        found: dict[Key, None] = {}
        for name in sorted(moved):
            for cache in caches.of_kind(POD.key_kind):
                pod = cache.get(Key(POD.key_kind, change.key.namespace, name)).value
                owner = controller_of(pod.metadata) if pod is not None else None
                if owner is not None and owner.kind == kind.kind:
                    found[Key(kind.key_kind, change.key.namespace, owner.name)] = None
        return found

    return keys_of


def _listed_names(each: Object) -> set[str]:
    return {
        endpoint.target_ref.name
        for endpoint in each.as_view(EndpointSliceView).endpoints
        if endpoint.target_ref is not None and endpoint.conditions.ready is not False
    }
