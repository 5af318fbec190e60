"""The Makefile: what a newcomer's first command installs, and what the tests need besides."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def plan(folder: Path, target: str) -> list[str]:
    """The commands that make would run in a fresh clone."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return plan_again(folder, target)


def plan_again(folder: Path, target: str) -> list[str]:
    """The commands that make would run in this folder as it is."""
    # `make test` passes its own flags and level on to every make below it; this one is to behave as a person's.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "-n", "--no-print-directory", target]
    done = subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True, timeout=60, check=True)
    return [line.strip() for line in done.stdout.splitlines()]


def test_up_installs_what_it_needs_and_nothing_for_tests(tmp_path: Path) -> None:
    lines = plan(tmp_path, "up")
    assert [line for line in lines if "pip install" in line] == [
        ".venv/bin/pip install --quiet --disable-pip-version-check -e ."
    ]
    assert lines[-1] == ".venv/bin/kedge up --demo"


def test_tests_add_the_extra_to_the_same_environment(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    for target in ("venv", "test", "lint"):
        installs = [line.split()[-1] for line in plan(tmp_path, target) if "pip install" in line]
        assert installs == [".", "'.[dev]'"]
    (tmp_path / ".venv" / ".installed").touch()
    installs = [line.split()[-1] for line in plan_again(tmp_path, "test") if "pip install" in line]
    assert installs == ["'.[dev]'"], "an environment of `make up` is used"
