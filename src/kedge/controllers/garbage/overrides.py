"""Overrides: a person's permission to remove finalizers of an object, with an owner, a reason and an expiry.
`override.kedge.dev/remove-finalizers` reads `finalizers=a.example/b,c owner=ada until=2030-01-01T00:00:00Z reason=why`.
An expired or incomplete override has no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from kedge.api.timestamps import parse_time
from kedge.api.views import ObjectMeta
from kedge.api.wellknown import REMOVE_FINALIZERS

_FORM = re.compile(
    r"\s*finalizers=(?P<finalizers>\S+)\s+owner=(?P<owner>\S+)\s+until=(?P<until>\S+)\s+reason=(?P<reason>.*\S)\s*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class FinalizerOverride:
    """The finalizers that may be removed, with the owner, reason and expiry of the permission."""

    finalizers: tuple[str, ...]
    owner: str
    reason: str
    until: datetime


def parse_override(text: str) -> FinalizerOverride:
    """Parse one override.

    Raises:
        ValueError: finalizers, owner, expiry or reason are missing.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"the override {text!r} must read like 'finalizers=a.example/b owner=ada until=... reason=...'"
        )
    names = tuple(filter(None, found["finalizers"].split(",")))
    return FinalizerOverride(names, found["owner"], found["reason"], parse_time(found["until"]))


def active_override(metadata: ObjectMeta, now: datetime) -> FinalizerOverride | None:
    """The active override; None if there is none, it has expired, or it cannot be parsed."""
    text = metadata.annotations.get(REMOVE_FINALIZERS)
    if text is None:
        return None
    try:
        found = parse_override(text)
    except ValueError:
        return None
    return found if found.until > now else None
