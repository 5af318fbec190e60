"""Metrics count in plain numbers and export what `prometheus_client` itself would export."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as PeerCounter
from prometheus_client import Gauge as PeerGauge
from prometheus_client import Histogram as PeerHistogram

from kedge.metrics import BOUNDS_S, Metrics


def text(registry: CollectorRegistry) -> list[str]:
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


def test_series_are_exported_as_prometheus_client_exports_its_own() -> None:
    metrics, peers = Metrics(), CollectorRegistry()
    peer_counter = PeerCounter("kedge_a_total", "counted", ("kind",), registry=peers)
    peer_gauge = PeerGauge("kedge_b", "measured", registry=peers)
    peer_histogram = PeerHistogram("kedge_c_seconds", "taken", registry=peers)
    counter = metrics.counter("kedge_a_total", "counted", ("kind",))
    gauge = metrics.gauge("kedge_b", "measured")
    histogram = metrics.histogram("kedge_c_seconds", "taken")
    for each in (counter, peer_counter):
        each.labels("Pod").inc()
        each.labels("Pod").inc(2)
        each.labels("No\nde").inc()
    for one in (gauge, peer_gauge):
        one.set(7)
        one.inc()
        one.dec(3)
    for other in (histogram, peer_histogram):
        for seconds in (0.0, *BOUNDS_S, *(bound * 1.01 for bound in BOUNDS_S), 99.0):
            other.observe(seconds)
    assert text(metrics.registry) == text(peers)


def test_a_gauge_may_be_computed_on_a_scrape() -> None:
    metrics, found = Metrics(), [1]
    metrics.gauge("kedge_a", "a", ("of",)).labels("x").set_function(lambda: len(found))
    found.append(2)
    assert metrics.registry.get_sample_value("kedge_a", {"of": "x"}) == 2


def test_the_number_of_label_values_is_checked() -> None:
    counter = Metrics().counter("kedge_a_total", "a", ("kind", "verb"))
    with pytest.raises(ValueError, match=r"kedge_a_total has labels \('kind', 'verb'\)"):
        counter.labels("Pod")


def test_two_components_may_share_a_registry() -> None:
    registry = CollectorRegistry()
    Metrics(registry).counter("kedge_a_total", "a").inc()
    Metrics(registry).counter("kedge_b_total", "b").inc(2)
    assert [registry.get_sample_value(name) for name in ("kedge_a_total", "kedge_b_total")] == [1, 2]
