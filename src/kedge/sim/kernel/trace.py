"""All that happened in a run: every step, every jump of the clock, every event in words; and one hash of it.

A step leaves the serial number of its strand, which is cheap enough to leave on always. Events say what a person
wants to read. Text that depends on addresses or on hash order does not belong in an event: it breaks determinism.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

CLOCK_JUMP = 0
"""In the place of a strand: time moved, to the next of `times`."""


_RECORDS = msgspec.json.Encoder(enc_hook=str)
"""Events as the hash sees them: a line each, so that it does not matter how many are folded in at once."""


class Event(NamedTuple):
    """One thing worth telling, with its place in the run."""

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
    """Append-only. Two runs were the same if and only if their hashes are."""

    def __init__(self) -> None:
        self.steps = array("I")
        self.times = array("d")
        self.events: list[Event] = []
        self._folded = [0, 0, 0]
        self._hashes = [hashlib.blake2b(digest_size=16) for _ in range(3)]

    def hash(self) -> str:
        """The hash of everything so far. Cheap to ask again: only what is new is folded in."""
        steps, times, events = self._hashes
        steps.update(memoryview(self.steps)[self._folded[0] :].tobytes())
        times.update(memoryview(self.times)[self._folded[1] :].tobytes())
        events.update(_RECORDS.encode_lines(self.events[self._folded[2] :]))
        self._folded = [len(self.steps), len(self.times), len(self.events)]
        return hashlib.blake2b(b"".join(part.digest() for part in self._hashes), digest_size=16).hexdigest()
