"""Other values of one field of one object: those that it had in other versions, then made ones. Pure.

A decision that runs again on each of them (`runtime.recheck.difference_on`) shows whether the field decides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from kedge.api.codec import encode_object
from kedge.api.field_notes import WHOLE
from kedge.api.objects import Object
from kedge.errors import KedgeError
from kedge.observe.readers.coupling.fields import EXISTENCE, fields_of, path_of

VALUES_MAX: Final = 6
"""Values of one field that are tried."""
_ABSENT: Final = object()


def changed_versions(found: Object, field: str, others: Iterable[Object]) -> Iterator[tuple[str, Object | None]]:
    """Versions of `found` with another value of `field`, each with a text; None for an object that is not there."""
    if field == EXISTENCE:
        yield "if it were absent", None
        return
    if field.endswith(WHOLE):
        return  # no single value to change
    value = fields_of(found.edit()).get(field, _ABSENT)
    tried = [value]
    base = _default_of(found, field) if value is _ABSENT else value
    for other in (*_known_values(field, others), *_made_values(base)):
        if len(tried) > VALUES_MAX:
            return
        if any(_same(other, each) for each in tried):
            continue
        tried.append(other)
        made = _with_value(found, field, other)
        if made is not None:
            yield f"if it were {_text(other)}", made


def _known_values(field: str, others: Iterable[Object]) -> Iterator[Any]:
    for other in others:
        yield fields_of(other.edit()).get(field, _ABSENT)


def _made_values(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int() | float():
            yield from (value + 1, max(0, value - 1), 0, 2 * value + 10)
        case str():
            yield from ("kedge-other", "")
        case list() if value:
            yield from (value[:-1], [])
        case dict() if value:
            yield {}
    yield _ABSENT


def _default_of(found: Object, field: str) -> Any:
    """The value that the view of an object has for a field which the object lacks."""
    name, *rest = path_of(field)
    if name == "metadata" or found.kind.view is None or len(rest) != 1:
        return ""
    inner = getattr(found.view, name, None)
    names = dict(
        zip(getattr(inner, "__struct_encode_fields__", ()), getattr(inner, "__struct_fields__", ()), strict=True)
    )
    return getattr(inner, names[rest[0]]) if rest[0] in names else None


def _with_value(found: Object, field: str, value: Any) -> Object | None:
    """The version with one other value and the same revision; None if it would not be a valid object."""
    document = found.edit()
    *parents, last = path_of(field)
    inner = document
    for name in parents:
        inner = inner.setdefault(name, {})
    if value is _ABSENT:
        inner.pop(last, None)
    else:
        inner[last] = value
    try:
        made = replace(found, value=encode_object(document), known_view=None, known_metadata=None)
        if made.kind.view is not None:
            _ = made.view
    except KedgeError:
        return None
    return made


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def _text(value: Any) -> str:
    text = "absent" if value is _ABSENT else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
