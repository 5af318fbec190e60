"""Strategic merge patch on decoded JSON, as a pure function: the patch type that `kubectl apply` and `edit` send.

Which lists merge, and by which key, comes from `api.types`. A type without a table has no strategic merge: the caller
answers 415 for it. Directives: `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/FIELD`, `$setElementOrder/FIELD`.
Neither input is changed; the result may share parts with both. A merge costs time in proportion to object and patch:
each list is merged once, and items that a patch lists repeatedly have a bound of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kedge.api.codec import OBJECT_DEPTH_MAX, containers_in
from kedge.api.types import FieldFacts, TypeFacts, TypeTable
from kedge.errors import FieldError, Invalid

_PATCH, _RETAIN_KEYS = "$patch", "$retainKeys"
_DELETE_PREFIX, _ORDER_PREFIX = "$deleteFromPrimitiveList/", "$setElementOrder/"

STRATEGIC_MERGE_REPEATS_MAX: Final = 100_000
"""Values inside items that one patch merges again, because one of its lists has several items of one key. Ports of one
number and two protocols are listed so; more is a mistake or an attack, since each repeat copies the item."""


class FieldPlace(NamedTuple):
    """Where in the object the merge is, for errors. It is written out only there: each name of a long path would
    otherwise be copied for each field below it."""

    parent: FieldPlace | None
    part: str
    """A name, or an index in brackets."""

    def text(self) -> str:
        parts = []
        place: FieldPlace | None = self
        while place is not None:
            parts.append(place.part if place.part.startswith("[") else f".{place.part}")
            place = place.parent
        return "".join(reversed(parts)).lstrip(".")


_ROOT: Final = FieldPlace(None, "")


def apply_strategic_merge(target: Mapping[str, Any], patch: Any, facts: TypeFacts, table: TypeTable) -> dict[str, Any]:
    """`target` with `patch` merged into it.

    Raises:
        Invalid: the patch is not an object, or a directive is malformed. The error names the field.
    """
    if not isinstance(patch, Mapping):
        raise _invalid(_ROOT, "a strategic merge patch is an object: send the fields that change")
    if containers_in(patch, types=(Mapping, list)) is None:
        raise _invalid(_ROOT, f"it is nested more than {OBJECT_DEPTH_MAX} deep: flatten it")
    return _Merge(table).map(target, patch, facts, _ROOT)


class _Merge:
    """One patch being applied."""

    def __init__(self, table: TypeTable) -> None:
        self._table = table
        self._repeated = 0

    def map(
        self, target: Mapping[str, Any], patch: Mapping[str, Any], facts: TypeFacts | None, path: FieldPlace
    ) -> dict[str, Any]:
        if _PATCH in patch:
            return _replaced(patch, path)
        merged = _retained(target, patch, path)
        ordered = self._ordered_lists(merged, patch, facts, path)
        for name, value in patch.items():
            if name == _RETAIN_KEYS or name.startswith(_ORDER_PREFIX) or name in ordered:
                continue
            if name.startswith(_DELETE_PREFIX):
                self._delete_scalars(merged, name.removeprefix(_DELETE_PREFIX), value, facts, path)
            elif value is None:
                merged.pop(name, None)
            else:
                merged[name] = self._value(merged.get(name), value, _field(facts, name), FieldPlace(path, name))
        return merged

    def _value(self, target: Any, value: Any, field: FieldFacts | None, path: FieldPlace) -> Any:
        """The new value of one field that the patch sets."""
        if isinstance(value, Mapping):
            if isinstance(target, Mapping) and not (field is not None and field.replaces):
                return self.map(target, value, self._child(field), path)
            return _without_directives(value, path) if not isinstance(target, Mapping) else dict(value)
        if isinstance(value, list):
            if isinstance(target, list) and field is not None and field.merges:
                return self._list(target, value, field, path)
            return _without_directives(value, path) if not isinstance(target, list) else value
        return value

    def _child(self, field: FieldFacts | None) -> TypeFacts | None:
        return None if field is None else self._table.child(field)

    # -- lists -------------------------------------------------------------------------------------

    def _list(self, target: list[Any], patch: list[Any], field: FieldFacts, path: FieldPlace) -> list[Any]:
        """Merge one list that has the strategy `merge`: scalars as a set, objects by their merge key."""
        if not field.merge_key:
            merged: list[Any] = list({_scalar(item, path): item for item in [*target, *patch]}.values())
            return _in_order(merged, patch, target, "", path)
        kept, items = self._special_items(target, patch, field.merge_key, path)
        merged = self._keyed(kept, items, field, path)
        return _in_order(merged, items, kept, field.merge_key, path)

    def _special_items(
        self, target: list[Any], patch: list[Any], key: str, path: FieldPlace
    ) -> tuple[list[Any], list[Mapping[str, Any]]]:
        """Carry out items with `$patch`: what is left of the target, and the items that are to be merged."""
        plain: list[Mapping[str, Any]] = []
        deleted = set()
        replace = False
        for index, item in enumerate(patch):
            place = FieldPlace(path, f"[{index}]")
            if not isinstance(item, Mapping):
                raise _invalid(place, f"an item of this list is an object with {key}")
            match item.get(_PATCH):
                case None:
                    plain.append(item)
                case "delete":
                    deleted.add(_key_value(item, key, place))
                case "replace":
                    replace = True
                case other:
                    raise _invalid(place, f"$patch in a list is delete or replace, not {other!r}")
        if replace:
            return [_without_directives(item, path) for item in plain], []
        return [item for item in target if _key_value(item, key, path) not in deleted], plain

    def _keyed(
        self, target: list[Any], patch: Sequence[Mapping[str, Any]], field: FieldFacts, path: FieldPlace
    ) -> list[Any]:
        merged = list(target)
        places = {_key_value(item, field.merge_key, path): index for index, item in enumerate(merged)}
        seen = set()
        for index, item in enumerate(patch):
            value = _key_value(item, field.merge_key, FieldPlace(path, f"[{index}]"))
            found = places.get(value)
            if found is not None and value in seen:
                self._count_repeat(merged[found], FieldPlace(path, f"[{index}]"))
            seen.add(value)
            if found is None:
                places[value] = len(merged)
                merged.append(_without_directives(item, path))
            else:
                merged[found] = self.map(merged[found], item, self._child(field), FieldPlace(path, f"[{found}]"))
        return merged

    def _count_repeat(self, item: Any, path: FieldPlace) -> None:
        left = [item]
        while left:
            self._repeated += 1
            if self._repeated > STRATEGIC_MERGE_REPEATS_MAX:
                raise _invalid(path, "the patch lists items of one key too often: list each item once")
            value = left.pop()
            if isinstance(value, Mapping | list):
                left.extend(value.values() if isinstance(value, Mapping) else value)

    def _ordered_lists(
        self, merged: dict[str, Any], patch: Mapping[str, Any], facts: TypeFacts | None, path: FieldPlace
    ) -> set[str]:
        """Carry out `$setElementOrder`: merge each list it names, then sort it. Returns the names of those lists."""
        done = set()
        for name, order in patch.items():
            if not name.startswith(_ORDER_PREFIX):
                continue
            listed = name.removeprefix(_ORDER_PREFIX)
            place = FieldPlace(path, listed)
            field = _field(facts, listed)
            current, change = merged.get(listed), patch.get(listed)
            for each in (order, current, change):
                if each is not None and not isinstance(each, list):
                    raise _invalid(place, f"{name} needs a list, and the field is {type(each).__name__}")
            if order is None or (current is None and change is None):
                continue
            key = field.merge_key if field is not None else ""
            if change:
                _check_order(change, order, key, place)
            if current is None:
                items = _without_directives(change, place)
            elif change is None:
                items = current
            else:
                items = self._value(current, change, field, place)
            merged[listed] = _in_order(items, order, current or [], key, place)
            done.add(listed)
        return done

    def _delete_scalars(
        self, merged: dict[str, Any], name: str, value: Any, facts: TypeFacts | None, path: FieldPlace
    ) -> None:
        """Carry out `$deleteFromPrimitiveList`. A list that is not there has nothing to delete."""
        place = FieldPlace(path, name)
        if not isinstance(value, list):
            raise _invalid(place, f"{_DELETE_PREFIX}{name} is a list of the values to delete")
        current = merged.get(name)
        field = _field(facts, name)
        if isinstance(current, list) and field is not None and field.merges and not field.merge_key:
            deleted = {_scalar(item, place) for item in value}
            merged[name] = [item for item in current if _scalar(item, place) not in deleted]


def _retained(target: Mapping[str, Any], patch: Mapping[str, Any], path: FieldPlace) -> dict[str, Any]:
    """The fields of the target that `$retainKeys` keeps: all of them where the patch has no such directive."""
    if _RETAIN_KEYS not in patch:
        return dict(target)
    kept = patch[_RETAIN_KEYS]
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        raise _invalid(path, f"{_RETAIN_KEYS} is a list of field names")
    names = set(kept)
    for name, value in patch.items():
        if value is not None and not name.startswith("$") and name not in names:
            raise _invalid(FieldPlace(path, name), f"the patch sets a field that its {_RETAIN_KEYS} does not list")
    return {name: value for name, value in target.items() if name in names}


def _replaced(patch: Mapping[str, Any], path: FieldPlace) -> dict[str, Any]:
    match patch[_PATCH]:
        case "replace":
            return {name: value for name, value in patch.items() if name != _PATCH}
        case "delete":
            return {}
        case "merge":
            raise _invalid(path, "$patch: merge is the default: leave it out")
        case other:
            raise _invalid(path, f"$patch is replace or delete, not {other!r}")


def _without_directives(value: Any, path: FieldPlace) -> Any:
    """A value that is new in the object: directives carried out on nothing, and nulls dropped."""
    if isinstance(value, list):
        items = (_without_directives(item, path) for item in value if not _deletes(item))
        return list(items)
    if not isinstance(value, Mapping):
        return value
    if _PATCH in value:
        return _replaced(value, path)
    return {
        name: _without_directives(item, path)
        for name, item in value.items()
        if item is not None and name != _RETAIN_KEYS and not name.startswith((_DELETE_PREFIX, _ORDER_PREFIX))
    }


def _deletes(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get(_PATCH) == "delete"


# -- order ---------------------------------------------------------------------------------------------


def _in_order(merged: list[Any], order: Sequence[Any], current: Sequence[Any], key: str, path: FieldPlace) -> list[Any]:
    """Items that `order` names in its order, the others in the order of `current`, woven as `current` had them."""
    wanted = _places(order, key, path)
    before = _places(current, key, path)
    named = [item for item in merged if _identity(item, key, path) in wanted]
    named.sort(key=lambda item: wanted[_identity(item, key, path)])
    others = [item for item in merged if _identity(item, key, path) not in wanted]
    others.sort(key=lambda item: before.get(_identity(item, key, path), len(before)))
    woven: list[Any] = []
    taken = 0
    for item in others:
        place = before.get(_identity(item, key, path))
        while taken < len(named):
            other = before.get(_identity(named[taken], key, path))
            if place is not None and other is not None and place < other:
                break
            woven.append(named[taken])
            taken += 1
        woven.append(item)
    return [*woven, *named[taken:]]


def _check_order(patch: Sequence[Any], order: Sequence[Any], key: str, path: FieldPlace) -> None:
    """The items of a patch stand in `$setElementOrder`, in the same order; items that delete are not in it."""
    wanted = iter(_identity(item, key, path) for item in order)
    for item in patch:
        if isinstance(item, Mapping) and _PATCH in item:
            continue
        if _identity(item, key, path) not in wanted:  # consumes up to the item, so the order is checked too
            raise _invalid(path, "the patch lists items that its $setElementOrder lacks or has in another order")


def _places(items: Iterable[Any], key: str, path: FieldPlace) -> dict[Any, int]:
    places: dict[Any, int] = {}
    for index, item in enumerate(items):
        places.setdefault(_identity(item, key, path), index)
    return places


def _identity(item: Any, key: str, path: FieldPlace) -> Any:
    return _key_value(item, key, path) if key else _scalar(item, path)


def _key_value(item: Any, key: str, path: FieldPlace) -> Any:
    if not isinstance(item, Mapping) or item.get(key) is None:
        raise _invalid(path, f"an item of this list is an object with {key}, by which items are matched")
    return _scalar(item[key], FieldPlace(path, key))


def _scalar(value: Any, path: FieldPlace) -> Any:
    if isinstance(value, Mapping | list):
        raise _invalid(path, "must be a string, a number or a boolean")
    return (type(value).__name__, value)  # in JSON 1 and true differ, in Python they are equal


def _field(facts: TypeFacts | None, name: str) -> FieldFacts | None:
    return None if facts is None else facts.json.get(name)


def _invalid(path: FieldPlace, why: str) -> Invalid:
    where = path.text()
    message = f"the patch cannot be applied: {where + ': ' if where else ''}{why}"
    return Invalid(message, errors=(FieldError(where or "patch", "FieldValueInvalid", why),))
