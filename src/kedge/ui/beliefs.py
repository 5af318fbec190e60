"""The belief document: the content of a component's caches at one point beside the committed state. Pure.

A decision records the place that each cache had reached when it began, so the content of a cache is known at those
moments. Between two of them an entry of the log may have arrived or not: only an entry of a revision that the store had
not reached has certainly not. Before the first of them the times of entries show what had arrived. A process that has
crashed has no caches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple

from kedge.api.objects import Object
from kedge.api.wellknown import LEASE_KIND
from kedge.errors import NotFound
from kedge.keys import Key, Revision
from kedge.observe.records import CacheMark, Decision, ReceivedEntry, ReceivedPart
from kedge.ui.differences import field_differences
from kedge.ui.history import Point, RecordedHistory

BELIEF_KIND: Final = "Belief"
ROWS_MAX: Final = 200
"""Objects that are listed for one cache; the others are counted."""
CRASH: Final = "crash"
"""The kind of the outside event with which a process ends."""
OLDER, MISSING, GONE = "older", "missing", "gone"
"""The cache has an older version; it lacks the object; it has an object that was deleted."""


_EVENT: Final = "event"
"""The source of an entry that a watch brought."""
_Arrivals = dict[Key, Revision]


class KnownPlace(NamedTuple):
    """The place of a cache at a moment: when a decision began, or by the times of the entries in its log."""

    t: int
    mark: CacheMark
    decision: str
    """Empty if the times of the entries show it."""


class LogPiece:
    """A part of a received log with its base, and the parts that continue it, joined when they are read first."""

    def __init__(self, part: ReceivedPart) -> None:
        self.place, self.base, self.revision = part.place, part.base, part.revision
        self.last = part.place + len(part.entries)
        """The place of the newest entry."""
        self._parts = [part.entries]

    def add(self, part: ReceivedPart) -> None:
        self._parts.append(part.entries)
        self.last += len(part.entries)

    @property
    def entries(self) -> tuple[ReceivedEntry, ...]:
        if len(self._parts) > 1:
            self._parts = [tuple(chain.from_iterable(self._parts))]
        return self._parts[0]

    def has(self, place: int) -> bool:
        return self.place <= place <= self.last


class CachedComponent:
    """A process with its caches: pieces of their received logs, and the moments at which their places are known."""

    def __init__(self, name: str, *, whole_logs: bool = True) -> None:
        """Without `whole_logs` entries after the last known place are missing."""
        self.name = name
        self.whole_logs = whole_logs
        self.ended: int | None = None
        """When the process crashed."""
        self.deciders: set[str] = set()
        self.controllers: set[str] = set()
        self._pieces: dict[str, list[LogPiece]] = {}
        self._ahead = timedelta()
        """How far the clock of the process is ahead of that of the store."""
        self._known: dict[str, list[KnownPlace]] = {}

    @property
    def caches(self) -> list[str]:
        return sorted(self._pieces)

    def add_part(self, part: ReceivedPart) -> None:
        self.deciders.update(part.deciders)
        pieces = self._pieces.setdefault(part.cache, [])
        if not part.continues:
            pieces.append(LogPiece(part))
        elif pieces and pieces[-1].last == part.place:
            pieces[-1].add(part)

    def add_decision(self, decision: Decision, t: int) -> None:
        """Decisions come in the order in which they began."""
        self.controllers.add(decision.controller)
        for mark in decision.marks:
            self._known.setdefault(mark.cache, []).append(KnownPlace(t, mark, decision.id))

    def known_at(self, cache: str, t: int) -> tuple[KnownPlace | None, KnownPlace | None]:
        """The last moment until `t` at which the place of a cache is known, and the next one."""
        known = self._known.get(cache, [])
        place = bisect_right(known, t, key=lambda each: each.t)
        return (known[place - 1] if place else None), (known[place] if place < len(known) else None)

    def compare_clocks(self, commit_times: Mapping[Revision, datetime]) -> None:
        """Find how far the clock of the process is ahead: no event comes before its commit, and the quickest one comes
        at once. `commit_times` are by the clock of the store."""
        lags = [
            entry.at - commit_times[change.revision]
            for pieces in self._pieces.values()
            for piece in pieces
            for entry in piece.entries
            if entry.at is not None and entry.source == _EVENT
            for change in entry.changes
            if change.revision in commit_times
        ]
        self._ahead = min(lags, default=timedelta())

    def timed_at(self, cache: str, at: datetime, t: int) -> KnownPlace | None:
        """The place of a cache by the times of its entries; None if these do not show it, as before its first list."""
        moment = at + self._ahead
        for piece in self._pieces.get(cache, ()):
            entries = piece.entries
            if not entries or any(each.at is None for each in entries):
                continue
            place = bisect_right(entries, moment, key=lambda each: each.at or moment)
            if place:
                entry = entries[place - 1]
                age_s = (moment - (entry.at or moment)).total_seconds()
                return KnownPlace(t, CacheMark(cache, entry.place, entry.revision, age_s), "")
        return None

    def content(self, cache: str, place: int) -> dict[Key, Object] | None:
        """The objects in a cache at a place; None if the records do not have it."""
        for piece in self._pieces.get(cache, ()):
            if piece.has(place):
                held = {each.key: each for each in piece.base}
                for entry in piece.entries:
                    if entry.place > place:
                        break
                    for change in entry.changes:
                        if change.new is None:
                            held.pop(change.key, None)
                        else:
                            held[change.key] = change.new
                return held
        return None

    def maybe_arrived(self, cache: str, known: KnownPlace, later: KnownPlace | None, revision: Revision) -> _Arrivals:
        """The newest version of each object that may have arrived after a known place, when the store was at
        `revision`.

        Entries arrive in order: nothing after the first entry of a later revision has arrived.
        """
        found: _Arrivals = {}
        last = later.mark.place if later is not None else None
        for piece in self._pieces.get(cache, ()):
            if not piece.has(known.mark.place):
                continue
            for entry in piece.entries[known.mark.place - piece.place :]:
                if entry.revision > revision or (last is not None and entry.place > last):
                    break
                found.update((change.key, change.revision) for change in entry.changes)
        return found


class CachedComponents:
    """Every process of a recording whose received logs were kept."""

    def __init__(self, history: RecordedHistory, *, whole_logs: bool = True) -> None:
        self._by_name: dict[str, CachedComponent] = {}
        deciders: dict[str, CachedComponent] = {}
        for part in history.recording.received:
            found = self._by_name.setdefault(part.process, CachedComponent(part.process, whole_logs=whole_logs))
            found.add_part(part)
            deciders.update(dict.fromkeys(part.deciders, found))
        for decision in history.decisions:
            if (component := deciders.get(decision.process)) is not None:
                component.add_decision(decision, history.t_of(decision.began))
        self._by_decider = deciders
        commit_times = {each.revision: each.at for each in history.commits}
        for each in self._by_name.values():
            each.compare_clocks(commit_times)
        for name, ended in _ends(history).items():
            if name in self._by_name:
                self._by_name[name].ended = ended

    def names(self) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "controllers": sorted(each.controllers),
                "caches": each.caches,
                "ended": each.ended,
            }
            for _, each in sorted(self._by_name.items())
        ]

    def find(self, name: str) -> CachedComponent | None:
        """By its own name, or by that of a controller in it. Without a name, the first one; None if there is none.

        Raises:
            NotFound: there is none of this name.
        """
        if not name:
            return self._by_name[min(self._by_name)] if self._by_name else None
        found = self._by_name.get(name)
        if found is None:
            found = next((each for each in self._by_name.values() if name in each.controllers), None)
        if found is None:
            known = ", ".join(sorted(self._by_name)) or "none: the records have no received logs"
            raise NotFound(f"no component {name} has received logs in the records: choose one of {known}")
        return found

    def of_decision(self, decision: Decision) -> CachedComponent | None:
        return self._by_decider.get(decision.process)


def _ends(history: RecordedHistory) -> dict[str, int]:
    """By the name of a process with the number of its life: when it crashed."""
    found: dict[str, int] = {}
    lives: Counter[str] = Counter()
    for event in sorted(history.recording.outside, key=lambda each: each.at):
        if event.kind == CRASH:
            lives[event.where] += 1
            found[f"{event.where}#{lives[event.where]}"] = history.t_of(event.at)
    return found


def belief_document(
    history: RecordedHistory, components: CachedComponents, point: Point, name: str, decision: Decision | None = None
) -> dict[str, Any]:
    """The caches of one component at a point, or as a decision of it had them."""
    component = components.find(name) if decision is None else components.of_decision(decision)
    if component is None:
        return {"component": "", "controllers": [], "caches": [], "components": components.names(), "ended": None}
    ended = component.ended if component.ended is not None and component.ended < point.t else None
    marks = {} if decision is None else {each.cache: each for each in decision.marks}
    caches = []
    for cache in component.caches if ended is None or decision is not None else ():
        known, later = component.known_at(cache, point.t)
        if decision is not None:
            if cache not in marks:
                continue
            known = KnownPlace(point.t, marks[cache], decision.id)
        elif known is None:
            known = component.timed_at(cache, point.at, point.t)
        caches.append(_cache(history, component, cache, point, known, later))
    # Leases are renewed all the time: a cache of them always lacks something.
    caches.sort(key=lambda each: (each["heartbeats"], -each["lateSeconds"], -len(each["objects"]), each["cache"]))
    return {
        "component": component.name,
        "controllers": sorted(component.controllers),
        "components": components.names(),
        "caches": caches,
        "ended": ended,
    }


def _cache(
    history: RecordedHistory,
    component: CachedComponent,
    cache: str,
    point: Point,
    known: KnownPlace | None,
    later: KnownPlace | None,
) -> dict[str, Any]:
    held = None if known is None else component.content(cache, known.mark.place)
    head: dict[str, Any] = {
        "cache": cache,
        "heartbeats": cache.partition("[")[0] == LEASE_KIND,
        "known": None
        if known is None
        else {
            "t": known.t,
            "place": known.mark.place,
            "revision": known.mark.revision,
            "ageSeconds": round(known.mark.age_s, 6),
            "decision": known.decision,
        },
        "nextKnown": None if later is None else {"t": later.t, "revision": later.mark.revision},
        "recorded": held is not None,
        "same": 0,
        "lateSeconds": 0.0,
        "objects": [],
        "objectsLeftOut": 0,
    }
    if held is None:
        return head
    assert known is not None
    exact = known.t == point.t
    maybe = {} if exact else component.maybe_arrived(cache, known, later, point.revision)
    told = exact or later is not None or component.whole_logs
    rows, same = _compared(history, cache, held, point, _Known(known.t, maybe, told))
    head["same"] = same
    head["lateSeconds"] = max((each["lateSeconds"] for each in rows if each["certain"]), default=0.0)
    head["objects"], head["objectsLeftOut"] = rows[:ROWS_MAX], max(0, len(rows) - ROWS_MAX)
    return head


class _Known(NamedTuple):
    """The last known moment of a cache, and what may have arrived since."""

    t: int
    maybe: _Arrivals
    told: bool
    """The records have everything that arrived."""


def _compared(
    history: RecordedHistory, cache: str, held: Mapping[Key, Object], point: Point, known: _Known
) -> tuple[list[dict[str, Any]], int]:
    rows, same = [], 0
    for key in _keys(history, cache, held):
        versions = history.versions_of(key)
        if versions is None:
            continue  # a record of a part of the store, which cannot judge this object
        mine, truth = held.get(key), versions.at(point.revision)
        if (mine is None and truth is None) or (mine is not None and truth is not None and _same(mine, truth)):
            same += truth is not None
            continue
        lacked = versions.first_after(_revision(mine), point.revision)
        if lacked is None:
            continue  # the cache is ahead of the point: it has a later version
        rows.append(_difference(history, key, (mine, truth), lacked[0], point, known))
    rows.sort(key=lambda each: (not each["certain"], -each["lateSeconds"], each["key"]))
    return rows, same


def _keys(history: RecordedHistory, cache: str, held: Iterable[Key]) -> list[Key]:
    """The objects to compare. A cache with a selector of labels or fields is compared on its own objects alone."""
    kind, _, selector = cache.partition("[")
    namespace, *selectors = selector.rstrip("]").split(";")
    committed = history.keys_of_kind(kind)
    if any(selectors):
        return sorted(held)
    return sorted({*held, *(key for key in committed if not namespace or key.namespace == namespace)})


def _same(mine: Object, truth: Object) -> bool:
    return mine.revision == truth.revision or mine.value == truth.value


def _revision(found: Object | None) -> Revision:
    return 0 if found is None else found.revision


def _difference(
    history: RecordedHistory,
    key: Key,
    sides: tuple[Object | None, Object | None],
    lacked: Revision,
    point: Point,
    known: _Known,
) -> dict[str, Any]:
    """One row. It is certain if the oldest write that the cache lacks cannot have arrived by the point. Otherwise it
    states how late the cache was at its last known moment."""
    mine, truth = sides
    since = history.time_of(lacked)
    certain = known.told and known.maybe.get(key, 0) < lacked
    newest = history.versions_of(key)
    revision = _revision(truth)
    if truth is None and newest is not None:
        revision = newest.revisions[bisect_right(newest.revisions, point.revision) - 1]
    return {
        "key": str(key),
        "difference": GONE if truth is None else MISSING if mine is None else OLDER,
        "heldRevision": _revision(mine) or None,
        "committedRevision": revision,
        "lackedSince": since,
        "lackedRevision": lacked,
        "certain": certain,
        "lackedThen": since <= known.t,
        "lateSeconds": max(0, (point.t if certain else known.t) - since) / 1e6,
        "writer": "" if truth is None else truth.origin.writer,
        "decision": "" if truth is None else truth.origin.decision,
        **field_differences(mine, truth),
    }
