"""What goes in and out of a work queue: wake-ups, items, outcomes, facts about a run, and reports about a key.

All of it is frozen data. `queue` makes it and takes it; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Wake(NamedTuple):
    """Why a key was added. Goes to the record and to the detector of loops, never to the logic."""

    what: str
    """What changed: the object, not its version, so that the same cause has the same name each time."""
    writer: str = ""
    """Who changed it, where that is known. The queue's own name stands for its own controller."""


RETRY = Wake("retry")
"""A failed run's backoff ended."""
REQUEUE = Wake("requeue")
"""A run asked to be repeated after a pause."""
SPIN = Wake("requeue at once")
"""A run asked to be repeated with next to no pause: a loop, unless it gets somewhere."""
FLOOR = Wake("own writes seen")
"""The caches have brought what the key wrote, and it was woken meanwhile."""
RESYNC = Wake("resync")
"""The safety net: nothing is known to have changed."""


class Item(NamedTuple, Generic[K]):
    """One key, handed to one worker. Give it back with `done`, whatever happened."""

    key: K
    tenant: str
    priority: int
    attempt: int
    """1 for the first run, and one more after each failure in a row."""
    wakes: tuple[Wake, ...]
    """What woke it since its last run, oldest first."""
    wakes_dropped: int
    """Different ones past the bound, of which only the number is known."""
    added_s: float
    """Monotonic time of the oldest add that this run answers."""
    ready_s: float
    """When its delay, if it had one, was over."""
    begun_s: float
    place: int
    """Its place in the order of dequeueing: 1 for the first item this queue handed out."""
    aged: bool
    """Whether it was handed out before keys of a higher priority, because it had waited too long."""

    @property
    def waited_s(self) -> float:
        """How long it stood ready before a worker took it."""
        return self.begun_s - self.ready_s

    @property
    def delayed_s(self) -> float:
        """How long it was held back on purpose: backoff, requeue, a delayed add."""
        return self.ready_s - self.added_s


class OutcomeKind(Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    REQUEUE = "requeue"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended. A key woken while it ran is run again whatever this says."""

    kind: OutcomeKind
    error: BaseException | None = None
    delay_s: float = 0.0

    @classmethod
    def success(cls) -> RunOutcome:
        """Nothing is left to do until something changes. Backoff is forgotten."""
        return SUCCESS

    @classmethod
    def failure(cls, error: BaseException) -> RunOutcome:
        """Try again after a pause that grows with each failure in a row."""
        return cls(OutcomeKind.FAILURE, error)

    @classmethod
    def requeue(cls, *, delay_s: float) -> RunOutcome:
        """It went well; look again after a pause. Backoff is forgotten."""
        return cls(OutcomeKind.REQUEUE, None, delay_s)

    @classmethod
    def terminal(cls, error: BaseException) -> RunOutcome:
        """It cannot succeed as things stand: no retry until something changes. The error stays visible."""
        return cls(OutcomeKind.TERMINAL, error)


SUCCESS = RunOutcome(OutcomeKind.SUCCESS)


class RunEffects(NamedTuple):
    """What a run did, so that a loop can be told from work. Fingerprints are of content, never of versions."""

    changed: bool
    """Whether anything was written that made a difference."""
    wrote: frozenset[tuple[Hashable, Hashable]] = frozenset()
    """Each target written, with a fingerprint of what was written to it."""
    saw: Hashable = None
    """A fingerprint of the inputs, own writes left out. One not seen lately means that there was something to do."""


class KeyState(Enum):
    WAITING = "waiting"
    """Not yet due: a delayed add, a backoff, a requeue, or a loop being slowed."""
    READY = "ready"
    """Due, and in line for a worker."""
    RUNNING = "running"
    """With a worker."""
    IDLE = "idle"
    """Not queued, and remembered for what it did."""


class WaitReason(Enum):
    NONE = ""
    QUEUED = "in line for a worker"
    DELAYED = "added with a delay"
    BACKOFF = "backing off after a failure"
    REQUEUE = "asked to be looked at later"
    RESYNC = "resync, spread out"
    LOOPING = "slowed, because it runs in a loop"
    FLOOR = "waiting for the caches to bring what it wrote"


class LoopKind(Enum):
    FUTILE = "runs without changing anything"
    OSCILLATION = "writes what it has written before"
    ECHO = "is woken only by its own writes, and writes the same places again"


@dataclass(frozen=True, slots=True)
class Loop(Generic[K]):
    """A key caught in a loop, and what keeps waking it."""

    key: K
    kind: LoopKind
    woken_by: Wake
    runs: int
    """Runs in a row that this wake-up caused for nothing."""
    hold_s: float
    """How long the next wake-up of this sort is held back. Others are not."""
    holds: int
    """How often that was done: 1 when the loop is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReport(Generic[K]):
    """Everything the queue knows of one key."""

    key: K
    state: KeyState
    tenant: str
    priority: int
    failures: int
    """In a row."""
    wait_reason: WaitReason
    next_run_s: float | None
    """Monotonic time before which it will not run; None if it is running, or if nothing is planned."""
    age_s: float
    """Since it was added; for a running key, since it was handed out."""
    woken_again: bool
    """It was added while it runs, and will run again."""
    wakes: tuple[Wake, ...]
    last_error: BaseException | None
    terminal: bool
    """Its last run ended for good; only a change wakes it."""
    loop: Loop[K] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics(Generic[K]):
    """One look at the whole queue."""

    keys: int
    ready: int
    waiting: int
    running: int
    failing: int
    """Keys whose last run failed."""
    ready_by_priority: Mapping[int, int]
    ready_by_tenant: Mapping[str, int]
    running_by_tenant: Mapping[str, int]
    oldest_ready_s: float
    """How long the key that has been ready longest has waited."""
    adds: int
    gets: int
    aged: int
    """Items handed out before a higher priority because they had waited too long."""
    refused: int
    """Adds refused because the queue was full; each time a resync is owed."""
    resync_owed: bool
    closed: bool
    loops: tuple[Loop[K], ...] = field(default=())
