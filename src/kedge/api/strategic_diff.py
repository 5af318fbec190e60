"""The three-way patch of `apply`: from what was applied last, what is applied now, and the live object. Pure.

Fields that the manifest sets and that differ are set; fields that it set last time and no longer names are removed;
everything else belongs to others and stays. `api.strategic_merge` is the other half: it applies such a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.api.types import FieldFacts, TypeFacts, TypeTable


def plan_strategic_patch(
    last: Mapping[str, Any],
    wanted: Mapping[str, Any],
    live: Mapping[str, Any],
    facts: TypeFacts | None,
    table: TypeTable,
) -> dict[str, Any]:
    """A strategic merge patch; empty if `live` has everything that is wanted. Without facts a JSON merge patch."""
    return _ThreeWay(table).map(last, wanted, live, facts)


class _ThreeWay:
    """One comparison. `last`, `wanted` and `live` are the same part of three versions of the object."""

    def __init__(self, table: TypeTable) -> None:
        self._table = table

    def map(
        self, last: Mapping[str, Any], wanted: Mapping[str, Any], live: Mapping[str, Any], facts: TypeFacts | None
    ) -> dict[str, Any]:
        patch: dict[str, Any] = {}
        for name, value in wanted.items():
            field = facts.json.get(name) if facts is not None else None
            if value is None:
                if live.get(name) is not None:
                    patch[name] = None
            elif live.get(name) is None:
                patch[name] = value
            else:
                patch |= self._field(name, last.get(name), value, live[name], field)
        for name in last:
            if name not in wanted and live.get(name) is not None:
                patch[name] = None
        return patch

    def _field(self, name: str, last: Any, wanted: Any, live: Any, field: FieldFacts | None) -> dict[str, Any]:
        """The parts of a patch that are about one field, which is there in `wanted` and `live`."""
        child = self._table.child(field) if field is not None else None
        if isinstance(wanted, Mapping) and isinstance(live, Mapping) and not (field is not None and field.replaces):
            inner = self.map(last if isinstance(last, Mapping) else {}, wanted, live, child)
            if inner and field is not None and field.retain_keys:
                inner["$retainKeys"] = sorted(wanted)
            return {name: inner} if inner else {}
        if isinstance(wanted, list) and isinstance(live, list) and field is not None and field.merges:
            before = last if isinstance(last, list) else []
            if field.merge_key:
                return self._keyed(name, before, wanted, live, field)
            return _scalars(name, before, wanted, live)
        return {name: wanted} if wanted != live else {}

    def _keyed(
        self, name: str, last: list[Any], wanted: list[Any], live: list[Any], field: FieldFacts
    ) -> dict[str, Any]:
        key = field.merge_key
        by_key = [_by_key(each, key) for each in (last, wanted, live)]
        before, now, there = by_key
        if now is None or there is None or before is None:
            # The key does not identify the items, as with one port number for two protocols: replace the list.
            return {name: [*wanted, {"$patch": "replace"}]} if wanted != live else {}
        items: list[Any] = []
        for value, item in now.items():
            if value not in there:
                items.append(item)
            elif inner := self.map(before.get(value, {}), item, there[value], self._table.child(field)):
                if field.retain_keys:
                    inner["$retainKeys"] = sorted(item)
                items.append({**inner, key: value})
        items += [{"$patch": "delete", key: value} for value in before if value not in now and value in there]
        if not items and [value for value in there if value in now] == list(now):
            return {}
        order = {f"$setElementOrder/{name}": [{key: value} for value in now]}
        return {**order, name: items} if items else order


def _scalars(name: str, last: list[Any], wanted: list[Any], live: list[Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    if added := [each for each in wanted if each not in live]:
        patch[name] = added
    if dropped := [each for each in last if each not in wanted and each in live]:
        patch[f"$deleteFromPrimitiveList/{name}"] = dropped
    return patch


def _by_key(items: list[Any], key: str) -> dict[Any, Mapping[str, Any]] | None:
    """Items by their key; None if one has no key or two have the same."""
    found: dict[Any, Mapping[str, Any]] = {}
    for each in items:
        value = each.get(key) if isinstance(each, Mapping) else None
        if value is None or isinstance(value, dict | list) or value in found:
            return None
        found[value] = each
    return found
