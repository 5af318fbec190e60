"""The tape: every choice of a run, labelled and bounded, in four independent streams.

A run is a function of (program, tape). Recording draws from the seed. A strict replay reads the tape back and reports
the first choice that does not fit. A lenient replay matches choices by label and occurrence; missing ones take 0, or
are drawn if the tape was edited for that (`tape_edits`).
Choice 0 is always the plain one: no fault, least latency, the host that waited longest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Protocol, TypeAlias, TypeVar

from kedge.errors import ReplayDiverged, check

_T = TypeVar("_T")

STREAMS = ("network", "faults", "workload")
"""Streams of labelled choices. The schedule, drawn at every step, has a packed stream of its own."""

Choice: TypeAlias = tuple[str, int, int]
"""Label, bound, value: `0 <= value < bound`."""

TapePosition: TypeAlias = tuple[int, int, int, int]
"""A tape position: a place in a run, as the length of its tape: of the schedule, and of each of `STREAMS`."""

SWARM = "swarm "
"""Prefix of the labels of choices on which faults a run may have at all."""
DETAIL = "how "
"""Prefix of the labels of choices on the duration or direction of a fault that struck."""

_BOUND_SHIFT = 16
_VALUE_MASK = (1 << _BOUND_SHIFT) - 1


class TapeMismatch(ReplayDiverged):
    """The tape does not fit this program. Replay it on the build that made it, or as a regression test."""


class Mode(Enum):
    """The source of the values of choices."""

    RECORD = "record"
    """Drawn from the seed."""
    STRICT = "strict"
    """Read from a tape that must fit exactly."""
    LENIENT = "lenient"
    """Read from a tape by label and occurrence; a missing choice takes 0, or is drawn if the tape has a `tail_seed`."""


@dataclass(slots=True)
class Tape:
    """The choices of a run. `seed` also feeds the random source of each host."""

    seed: int
    policy: str = "fifo"
    schedule: array[int] = field(default_factory=lambda: array("I"))
    """For each step with more than one host ready: how many were ready, and which one ran."""
    streams: dict[str, list[Choice]] = field(default_factory=lambda: {name: [] for name in STREAMS})
    tail_seed: int | None = None
    """Edited tapes may have it: choices that the tape lacks are drawn from this seed. None: they are 0."""

    def copy(self) -> Tape:
        streams = {name: list(choices) for name, choices in self.streams.items()}
        return Tape(self.seed, self.policy, self.schedule[:], streams, self.tail_seed)

    def cut(self, position: TapePosition) -> None:
        """Forget every choice after a position."""
        scheduled, *lengths = position
        del self.schedule[scheduled:]
        for name, length in zip(STREAMS, lengths, strict=True):
            del self.streams[name][length:]

    def deviations(self) -> int:
        """How many steps deviate from the plain schedule."""
        return sum(1 for code in self.schedule if code & _VALUE_MASK)

    def strikes(self) -> list[int]:
        """Places in the faults stream at which a fault struck."""
        return [place for place, choice in enumerate(self.streams["faults"]) if is_strike(choice)]


def is_strike(choice: Choice) -> bool:
    """Whether this choice is a fault that struck, not a duration and not the choice that a fault may strike at all."""
    label, _, value = choice
    return value > 0 and not label.startswith((SWARM, DETAIL))


def pack(bound: int, value: int) -> int:
    """One schedule choice as one integer."""
    return bound << _BOUND_SHIFT | value


def unpack(code: int) -> tuple[int, int]:
    """Bound and value of a packed schedule choice."""
    return code >> _BOUND_SHIFT, code & _VALUE_MASK


class Choose(Protocol):
    def __call__(self, label: str, bound: int, reached: Sequence[float] | None = None, /) -> int: ...


def _recorder(source: Random, taken: list[Choice]) -> Choose:
    """`choose` while recording. A closure without attribute lookups: a run draws several times for each message."""
    draw, take = source.random, taken.append

    def choose(label: str, bound: int, reached: Sequence[float] | None = None, /) -> int:
        if bound <= 1:
            check(bound == 1, "a choice needs something to choose from")
            return 0
        if reached is None:
            value = int(draw() * bound)
        else:
            value = bisect_right(reached, draw())
            if value >= bound:
                value = bound - 1
        take((label, bound, value))
        return value

    return choose


def _tail(seed: int | None, name: str) -> Choose | None:
    """`choose` for choices that an edited tape lacks; None if they are 0."""
    return None if seed is None else _recorder(Random(f"{seed}/{name}/tail"), [])


class Stream:
    """One source of labelled choices."""

    def __init__(
        self,
        name: str,
        seed: int,
        mode: Mode,
        recorded: Iterable[Choice],
        on_diverged: Callable[[TapeMismatch], None],
        tail_seed: int | None = None,
    ) -> None:
        self.name = name
        self.taken: list[Choice] = []
        self._mode = mode
        self.choose: Choose = _recorder(Random(f"{seed}/{name}"), self.taken) if mode is Mode.RECORD else self._follow
        """Draw a number below a bound; the label describes the choice.

        Uniform, or by the third argument: for each value, the probability that it or a smaller one is drawn.
        """
        self._recorded = list(recorded)
        self._on_diverged = on_diverged
        self._by_label: dict[str, list[int]] = {}
        self._seen: dict[str, int] = {}
        self._draw_tail = _tail(tail_seed, name)
        self.missing = 0
        """Lenient only: choices the tape did not have."""
        if mode is Mode.LENIENT:
            for label, _, value in self._recorded:
                self._by_label.setdefault(label, []).append(value)

    def _follow(self, label: str, bound: int, reached: Sequence[float] | None = None) -> int:
        """`choose` while replaying."""
        if bound <= 1:
            check(bound == 1, "a choice needs something to choose from")
            return 0
        value = self._next(label, bound) if self._mode is Mode.STRICT else self._find(label, bound, reached)
        self.taken.append((label, bound, value))
        return value

    def chance(self, label: str, probability: float) -> bool:
        """True with `probability`. The tape's 0 is False."""
        if probability <= 0.0:
            return False
        return self.choose(label, 2, (1.0 - probability, 1.0)) == 1

    def pick(self, label: str, options: Sequence[_T]) -> _T:
        """One of `options`. The plainest goes first."""
        return options[self.choose(label, len(options))]

    def _next(self, label: str, bound: int) -> int:
        place = len(self.taken)
        if place >= len(self._recorded):
            self._diverge(f"the tape ends, the run draws {label!r} of {bound}")
            return 0
        recorded_label, recorded_bound, value = self._recorded[place]
        if (recorded_label, recorded_bound) != (label, bound):
            self._diverge(f"the tape has {recorded_label!r} of {recorded_bound}, the run draws {label!r} of {bound}")
            return 0
        return value

    def _find(self, label: str, bound: int, reached: Sequence[float] | None) -> int:
        occurrence = self._seen.get(label, 0)
        self._seen[label] = occurrence + 1
        values = self._by_label.get(label, ())
        if occurrence >= len(values):
            self.missing += 1
            return 0 if self._draw_tail is None else self._draw_tail(label, bound, reached)
        return min(values[occurrence], bound - 1)

    def _diverge(self, what: str) -> None:
        self._on_diverged(TapeMismatch(f"out of step at {self.name} choice {len(self.taken)}: {what}"))


class Choices:
    """All streams of one run. They record while they are drawn from."""

    def __init__(self, tape: Tape, mode: Mode, *, on_diverged: Callable[[], None]) -> None:
        self.seed = tape.seed
        self.mode = mode
        self.source = tape
        self.diverged: TapeMismatch | None = None
        self._on_diverged = on_diverged
        self.schedule = array("I")
        self._streams = {
            name: Stream(name, tape.seed, mode, tape.streams.get(name, ()), self.diverge, tape.tail_seed)
            for name in STREAMS
        }
        self.network = self._streams["network"]
        self.faults = self._streams["faults"]
        self.workload = self._streams["workload"]

    def diverge(self, error: TapeMismatch) -> None:
        """The tape does not fit. The run stops after this step, because later choices would be meaningless."""
        if self.diverged is None:
            self.diverged = error
            self._on_diverged()

    def position(self) -> TapePosition:
        """How much of the tape was drawn so far."""
        taken = self._streams
        return len(self.schedule), len(taken["network"].taken), len(taken["faults"].taken), len(taken["workload"].taken)

    def missing(self) -> int:
        """Lenient only: how many choices the tape did not have."""
        return sum(stream.missing for stream in self._streams.values())

    def taken(self, policy: str) -> Tape:
        """The tape of this run so far."""
        return Tape(self.seed, policy, self.schedule[:], {n: list(s.taken) for n, s in self._streams.items()})
