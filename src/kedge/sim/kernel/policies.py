"""Schedule policies: which host runs next. `Fifo` is fair, `Uniform` is random, `Pct` needs few preemptions.

A policy gets the ready processes, oldest first, and returns an index. `loop` records the index on the tape, so `Taped`
replays a run of any policy. A policy draws from its own seeded source and never reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from kedge.sim.kernel.choices import Choices, Mode, TapeMismatch, unpack
from kedge.sim.kernel.strands import HostProcess


class Chooser(Protocol):
    """A policy in one run. Called only when two or more processes are ready."""

    def __call__(self, ready: Sequence[HostProcess]) -> int: ...


class SchedulePolicy(Protocol):
    """Must be picklable: a hunt sends it to its workers."""

    @property
    def name(self) -> str: ...

    def chooser(self, seed: int) -> Chooser | None:
        """Begin a run. None means that the host that has waited longest is next, which needs no tape."""


@dataclass(frozen=True, slots=True)
class Fifo:
    """Hosts run in turn, one step each, in the order in which they became ready."""

    name: str = "fifo"

    def chooser(self, seed: int) -> Chooser | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class Uniform:
    """At every step each ready host is equally likely."""

    name: str = "uniform"

    def chooser(self, seed: int) -> Chooser | None:
        draw = Random(f"{seed}/schedule").random

        def choose(ready: Sequence[HostProcess]) -> int:
            return int(draw() * len(ready))

        return choose


@dataclass(frozen=True, slots=True)
class Pct:
    """Random priorities, lowered at `depth - 1` random places within `horizon` choices.

    Probabilistic concurrency testing: a bug that needs `depth` ordered steps among n hosts is found with
    probability at least 1 / (n * horizon ** (depth - 1)). A hunt measures `horizon` when it is 0.
    """

    depth: int = 3
    horizon: int = 0
    turn_max: int = 1_000
    """Consecutive choices of one host before it gets the lowest priority: code that polls must not starve others."""

    @property
    def name(self) -> str:
        return f"pct(depth={self.depth}, horizon={self.horizon})"

    def chooser(self, seed: int) -> Chooser | None:
        return _PctChooser(self, Random(f"{seed}/schedule"))


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each seed uses one of several policies, because bugs differ in the schedule they need."""

    parts: tuple[SchedulePolicy, ...] = (Uniform(), Pct(), Uniform(), Fifo())
    name: str = "mixed"

    def chooser(self, seed: int) -> Chooser | None:
        return self.parts[seed % len(self.parts)].chooser(seed)


def begin_schedule(policy: SchedulePolicy, choices: Choices) -> tuple[Chooser | None, str]:
    """The chooser of a run, and the name of its policy for the tape. A recorded run is followed by `Taped`."""
    tape = choices.source
    chooser: Chooser | None
    if choices.mode is Mode.RECORD:
        chooser, name = policy.chooser(tape.seed), policy.name
    else:
        is_taped = tape.policy != Fifo().name and (tape.schedule or choices.mode is Mode.STRICT)
        tail = None if tape.tail_seed is None else policy.chooser(tape.tail_seed)
        chooser, name = Taped(choices, tail) if is_taped else None, tape.policy
    return chooser, Fifo().name if chooser is None else name


class _PctChooser:
    def __init__(self, policy: Pct, source: Random) -> None:
        horizon = policy.horizon or 1_000
        self._source = source
        self._changes = {source.randrange(horizon): rank for rank in range(policy.depth - 1)}
        self._priority: dict[int, float] = {}
        """By process slot; the highest runs. Initial priorities are positive, lowered ones negative."""
        self._lowered = -float(policy.depth)
        self._turn_max = policy.turn_max
        self._count = 0
        self._turn = 0
        self._last = -1

    def __call__(self, ready: Sequence[HostProcess]) -> int:
        best = self._best(ready)
        change = self._changes.get(self._count)
        self._count += 1
        if change is not None:
            self._priority[ready[best].slot] = -float(change)
            best = self._best(ready)
        slot = ready[best].slot
        self._turn = self._turn + 1 if slot == self._last else 0
        self._last = slot
        if self._turn >= self._turn_max:
            self._lowered -= 1.0
            self._priority[slot] = self._lowered
            self._turn = 0
        return best

    def _best(self, ready: Sequence[HostProcess]) -> int:
        best, best_priority = 0, -float("inf")
        for index, process in enumerate(ready):
            priority = self._priority.get(process.slot)
            if priority is None:
                priority = self._priority[process.slot] = 1.0 + self._source.random()
            if priority > best_priority:
                best, best_priority = index, priority
        return best


class Taped:
    """The schedule of a recorded run. After the end of an edited tape `tail` chooses, if there is one."""

    def __init__(self, choices: Choices, tail: Chooser | None = None) -> None:
        self._choices = choices
        self._tail = tail
        self._recorded = choices.source.schedule
        self._strict = choices.mode is Mode.STRICT
        self._place = 0

    def __call__(self, ready: Sequence[HostProcess]) -> int:
        place = self._place
        self._place = place + 1
        if place >= len(self._recorded):
            if self._strict:
                self._diverge(f"the tape ends, {len(ready)} hosts are ready")
            return 0 if self._tail is None else self._tail(ready)
        bound, value = unpack(self._recorded[place])
        if bound == len(ready):
            return value
        if self._strict:
            self._diverge(f"the tape has {bound} hosts ready, the run has {len(ready)}: {', '.join(map(repr, ready))}")
        return value if value < len(ready) else 0

    def _diverge(self, what: str) -> None:
        self._choices.diverge(TapeMismatch(f"out of step at schedule choice {self._place - 1}: {what}"))
