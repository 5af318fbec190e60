"""Hypothesis everywhere: no deadline, because a busy machine is no bug; no database, because runs share a tree.

A test that hangs fails after `timeout` of pyproject.toml, and a marked one after `TIMEOUTS_S`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

TIMEOUTS_S = {"slow": 1_800, "soak": 0}
"""Seconds that a test with a marker may take; 0 is no bound. A marker `timeout` of its own comes first."""

settings.register_profile("kedge", deadline=None, database=None)
settings.load_profile("kedge")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-stories", action="store_true", help="Write the golden stories of the scenarios again.")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a marked test more time than the others."""
    if item.get_closest_marker("timeout") is not None:
        return
    bounds = [seconds for name, seconds in TIMEOUTS_S.items() if item.get_closest_marker(name) is not None]
    if bounds:
        item.add_marker(pytest.mark.timeout(0 if 0 in bounds else max(bounds)))
