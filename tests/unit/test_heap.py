"""What a process does to its heap."""

from __future__ import annotations

import gc
import weakref

from kedge.heap import spare_collector


class Part:
    other: Part


def test_the_collector_looks_less_often_and_still_finds_cycles() -> None:
    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.set_threshold(700, 10, 10)  # as Python begins: another test may have composed a process here
    try:
        spare_collector()
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
