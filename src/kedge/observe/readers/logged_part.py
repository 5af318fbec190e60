"""The part of the decision logs that answers a question about some objects: found by index, equal to a scan.

`recording.log_search` finds decisions by one name each; this module follows owners, dependents and causes from there.
Readers select again, so more decisions than they need change no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from kedge.api.wellknown import POD_KIND
from kedge.keys import Key, Revision
from kedge.observe.readers.object_history import versions_in
from kedge.observe.readers.recording import Recording
from kedge.observe.recording.log_search import FoundDecisions, LogSearch
from kedge.observe.records import Decision

DECISIONS_MAX: Final = 2_000
"""Decisions about one workload that `kedge why` reads, the newest ones. `kedge timeline` reads all of them."""


def history_part(search: LogSearch, keys: Collection[Key]) -> Recording:
    """All that a timeline of these objects needs: decisions about them and what they own, those behind each cause, and
    the starts, ends and terms of processes."""

    def gather() -> Recording:
        gathered = _Gathered(search)
        gathered.follow(set(keys))
        gathered.follow_causes()
        made = gathered.recording()
        made.outside = search.events
        return made

    return _whole(search, gather)


def answer_part(
    search: LogSearch,
    keys: Collection[Key],
    related: Collection[Key],
    *,
    owners: Collection[str] = (),
    versions_of: Collection[Key] = (),
) -> Recording:
    """The decisions that an answer about one of `keys` needs, with those about `related` objects.

    `owners` are the uids of objects whose refused dependents are wanted too: these have no keys to search by.
    A workload is shown with its history, of which the newest decisions are read.
    """

    def gather() -> Recording:
        gathered = _Gathered(search, newest=DECISIONS_MAX)
        gathered.add(search.about({*keys, *related}, newest=DECISIONS_MAX))
        gathered.follow({key for key in keys if key.kind != POD_KIND})
        gathered.add(search.with_owner(owners))
        gathered.add(search.touching(versions_of))
        return gathered.recording()

    return _whole(search, gather)


def _whole(search: LogSearch, gather: Callable[[], Recording]) -> Recording:
    """Gather again if a segment lost its index meanwhile: its decisions are in other places then."""
    while True:
        before = search.scans
        found = gather()
        if search.scans == before:
            return found


class _Gathered:
    """Decisions by their place in the logs, and the objects that they were searched by."""

    def __init__(self, search: LogSearch, newest: int | None = None) -> None:
        self._search = search
        self._newest = newest
        self._left_out = 0
        self._found: dict[tuple[int, int, int], Decision] = {}
        self._keys: set[Key] = set()
        self._uids: set[str] = set()

    def add(self, found: FoundDecisions) -> dict[tuple[int, int, int], Decision]:
        """Returns those that are new."""
        self._left_out = max(self._left_out, found.left_out)
        new = {place: each for place, each in found.decisions.items() if place not in self._found}
        self._found |= new
        return new

    def follow(self, keys: set[Key]) -> None:
        """Add the history of these objects, and of everything that they own."""
        while keys:
            self._keys |= keys
            self.add(self._search.about(keys, newest=self._newest))
            self.add(self._search.touching(keys, newest=self._newest))
            owners = {each.uid for found in self._found.values() for each in versions_in(found) if each.key in keys}
            owners -= self._uids
            self._uids |= owners
            self.add(self._search.with_owner(owners))
            keys = {
                each.key
                for found in self._found.values()
                for each in versions_in(found)
                if each.key not in self._keys and any(one.uid in self._uids for one in each.metadata.owner_references)
            }

    def follow_causes(self) -> None:
        """Add the decisions that made the writes which woke these, and which changed these objects."""
        shown = {
            each.origin.decision
            for found in self._found.values()
            for each in versions_in(found)
            if each.key in self._keys
        }
        self.add(self._search.named(shown - {each.id for each in self._found.values()} - {""}))
        versions: set[tuple[Key, Revision]] = set()
        keys: set[Key] = set()
        for decision in self._found.values():
            if decision.key not in self._keys and decision.id not in shown and not self._changed_by(decision):
                continue
            if decision.scheduling is not None:
                if decision.scheduling.cause is not None:
                    versions.add(decision.scheduling.cause[:2])
                continue
            keys.update(Key.parse(what) for what, _ in decision.wakes if "/" in what and " " not in what)
        self.add(self._search.writers_of(versions))
        self.add(self._search.writing(keys))

    def _changed_by(self, decision: Decision) -> bool:
        return any(call.key in self._keys for call in decision.calls)

    def recording(self) -> Recording:
        ordered = sorted(self._found.items(), key=lambda item: (item[1].began, item[0]))
        made = Recording(
            decisions=[each for _, each in ordered], coverages=self._search.coverages, totals=self._search.totals()
        )
        if self._left_out:
            made.undecoded.append(
                f"only the newest {DECISIONS_MAX} decisions about it were read, and {self._left_out} older ones were"
                " not: `kedge timeline` reads all of them"
            )
        return made
