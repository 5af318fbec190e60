"""The texts of a request outside its body: each must be valid Unicode, and ids have a bound.

`Client` checks before it sends, and the service before it acts, so that no backend and no wire meets a text that it
cannot encode. `codec` checks bodies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import msgspec

from kedge.api.codec import is_unicode
from kedge.api.requests import PatchType, Request
from kedge.errors import BadRequest
from kedge.keys import Fence
from kedge.limits import Limits

_SOUND: Final = {int, float, bool, type(None), datetime, PatchType}
"""Types of members that hold no text."""
_SKIPPED: Final = frozenset({"body", "kind"})
"""Members that are checked elsewhere, and the kind of a list, which is no text of the caller."""
_IDS: Final = ("options.origin.operation", "options.origin.decision")


class _TextMembers(NamedTuple):
    """The members of one type of request."""

    names: tuple[str, ...]
    """Paths of those that are texts."""
    texts: attrgetter[tuple[str, ...]]
    others: tuple[tuple[str, attrgetter[Any]], ...]
    """Members that may hold texts, by path: sequences, mappings, and parts that may be absent."""


def check_request_text(request: Request[Any], limits: Limits) -> None:
    """
    Raises:
        BadRequest: a text is not valid Unicode, or an id is too long. The message names the member.
    """
    members = _members_of(type(request))
    texts = members.texts(request)
    try:
        whole = "".join(texts)
    except TypeError:
        whole = ""  # a text of another type: the handler reports it
    # One look at all of them: nearly every request has short texts of ASCII alone.
    if not whole.isascii() or len(whole) > limits.operation_id_chars_max:
        _check_each(zip(members.names, texts, strict=True), limits)
    for path, read in members.others:
        value = read(request)
        if value and not _is_ascii(value):
            _check_each(_texts_in(value, path), limits)


def _is_ascii(value: Any) -> bool:
    """Whether all texts in groups, audiences or a fence are ASCII. False on doubt."""
    try:
        if type(value) is Fence:
            return "".join(value.key).isascii()
        return "".join(value).isascii() and isinstance(value, tuple)
    except TypeError:
        return False


def _check_each(texts: Iterator[tuple[str, Any]] | zip[tuple[str, Any]], limits: Limits) -> None:
    for path, text in texts:
        if not isinstance(text, str):
            continue
        if not is_unicode(text):
            raise BadRequest(f"{path} is not valid Unicode: it has a lone surrogate, which UTF-8 cannot carry")
        if path in _IDS and len(text) > limits.operation_id_chars_max:
            raise BadRequest(
                f"{path} has {len(text)} characters, and an id has at most {limits.operation_id_chars_max}: use a"
                " shorter one"
            )


def _texts_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts_in(name, f"a name in {path}")
            yield from _texts_in(item, path)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _texts_in(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts_in(item, path)


@cache
def _members_of(cls: type[Request[Any]]) -> _TextMembers:
    names, others = [], []
    for path, kind in _typed(cls, ""):
        if kind is str:
            names.append(path)
        elif not {*(get_args(kind) or (kind,))} <= _SOUND:
            others.append((path, attrgetter(path)))
    return _TextMembers(tuple(names), attrgetter(*names), tuple(others))


def _typed(cls: type, prefix: str) -> Iterator[tuple[str, Any]]:
    """The members of a struct or a named tuple with their types, nested ones by path."""
    fields: Sequence[str] = getattr(cls, "__struct_fields__", None) or getattr(cls, "_fields", None) or ()
    hints = get_type_hints(cls)
    for name in fields:
        kind = hints[name]
        if name in _SKIPPED and not prefix:
            continue
        if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
            yield from _typed(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind
