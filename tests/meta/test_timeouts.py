"""Every test has a bound in time: a test that hangs fails instead of stopping the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import time
import pytest

def bound(request):
    return request.node.get_closest_marker("timeout").args[0]

@pytest.mark.slow
def test_slow(request):
    assert bound(request) == 1_800

@pytest.mark.slow
@pytest.mark.soak
def test_soak(request):
    assert bound(request) == 0

@pytest.mark.slow
@pytest.mark.timeout(700)
def test_own(request):
    assert bound(request) == 700

def test_hangs():
    time.sleep(600)
"""


def test_a_test_that_hangs_fails_and_marked_tests_may_take_longer(tmp_path: Path) -> None:
    (tmp_path / "test_bounds.py").write_text(TESTS, encoding="utf-8")
    settings = ["-c", str(ROOT / "pyproject.toml"), "-o", "timeout=1", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *settings, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>1.0s)" in done.stdout


def test_tests_without_a_marker_are_bounded(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 600
