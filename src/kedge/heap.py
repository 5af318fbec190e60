"""Tuning of the garbage collector: called once, by the composition root of a process.

Caches and histories are large, live long and have few cycles in them. Python's collector scans new objects after every
700 allocations, and all objects from time to time: with 100,000 pods that holds the event loop for 100 ms. Here each
object is scanned three times, in small batches, and then set aside.
"""

from __future__ import annotations

import gc
from typing import Final

_YOUNG_MAX: Final = 3_000
"""Surviving allocations before the youngest generation is scanned: the objects of a burst of requests are freed by
then. Scans of the older two hold at most three and nine times as many, so none is longer than a step may be."""
_FROZEN_MORE: Final = 1_000_000
"""Objects set aside beyond twice those of the last whole scan, before the next: one is a single long step."""
_LOOK_EVERY: Final = 16
"""Batches set aside between two counts of them: a count takes about a millisecond."""


class _Collector:
    """Sets aside the objects that have survived the oldest generation: later scans skip them.

    Cycles that die after that stay until the objects set aside have doubled; then one whole scan finds them.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._kept = 0
        """Objects that were left after the last whole scan."""
        self._whole = True
        """The next scan of the oldest generation has every object."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != 2:
            return
        gc.freeze()
        self._batches += 1
        if self._whole:
            self._whole, self._kept = False, gc.get_freeze_count()
        elif self._batches % _LOOK_EVERY == 0 and gc.get_freeze_count() > 2 * self._kept + _FROZEN_MORE:
            self._whole = True
            gc.unfreeze()  # the next scan is one long step: its time grows with the heap


_collector: Final = _Collector()


def tune_collector() -> None:
    """Scan young objects seldom and old ones in batches. Cycles, of a traceback for instance, are still collected."""
    gc.set_threshold(_YOUNG_MAX, 1, 1)
    if _collector not in gc.callbacks:
        gc.callbacks.append(_collector)
    gc.collect()
    # Python waits for a quarter as many objects as its last scan left: of this one that is next to nothing.
    gc.collect()
