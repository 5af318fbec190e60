"""Programs that some tests need besides Python. In CI a missing one is a failure; elsewhere the test is skipped."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest


def need_tool(name: str, *, install: str) -> str:
    """The path of a program; the environment's own `bin` is searched first."""
    beside_python = Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        missing_tool(name, install=install)
    return found


def missing_tool(name: str, *, install: str) -> NoReturn:
    """Skip with the name of the package to install; with `CI=true`, fail."""
    words = f"needs {name}: {install}"
    if os.environ.get("CI") == "true":
        pytest.fail(words, pytrace=False)
    pytest.skip(words)
