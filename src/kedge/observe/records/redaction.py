"""Fields that a user wants hidden in a recording: each is replaced by a keyed hash, so that equal values stay equal.

A rule is `KIND:FIELD`. FIELD is the end of a path, such as `data` or `env.value`, and hides every string below it, in
the objects of that kind and in requests about them. `*` is every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kedge.api.wellknown import LAST_APPLIED
from kedge.errors import BadRequest
from kedge.keys import Key

EVERY_KIND = "*"


class RedactedField(NamedTuple):
    """One rule."""

    kind: str
    """As in a manifest, such as `ConfigMap`; `*` for all."""
    path: tuple[str, ...]

    def covers(self, kind: str) -> bool:
        return self.kind in (EVERY_KIND, kind.partition(".")[0])


def parse_redacted(text: str) -> RedactedField:
    """Raises `BadRequest` for a rule that is malformed."""
    kind, colon, field = text.partition(":")
    path = tuple(field.split("."))
    if not kind or not colon or not all(path):
        raise BadRequest(f"{text!r} names no field to hide: write KIND:FIELD, such as ConfigMap:data or *:env.value")
    return RedactedField(kind, path)


class Redaction:
    """Some rules together. `hide` makes the text that replaces a value."""

    def __init__(self, rules: Iterable[RedactedField], hide: Callable[[Any], str]) -> None:
        self._rules = tuple(rules)
        self._hide = hide

    def paths_of(self, kind: str) -> tuple[tuple[str, ...], ...]:
        return tuple(each.path for each in self._rules if each.covers(kind))

    def of_request(self, key: Key | None) -> tuple[tuple[str, ...], ...]:
        """The paths in the body of a request; of one without a key every path, because its kind is in the body."""
        return tuple(each.path for each in self._rules) if key is None else self.paths_of(key.kind)

    def apply(self, document: Any, paths: tuple[tuple[str, ...], ...], at: tuple[str, ...] = ()) -> Any:
        """A copy of a document with every string below these paths hidden."""
        # kubectl apply keeps the whole manifest in an annotation.
        if at[-1:] == (LAST_APPLIED,) or any(at[-len(path) :] == path for path in paths):
            return self._all(document)
        if isinstance(document, Mapping):
            return {name: self.apply(value, paths, (*at, name)) for name, value in document.items()}
        if isinstance(document, list):
            return [self.apply(value, paths, at) for value in document]
        return document

    def _all(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: self._all(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._all(each) for each in value]
        return self._hide(value) if isinstance(value, str) else value
