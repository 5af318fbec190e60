"""Rules for a new Event of `events.k8s.io/v1`. An Event that is sent as `v1` has fewer, in `core`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.api.validation.error_list import ErrorList
from kedge.api.wellknown import EVENTS_GROUP
from kedge.errors import Invalid

_WORD_MAX = 128
_NOTE_MAX = 1024
_OCCURRENCES_MIN = 2
"""A series has more than one occurrence."""
_TYPES = ("Normal", "Warning")
_DEPRECATED = ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount")


def check_new_event(event: Mapping[str, Any]) -> None:
    """Raises `Invalid` with every field that Kubernetes rejects in a new Event of this version."""
    errors = ErrorList()
    for name in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
        if not event.get(name):
            errors.required(name)
    for name in ("reportingInstance", "action", "reason"):
        _check_length(errors, name, event.get(name), _WORD_MAX)
    _check_length(errors, "note", event.get("note"), _NOTE_MAX)
    errors.one_of("type", str(event.get("type") or ""), _TYPES)
    series = event.get("series")
    if isinstance(series, Mapping):
        count = series.get("count")
        if isinstance(count, int) and count < _OCCURRENCES_MIN:
            errors.invalid("series.count", count, f"should be at least {_OCCURRENCES_MIN}")
        if not series.get("lastObservedTime"):
            errors.required("series.lastObservedTime")
    for name in _DEPRECATED:
        if event.get(name):
            errors.invalid(name, event[name], "needs to be unset")
    if errors:
        metadata = event.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
        listed = ", ".join(map(str, errors.found))
        raise Invalid(f'Event.{EVENTS_GROUP} "{name}" is invalid: [{listed}]', errors=errors.found)


def _check_length(errors: ErrorList, path: str, value: Any, most: int) -> None:
    if isinstance(value, str) and len(value.encode()) > most:
        errors.too_long(path, most)
