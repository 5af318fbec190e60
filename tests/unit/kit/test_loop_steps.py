"""The watchdog of steps: it keeps every long step, apart from the garbage collector's time in it."""

from __future__ import annotations

import asyncio
import gc
import mmap
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.kit.loop_steps import LoopStep, Scan, SteppedLoop, run_stepped


@pytest.fixture(autouse=True)
def _no_scan_but_those_of_a_test() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    yield
    if enabled:
        gc.enable()


def work(cpu_s: float) -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < cpu_s:
        pass


def measured(
    main: Callable[[SteppedLoop], Coroutine[Any, Any, None]],
) -> tuple[list[LoopStep], list[Scan]]:
    _, steps, scans = run_stepped(main)
    return steps, scans


def test_every_long_step_of_a_part_is_kept() -> None:
    async def main(loop: SteppedLoop) -> None:
        async with loop.part("long"):
            for _ in range(3):
                await asyncio.sleep(0)
                work(0.05)
        await asyncio.sleep(0)
        work(0.05)  # no part of the test

    steps, _ = measured(main)
    assert [step.part for step in steps] == ["long"] * 3
    assert steps == sorted(steps, reverse=True)


def test_a_scan_does_not_count_as_a_part_of_the_step_and_does_not_hide_another() -> None:
    held = [[0] for _ in range(1_000_000)]

    async def main(loop: SteppedLoop) -> None:
        async with loop.part("scan"):
            await asyncio.sleep(0)
            gc.collect()
            await asyncio.sleep(0)
            work(0.05)

    steps, scans = measured(main)
    with_scan, without = sorted(steps, key=lambda step: -step.collector_s)
    assert with_scan.collector_s > 2 * with_scan.own_s, f"it scanned {len(held)} objects"
    assert without.collector_s == 0.0
    assert without.own_s > with_scan.own_s
    assert [(scan.part, scan.generation, scan.whole) for scan in scans] == [("scan", 2, False)]


def test_pages_that_are_added_in_a_step_are_counted() -> None:
    pages = 4_000

    async def main(loop: SteppedLoop) -> None:
        # A mapping of its own: memory of the allocator may have its pages already.
        with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            with suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            async with loop.part("memory"):
                await asyncio.sleep(0)
                work(0.05)
                for page in range(pages):
                    memory[page * mmap.PAGESIZE] = 1

    steps, _ = measured(main)
    assert pages <= steps[0].pages < 2 * pages
