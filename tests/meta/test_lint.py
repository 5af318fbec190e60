"""The determinism boundary, held by lint: what is banned is caught, and the message names what to use instead."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND = ("server/service", "runtime", "scheduler", "controllers", "agent/core")


def lint(code: str, place: str) -> str:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    command = [ruff, "check", "--select", "TID251", "--stdin-filename", f"src/kedge/{place}/module.py", "-"]
    return subprocess.run(command, cwd=ROOT, input=code, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("import time\ntime.time()\n", "env.now()"),
        ("from time import monotonic\nmonotonic()\n", "env.monotonic()"),
        ("from datetime import datetime\ndatetime.now()\n", "env.now()"),
        ("import random\nrandom.choice([1])\n", "env.random"),
        ("from uuid import uuid4\nuuid4()\n", "env.new_uid()"),
        ("import os\nos.urandom(4)\n", "env.random"),
        ("import threading\n", "env.spawn()"),
        ("from concurrent.futures import ThreadPoolExecutor\n", "env.spawn()"),
        ("import asyncio\nasyncio.to_thread(print)\n", "env.spawn()"),
        ("import time\ntime.sleep(1)\n", "asyncio.sleep()"),
    ],
)
@pytest.mark.parametrize("place", BOUND)
def test_bypassing_env_is_an_error_that_names_the_alternative(place: str, code: str, instead: str) -> None:
    assert instead in lint(code, place)


@pytest.mark.parametrize("place", BOUND)
def test_asyncio_is_allowed_inside_the_boundary(place: str) -> None:
    printed = lint("import asyncio\nasyncio.sleep(1)\nasyncio.Queue()\nasyncio.TaskGroup()\n", place)
    assert "All checks passed" in printed
