"""Hypothesis everywhere: no deadline, because a busy machine is no bug; no database, because runs share a tree."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("kedge", deadline=None, database=None)
settings.load_profile("kedge")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-stories", action="store_true", help="Write the golden stories of the scenarios again.")
