"""Try one mutant: the tests of its layer until the first failure, and a hunt in the worlds that reach it.

Both run in processes of their own over an overlay (`sources`), with a limit of CPU time and memory: a mutant may loop
or grow for ever. A failure counts only if the unmodified package does not fail in the same way.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError
from kedge.sim.zoo.mutants.draw import Mutant
from kedge.sim.zoo.mutants.line_marks import marked
from kedge.sim.zoo.mutants.sources import LAYERS, PACKAGE, checkout, environment, modules_of, overlay, test_files
from kedge.sim.zoo.worlds import WORLDS

REACH_SEEDS = 10
"""Seeds of each world that decide which lines it executes: each strategy is used about once."""
TEST_S_MAX = 300.0
"""A test that takes longer hangs; none takes a tenth of it."""
TESTS_CPU_S_MAX = 1200
HUNT_CPU_S_SPARE = 60
"""CPU time beyond its budget that a hunt may take before it is stopped as one that hangs."""
MEMORY_BYTES_MAX = 4 << 30
PYTEST_PLUGINS = ("kedge", "hypothesispytest")
"""Plugins that the tests of a layer need, by entry point. Loading all that are installed costs seconds a mutant."""
FLAKY_MAX = 3
"""Tests that fail without the mutant too, after which the tests are given up."""
HANGS = "hangs"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+|\S+\.py)", re.MULTILINE)


class TrialFailed(KedgeError):
    """A mutant could not be tried. The message has the output of the process."""


@dataclass(frozen=True, slots=True)
class MutantResult:
    """The result of one mutant."""

    name: str
    layer: str
    path: str
    line: int
    operator: str
    diff: str
    worlds: tuple[str, ...]
    killed_by_tests: bool | None = None
    """None if there were no tests to run."""
    test: str = ""
    killed_by_hunt: bool = False
    world: str = ""
    seed: int = -1
    strategy: str = ""
    invariant: str = ""
    message: str = ""
    seeds: int = 0
    cpu_s: float = 0.0
    """CPU time of the hunt."""

    @property
    def survived(self) -> bool:
        return not self.killed_by_tests and not self.killed_by_hunt

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "survived": self.survived}


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """How a mutant is tried."""

    cpu_s: float = 60.0
    """CPU time of the hunt."""
    tests_cpu_s: int = TESTS_CPU_S_MAX
    """CPU time of the tests. Tests that it cuts off have not killed the mutant."""
    coverage: bool = False
    """Hunt by coverage; else the strategies of a world take turns."""


def try_mutant(mutant: Mutant, options: TrialOptions) -> MutantResult:
    """Run tests and hunt of one mutant. A module-level function, so that any executor can pickle it."""
    found = MutantResult(
        mutant.name, mutant.layer, mutant.path, mutant.edit.line, mutant.edit.operator, mutant.diff, mutant.worlds
    )
    with overlay({Path(mutant.path): mutant.text}) as root:
        if options.cpu_s:
            found = _hunted(found, root, options)
        tree = checkout()
        if options.tests_cpu_s and tree is not None:
            files = test_files(mutant.layer, mutant.module, tree)
            killer = failing_test(root, tree, files, options.tests_cpu_s)
            found = replace(found, killed_by_tests=bool(killer), test=killer)
    return found


# -- worlds ----------------------------------------------------------------------------------------


def _hunted(found: MutantResult, root: Path, options: TrialOptions) -> MutantResult:
    given = {"worlds": found.worlds, "cpu_s": options.cpu_s}
    what = "hunt by coverage" if options.coverage else "hunt"
    result = run_worlds(what, given, root=root, cpu_s_max=int(options.cpu_s) + HUNT_CPU_S_SPARE)
    if isinstance(result, str):
        return replace(found, killed_by_hunt=True, invariant=result, cpu_s=options.cpu_s)
    tape = result.pop("tape", "")
    clean = "world" in result and _fails_without(result, tape)
    return replace(found, killed_by_hunt="world" in result and not clean, **result)


def _fails_without(result: Mapping[str, Any], tape: str) -> bool:
    """Whether the unmodified package fails in the same seed, or with the same tape."""
    if tape:
        given = {"world": result["world"], "strategy": result["strategy"], "tape": tape}
        again = run_worlds("replay", given, cpu_s_max=HUNT_CPU_S_SPARE)
    elif "seed" in result:
        given = {"worlds": [result["world"]], "cpu_s": 1e-9, "first_seed": result["seed"]}
        again = run_worlds("hunt", given, cpu_s_max=HUNT_CPU_S_SPARE)
    else:  # the run could not be made at all, which has no tape
        return False
    return isinstance(again, str) or "world" in again


def measure_reached(worlds: Sequence[str] = tuple(WORLDS), seeds: int = REACH_SEEDS) -> dict[str, dict[int, list[str]]]:
    """The worlds that execute each line of the mutated layers, by module path and line."""
    texts = {path: marked((PACKAGE / path).read_text()) for layer in LAYERS for path in modules_of(layer)}
    with overlay(texts) as root:
        result = run_worlds("reach", {"worlds": list(worlds), "seeds": seeds}, root=root)
    if isinstance(result, str):
        raise TrialFailed(f"the lines that worlds execute could not be measured: {result}")
    found: dict[str, dict[int, list[str]]] = {}
    for world, modules in result.items():
        for path, lines in modules.items():
            for line in lines:
                found.setdefault(path, {}).setdefault(line, []).append(world)
    return found


def run_worlds(
    what: str, given: Mapping[str, Any], *, root: Path | None = None, cpu_s_max: int = TESTS_CPU_S_MAX
) -> dict[str, Any] | str:
    """Run `worlds_run`; return its result, or in a few words how it failed."""
    command = [sys.executable, "-m", f"{__package__}.worlds_run", what]
    done = _run(command, root, cpu_s_max, given=json.dumps(given))
    if done.returncode == -signal.SIGXCPU:
        return HANGS
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:400]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    wanted = PACKAGE if root is None else root / PACKAGE.name
    if Path(answer["package"]) != wanted:
        raise TrialFailed(f"a process imported {answer['package']} instead of {wanted}: install kedge as a package")
    result: dict[str, Any] = answer["result"]
    return result


# -- tests -----------------------------------------------------------------------------------------


def failing_test(root: Path, tree: Path, files: Sequence[str], cpu_s_max: int = TESTS_CPU_S_MAX) -> str:
    """The first test that fails over the overlay and passes without it; empty if there is none in the CPU time."""
    flaky: list[str] = []
    while files and len(flaky) < FLAKY_MAX:
        done = _pytest(files, tree, root, cpu_s_max, flaky)
        if done.returncode in (0, 5, -signal.SIGXCPU):
            return ""
        named = _FAILED.search(done.stdout)
        if named is None:
            return HANGS if "Timeout" in done.stderr + done.stdout else f"exit code {done.returncode}"
        if _pytest([named[1]], tree, None, cpu_s_max).returncode in (0, 5):
            return named[1]
        flaky.append(named[1])
    return ""


def _pytest(
    what: Sequence[str], tree: Path, root: Path | None, cpu_s_max: int, without: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
    plugins = (each.value for each in entry_points(group="pytest11") if each.name in PYTEST_PLUGINS)
    command += [part for plugin in plugins for part in ("-p", plugin)]
    command += ["-m", "not slow and not soak", "-o", f"faulthandler_timeout={TEST_S_MAX}"]
    command += ["-o", "faulthandler_exit_on_timeout=true", *(f"--deselect={each}" for each in without), *what]
    return _run(command, root, cpu_s_max, tree=tree)


def _run(
    command: Sequence[str], root: Path | None, cpu_s_max: int, *, given: str = "", tree: Path | None = None
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))

    return subprocess.run(
        command,
        input=given,
        text=True,
        capture_output=True,
        check=False,
        cwd=tree,
        env={**(os.environ if root is None else environment(root)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        preexec_fn=limit,
    )
