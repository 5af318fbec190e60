"""Caches of functions whose arguments come from callers: each is bounded in entries and in bytes, and has metrics.

`remembered` is for arguments of a known size, and costs what `functools.lru_cache` costs. `weighed` is for arguments of
any size: it measures an entry when it is added. Caches of objects are not here: their bounds are in `limits`.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from kedge.metrics import Metrics

_P = ParamSpec("_P")
_R = TypeVar("_R")


class CacheState(NamedTuple):
    """The state of one cache."""

    entries: int
    bytes: int
    """Of `remembered`, the most that its entries may have."""
    hits: int
    misses: int


_states: dict[str, Callable[[], CacheState]] = {}
"""By name. A cache that belongs to an object replaces that of the object before."""


def cache_states() -> dict[str, CacheState]:
    """Every cache that was made so far, by name."""
    return {name: state() for name, state in sorted(_states.items())}


def show_caches(metrics: Metrics) -> None:
    """Write the state of every cache that was made so far into its series."""
    entries = metrics.gauge("kedge_function_cache_entries", "Entries of a cache of a function", ("cache",))
    size = metrics.gauge("kedge_function_cache_bytes", "Bytes that the entries of a cache have at most", ("cache",))
    hits = metrics.counter("kedge_function_cache_hits_total", "Calls that a cache answered", ("cache",))
    misses = metrics.counter("kedge_function_cache_misses_total", "Calls that were computed for a cache", ("cache",))
    for name, state in cache_states().items():
        entries.labels(name).set(state.entries)
        size.labels(name).set(state.bytes)
        hits.labels(name).value = state.hits
        misses.labels(name).value = state.misses


def remembered(
    *, entries: int, entry_bytes: int, key_length: int = 0
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Remember the results of a function.

    `entry_bytes` is what the arguments and the result of one entry have at most. It follows from `key_length`, above
    which a single argument is not remembered, or else from checks of the callers, which are named beside its use.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        cached = lru_cache(maxsize=entries)(function)

        def state() -> CacheState:
            hits, misses, _, count = cached.cache_info()
            return CacheState(count, count * entry_bytes, hits, misses)

        _states[_name_of(function)] = state
        if not key_length:
            return cached  # type: ignore[return-value]

        plain: Callable[..., Any] = function

        def recall(key: Any) -> Any:
            return cached(key) if len(key) <= key_length else plain(key)

        update_wrapper(recall, function)
        return recall  # type: ignore[return-value]

    return decorate


def weighed(*, entries: int, bytes_max: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Remember the results of a function of positional arguments, as many as fit. The oldest entries go first.

    An entry larger than an eighth of `bytes_max` is not remembered.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        cache: WeighedCache[_R] = WeighedCache(function, entries, bytes_max)
        _states[_name_of(function)] = cache.state
        recall: Callable[..., _R] = cache.recall
        return recall

    return decorate


_TEXT_ENTRY_BYTES = 512
_TEXT_FACTOR = 16
"""A decoded JSON text takes up to so many times its bytes."""


class WeighedCache(Generic[_R]):
    """The entries of one function. Read by `weighed`."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_entries_max", "_function", "_hits", "_misses")

    def __init__(self, function: Callable[..., _R], entries_max: int, bytes_max: int) -> None:
        self._function = function
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[Any, ...], tuple[_R, int]] = OrderedDict()
        """Not a dict: to find the first entry of one, all those removed before it are passed over."""
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    def recall(self, *key: Any) -> _R:
        found = self._entries.get(key)
        if found is not None:
            self._hits += 1
            return found[0]
        result = self._function(*key)
        self._misses += 1
        first = key[0]
        if type(first) is bytes and len(key) == 1:  # measuring what was read of a text costs more than reading it
            size = _TEXT_ENTRY_BYTES + _TEXT_FACTOR * len(first)
        else:
            size = bytes_of((key, result), self._bytes_max // 8)
        if size <= self._bytes_max // 8:
            entries = self._entries
            while entries and (len(entries) >= self._entries_max or self._bytes + size > self._bytes_max):
                self._bytes -= entries.popitem(last=False)[1][1]
            entries[key] = (result, size)
            self._bytes += size
        return result

    def state(self) -> CacheState:
        return CacheState(len(self._entries), self._bytes, self._hits, self._misses)


def bytes_of(value: Any, most: int) -> int:
    """The bytes of a value and of its parts, counted until they exceed `most`. Shared parts count once."""
    size, left, seen = 0, [value], set()
    while left and size <= most:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        size += sys.getsizeof(each)
        if isinstance(each, str | bytes | int | float) or each is None:
            continue
        if isinstance(each, Mapping):
            left.extend(each)
            left.extend(each.values())
        elif isinstance(each, tuple | list | frozenset | set):
            left.extend(each)
        elif not isinstance(each, type):
            names: tuple[str, ...] = getattr(each, "__struct_fields__", ()) or getattr(each, "__slots__", ())
            left.extend(getattr(each, name, None) for name in names)
    return size


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}".removeprefix("kedge.").replace("<locals>.", "")
