"""Tuning of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.objects import asynchronous

from kedge import heap
from kedge.heap import collect_in_time, heap_statistics, tune_collector


class Part:
    other: Part


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    before, enabled, callbacks = gc.get_threshold(), gc.isenabled(), gc.callbacks[:]
    gc.enable()
    gc.set_threshold(700, 10, 10)  # Python's default: another test may have changed it
    yield
    gc.set_threshold(*before)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    if not enabled:
        gc.disable()


def cycle() -> weakref.ref[Part]:
    first, second = Part(), Part()
    first.other, second.other = second, first
    return weakref.ref(first)


def test_the_collector_runs_less_often_and_still_frees_cycles() -> None:
    tune_collector()
    assert gc.get_threshold()[0] > 700
    gone = cycle()
    held: list[list[int]] = [[] for _ in range(4 * gc.get_threshold()[0])]
    assert gone() is None, f"{len(held)} allocations later it is still there"


def test_objects_that_survive_the_oldest_generation_are_not_scanned_again() -> None:
    tune_collector()
    held: list[list[int]] = [[] for _ in range(200_000)]
    scanned = sum(len(gc.get_objects(generation=generation)) for generation in range(3))
    assert scanned < len(held) / 4, "the others are set aside"
    assert gc.get_freeze_count() > len(held) / 2


def test_batches_are_small_however_large_the_heap_was_before() -> None:
    held: list[list[list[int]]] = [[[] for _ in range(400_000)]]
    tune_collector()
    batches: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            batches.append(sum(len(gc.get_objects(generation=generation)) for generation in range(3)))

    gc.callbacks.append(look)
    held.append([[] for _ in range(200_000)])
    assert max(batches) < 16_000


def test_tuning_twice_is_tuning_once() -> None:
    tune_collector()
    callbacks = len(gc.callbacks)
    tune_collector()
    assert len(gc.callbacks) == callbacks


def test_a_batch_costs_nothing_for_the_objects_that_are_set_aside() -> None:
    held: list[list[int]] = [[] for _ in range(1_000_000)]
    tune_collector()
    began_s = time.thread_time()
    assert gc.get_freeze_count() > len(held)
    counted_s = time.thread_time() - began_s
    began_s = time.thread_time()
    for _ in range(64):
        gc.collect()
    assert time.thread_time() - began_s < counted_s, "64 batches are quicker than one count"


@asynchronous
async def test_young_objects_do_not_pile_up_while_as_many_old_ones_are_freed() -> None:
    tune_collector()
    old: list[list[int]] = [[] for _ in range(100_000)]
    gc.collect()
    new: list[list[int]] = []
    collecting = asyncio.ensure_future(collect_in_time())
    piled, began_s = 0, time.thread_time()
    while old:
        new += [[] for _ in range(100)]
        del old[-100:]
        if len(new) % 10_000 == 0:
            piled = max(piled, len(gc.get_objects(generation=0)))
        while time.thread_time() - began_s < len(new) * 5e-6:  # 100 in half a millisecond
            pass
        await asyncio.sleep(0)
    collecting.cancel()
    assert piled < 40_000, "objects of 100 ms are half of it"


@asynchronous
async def test_scans_by_the_clock_are_rare_while_they_find_little() -> None:
    tune_collector()
    scans: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            scans.append(info["generation"])

    gc.callbacks.append(look)
    collecting = asyncio.ensure_future(collect_in_time())
    began_s = time.thread_time()
    while time.thread_time() - began_s < 0.6:  # noqa: ASYNC110  it works, and waits for nothing
        await asyncio.sleep(0)
    collecting.cancel()
    assert 2 <= len(scans) <= 14  # 30 if each look that is due began one


class TimerCount(asyncio.SelectorEventLoop):
    timers = 0

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers += 1
        return super().call_at(*args, **options)


def test_an_idle_process_is_woken_up_seldom() -> None:
    async def idle() -> None:
        collecting = asyncio.ensure_future(collect_in_time())
        await asyncio.sleep(1.0)
        collecting.cancel()

    loop = TimerCount()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(idle())
    assert 3 <= loop.timers <= 12  # 21 if it looked as often as a busy one


@asynchronous
async def test_a_cycle_that_died_after_it_was_set_aside_is_found_when_the_memory_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heap, "_MEMORY_MORE", (64 << 20) - heap.resident_bytes())
    monkeypatch.setattr(heap, "_LOOKS_AT_MEMORY", 1)
    tune_collector()
    part = Part()
    part.other = part
    gone = weakref.ref(part)
    gc.collect()
    del part
    gc.collect()
    assert gone() is not None, "set aside, and not scanned"
    collecting = asyncio.ensure_future(collect_in_time())
    await asyncio.sleep(0.2)
    assert gone() is not None, "a whole scan is a long step: not before it is due"
    before, held = heap_statistics().whole_scans, [b"1" * (128 << 20)]
    async with asyncio.timeout(10):
        while gone() is not None:  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert heap_statistics().whole_scans == before + len(held), "the next is due when the memory has doubled again"
    collecting.cancel()


@asynchronous
async def test_batches_are_small_after_a_later_whole_scan_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_LOOKS_AT_MEMORY", 1)
    tune_collector()
    held: list[list[list[int]]] = [[[] for _ in range(400_000)]]
    monkeypatch.setattr(heap, "_MEMORY_MORE", -2 * heap.resident_bytes())
    before, collecting = heap_statistics().whole_scans, asyncio.ensure_future(collect_in_time())
    async with asyncio.timeout(10):
        while heap_statistics().whole_scans == before:  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.01)
    collecting.cancel()
    batches = heap_statistics().batches
    held.append([[] for _ in range(200_000)])
    assert heap_statistics().batches - batches >= 5


def test_without_a_count_of_the_kernel_no_whole_scan_is_due(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heap, "_MEMORY_FILE", tmp_path / "statm")
    assert heap.resident_bytes() == 0
    tune_collector()
    before = heap_statistics().whole_scans
    for _ in range(2 * heap._LOOKS_AT_MEMORY):
        heap._collector.look()
    assert heap_statistics().whole_scans == before
