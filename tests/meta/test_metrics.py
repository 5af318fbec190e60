"""Every metric: its name, unit, help and labels; the bound on label values; the page that lists them all."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from tests.kit.declared_metrics import SOURCE, DeclaredMetric, declared_metrics, with_table
from tests.kit.openmetrics import read_openmetrics

from kedge.metrics import OTHER, UNITS, Histogram, Metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
METRICS = declared_metrics()
SHORT_UNITS = {
    "s",
    "ms",
    "us",
    "sec",
    "secs",
    "second",
    "minutes",
    "hours",
    "kb",
    "mb",
    "kib",
    "byte",
    "percent",
    "pct",
}
"""Endings that name a unit which OpenMetrics does not use."""
NOT_METRICS = {"kedge_target", "kedge_target_", "kedge_server", "kedge_fields"}
"""Strings of the source that look like names of metrics: names of modules, of a fixture and of an attribute."""
SERIES_MAX = 5


def by_name(each: DeclaredMetric) -> str:
    return each.name


def test_every_declaration_is_found() -> None:
    """The scanner reads calls with literal names and tables of them; any other way to declare a metric is an error."""
    written = set()
    for path in SOURCE.rglob("*.py"):
        if path.name == "limits.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                written |= set(re.findall(r"^kedge_[a-z0-9_]+$", node.value))
    assert len(METRICS) > 150
    assert written - {each.name for each in METRICS} == NOT_METRICS


@pytest.mark.parametrize("metric", METRICS, ids=by_name)
def test_a_name_has_its_unit_and_a_counter_its_ending(metric: DeclaredMetric) -> None:
    assert re.fullmatch(r"kedge(_[a-z][a-z0-9]*){1,6}", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    last = metric.name.removesuffix("_total").rpartition("_")[2]
    assert last not in SHORT_UNITS, f"{metric.name}: use one of {UNITS}"
    if metric.kind == "histogram" or re.search(r"^(Time|Duration|Age)\b", metric.help_text):
        assert last in UNITS, f"{metric.name} measures something: end its name with the unit"
    assert not metric.name.endswith(("_bucket", "_sum", "_count", "_created", "_info")), "OpenMetrics uses this ending"


@pytest.mark.parametrize("metric", METRICS, ids=by_name)
def test_help_is_a_fragment_of_a_sentence(metric: DeclaredMetric) -> None:
    text = metric.help_text
    assert re.match(r"[A-Z1]", text), f"{metric.name}: {text!r}"
    assert not re.match(r"(How|What|Who|Of|The|A)\b", text), f"{metric.name}: begin with a noun: {text!r}"
    assert len(text.split()) >= 2, f"{metric.name}: {text!r}"
    assert not text.endswith("."), f"{metric.name}: {text!r}"
    assert len(text) <= 110, f"{metric.name}: {text!r}"
    assert "|" not in text


def test_a_metric_is_declared_alike_everywhere() -> None:
    found = defaultdict(set)
    for each in METRICS:
        found[each.name].add((each.kind, each.help_text, each.labels))
    assert {name: sorted(ways) for name, ways in found.items() if len(ways) > 1} == {}


def test_no_two_families_of_openmetrics_have_one_name() -> None:
    families = defaultdict(set)
    for each in METRICS:
        families[each.name.removesuffix("_total")].add(each.name)
        for sample in each.samples:
            families[sample.removesuffix("_total")].add(each.name)
    assert {family: names for family, names in families.items() if len(names) > 1} == {}


def test_only_the_metrics_module_uses_prometheus_client() -> None:
    """A series of its own would have neither the bound on label values nor a row in the page."""
    users = [path.name for path in SOURCE.rglob("*.py") if re.search(r"\bprometheus_client\b", path.read_text())]
    assert users == ["metrics.py"]


BOUNDED = [each for each in METRICS if each.labels and each.name != "kedge_metrics_other_total"]
"""All but the one whose label is the name of a metric."""


@pytest.mark.parametrize("metric", BOUNDED, ids=by_name)
def test_label_values_of_every_metric_are_bounded(metric: DeclaredMetric) -> None:
    metrics = Metrics(series_max=SERIES_MAX)
    series = getattr(metrics, metric.kind)(metric.name, metric.help_text, metric.labels)
    used = 3 * SERIES_MAX
    for number in range(used):
        one = series.labels(*(f"value {number}" for _ in metric.labels))
        one.observe(1.0) if isinstance(one, Histogram) else one.inc()
    page = metrics.page("application/openmetrics-text")[0].decode()
    families = read_openmetrics(page)
    family = families[metric.name.removesuffix("_total")]
    counted = [each for each in family.samples if each.name == metric.samples[-1]]
    others = [each.value for each in counted if set(each.labels.values()) == {OTHER}]
    assert len(counted) - len(others) == SERIES_MAX
    assert others == ([] if metric.kind == "gauge" else [used - SERIES_MAX])
    beyond = families["kedge_metrics_other"].samples[0]
    assert (beyond.labels, beyond.value) == ({"metric": metric.name}, used - SERIES_MAX)


def test_the_page_lists_every_metric() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for each in METRICS:
        assert f"| `{each.name}` | {each.kind} |" in page
    assert with_table(page) == page, "run python -m tests.kit.declared_metrics docs/metrics.md"
