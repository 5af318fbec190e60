"""Run many seeds over any `concurrent.futures.Executor`, and report each bug once: grouped, shrunk and in a file.

A worker that dies loses only its own seed, which is reported. Ctrl-C keeps the failures found so far. `targets` is what
runs, `shrink` makes failures plain, `artefacts` keeps them; `kedge.cli.hunt` shows it all.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError
from kedge.sim.kernel.artefacts import Artefact, make_artefact, write_artefact
from kedge.sim.kernel.choices import Tape
from kedge.sim.kernel.policies import SchedulePolicy
from kedge.sim.kernel.shrink import SHRINK_RUNS_MAX, Shrunk, shrink
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget, find_target
from kedge.sim.kernel.violations import Violation

BATCH_SEEDS = 8
"""Seeds per batch: few, so that progress is shown often and a worker that dies loses little."""
UNDER_WAY_PER_JOB = 3
"""Batches submitted ahead for each worker."""
TARGETS_KEPT = 512
"""Targets that a worker holds: the strategies of all worlds of the zoo."""
TARGETS_WARMED = 8
"""Targets whose first run in a worker is made twice: the objects that it loads are set aside from the collector."""
GROUP_SEEDS_KEPT = 3
"""Failures of one group whose tapes are kept; the first of them is shrunk."""


class UnknownExecutor(KedgeError):
    """There is no such executor. Give `process`, `thread`, `inline`, or `package.module:callable`."""


# -- in the workers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """A batch of seeds for a worker."""

    reference: str
    policy: SchedulePolicy | None
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed."""

    seed: int
    hash: str
    steps: int
    cpu_s: float
    marks: dict[str, int]
    violation: Violation | None = None
    tape: Tape | None = None
    """The tape of a failure; None for other seeds, unless the hunt mutates tapes."""


@lru_cache(maxsize=TARGETS_KEPT)
def target_for(reference: str) -> SimulationTarget:
    """The target, found once in each process."""
    target = find_target(reference)
    if parent_process() is not None and target_for.cache_info().currsize < TARGETS_WARMED:  # a worker process
        target.run(0)
        gc.collect()
        gc.freeze()
    return target


def run_seeds(work: Work) -> list[SeedResult]:
    """Run a batch of seeds. A module-level function, so that any executor can pickle it."""
    target = target_for(work.reference)
    if work.policy is not None:
        target = replace(target, policy=work.policy)
    return [run_seed(target, seed) for seed in work.seeds]


def run_seed(target: SimulationTarget, seed: int) -> SeedResult:
    begin_s = time.process_time()
    return seed_result(target.run(seed), begin_s)


def seed_result(outcome: RunOutcome, begin_s: float, *, with_tape: bool = False) -> SeedResult:
    """The part of an outcome that a worker sends back. Its tape only if it failed, unless `with_tape`."""
    return SeedResult(
        seed=outcome.seed,
        hash=outcome.hash,
        steps=outcome.steps,
        cpu_s=time.process_time() - begin_s,
        marks=outcome.marks,
        violation=outcome.violation,
        tape=outcome.tape if with_tape or outcome.violation is not None else None,
    )


# -- executors -------------------------------------------------------------------------------------


DASK = "dask://"
"""How the name of an executor on a Dask cluster begins; the address of its scheduler follows."""


class InlineExecutor(Executor):
    """Runs each call in the calling thread. For tests, debuggers and small hunts."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future


def _ignore_interrupts() -> None:
    """A terminal sends Ctrl-C to every process. Workers ignore it and finish their batch; the hunt handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make_executor(name: str, jobs: int) -> Executor:
    """An executor by name: `process`, `thread`, `inline`, or `package.module:callable`, called with the jobs."""
    match name:
        case "process":
            return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_ignore_interrupts)
        case "thread":
            return ThreadPoolExecutor(jobs)
        case "inline":
            return InlineExecutor()
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownExecutor(
            f"there is no executor {name!r}: give process, thread, inline, dask://HOST:PORT or package.module:callable"
        ) from error
    executor = factory(jobs)
    if not isinstance(executor, Executor):
        raise UnknownExecutor(f"{name} made a {type(executor).__name__}, which is not a concurrent.futures.Executor")
    return executor


def open_executor(executor: str | Callable[[], Executor], jobs: int, target: SimulationTarget) -> Executor:
    """The executor of a hunt: by name, on a Dask cluster whose workers have `target`, or as the caller makes it."""
    if callable(executor):
        return executor()
    if executor.startswith(DASK):
        from kedge.sim.kernel.dask_executor import DaskExecutor

        return DaskExecutor(executor, target)
    return make_executor(executor, jobs)


# -- the hunt --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Group:
    """Failures that are assumed to be one bug."""

    violation: Violation
    seeds: list[int] = field(default_factory=list)
    tapes: list[tuple[int, Tape]] = field(default_factory=list)
    """A few, the one to shrink first: the simplest, with least faults and then least steps, or the lowest seed."""
    shrunk: Shrunk | None = None
    artefact: Artefact | None = None
    path: Path | None = None


@dataclass(slots=True)
class Hunt:
    """A hunt, its progress and its findings."""

    target: SimulationTarget
    total: int
    policy_sent: SchedulePolicy | None = None
    """Sent to the workers, if it differs from the policy of the target."""
    by_seed: bool = False
    """Each group keeps its lowest seed, not its simplest failure."""
    done: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    """For each mark, the number of seeds that reached it."""
    lost: list[int] = field(default_factory=list)
    """Seeds whose worker died."""
    broken: list[tuple[int, str]] = field(default_factory=list)
    """Seeds that could not be run at all, and why."""
    interrupted: bool = False

    @property
    def failures(self) -> int:
        return sum(len(group.seeds) for group in self.groups.values())

    def marks_missed(self) -> list[str]:
        return [name for name in self.target.marks if not self.marks.get(name)]

    def add(self, result: SeedResult) -> None:
        self.done += 1
        self.steps += result.steps
        self.cpu_s += result.cpu_s
        for name in result.marks:
            self.marks[name] = self.marks.get(name, 0) + 1
        if result.violation is None or result.tape is None:
            return
        group = self.groups.setdefault(result.violation.group, Group(result.violation))
        group.seeds.append(result.seed)
        group.tapes.append((result.steps, result.tape))
        group.tapes.sort(key=self._order)
        del group.tapes[GROUP_SEEDS_KEPT:]

    def _order(self, failure: tuple[int, Tape]) -> tuple[int, ...]:
        steps, tape = failure
        return (tape.seed,) if self.by_seed else (len(tape.strikes()), steps, tape.seed)


def hunt(
    target: SimulationTarget,
    seeds: Iterable[int],
    *,
    executor: str | Callable[[], Executor] = "process",
    jobs: int | None = None,
    policy: SchedulePolicy | None = None,
    directory: Path | None = None,
    shrink_runs_max: int = SHRINK_RUNS_MAX,
    by_seed: bool = False,
    on_progress: Callable[[Hunt], object] = lambda hunt: None,  # noqa: ARG005
) -> Hunt:
    """Run every seed; shrink one failure of each group; write artefacts to `directory` if it is given.

    The simplest failure of a group is kept, or with `by_seed` that of its lowest seed.
    """
    jobs = jobs or os.cpu_count() or 1
    own_policy = target.policy
    target = (replace(target, policy=policy) if policy is not None else target).calibrated()
    wanted = list(seeds)
    found = Hunt(target, len(wanted), None if target.policy == own_policy else target.policy, by_seed)

    try:
        _run_all(found, wanted, lambda: open_executor(executor, jobs, target), jobs, on_progress)
    except KeyboardInterrupt:
        found.interrupted = True
    for group in found.groups.values():
        problem = keep_failure(target, group, directory, 0 if found.interrupted else shrink_runs_max)
        if problem:
            found.broken.append((group.tapes[0][1].seed, problem))
        on_progress(found)
    return found


def keep_failure(target: SimulationTarget, group: Group, directory: Path | None, runs_max: int) -> str:
    """Shrink the first failure of a group, and write its artefact. Returns why it could not, or an empty text."""
    failure = target.run(group.tapes[0][1])
    if failure.violation is None or failure.diverged is not None:
        return f"did not fail again: {failure.diverged or 'not deterministic'}; check_determinism"
    group.shrunk = shrink(target, failure, runs_max=runs_max)
    group.artefact = make_artefact(target, group.shrunk.outcome, group.shrunk.conditions)
    if directory is not None:
        group.path = write_artefact(group.artefact, directory)
    return ""


def _run_all(
    found: Hunt, seeds: list[int], make: Callable[[], Executor], jobs: int, on_progress: Callable[[Hunt], object]
) -> None:
    batches: list[tuple[int, ...]] = list(_batches(seeds, min(BATCH_SEEDS, max(1, len(seeds) // (jobs * 4)))))
    while batches:
        suspects = _run_until_death(found, batches, make, jobs * UNDER_WAY_PER_JOB, on_progress)
        alone: list[tuple[int, ...]] = [(seed,) for seed in suspects]
        while alone:  # one at a time, to identify the seed that kills its worker
            for seed in _run_until_death(found, alone, make, 1, on_progress):
                found.lost.append(seed)
                found.done += 1
                on_progress(found)


def _run_until_death(
    found: Hunt,
    batches: list[tuple[int, ...]],
    make: Callable[[], Executor],
    under_way_max: int,
    on_progress: Callable[[Hunt], object],
) -> list[int]:
    """Run batches until none is left or a worker dies; then return the seeds that were in flight."""
    executor = make()
    under_way: dict[Future[list[SeedResult]], tuple[int, ...]] = {}
    suspects: list[int] = []
    try:
        while (batches and not suspects) or under_way:
            while batches and not suspects and len(under_way) < under_way_max:
                batch = batches.pop(0)
                work = Work(found.target.reference, found.policy_sent, batch)
                try:
                    under_way[executor.submit(run_seeds, work)] = batch
                except BrokenExecutor:
                    suspects.extend(batch)
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                batch = under_way.pop(future)
                try:
                    for result in future.result():
                        found.add(result)
                except BrokenExecutor:
                    suspects.extend(batch)
                except Exception as error:  # noqa: BLE001
                    found.done += len(batch)
                    found.broken.extend((seed, f"{type(error).__name__}: {error}") for seed in batch)
                on_progress(found)
    except KeyboardInterrupt:
        executor.shutdown(wait=False, cancel_futures=True)
        raise
    executor.shutdown(wait=True, cancel_futures=True)
    return suspects


def _batches(seeds: list[int], size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(seeds), size):
        yield tuple(seeds[start : start + size])
