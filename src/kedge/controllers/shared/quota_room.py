"""Wakes for workloads that a quota refused: a quota that has more room than before wakes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kedge.api.conditions import is_true
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.views import ZoneQuotaView
from kedge.controllers.shared.kinds import RESOURCE_QUOTA
from kedge.keys import Key
from kedge.placement.resources import to_units
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.runtime.spec import KeysOf


def has_freed(old: Object | None, new: Object | None) -> bool:
    """Whether a quota has more room than before: a higher limit, less use, or the quota is gone."""
    if old is None or new is None:
        return new is None
    if old.key.kind == RESOURCE_QUOTA.key_kind:
        return _more_room([(old.view.spec.hard, old.view.status.used)], [(new.view.spec.hard, new.view.status.used)])
    return _more_room(_zone_rooms(old.view), _zone_rooms(new.view)) or not set(old.view.spec.zones) <= set(
        new.view.spec.zones
    )


def _zone_rooms(view: ZoneQuotaView) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    zones = sorted(view.spec.zones)
    return [(view.spec.zones[z].hard, view.status.zones[z].used if z in view.status.zones else {}) for z in zones]


def _more_room(
    before: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    after: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> bool:
    for (hard, used), (hard_now, used_now) in zip(before, after, strict=False):
        was, now = _room(hard, used), _room(hard_now, used_now)
        if any(name not in now or now[name] > room for name, room in was.items()):
            return True  # a resource that is no longer limited has unlimited room
    return False


def _room(hard: Mapping[str, Any], used: Mapping[str, Any]) -> dict[str, int]:
    limits, taken = to_units(hard), to_units(used)
    return {name: amount - taken.get(name, 0) for name, amount in limits.items()}


def wake_blocked(kind: Kind, *, condition: str) -> KeysOf:
    """For a controller of `kind` that creates objects which quotas count: wakes the objects whose `condition` shows a
    refused create, as soon as a quota has room again."""

    def keys_of(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
        if not has_freed(change.old, change.new):
            return
        for cache in caches.of_kind(kind.key_kind):
            for each in cache.list(namespace=change.key.namespace).value:
                if is_true(each.view.status.conditions, condition):
                    yield each.key

    return keys_of
