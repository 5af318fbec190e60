"""Marks: where each cache stood at a decision, and pins that keep the received logs from there on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import compress, count
from math import inf
from operator import attrgetter, ne
from typing import Final

from kedge.observe.records import CacheMark
from kedge.runtime.cache.cache import Cache

_MOMENT_S: Final = 0.005
"""The ages in the marks of a decision may be this much too low."""
_place_of: Final = attrgetter("place")


def marks_of(caches: Iterable[Cache], now_s: float) -> tuple[CacheMark, ...]:
    """The state of each cache at `now_s` of the monotonic clock."""
    return tuple([CacheMark(each.name, each.received.place, each._revision, now_s - each._proved_s) for each in caches])


class CurrentMarks:
    """The marks of some caches. Decisions of one moment share them, if no cache has moved between."""

    def __init__(self, caches: Mapping[str, Cache]) -> None:
        """Caches may be added to `caches` later."""
        self._caches = caches
        self._received = [each.received for each in caches.values()]
        self._marks: tuple[CacheMark, ...] = ()
        self._places: list[int] = []
        self._marked_s = -inf

    def at(self, now_s: float) -> tuple[CacheMark, ...]:
        if len(self._received) != len(self._caches):
            self._received = [each.received for each in self._caches.values()]
            self._marked_s = -inf  # these marks are of fewer caches
        places = [*map(_place_of, self._received)]  # no loop here: this runs for every decision
        if now_s - self._marked_s >= _MOMENT_S:
            self._marked_s, self._places = now_s, places
            self._marks = marks_of(self._caches.values(), now_s)
        elif places != self._places:
            self._marks = self._moved(places, now_s)
            self._places = places
        return self._marks

    def _moved(self, places: list[int], now_s: float) -> tuple[CacheMark, ...]:
        """The marks with those of the caches that have moved: of many caches, mostly one."""
        marks, caches = [*self._marks], [*self._caches.values()]
        for n in compress(count(), map(ne, places, self._places)):
            cache = caches[n]
            marks[n] = CacheMark(cache.name, places[n], cache._revision, now_s - cache._proved_s)
        return tuple(marks)


def pin_all(caches: Iterable[Cache], marks: Iterable[CacheMark]) -> list[Callable[[], None]]:
    """Keep what every cache received since its mark, so that the decision can be run again. Returns the releases."""
    releases: list[Callable[[], None]] = []
    for cache, mark in zip(caches, marks, strict=True):
        if mark.place >= cache.received.oldest:  # else the decision ran for so long that the log has moved on
            releases.append(cache.received.pin(mark.place).release)
    return releases
