"""Tuning of the garbage collector: called once, by the composition root of a process.

Caches and histories are large, live long and have no cycles in them. Python's collector scans new
objects after every 700 allocations, and all objects from time to time; here it finds nothing.
"""

from __future__ import annotations

import gc

_YOUNG_MAX = 20_000
"""Surviving allocations before the youngest generation is scanned: the objects of a burst of requests are freed by
then. With Python's default of 700 the collector took 7% of creating and binding a pod, with this 1%."""


def tune_collector() -> None:
    """Run the collector less often. Cycles, of a traceback for instance, are still collected."""
    gc.set_threshold(_YOUNG_MAX, 10, 10)
