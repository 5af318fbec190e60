"""Tuning of the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kedge import heap
from kedge.heap import tune_collector


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
    assert max(batches) < 40_000


def test_tuning_twice_is_tuning_once() -> None:
    tune_collector()
    callbacks = len(gc.callbacks)
    tune_collector()
    assert len(gc.callbacks) == callbacks


def test_a_cycle_that_died_after_it_was_set_aside_is_found_when_the_heap_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heap, "_FROZEN_MORE", -gc.get_freeze_count())
    tune_collector()
    part = Part()
    part.other = part
    gone = weakref.ref(part)
    gc.collect()
    del part
    gc.collect()
    assert gone() is not None, "set aside, and not scanned"
    held: list[list[list[int]]] = []
    while gone() is not None and len(held) < 100:
        held.append([[] for _ in range(100_000)])
    assert gone() is None
