"""The versions that the decisions of a process wrote: by which decision, and the newest of those that no rule kept.

`recorder` adds them. A decision that no rule kept is held for a while: one that read what it wrote may be kept soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from kedge.keys import Key, Revision
from kedge.limits import Limits
from kedge.observe.recording.brief import BriefDecision, BriefSource
from kedge.observe.recording.recent_decisions import EndedDecision, Pin
from kedge.observe.records import Call, Decision

_DROPPED_AT_ONCE = 64
"""One version in so many is dropped when there are too many."""


class WrittenVersions:
    """Bounded by count; the oldest are forgotten first."""

    def __init__(self, limits: Limits) -> None:
        self._writers: dict[Revision, tuple[Key, str]] = {}
        """By revision: a call is one commit, and each commit has its own revision."""
        self._writers_max = limits.decision_writers_max
        self.dropped = 0
        """Versions that are no longer here."""
        self._recent: dict[Revision, EndedDecision] = {}
        """By the revisions that they wrote: decisions that no rule kept."""
        self._recent_order: deque[Revision] = deque()
        """These revisions, oldest first, with those of decisions that were kept meanwhile."""
        self._recent_max = limits.decisions_recent_max
        self._binds: dict[Revision, tuple[BriefDecision, BriefSource]] = {}
        """As `_recent`, of brief decisions."""

    def __len__(self) -> int:
        return len(self._writers)

    @property
    def recent(self) -> int:
        """Versions whose writers no rule has kept yet."""
        return len(self._recent) + len(self._binds)

    def writer_of(self, key: Key, revision: Revision) -> str | None:
        found = self._writers.get(revision)
        return found[1] if found is not None and found[0] == key else None

    def add(self, call: Call, decision_id: str) -> None:
        """Add the version that a call wrote."""
        key, reply = call.key, call.reply
        if call.outcome == "removed" and (not reply or reply[0].origin.operation != call.operation):
            return  # another call may have removed it: the last version is not from this call
        if key is None:
            if not reply:
                return
            key = reply[0].key
        self.add_version(call.revision, key, decision_id)

    def add_version(self, revision: Revision, key: Key, decision_id: str) -> None:
        self._writers[revision] = (key, decision_id)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        writers = self._writers
        if len(writers) > self._writers_max:
            # Many at once: finding the oldest key of a dict is slow, because it skips the keys that were removed.
            more = len(writers) - self._writers_max
            for oldest in [*islice(writers, max(more, self._writers_max // _DROPPED_AT_ONCE))]:
                del writers[oldest]
                self.dropped += 1

    def hold(self, revision: Revision, ended: EndedDecision) -> None:
        """Hold the decision that wrote this version, and that no rule keeps, for a while."""
        self._recent[revision] = ended
        order = self._recent_order
        order.append(revision)
        if len(order) > self._recent_max:
            self._recent.pop(order.popleft(), None)

    def add_binds(self, briefs: Sequence[BriefDecision], source: BriefSource) -> None:
        """Add the versions that binds wrote, and hold the newest of these binds."""
        self._writers.update([(brief.revision, (brief.key, brief.id)) for brief in briefs])
        self._forget_oldest()
        binds, newest = self._binds, briefs[-self._recent_max :]
        for oldest in [*islice(binds, max(0, len(binds) + len(newest) - self._recent_max))]:
            del binds[oldest]
        for brief in newest:
            binds[brief.revision] = (brief, source)

    def take_writer(self, revision: Revision) -> tuple[Decision, Pin] | None:
        """The record of the decision that wrote this version, if it is held. It is held no longer."""
        if (ended := self._recent.get(revision)) is not None:
            for call in ended[2]:
                self._recent.pop(call.revision, None)
            return ended[0], ended[1]
        if (bind := self._binds.pop(revision, None)) is not None:
            brief, source = bind
            return source.record_of(brief), source.pin
        return None

    def release(self) -> None:
        """Hold no decisions any more. Which decision wrote a version is still known."""
        self._recent.clear()
        self._recent_order.clear()
        self._binds.clear()
