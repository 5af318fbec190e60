"""Draining: a surplus replica stops receiving work before it is deleted.

Its owner annotates it and endpoints leave it out. It is deleted when no slice lists it, when its `Drained` condition is
true, or when the drain time is over. A pod without work needs no draining. A pod that is needed again is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from kedge.api.conditions import is_true
from kedge.api.timestamps import format_time, parse_time
from kedge.api.views import PodView
from kedge.api.wellknown import DRAINED, DRAINING
from kedge.controllers.shared.pods import is_ahead, is_ready


def needs_draining(pod: PodView) -> bool:
    """Whether it may receive work: only ready pods do."""
    return is_ready(pod)


def draining_since(pod: PodView) -> datetime | None:
    """When the draining began; None if the annotation cannot be parsed, which counts as long ago."""
    try:
        return parse_time(pod.metadata.annotations.get(DRAINING, ""))
    except ValueError:
        return None


def must_be_marked_again(pod: PodView, now: datetime) -> bool:
    """Whether the annotation was written by a clock far ahead, so that the drain time would not end for long."""
    since = draining_since(pod)
    return since is not None and is_ahead(since, now)


def drained_at(pod: PodView, drain_s: float) -> datetime | None:
    """When the drain time of a draining pod is over."""
    since = draining_since(pod)
    return since + timedelta(seconds=drain_s) if since is not None else None


def is_drained(pod: PodView, *, listed: Collection[str], drain_s: float, now: datetime) -> bool:
    """Whether a draining pod may be deleted. `listed` are the uids that some EndpointSlice sends work to."""
    deadline = drained_at(pod, drain_s)
    return (
        not needs_draining(pod)
        or pod.uid not in listed
        or is_true(pod.status.conditions, DRAINED)
        or deadline is None
        or deadline <= now
    )


def drain_patch(now: datetime) -> dict[str, Any]:
    return {"metadata": {"annotations": {DRAINING: format_time(now)}}}


def resume_patch() -> dict[str, Any]:
    return {"metadata": {"annotations": {DRAINING: None}}}
