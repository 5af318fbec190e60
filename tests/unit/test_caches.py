"""Caches of functions: their bounds in entries and bytes, and their metrics."""

from __future__ import annotations

import sys

from kedge.api.views.base import Labels
from kedge.caches import bytes_of, cache_states, remembered, show_caches, weighed
from kedge.metrics import Metrics


def test_a_remembered_function_has_a_bound_in_entries_and_skips_long_keys() -> None:
    calls: list[str] = []

    @remembered(entries=4, entry_bytes=100, key_length=3)
    def upper(text: str) -> str:
        calls.append(text)
        return text.upper()

    assert [upper(each) for each in ("a", "a", "long", "long")] == ["A", "A", "LONG", "LONG"]
    assert calls == ["a", "long", "long"]
    for number in range(20):
        upper(str(number))
    state = next(state for name, state in cache_states().items() if name.endswith("upper"))
    assert (state.entries, state.bytes, state.hits, state.misses) == (4, 400, 1, 21)


def test_a_weighed_function_has_a_bound_in_entries_and_in_bytes() -> None:
    calls: list[str] = []

    @weighed(entries=100, bytes_max=80_000)
    def doubled(text: str, times: int) -> str:
        calls.append(text)
        return text * times

    def state() -> tuple[int, int]:
        found = next(state for name, state in cache_states().items() if name.endswith("doubled"))
        return found.entries, found.bytes

    assert doubled("a", 2) == doubled("a", 2) == "aa"
    assert calls == ["a"]
    for number in range(1_000):
        doubled(f"{number:04}", 2)
    assert state()[0] == 100
    for number in range(1_000):
        doubled(f"{number:04}", 500)
    entries, size = state()
    assert entries < 100
    assert 70_000 < size <= 80_000
    doubled("x" * 20_000, 2)
    assert state() == (entries, size), "an entry larger than an eighth of the bound is kept"


def test_the_bytes_of_a_value_count_its_parts() -> None:
    text = "x" * 1_000
    assert bytes_of(text, 10_000) == sys.getsizeof(text)
    for each in ((text,), [text], {text}, {text: 1}, {1: text}, Labels({"a": text})):
        assert 1_000 < bytes_of(each, 10_000) < 2_000
    assert bytes_of(tuple("x" * 1_000 + str(n) for n in range(100)), 10_000) < 15_000, "it counts past the most"


def test_a_scrape_has_the_state_of_every_cache() -> None:
    metrics = Metrics()
    show_caches(metrics)
    page, _ = metrics.page("")
    for name in ("api.quantity._parse", "api.selectors.label_selector"):
        for series in ("entries", "bytes", "hits_total", "misses_total"):
            assert f'kedge_function_cache_{series}{{cache="{name}"}}'.encode() in page
