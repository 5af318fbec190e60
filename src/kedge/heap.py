"""Tuning of the garbage collector: started by the composition root of a process.

Caches and histories are large, live long and have few cycles in them. Python's collector scans new objects after every
700 allocations, and all objects from time to time: with 100,000 pods that holds the event loop for 100 ms. Here each
object is scanned three times, in small batches, and then set aside.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Final, NamedTuple

_YOUNG_MAX: Final = 3_000
"""Surviving allocations before the youngest generation is scanned: the objects of a burst of requests are freed by
then. Scans of the older two hold three and four times as many, so none is longer than a step may be."""
_LOOK_S: Final = 0.05
"""Pause between two looks of `collect_in_time`."""
_IDLE_LOOK_S: Final = 0.2
"""The same while the process is idle: each look wakes it up."""
_BUSY_S: Final = 0.005
"""CPU time since the last look of a process that is not idle."""
_UNSCANNED_S: Final = 0.02
"""CPU time of the process without a scan, after which one begins: young objects that were made in it are few enough."""
_UNSCANNED_S_MAX: Final = 0.1
"""The same while such scans are short, as most are: they find little that Python would not have found in time."""
_SHORT_SCAN_S: Final = 0.001
_LOOKS_AT_MEMORY: Final = 20
"""Looks of `collect_in_time` for one at the memory of the process, which reads a file of the kernel."""
_MEMORY_MORE: Final = 256 << 20
"""Bytes beyond twice the memory at the last whole scan, before the next: one is a single long step."""


class HeapStatistics(NamedTuple):
    """Counts since the process started."""

    batches: int
    """Scans of the oldest generation, after each of which the survivors were set aside."""
    whole_scans: int
    """Scans of the objects that were set aside too."""


class _Collector:
    """Sets aside the objects that have survived the oldest generation: later scans skip them.

    Cycles that die after that stay until the memory of the process has doubled; then one whole scan finds them.
    """

    def __init__(self) -> None:
        self.batches = self.whole_scans = 0
        self._looks = 0
        self._memory = 0
        """Bytes that were resident after the last whole scan."""
        self._scanned_s = 0.0
        """CPU time of the process at the last scan."""
        self._unscanned_s = _UNSCANNED_S
        """CPU time without a scan, after which the next look begins one."""
        self._looked_s = 0.0
        """CPU time of the process at the last look."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop":
            return
        self._scanned_s = time.process_time()
        if info["generation"] == 2:
            gc.freeze()
            self.batches += 1

    def scan_whole(self) -> None:
        """Scan every object of the process: a single long step, whose time grows with the heap."""
        self.whole_scans += 1
        gc.unfreeze()
        gc.collect()
        # Python waits for a quarter as many objects as its last scan left: of this one that is next to nothing.
        gc.collect()
        self._memory = resident_bytes()

    def look(self) -> float:
        """Begin the scans that are due and that Python does not begin by itself. Returns the pause before the next."""
        now_s = time.process_time()
        idle, self._looked_s = now_s - self._looked_s < _BUSY_S, now_s
        self._looks += 1
        if self._looks % _LOOKS_AT_MEMORY == 0 and resident_bytes() > 2 * self._memory + _MEMORY_MORE:
            self.scan_whole()
        elif now_s - self._scanned_s > self._unscanned_s:
            self._scan_batch()
        return _IDLE_LOOK_S if idle else _LOOK_S

    def _scan_batch(self) -> None:
        _, middle, oldest = gc.get_count()
        _, middle_max, oldest_max = gc.get_threshold()
        began_s = time.process_time()
        gc.collect(2 if oldest > oldest_max else 1 if middle > middle_max else 0)
        short = time.process_time() - began_s < _SHORT_SCAN_S
        self._unscanned_s = min(2 * self._unscanned_s, _UNSCANNED_S_MAX) if short else _UNSCANNED_S


_collector: Final = _Collector()
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MEMORY_FILE: Final = Path("/proc/self/statm")


def tune_collector() -> None:
    """Scan young objects seldom and old ones in batches. Cycles, of a traceback for instance, are still collected."""
    gc.set_threshold(_YOUNG_MAX, 1, 0)
    if _collector not in gc.callbacks:
        gc.callbacks.append(_collector)
    _collector.scan_whole()


async def collect_in_time() -> None:
    """Begin scans by the clock too, until it is cancelled.

    Python begins one when 3,000 more objects were made than freed. While a cache drops old objects as quickly as it
    makes new ones that never happens, and tens of thousands of young objects would be scanned in one step.
    """
    pause_s = _LOOK_S
    while True:
        await asyncio.sleep(pause_s)
        pause_s = _collector.look()


def heap_statistics() -> HeapStatistics:
    return HeapStatistics(_collector.batches, _collector.whole_scans)


def resident_bytes() -> int:
    """Memory of the process, which the kernel counts: a count of the objects that are set aside would visit each.

    0 where the kernel has no such file, as on macOS: no whole scan is due there.
    """
    try:
        return int(_MEMORY_FILE.read_bytes().split()[1]) * _PAGE_BYTES
    except FileNotFoundError:
        return 0
