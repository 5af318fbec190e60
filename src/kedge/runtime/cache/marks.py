"""Marks: where each cache stood at a decision, and pins that keep the received logs from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kedge.observe.records import CacheMark
from kedge.runtime.cache.cache import Cache


def marks_of(caches: Iterable[Cache], now_s: float) -> tuple[CacheMark, ...]:
    """The state of each cache at `now_s` of the monotonic clock. Called for every decision."""
    return tuple([CacheMark(each.name, each.received.place, each._revision, now_s - each._proved_s) for each in caches])


def pin_all(caches: Iterable[Cache], marks: Iterable[CacheMark]) -> list[Callable[[], None]]:
    """Keep what every cache received since its mark, so that the decision can be run again. Returns the releases."""
    releases: list[Callable[[], None]] = []
    for cache, mark in zip(caches, marks, strict=True):
        if mark.place >= cache.received.oldest:  # else the decision ran for so long that the log has moved on
            releases.append(cache.received.pin(mark.place).release)
    return releases
