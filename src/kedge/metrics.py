"""Series that are counted in plain numbers, and exported by `prometheus_client` on a scrape.

Every process of kedge runs on one event loop, so a number needs no lock of its own: locks would cost a bind more
than some of its checks do. `docs/decisions/0026` has the measurements. The rules for names are in `docs/metrics.md`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import ClassVar, Self, TypeVar, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kedge.limits import Limits

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of histograms; values above the last are counted in `+Inf`."""
LONG_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Upper bounds for the times of pods, which may be minutes."""
UNITS = ("seconds", "bytes", "ratio")
"""The units of OpenMetrics that are in use: a name with a unit ends with it, before `_total`."""
OTHER = "other"
"""The value of every label of the series that counts the combinations beyond the bound."""
SERIES_MAX = Limits().metric_series_max
EXEMPLAR_CHARS_MAX = 100
"""OpenMetrics allows 128 characters for the names and values of an exemplar's labels."""


class _Series:
    """A number; with labels, one for each combination of label values that was used, up to a bound."""

    __slots__ = ("_names", "_series_max", "children", "help_text", "name", "others")
    family: ClassVar[Callable[..., Metric]]

    def __init__(self, name: str, help_text: str, names: tuple[str, ...], series_max: int = SERIES_MAX) -> None:
        self.name = name
        self.help_text = help_text
        self._names = names
        self._series_max = series_max
        self.children: dict[tuple[str, ...], Self] = {}
        self.others = 0
        """How often a combination beyond the bound was used."""

    def labels(self, *values: str) -> Self:
        """The number of these label values. Combinations beyond the bound share one."""
        found = self.children.get(values)
        return self._add(values) if found is None else found

    def _add(self, values: tuple[str, ...]) -> Self:
        if len(values) != len(self._names):
            raise ValueError(f"metric {self.name} has labels {self._names}: pass a value for each, not {values}")
        if len(self.children) < self._series_max:
            found = self.children[values] = self._child()
            return found
        self.others += 1
        return self._shared()

    def _shared(self) -> Self:
        """The number of all combinations beyond the bound."""
        values = (OTHER,) * len(self._names)
        found = self.children.get(values)
        if found is None:
            found = self.children[values] = self._child()
        return found

    def _child(self) -> Self:
        return type(self)(self.name, self.help_text, ())

    def show(self) -> Metric:
        """As a metric of `prometheus_client`."""
        unit = self.name.removesuffix("_total").rpartition("_")[2]
        shown: Metric = self.family(self.name, self.help_text, labels=self._names, unit=unit if unit in UNITS else "")
        for values, child in self.children.items() if self._names else (((), self),):
            child._show(shown, values)
        return shown

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        raise NotImplementedError


class Counter(_Series):
    """Counts up."""

    __slots__ = ("_decision", "_read", "value")
    family = CounterMetricFamily

    def __init__(self, name: str, help_text: str, names: tuple[str, ...], series_max: int = SERIES_MAX) -> None:
        super().__init__(name, help_text, names, series_max)
        self.value = 0.0
        self._read: Callable[[], float] | None = None
        self._decision = ""

    def set_function(self, read: Callable[[], float]) -> None:
        """Read a count that a component keeps for itself."""
        self._read = read

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def inc_by(self, decision: str) -> None:
        """Count one, with the id of its decision as the exemplar."""
        self.value += 1
        self._decision = decision

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        assert isinstance(shown, CounterMetricFamily)
        value = self.value if self._read is None else float(self._read())
        shown.add_metric(values, value, exemplar=_exemplar(self._decision, 1.0))


class Gauge(_Series):
    """Goes up and down, or is computed on a scrape."""

    __slots__ = ("_read", "_unshown", "value")
    family = GaugeMetricFamily

    def __init__(self, name: str, help_text: str, names: tuple[str, ...], series_max: int = SERIES_MAX) -> None:
        super().__init__(name, help_text, names, series_max)
        self.value = 0.0
        self._read: Callable[[], float] | None = None
        self._unshown: Self | None = None

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self, amount: float = 1) -> None:
        self.value -= amount

    def set_function(self, read: Callable[[], float]) -> None:
        self._read = read

    def _shared(self) -> Self:
        # Levels of several objects have no sum that means anything: those beyond the bound are not shown.
        if self._unshown is None:
            self._unshown = self._child()
        return self._unshown

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        assert isinstance(shown, GaugeMetricFamily)
        shown.add_metric(values, self.value if self._read is None else float(self._read()))


class Histogram(_Series):
    """How many observations were at or below each bound."""

    __slots__ = ("_bounds", "_counts", "_decisions", "_sum")
    family = HistogramMetricFamily

    def __init__(
        self,
        name: str,
        help_text: str,
        names: tuple[str, ...],
        series_max: int = SERIES_MAX,
        bounds: tuple[float, ...] = BOUNDS_S,
    ) -> None:
        super().__init__(name, help_text, names, series_max)
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        """Observations between each bound and the one before it."""
        self._sum = 0.0
        self._decisions: dict[int, tuple[str, float]] = {}
        """By bucket: the decision of the last observation that named one, and its value."""

    def observe(self, value: float, decision: str = "") -> None:
        """Count a value; the id of its decision becomes the exemplar of the bucket."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self._sum += value
        if decision:
            self._decisions[place] = (decision, value)

    def _child(self) -> Self:
        return type(self)(self.name, self.help_text, (), bounds=self._bounds)

    def _show(self, shown: Metric, values: tuple[str, ...]) -> None:
        assert isinstance(shown, HistogramMetricFamily)
        names = (*map(str, self._bounds), "+Inf")
        exemplars = [_exemplar(*self._decisions.get(place, ("", 0.0))) for place in range(len(names))]
        # The stubs forbid a missing exemplar in a triple; the code takes it.
        buckets = cast(
            "list[tuple[str, float, Exemplar]]", list(zip(names, accumulate(self._counts), exemplars, strict=True))
        )
        shown.add_metric(values, buckets, self._sum)


def _exemplar(decision: str, value: float) -> Exemplar | None:
    return Exemplar({"decision": decision}, value) if 0 < len(decision) <= EXEMPLAR_CHARS_MAX else None


_S = TypeVar("_S", bound=_Series)


class Metrics(Collector):
    """Named series over one registry. A name requested twice gives the same series."""

    def __init__(self, registry: CollectorRegistry | None = None, *, series_max: int = SERIES_MAX) -> None:
        """`series_max` bounds the combinations of label values of each metric."""
        self._registry = registry
        self._series: dict[str, _Series] = {}
        self._series_max = series_max
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

    def histogram(
        self, name: str, help_text: str, labels: tuple[str, ...] = (), *, bounds: tuple[float, ...] = BOUNDS_S
    ) -> Histogram:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = Histogram(name, help_text, labels, self._series_max, bounds)
        return self._series_of(Histogram, name, help_text, labels)

    def saturation(self, of: str, read: Callable[[], float]) -> None:
        """Show how much of a bound is in use, as a share."""
        self.gauge("kedge_saturation_ratio", "Share of a bound that is in use", ("of",)).labels(of).set_function(read)

    def collect(self) -> Iterator[Metric]:
        """In the order in which they were made."""
        for series in tuple(self._series.values()):
            yield series.show()
        beyond = {series.name: series.others for series in self._series.values() if series.others}
        if beyond:
            others = Counter(
                "kedge_metrics_other_total", "Uses of label values beyond the bound of their metric", ("metric",)
            )
            for name, count in beyond.items():
                others.labels(name).inc(count)
            yield others.show()

    def page(self, accept: str) -> tuple[bytes, str]:
        """All series as the text that a scrape accepts, and its content type: OpenMetrics or Prometheus' own."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _series_of(self, cls: type[_S], name: str, help_text: str, labels: tuple[str, ...]) -> _S:
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = cls(name, help_text, labels, self._series_max)
        if not isinstance(series, cls):
            raise TypeError(f"metric {name} is a {type(series).__name__}, not a {cls.__name__}")
        return series
