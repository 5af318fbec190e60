"""`python -m tests.pythons`: types, a quick suite and equal traces on every other Python that pyenv has.

It uses nothing but the standard library. Each version gets an environment of its own in `.pythons`, which later runs
use again. The version that runs this is not tested again: `make lint` and `make test` do the whole on it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
WANTED = ("3.11", "3.12", "3.13")
"""The versions that `pyproject.toml` names."""
QUICK = (
    "tests/unit/agent", "tests/unit/client", "tests/unit/http", "tests/unit/runtime", "tests/unit/sim",
    "tests/unit/store", *sorted(str(each.relative_to(ROOT)) for each in (ROOT / "tests" / "unit").glob("test_*.py")),
    "tests/contract/test_store_memory.py", "tests/contract/test_store_sqlite.py", "tests/contract/test_clients.py",
    "tests/contract/test_driver_simulated.py", "tests/sim/test_determinism.py",
)  # fmt: skip
"""The parts that stand on what changes between versions: asyncio, ssl, sqlite3, subprocesses and signals. The rest is
plain computation; `make test PYTHON=python3.13` runs it too."""
TRACED = (("tests/kit/kernel_program.py:everything", 100), ("kedge.sim.standard:standard", 5))
"""Targets, and the number of seeds whose traces are compared."""


def pyenv_pythons(folder: Path) -> dict[str, Path]:
    """The newest interpreter of each wanted version that pyenv has in `folder`."""
    found: dict[str, tuple[int, Path]] = {}
    for place in folder.glob("3.*"):
        named = re.fullmatch(r"(3\.\d+)\.(\d+)", place.name)
        program = place / "bin" / "python"
        if named is not None and named[1] in WANTED and program.exists():
            found[named[1]] = max(found.get(named[1], (-1, program)), (int(named[2]), program))
    return {version: found[version][1] for version in WANTED if version in found}


def environment(version: str, program: Path) -> Path:
    """The Python of an environment with kedge and its tests, which are installed when `pyproject.toml` has changed."""
    folder = ROOT / ".pythons" / version
    installed, settings = folder / ".installed", ROOT / "pyproject.toml"
    if not installed.exists() or installed.stat().st_mtime < settings.stat().st_mtime:
        subprocess.run([program, "-m", "venv", folder], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "-e", f"{ROOT}[dev]"]
        subprocess.run(pip, check=True)
        installed.touch()
    return folder / "bin" / "python"


def traces(program: Path | str) -> dict[str, str]:
    """The hash of the trace of each seed."""
    found: dict[str, str] = {}
    for target, seeds in TRACED:
        command = [program, "-m", "kedge.sim.kernel", "--target", target, "--seeds", str(seeds)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found |= {f"{target} {line['seed']}": line["hash"] for line in lines}
    return found


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """The seeds of both whose traces differ."""
    return sorted(seed for seed in expected.keys() & found.keys() if expected[seed] != found[seed])


def check_version(version: str, python: Path, expected: dict[str, str]) -> list[str]:
    """Each check that fails on a version. `expected` are the traces of the version that runs this."""
    jobs = ("-n", os.environ.get("JOBS", "2"), "--dist", "worksteal")
    checks = {
        "mypy": ["mypy", "--python-version", version],
        "the quick suite": ["pytest", "-q", *jobs, "-m", "not slow and not soak", *QUICK],
    }
    failed = []
    for name, arguments in checks.items():
        print(f"Python {version}: {name}", flush=True)
        if subprocess.run([python, "-m", *arguments], cwd=ROOT, check=False).returncode:
            failed.append(f"{version}: {name} fails")
    print(f"Python {version}: {len(expected)} traces", flush=True)
    return failed + [f"{version}: the trace of {seed} differs" for seed in differences(expected, traces(python))]


def main() -> int:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    pythons = pyenv_pythons(root / "versions")
    others = {version: program for version, program in pythons.items() if version != own}
    expected = traces(sys.executable) if others else {}
    failed: list[str] = []
    with ThreadPoolExecutor() as pool:
        environments = list(pool.map(environment, others.keys(), others.values()))
    for version, python in zip(others, environments, strict=True):
        failed += check_version(version, python, expected)
    print("ran on:", ", ".join(others) or "no other version")
    print("not found in pyenv:", ", ".join(each for each in WANTED if each not in (*pythons, own)) or "none")
    print("\n".join(failed), end="\n" if failed else "")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
