"""Programs that some tests need besides Python. In CI a missing one is a failure; elsewhere the test is skipped."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
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


KUBECTL = (1, 28)
"""The oldest kubectl that the tests are written for."""
KUBECTL_STREAMS = (1, 31)
"""The oldest one whose exec and attach use WebSockets."""


@cache
def need_kubectl(oldest: tuple[int, int] = KUBECTL) -> str:
    """The path of a kubectl that is new enough."""
    install = f"install kubectl {_dotted(oldest)} or newer and put it on the path"
    path = need_tool("kubectl", install=install)
    printed = subprocess.run(
        [path, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    numbers = re.findall(r'"(?:major|minor)": *"(\d+)', printed)  # a distributor's build has a minor such as 32+
    found = tuple(int(each) for each in numbers[:2])
    if found < oldest:
        missing_tool(f"a newer kubectl than {_dotted(found) or path}", install=install)
    return path


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(each) for each in version)


def missing_tool(name: str, *, install: str) -> NoReturn:
    """Skip with the name of the package to install; with `CI=true`, fail."""
    words = f"needs {name}: {install}"
    if os.environ.get("CI") == "true":
        pytest.fail(words, pytrace=False)
    pytest.skip(words)
