"""How many worlds a simulation is tried in: a few on every run, the others with the slow tests."""

from __future__ import annotations

import pytest


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    """Give a test `seeds`: the first few, and in a soak those up to `many`."""
    others = pytest.param(range(few, many), id=f"{few}-{many}", marks=pytest.mark.soak)
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id=f"0-{few}"), others])
