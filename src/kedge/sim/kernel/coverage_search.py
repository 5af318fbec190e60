"""Coverage-guided search: tapes that reach something new are mutated, and a bandit shares out the steps.

An arm is a strategy in a world, or the mutation of that world's corpus. `run_coverage` has the features of a run,
`corpus` the tapes, `tape_edits` the mutations, `bandit` the shares. Equal seeds make equal searches with any number of
workers: results are taken in the order of the plans, and a plan follows from the results `LOOKAHEAD` runs before it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from kedge.errors import check
from kedge.sim.kernel.bandit import Bandit
from kedge.sim.kernel.choices import Tape
from kedge.sim.kernel.corpus import Corpus
from kedge.sim.kernel.hunt import Group, SeedResult, keep_failure, open_executor, seed_result, target_for
from kedge.sim.kernel.policies import Mixed, SchedulePolicy
from kedge.sim.kernel.run_coverage import Feature, run_covered
from kedge.sim.kernel.shrink import SHRINK_RUNS_MAX
from kedge.sim.kernel.tape_edits import mutate
from kedge.sim.kernel.targets import SimulationTarget

LOOKAHEAD = 16
"""Runs that are planned before the result of the first of them is counted. Fixed, so that the number of workers has no
part in the search; more workers than this are idle."""
MUTATIONS = "mutations"
"""The name of the arm that mutates the corpus of a world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchArm:
    """A strategy in a world."""

    world: str
    strategy: str
    target: SimulationTarget
    policy_sent: SchedulePolicy | None = None
    """Sent to the workers, if it differs from the policy of the target that they find."""


def schedule_arms(target: SimulationTarget) -> tuple[SearchArm, ...]:
    """The faults of a target under its own schedules and the usual ones: uniform, PCT and FIFO."""
    own = target.policy.parts if isinstance(target.policy, Mixed) else (target.policy,)
    found: dict[str, SearchArm] = {}
    for policy in (*own, *Mixed().parts):
        name = policy.name.partition("(")[0]
        if name not in found:
            aimed = replace(target, policy=policy).calibrated()
            found[name] = SearchArm(world=target.reference, strategy=name, target=aimed, policy_sent=aimed.policy)
    return tuple(found.values())


# -- in the workers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a search, for a worker."""

    number: int
    arm: int
    """The arm that pays for it."""
    strategy: int
    """The arm whose target is run: for a mutation, that of the tape."""
    reference: str
    policy: SchedulePolicy | None
    tape: Tape | int
    """An edited tape, or a seed."""


@dataclass(frozen=True, slots=True)
class CoveredRun:
    """The result of a planned run."""

    result: SeedResult
    features: tuple[Feature, ...]


def run_planned(plan: PlannedRun) -> CoveredRun:
    """A module-level function, so that any executor can pickle it."""
    target = target_for(plan.reference)
    if plan.policy is not None:
        target = replace(target, policy=plan.policy)
    begin_s = time.process_time()
    outcome, coverage = run_covered(target, plan.tape, lenient=isinstance(plan.tape, Tape))
    features = coverage.hashed()
    return CoveredRun(seed_result(outcome, begin_s, with_tape=True), features)


# -- the search ------------------------------------------------------------------------------------


@dataclass(slots=True)
class CoverageFind:
    """Failures that are assumed to be one bug of one world."""

    world: str
    strategy: int
    """The arm whose target its simplest failure is run with."""
    arm: str
    """The arm that found it first."""
    run: int
    """Runs, steps and CPU time of the whole search up to the first failure, that run included."""
    steps: int
    cpu_s: float
    group: Group


class BrokenRun(NamedTuple):
    """A run without a result, or a find that could not be kept."""

    number: int
    arm: int
    """The arm whose target was run."""
    why: str


@dataclass(slots=True)
class CoverageSearch:
    """A search, its progress and its findings."""

    arms: tuple[SearchArm, ...]
    seed: int
    worlds: dict[str, Corpus] = field(init=False)
    bandit: Bandit = field(init=False)
    planned: int = 0
    done: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    marks: dict[tuple[str, str], int] = field(default_factory=dict)
    """By world and mark: the runs that reached it."""
    finds: dict[tuple[str, str, str], CoverageFind] = field(default_factory=dict)
    """By world, invariant and cause."""
    broken: list[BrokenRun] = field(default_factory=list)
    interrupted: bool = False
    _next_seeds: list[int] = field(init=False)

    def __post_init__(self) -> None:
        check(bool(self.arms), "a search needs at least one strategy")
        self.worlds = {arm.world: Corpus() for arm in self.arms}
        names = [f"{arm.world}: {arm.strategy}" for arm in self.arms]
        self.bandit = Bandit([*names, *(f"{world}: {MUTATIONS}" for world in self.worlds)])
        self._next_seeds = [self.seed] * len(self.arms)

    def marks_missed(self) -> list[tuple[str, str]]:
        """World and mark, for each mark that no run reached."""
        declared = dict.fromkeys((arm.world, mark) for arm in self.arms for mark in arm.target.marks)
        return [each for each in declared if each not in self.marks]

    def plan(self) -> PlannedRun:
        """The next run, which follows from the seed and the results so far."""
        corpora = list(self.worlds.values())
        able = [*range(len(self.arms)), *(len(self.arms) + n for n, each in enumerate(corpora) if each.entries)]
        chosen = self.bandit.choose(able)
        strategy, tape = (
            self._fresh(chosen) if chosen < len(self.arms) else self._mutation(corpora[chosen - len(self.arms)])
        )
        arm = self.arms[strategy]
        self.planned += 1
        return PlannedRun(self.planned, chosen, strategy, arm.target.reference, arm.policy_sent, tape)

    def _fresh(self, arm: int) -> tuple[int, Tape | int]:
        seed = self._next_seeds[arm]
        self._next_seeds[arm] = seed + 1
        return arm, seed

    def _mutation(self, corpus: Corpus) -> tuple[int, Tape | int]:
        source = Random(f"{self.seed}/mutation {self.planned}")
        entry, other = corpus.draw(source), corpus.draw(source)
        entry.draws += 1
        position = source.choice(entry.new).position
        return entry.arm, mutate(entry.tape, position, other.tape, source)

    def add(self, plan: PlannedRun, run: CoveredRun | str) -> None:
        """Count a run, in the order of the plans. A text is the reason why there is no result."""
        self.done += 1
        if isinstance(run, str):
            self.bandit.add(plan.arm, 0, 0, found=False)
            self.broken.append(BrokenRun(plan.number, plan.strategy, run))
            return
        result, world = run.result, self.arms[plan.strategy].world
        self.steps += result.steps
        self.cpu_s += result.cpu_s
        for mark in result.marks:
            self.marks[world, mark] = self.marks.get((world, mark), 0) + 1
        if result.violation is not None:
            # The run ended early, and its mutations would mostly find the same bug again: its tape is not mutated.
            new = self._count_find(plan, result)
        else:
            features = self.worlds[world].count(run.features)
            new = len(features)
            if features and result.tape is not None:
                self.worlds[world].keep(plan.strategy, result.tape, features)
        self.bandit.add(plan.arm, result.steps, new, found=result.violation is not None)

    def _count_find(self, plan: PlannedRun, result: SeedResult) -> int:
        """Returns how many bugs are new: 1 or 0."""
        assert result.violation is not None
        assert result.tape is not None
        world = self.arms[plan.strategy].world
        key = (world, *result.violation.group)
        find = self.finds.get(key)
        is_new = find is None
        if find is None:
            arm = self.bandit.arms[plan.arm].name
            group = Group(result.violation)
            find = self.finds[key] = CoverageFind(world, plan.strategy, arm, self.done, self.steps, self.cpu_s, group)
        find.group.seeds.append(plan.number)
        failure = (result.steps, result.tape)
        if not find.group.tapes or _simplicity(failure) < _simplicity(find.group.tapes[0]):
            find.group.tapes, find.strategy = [failure], plan.strategy
        return int(is_new)


def _simplicity(failure: tuple[int, Tape]) -> tuple[int, int]:
    steps, tape = failure
    return len(tape.strikes()), steps


def search_coverage(
    arms: Sequence[SearchArm],
    *,
    seed: int = 0,
    runs_max: int,
    cpu_s_max: float = float("inf"),
    executor: str | Callable[[], Executor] = "process",
    jobs: int | None = None,
    lookahead: int = LOOKAHEAD,
    until: Callable[[CoverageSearch], bool] = lambda search: False,  # noqa: ARG005
    on_run: Callable[[CoverageSearch], object] = lambda search: None,  # noqa: ARG005
) -> CoverageSearch:
    """Search until the runs or the CPU time are used up, or `until` holds. `keep_finds` follows.

    `seed` is the first seed of every strategy, and the source of all mutations.
    """
    found = CoverageSearch(tuple(arms), seed)
    workers = jobs or os.cpu_count() or 1
    window = _RunWindow(lambda: open_executor(executor, workers, found.arms[0].target))
    try:
        for plan, run in _runs(found, window, runs_max, cpu_s_max, lookahead, until):
            found.add(plan, run)
            on_run(found)
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        window.close(wait=not found.interrupted)
    return found


def keep_finds(found: CoverageSearch, directory: Path | None, shrink_runs_max: int = SHRINK_RUNS_MAX) -> None:
    """Shrink one failure of each bug, and write it to `directory` if it is given."""
    for find in found.finds.values():
        target = found.arms[find.strategy].target
        problem = keep_failure(target, find.group, directory, 0 if found.interrupted else shrink_runs_max)
        if problem:
            found.broken.append(BrokenRun(find.run, find.strategy, problem))


def _runs(
    found: CoverageSearch,
    window: _RunWindow,
    runs_max: int,
    cpu_s_max: float,
    lookahead: int,
    until: Callable[[CoverageSearch], bool],
) -> Iterator[tuple[PlannedRun, CoveredRun | str]]:
    """Keep `lookahead` runs under way, and yield their results in order."""
    while True:
        goes_on = found.cpu_s < cpu_s_max and not until(found)
        while goes_on and found.planned < runs_max and len(window) < lookahead:
            window.submit(found.plan())
        if not len(window):
            return
        yield window.take()


class _RunWindow:
    """Runs under way, oldest first."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make = make
        self._executor = make()
        self._under_way: deque[tuple[PlannedRun, Future[CoveredRun]]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def submit(self, plan: PlannedRun) -> None:
        self._under_way.append((plan, self._start(plan)))

    def take(self) -> tuple[PlannedRun, CoveredRun | str]:
        """The result of the oldest run, or why there is none."""
        plan, future = self._under_way.popleft()
        try:
            return plan, future.result()
        except BrokenExecutor:
            return plan, self._take_alone(plan)
        except Exception as error:  # noqa: BLE001
            return plan, f"{type(error).__name__}: {error}"

    def close(self, *, wait: bool) -> None:
        self._executor.shutdown(wait=wait, cancel_futures=True)

    def _take_alone(self, plan: PlannedRun) -> CoveredRun | str:
        """A worker died, of any of the runs under way: run this one alone, and then start the others again."""
        self._reopen()
        found: CoveredRun | str
        try:
            found = self._start(plan).result()
        except BrokenExecutor:
            found = "its worker died"
        except Exception as error:  # noqa: BLE001
            found = f"{type(error).__name__}: {error}"
        self._under_way = deque((each, self._start(each)) for each, _ in self._under_way)
        return found

    def _reopen(self) -> None:
        self.close(wait=False)
        self._executor = self._make()

    def _start(self, plan: PlannedRun) -> Future[CoveredRun]:
        try:
            return self._executor.submit(run_planned, plan)
        except BrokenExecutor as error:
            failed: Future[CoveredRun] = Future()
            failed.set_exception(error)
            return failed
