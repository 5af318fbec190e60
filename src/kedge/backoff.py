"""Exponential backoff with jitter: the one place where the pause between two attempts is computed.

Pure arithmetic over bounds of `limits`. Randomness is passed in (`env.random`), one draw a pause. Nothing here sleeps
or counts attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

JITTER = (0.5, 1.5)
"""Factors between which a pause is drawn, so that many clients that failed together do not return together."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double with each failure in a row, up to `max_s`."""

    first_s: float
    max_s: float
    jitter: tuple[float, float] = JITTER

    def ceiling_s(self, failures: int) -> float:
        """The pause after so many failures in a row, without jitter: none after 0, `first_s` after 1."""
        return min(self.first_s * 2.0 ** min(failures - 1, 60), self.max_s) if failures > 0 else 0.0

    def pause_s(self, failures: int, random: Random) -> float:
        """The pause after so many failures in a row."""
        return self.ceiling_s(failures) * random.uniform(*self.jitter)


def jittered(pause_s: float, random: Random, jitter: tuple[float, float] = JITTER) -> float:
    """A pause of the same length each time, with jitter."""
    return pause_s * random.uniform(*jitter)
