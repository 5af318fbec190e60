"""Series that are counted in plain numbers, and exported by `prometheus_client` on a scrape.

Every process of kedge runs on one event loop, so a number needs no lock of its own: locks would cost a bind more
than some of its checks do. `docs/decisions/0026` has the measurements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import ClassVar, Self, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of histograms; values above the last are counted in `+Inf`."""
_BOUND_NAMES = (*map(str, BOUNDS_S), "+Inf")


class _Series:
    """A number; with labels, one for each combination of label values that was used."""

    __slots__ = ("_names", "children", "help_text", "name")
    family: ClassVar[Callable[..., Metric]]

    def __init__(self, name: str, help_text: str, names: tuple[str, ...]) -> None:
        self.name = name
        self.help_text = help_text
        self._names = names
        self.children: dict[tuple[str, ...], Self] = {}

    def labels(self, *values: str) -> Self:
        found = self.children.get(values)
        if found is None:
            if len(values) != len(self._names):
                raise ValueError(f"metric {self.name} has labels {self._names}: pass a value for each, not {values}")
            found = self.children[values] = type(self)(self.name, self.help_text, ())
        return found

    def show(self) -> Metric:
        """As a metric of `prometheus_client`."""
        shown: Metric = self.family(self.name, self.help_text, labels=self._names)
        for values, child in self.children.items() if self._names else (((), self),):
            child._show(shown, values)
        return shown

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        raise NotImplementedError


class Counter(_Series):
    """Counts up."""

    __slots__ = ("value",)
    family = CounterMetricFamily

    def __init__(self, name: str, help_text: str, names: tuple[str, ...]) -> None:
        super().__init__(name, help_text, names)
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        assert isinstance(shown, CounterMetricFamily)
        shown.add_metric(values, self.value)


class Gauge(_Series):
    """Goes up and down, or is computed on a scrape."""

    __slots__ = ("_read", "value")
    family = GaugeMetricFamily

    def __init__(self, name: str, help_text: str, names: tuple[str, ...]) -> None:
        super().__init__(name, help_text, names)
        self.value = 0.0
        self._read: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self, amount: float = 1) -> None:
        self.value -= amount

    def set_function(self, read: Callable[[], float]) -> None:
        self._read = read

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        assert isinstance(shown, GaugeMetricFamily)
        shown.add_metric(values, self.value if self._read is None else float(self._read()))


class Histogram(_Series):
    """How many observations were at or below each bound."""

    __slots__ = ("_counts", "_sum")
    family = HistogramMetricFamily

    def __init__(self, name: str, help_text: str, names: tuple[str, ...]) -> None:
        super().__init__(name, help_text, names)
        self._counts = [0] * len(_BOUND_NAMES)
        """Observations between each bound and the one before it."""
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(BOUNDS_S, value)] += 1
        self._sum += value

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        assert isinstance(shown, HistogramMetricFamily)
        shown.add_metric(values, list(zip(_BOUND_NAMES, accumulate(self._counts), strict=True)), self._sum)


_S = TypeVar("_S", bound=_Series)


class Metrics(Collector):
    """Named series over one registry. A name requested twice gives the same series."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry
        self._series: dict[str, _Series] = {}
        if registry is not None:
            registry.register(self)

    @property
    def registry(self) -> CollectorRegistry:
        """Where `prometheus_client` reads these series."""
        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        return self._series_of(Counter, name, help_text, labels)

    def gauge(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return self._series_of(Gauge, name, help_text, labels)

    def histogram(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Histogram:
        return self._series_of(Histogram, name, help_text, labels)

    def collect(self) -> Iterator[Metric]:
        """In the order in which they were made."""
        for series in tuple(self._series.values()):
            yield series.show()

    def _series_of(self, cls: type[_S], name: str, help_text: str, labels: tuple[str, ...]) -> _S:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = cls(name, help_text, labels)
        if not isinstance(series, cls):
            raise TypeError(f"metric {name} is a {type(series).__name__}, not a {cls.__name__}")
        return series
