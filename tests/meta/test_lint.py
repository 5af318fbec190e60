"""The determinism boundary, held by lint: what is banned is caught, and the message names what to use instead."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_SIMULATED = ("cli/", "agent/process/", "store/conformance/", "client/conformance/")
"""Packages that no simulated cluster runs."""
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


def test_tasks_that_may_have_ended_are_not_given_to_gather() -> None:
    """Python 3.11 and later versions take different steps for them, so traces would differ: `kedge.tasks`."""
    found = []
    for place in sorted((ROOT / "src" / "kedge").rglob("*.py")):
        inside = place.relative_to(ROOT / "src" / "kedge").as_posix()
        if inside.startswith(NOT_SIMULATED) or inside == "tasks.py":
            continue
        for node in ast.walk(ast.parse(place.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("asyncio.gather", "gather")
                and not _coroutines(node)
            ):
                found.append(f"{inside}:{node.lineno}: use gather_ended of kedge.tasks")
    assert found == []


def _coroutines(call: ast.Call) -> bool:
    """Whether every argument is written as the call of a function, or as a comprehension of such calls."""
    values = [each.value if isinstance(each, ast.Starred) else each for each in call.args]
    return all(isinstance(getattr(value, "elt", value), ast.Call) for value in values)
