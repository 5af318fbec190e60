"""The page of `/metrics` as a strict reader of OpenMetrics sees it."""

from __future__ import annotations

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families


def read_openmetrics(page: str) -> dict[str, Metric]:
    """The families by name. Raises `ValueError` for a page that breaks the specification."""
    found = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
    return {family.name: family for family in found}
