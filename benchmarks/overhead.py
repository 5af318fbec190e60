"""The CPU time that a feature adds to the same work: two subjects, one with it, take short turns in one process.

`runtime` and `observe` measure the cost of recording with it. The speed of a machine changes from one second to the
next by more than that cost. So a turn is a few hundredths of a second, and a round has four turns, in an order in which
either kind is as early as the other. The figure is a trimmed mean over many rounds. The rounds with the most
involuntary context switches are left out, whatever their result.
"""

from __future__ import annotations

import asyncio
import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

UPKEEP_S = 1.0
"""Every process of kedge flushes its decision log after this time: `Limits.decision_log_sync_s`."""
QUIETEST = 0.75
"""The part of the rounds that is used: those with the fewest involuntary context switches."""
PAUSE_S = 0.01
"""Before each turn: the kernel rarely interrupts a process that has just slept."""
WARM_UP = 5
"""Turns of a new subject before the first round."""
TRIMMED = 0.2
"""The part of these that is left out at either end."""


class BusyClock:
    """A monotonic clock that stands still between the turns of a subject.

    Rules that count decisions by the second then see a process that is always busy. By another clock they would keep
    more, the shorter the turns and the slower the machine.
    """

    def __init__(self) -> None:
        self._idle_s = 0.0
        self._paused_s: float | None = None

    def monotonic(self) -> float:
        return (time.monotonic() if self._paused_s is None else self._paused_s) - self._idle_s

    def pause(self) -> None:
        self._paused_s = time.monotonic()

    def resume(self) -> None:
        if self._paused_s is not None:
            self._idle_s += time.monotonic() - self._paused_s
            self._paused_s = None


class Subject(Protocol):
    """One of the two. It lives for a whole block of rounds."""

    @property
    def clock(self) -> BusyClock:
        """The clock of its recorder."""

    async def start(self) -> None: ...

    def prepare(self) -> None:
        """Make the input of the next turn. Not measured, and it must not suspend."""

    async def work(self) -> int:
        """Do one turn. Returns how many pieces of work were done: its CPU time is divided by it."""

    def upkeep(self) -> None:
        """The work that a process does once a second, however busy it is. Measured by itself."""

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Turns:
    """The cost of some turns of one subject."""

    runs: int = 0
    cpu_s: float = 0.0
    """Without the collector and the upkeep."""
    survivors: int = 0
    """Allocations that were not freed at once: the garbage collector runs after so many."""
    preempted: int = 0
    """How often the kernel gave the processor to another process."""

    def __add__(self, other: Turns) -> Turns:
        return Turns(
            self.runs + other.runs,
            self.cpu_s + other.cpu_s,
            self.survivors + other.survivors,
            self.preempted + other.preempted,
        )


class CollectorClock:
    """Measures the garbage collector. A short turn has one collection more or less, by chance. So its time is taken out
    of the turns, and each is charged by its share of the allocations that make the collector run."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.survivors = 0
        self._began_s = 0.0

    def called(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self.survivors += gc.get_count()[0]
            self._began_s = time.process_time()
        else:
            self.cpu_s += time.process_time() - self._began_s


@dataclass(slots=True)
class Upkeep:
    """The upkeep of one kind of subject, which is charged to its turns in equal parts."""

    busy_s: float = 0.0
    due_s: float = UPKEEP_S
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """The CPU time that a feature adds, as a share of the work without it."""

    figure: float
    interval: tuple[float, float]
    """It has the true figure in 95 of 100 cases."""
    quartiles: tuple[float, float]
    """Of single rounds: the noise."""
    rounds: int
    rounds_used: int
    with_us: float
    """CPU time of one piece of work."""
    without_us: float

    def figures(self, name: str) -> dict[str, float]:
        return {
            name: self.figure,
            f"{name}_low": self.interval[0],
            f"{name}_high": self.interval[1],
            f"{name}_quartile_1": self.quartiles[0],
            f"{name}_quartile_3": self.quartiles[1],
            f"{name}_us": self.with_us - self.without_us,
        }


def shown(name: str, value: float) -> str | float:
    """A share with the digits that it needs."""
    return f"{value:.3f}" if "overhead" in name else float(value)


def notes_of(name: str) -> dict[str, str]:
    return {
        f"{name}_low": "the figure is above this in 97.5 of 100 cases",
        f"{name}_high": "and below this",
        f"{name}_quartile_1": "a quarter of the rounds is below",
        f"{name}_quartile_3": "a quarter of the rounds is above",
        f"{name}_us": "microseconds of one piece of work",
    }


def overhead_of(make: Callable[[bool], Subject], *, seconds: float, blocks: int = 4) -> Overhead:
    """Compare `make(True)` with `make(False)` for so long: in each block two new subjects take turns.

    Where its objects happen to be in memory makes one subject faster than another of its kind, so there are several
    blocks, and either kind is made first as often.
    """
    done: list[tuple[Turns, Turns]] = []
    upkeeps = {True: Upkeep(), False: Upkeep()}
    collector = CollectorClock()
    with asyncio.Runner() as runner:
        for block in range(blocks):
            done += runner.run(_block(make, seconds / blocks, upkeeps, collector, first=block % 2 == 0))
    return summary_of(done, upkeeps, collector.cpu_s / max(1, collector.survivors))


async def _block(
    make: Callable[[bool], Subject],
    seconds: float,
    upkeeps: dict[bool, Upkeep],
    collector: CollectorClock,
    *,
    first: bool,
) -> list[tuple[Turns, Turns]]:
    subjects: dict[bool, Subject] = {}
    for kind in (first, not first):
        subjects[kind] = make(kind)
        await subjects[kind].start()
    for subject in [*subjects.values()] * WARM_UP:
        subject.prepare()
        await subject.work()
    for subject in subjects.values():
        subject.clock.pause()
    gc.collect()
    gc.freeze()  # objects made so far are not scanned
    gc.callbacks.append(collector.called)
    done: list[tuple[Turns, Turns]] = []
    ends_s = time.perf_counter() + seconds
    try:
        while len(done) < 2 or time.perf_counter() < ends_s:
            found = {True: Turns(), False: Turns()}
            outer = len(done) % 2 == 0
            for kind in (outer, not outer, not outer, outer):
                found[kind] += await _turn(subjects[kind], upkeeps[kind], collector)
            done.append((found[True], found[False]))
    finally:
        gc.callbacks.remove(collector.called)
        gc.unfreeze()
        for subject in subjects.values():
            await subject.stop()
    return done


async def _turn(subject: Subject, upkeep: Upkeep, collector: CollectorClock) -> Turns:
    await asyncio.sleep(PAUSE_S)
    subject.prepare()
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    collector_s, survivors = collector.cpu_s, collector.survivors + gc.get_count()[0]
    subject.clock.resume()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    runs = await subject.work()
    cpu_s = time.process_time() - cpu_s - (collector.cpu_s - collector_s)
    subject.clock.pause()
    upkeep.busy_s += time.perf_counter() - began_s
    survivors = max(0, collector.survivors + gc.get_count()[0] - survivors)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches
    if upkeep.busy_s >= upkeep.due_s:
        upkeep.due_s += UPKEEP_S
        upkeep_s = time.process_time()
        subject.upkeep()
        upkeep.cpu_s += time.process_time() - upkeep_s
    return Turns(runs, cpu_s, survivors, switches)


def summary_of(done: Sequence[tuple[Turns, Turns]], upkeeps: dict[bool, Upkeep], per_survivor_s: float) -> Overhead:
    upkeep_s = [upkeeps[kind].cpu_s / sum(each[n].runs for each in done) for n, kind in enumerate((True, False))]

    def costs_s(turns: tuple[Turns, Turns]) -> tuple[float, float]:
        with_s, without_s = (
            (each.cpu_s + each.survivors * per_survivor_s) / each.runs + upkeep_s[n] for n, each in enumerate(turns)
        )
        return with_s, without_s

    quiet = sorted(done, key=lambda each: each[0].preempted + each[1].preempted)[: math.ceil(len(done) * QUIETEST)]
    costs = [costs_s(each) for each in quiet]
    logs = sorted(math.log(with_s / without_s) for with_s, without_s in costs)
    middle, error = trimmed_mean(logs)
    return Overhead(
        math.expm1(middle),
        (math.expm1(middle - 1.96 * error), math.expm1(middle + 1.96 * error)),
        (math.expm1(logs[len(logs) // 4]), math.expm1(logs[3 * len(logs) // 4])),
        len(done),
        len(logs),
        1e6 * statistics.median(each[0] for each in costs),
        1e6 * statistics.median(each[1] for each in costs),
    )


def trimmed_mean(ordered: Sequence[float], *, trimmed: float = TRIMMED) -> tuple[float, float]:
    """The mean without the ends, and its standard error: by the variance of the values with the ends moved inwards."""
    count, cut = len(ordered), int(len(ordered) * trimmed)
    middle = ordered[cut : count - cut]
    moved = [middle[0]] * cut + list(middle) + [middle[-1]] * cut
    error = statistics.stdev(moved) / ((1 - 2 * trimmed) * math.sqrt(count)) if count > 1 else math.inf
    return statistics.fmean(middle), error
