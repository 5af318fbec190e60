"""Fields as coupling compares them: two levels deep, labels and annotations by key; differences of versions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kedge.api.field_notes import IDENTITY_FIELDS, KEYED_FIELDS, OPEN_MAPS, WHOLE
from kedge.api.objects import Object

EXISTENCE: Final = "existence"
"""The field of a creation and a deletion. Every read of a kind depends on it."""
_NAMED_BY: Final = ("type", "name", "uid")
"""The member that identifies an element of a list, such as a condition."""
_FOLLOWS: Final = frozenset({"observedGeneration", "generation", "resourceVersion"})
"""Leaves that follow other fields: a change of them alone is no conflict."""


def touches(touched: str, written: str) -> bool:
    """Whether a reader of `touched` sees a change of `written`. Either may be a whole object or a whole map."""
    if touched == written or WHOLE in (touched, written):
        return EXISTENCE not in (touched, written) or touched == written
    if touched.endswith(f".{WHOLE}"):
        return written.startswith(touched[:-1])
    return written.endswith(f".{WHOLE}") and touched.startswith(written[:-1])


def narrower(touched: str, written: str) -> str:
    """The more exact of two fields of which one `touches` the other."""
    return written if touched.endswith(WHOLE) else touched


def fields_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a document by field."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if not isinstance(value, Mapping) or name in OPEN_MAPS:
            found[name] = value
            continue
        for member, inner in value.items():
            field = f"{name}.{member}"
            if field in KEYED_FIELDS and isinstance(inner, Mapping):
                found.update((f"{field}.{key}", each) for key, each in inner.items())
            else:
                found[field] = inner
    return {field: value for field, value in found.items() if field not in IDENTITY_FIELDS}


def changed_fields(old: Object | None, new: Object) -> frozenset[str]:
    """The fields that differ. A creation changes all of its fields, and existence; so does another incarnation."""
    if old is None or old.uid != new.uid:
        return frozenset((EXISTENCE, *fields_of(new.edit())))
    before, after = fields_of(old.edit()), fields_of(new.edit())
    found = {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}
    if (old.metadata.deletion_timestamp is None) != (new.metadata.deletion_timestamp is None):
        found.add(EXISTENCE)
    return frozenset(found)


def path_of(field: str) -> tuple[str, ...]:
    """The members that lead to a field of a document: a label's key may have dots."""
    name, _, rest = field.partition(".")
    if not rest:
        return (name,)
    member, _, key = rest.partition(".")
    return (name, member, key) if f"{name}.{member}" in KEYED_FIELDS and key else (name, rest)


# -- leaves ----------------------------------------------------------------------------------------


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a document with its path, times and what follows other fields left out."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _FOLLOWS and not name.endswith("Time") and not name.endswith("Timestamp"):
                yield from leaves_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for number, each in enumerate(value):
            label = next((each[name] for name in _NAMED_BY if name in each), number)
            yield from leaves_of(each, f"{path}[{label}]")
    else:
        yield path, value
