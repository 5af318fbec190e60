"""Tuning of the garbage collector."""

from __future__ import annotations

import gc
import weakref

from kedge.heap import tune_collector


class Part:
    other: Part


def test_the_collector_runs_less_often_and_still_frees_cycles() -> None:
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.set_threshold(700, 10, 10)  # Python's default: another test may have changed it
    try:
        tune_collector()
        assert gc.get_threshold()[0] > 700
        first, second = Part(), Part()
        first.other, second.other = second, first
        gone = weakref.ref(first)
        del first, second
        held: list[list[int]] = [[] for _ in range(4 * gc.get_threshold()[0])]
        assert gone() is None, f"{len(held)} allocations later it is still there"
    finally:
        gc.set_threshold(*before)
        if not enabled:
            gc.disable()
