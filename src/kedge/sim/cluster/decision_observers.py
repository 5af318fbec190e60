"""The recorder of a simulated process: as in production, and judges see every decision when it ends.

A recorder keeps only some decisions. A judge of cost or freshness needs all of them, but only for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.observe.recording.brief import BriefDecision, BriefSource
from kedge.observe.recording.recent_decisions import Pin
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import CacheMark, Call, Decision


class ObservedDecision(NamedTuple):
    """A decision that has just ended."""

    host: str
    controller: str
    id: str
    key: Key
    fence: Revision
    marks: Sequence[CacheMark]
    record: Decision | None
    """None for a bind that succeeded, of which a scheduler makes no record."""


OnDecision = Callable[[ObservedDecision], None]


class ObservedRecorder(Recorder):
    """A recorder that reports every decision to the observers of its cluster."""

    def __init__(self, env: Env, host: str, observers: Sequence[OnDecision]) -> None:
        super().__init__(env)
        self._host = host
        self._observers = observers

    def end(self, decision: Decision, pin: Pin, calls: Sequence[Call], listed: int) -> None:
        super().end(decision, pin, calls, listed)
        self._report(decision)

    def take(self, decision: Decision, *pin: Pin, judged: bool = False) -> None:
        super().take(decision, *pin, judged=judged)
        self._report(decision)

    def take_brief(self, brief: BriefDecision, source: BriefSource) -> None:
        super().take_brief(brief, source)
        ended = ObservedDecision(self._host, source.controller, brief.id, brief.key, brief.fence, brief.marks, None)
        for observe in self._observers:
            observe(ended)

    def _report(self, decision: Decision) -> None:
        if not self._observers:
            return
        record = decision
        ended = ObservedDecision(
            self._host, record.controller, record.id, record.key, record.fence, record.marks, record
        )
        for observe in self._observers:
            observe(ended)
