"""Ownership: which objects a workload adopts by its selector, and which it releases. Pure.

An object has one controller. An object without one may be adopted by a workload that selects it; one that is no longer
selected is released, not deleted. An owner is identified by its uid: an object of the same name is not the owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.owners import controller_of, owner_reference
from kedge.api.selectors import LabelSelector, label_selector
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet, Index
from kedge.runtime.spec import KeysOf, wake_owner

ORPHANS = Index("orphans", lambda each: () if controller_of(each.metadata) is not None else (each.key.namespace,))
"""Objects without a controller, by namespace."""


def to_adopt(orphans: Iterable[Object], selector: LabelSelector) -> list[Object]:
    """The orphans that are selected and not being deleted."""
    return [
        each
        for each in orphans
        if each.metadata.deletion_timestamp is None
        and selector.matches(each.metadata.labels)
        and not getattr(each.view, "finished", False)
    ]


def to_release(owned: Iterable[Object], selector: LabelSelector) -> list[Object]:
    return [
        each
        for each in owned
        if each.metadata.deletion_timestamp is None and not selector.matches(each.metadata.labels)
    ]


def adoption(each: Object, kind: Kind, owner: Object) -> dict[str, Any]:
    """The patch that makes `owner` the controller."""
    references = each.edit()["metadata"].get("ownerReferences") or []
    return {"metadata": {"ownerReferences": [*references, owner_reference(kind, owner.metadata)]}}


def release(each: Object, owner: Object) -> dict[str, Any]:
    """The patch that removes `owner`."""
    references = each.edit()["metadata"].get("ownerReferences") or []
    return {"metadata": {"ownerReferences": [ref for ref in references if ref.get("uid") != owner.uid]}}


def wake_claimants(owner: Kind) -> KeysOf:
    """Wakes the `owner` that controls the object; for an object without a controller, every `owner` that selects it."""
    owners_of = wake_owner(owner)

    def keys_of(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
        yield from owners_of(change, caches)
        found = change.new
        if found is None or controller_of(found.metadata) is not None:
            return
        for cache in caches.of_kind(owner.key_kind):
            for each in cache.list(namespace=found.key.namespace).value:
                if label_selector(each.view.spec.selector).matches(found.metadata.labels):
                    yield each.key

    return keys_of
