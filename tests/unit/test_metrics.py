"""Metrics count in plain numbers and export what `prometheus_client` itself would export."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as PeerCounter
from prometheus_client import Gauge as PeerGauge
from prometheus_client import Histogram as PeerHistogram
from prometheus_client.core import Metric
from tests.kit.openmetrics import read_openmetrics

from kedge.env import system_env
from kedge.limits import Limits
from kedge.metrics import BOUNDS_S, UNITS, Metrics


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


def exposed(metrics: Metrics) -> dict[str, Metric]:
    """The families of the OpenMetrics page, read by its strict parser."""
    page, content_type = metrics.page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    return read_openmetrics(page.decode())


def test_a_scrape_gets_the_format_that_it_accepts() -> None:
    metrics = Metrics()
    metrics.counter("kedge_a_total", "counted").inc()
    page, content_type = metrics.page("text/html, */*")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"# TYPE kedge_a_total counter" in page
    page, _ = metrics.page("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
    assert page.endswith(b"# EOF\n")


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram"])
def test_the_unit_is_the_end_of_the_name(kind: str) -> None:
    ending = "_total" if kind == "counter" else ""
    for unit in UNITS:
        metrics = Metrics()
        getattr(metrics, kind)(f"kedge_{kind}_{unit}{ending}", "measured")
        assert exposed(metrics)[f"kedge_{kind}_{unit}"].unit == unit
    metrics = Metrics()
    metrics.gauge("kedge_bytes_written", "no unit at the end")
    assert exposed(metrics)["kedge_bytes_written"].unit == ""


def test_an_exemplar_is_the_last_decision_of_its_bucket() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("kedge_a_seconds", "taken", bounds=(1.0, 10.0))
    histogram.observe(0.5, "web:1:1")
    histogram.observe(0.7, "web:1:2")
    histogram.observe(5.0)
    histogram.observe(50.0, "web:1:3")
    samples = exposed(metrics)["kedge_a_seconds"].samples
    found = {each.labels["le"]: each.exemplar for each in samples if each.name.endswith("_bucket")}
    shown = {bound: None if each is None else (each.labels, each.value) for bound, each in found.items()}
    assert shown == {"1.0": ({"decision": "web:1:2"}, 0.7), "10.0": None, "+Inf": ({"decision": "web:1:3"}, 50.0)}


def test_a_counter_has_an_exemplar_and_one_that_is_too_long_is_left_out() -> None:
    metrics = Metrics()
    counter = metrics.counter("kedge_a_total", "counted")
    counter.inc_by("web:1:1")
    (sample,) = exposed(metrics)["kedge_a"].samples
    assert sample.exemplar is not None
    assert (sample.value, sample.exemplar.labels) == (1.0, {"decision": "web:1:1"})
    counter.inc_by("x" * 200)
    (sample,) = exposed(metrics)["kedge_a"].samples
    assert (sample.value, sample.exemplar) == (2.0, None)


def test_counts_beyond_the_bound_add_up_under_other() -> None:
    metrics = Metrics(series_max=2)
    counter = metrics.counter("kedge_a_total", "counted", ("kind", "verb"))
    for name in "abcd":
        counter.labels(name, "get").inc(3)
    counter.labels("a", "get").inc()
    read = metrics.registry.get_sample_value
    assert read("kedge_a_total", {"kind": "a", "verb": "get"}) == 4
    assert read("kedge_a_total", {"kind": "other", "verb": "other"}) == 6
    assert read("kedge_a_total", {"kind": "c", "verb": "get"}) is None
    assert read("kedge_metrics_other_total", {"metric": "kedge_a_total"}) == 2


def test_the_bound_on_label_values_is_a_limit() -> None:
    metrics = system_env(limits=Limits(metric_series_max=1)).metrics
    counter = metrics.counter("kedge_a_total", "counted", ("kind",))
    counter.labels("a").inc()
    counter.labels("b").inc()
    assert metrics.registry.get_sample_value("kedge_a_total", {"kind": "other"}) == 1
