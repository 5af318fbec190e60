"""The trace of a run: every step, every clock jump, every event as text; and one hash of them.

A step records the serial number of its strand, which is cheap enough to be always on. Events are for people. The text
of an event must not depend on addresses or on hash order: that would break determinism.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

CLOCK_JUMP = 0
"""In place of a strand: the clock jumped to the next of `times`."""


_RECORDS = msgspec.json.Encoder(enc_hook=str)
"""Encodes events for the hash, one line each, so that the hash does not depend on how many are added at once."""


class Event(NamedTuple):
    """One event, with its place in the run."""

    step: int
    at_s: float
    host: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:10.4f}s  {self.host:<12} {self.kind:<10} {self.text}"


new_event: Callable[[tuple[int, float, str, str, str]], Event] = partial(tuple.__new__, Event)
"""`Event(*parts)` at a third of the cost."""


class Trace:
    """Append-only. Two runs were the same if and only if their hashes are equal."""

    def __init__(self) -> None:
        self.steps = array("I")
        self.times = array("d")
        self.events: list[Event] = []
        self._folded = [0, 0, 0]
        self._hashes = [hashlib.blake2b(digest_size=16) for _ in range(3)]

    def hash(self) -> str:
        """The hash of everything so far. Incremental: each call adds only the new entries."""
        steps, times, events = self._hashes
        steps.update(memoryview(self.steps)[self._folded[0] :].tobytes())
        times.update(memoryview(self.times)[self._folded[1] :].tobytes())
        events.update(_RECORDS.encode_lines(self.events[self._folded[2] :]))
        self._folded = [len(self.steps), len(self.times), len(self.events)]
        return hashlib.blake2b(b"".join(part.digest() for part in self._hashes), digest_size=16).hexdigest()
