"""`python -m tests.pythons`: the quick suite on every Python that pyenv has, and equal traces on all of them.

It uses nothing but the standard library. Each version gets an environment of its own in `.pythons`, which later runs
use again. The version that runs this is not tested again: `make test` is the whole suite on it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WANTED = ("3.11", "3.12")
"""The versions that `pyproject.toml` names."""
QUICK = (
    "tests/unit", "tests/contract/test_store_memory.py", "tests/contract/test_store_sqlite.py",
    "tests/contract/test_clients.py", "tests/contract/test_driver_simulated.py", "tests/sim/test_determinism.py",
)  # fmt: skip
TRACED = (("tests/kit/kernel_program.py:everything", 100, "3.11"), ("kedge.sim.standard:standard", 5, "3.12"))
"""Targets, the number of seeds whose traces are compared, and the first version that takes part. Traces of whole
clusters on 3.11 differ from those on later versions; see docs/testing.md."""


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
    """The Python of an environment with kedge and its tests. It is made again after a change of `pyproject.toml`."""
    folder = ROOT / ".pythons" / version
    installed, settings = folder / ".installed", ROOT / "pyproject.toml"
    if not installed.exists() or installed.stat().st_mtime < settings.stat().st_mtime:
        subprocess.run([program, "-m", "venv", "--clear", folder], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "-e", f"{ROOT}[dev]"]
        subprocess.run(pip, check=True)
        installed.touch()
    return folder / "bin" / "python"


def traced_on(version: str) -> list[tuple[str, int]]:
    """The targets and seeds that are compared on a version."""
    return [(target, seeds) for target, seeds, since in TRACED if WANTED.index(version) >= WANTED.index(since)]


def traces(program: Path | str, version: str) -> dict[str, str]:
    """The hash of the trace of each seed."""
    found: dict[str, str] = {}
    for target, seeds in traced_on(version):
        command = [program, "-m", "kedge.sim.kernel", "--target", target, "--seeds", str(seeds)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found |= {f"{target} {line['seed']}": line["hash"] for line in lines}
    return found


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """The seeds of both whose traces differ."""
    return sorted(seed for seed in expected.keys() & found.keys() if expected[seed] != found[seed])


def main() -> int:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    pythons = pyenv_pythons(root / "versions")
    expected, failed = traces(sys.executable, own) if own in WANTED else {}, []
    for version, program in pythons.items():
        if version == own:
            continue
        python = environment(version, program)
        print(f"Python {version}: the quick suite", flush=True)
        jobs = ("-n", os.environ.get("JOBS", "2"), "--dist", "worksteal")
        tests = [str(python), "-m", "pytest", "-q", *jobs, "-m", "not slow and not soak", *QUICK]
        if subprocess.run(tests, cwd=ROOT, check=False).returncode:
            failed.append(f"{version}: the quick suite fails")
        found = traces(python, version)
        failed += [f"{version}: the trace of {seed} differs" for seed in differences(expected, found)]
        expected = found | expected
    print("ran on:", ", ".join(each for each in pythons if each != own) or "no other version")
    print("not found in pyenv:", ", ".join(each for each in WANTED if each not in (*pythons, own)) or "none")
    print("\n".join(failed), end="\n" if failed else "")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
