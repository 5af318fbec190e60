"""Data of a work queue: wake-ups, items, outcomes, the effects of a run, reports and statistics. All of it is frozen.

`queue` makes and takes it; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from kedge.errors import KedgeError
from kedge.keys import Key

K = TypeVar("K", bound=Hashable)


class QueueClosed(KedgeError):
    """The queue hands out nothing more. Finish the item you hold, call `done`, and stop."""


def namespace_of(key: object) -> str:
    """The tenant of an object's key."""
    return key.namespace if isinstance(key, Key) else ""


def no_priority(_: object) -> int:
    return 0


class Wake(NamedTuple):
    """Why a key was added. It goes to the decision record and the loop detector; no logic depends on it."""

    what: str
    """The object that changed, without its version, so that the same cause has the same name each time."""
    writer: str = ""
    """The controller that changed it, where that is known. The queue's own name stands for its own controller."""


RETRY = Wake("retry")
"""A failed run's backoff ended."""
REQUEUE = Wake("requeue")
"""A run requested a repeat after a delay."""
SPIN = Wake("requeue at once")
"""A run requested a repeat with next to no delay: a loop, unless it makes progress."""
FLOOR = Wake("own writes seen")
"""The caches have received the writes of the key, and it was woken while it waited for them."""
RESYNC = Wake("resync")
"""The safety net: nothing is known to have changed."""


class Item(NamedTuple, Generic[K]):
    """One key, handed to one worker. Return it with `done`, however the run ended."""

    key: K
    tenant: str
    priority: int
    attempt: int
    """1 for the first run, and one more after each failure in a row."""
    wakes: tuple[Wake, ...]
    """The wake-ups since its last run, oldest first."""
    wakes_dropped: int
    """How many distinct wake-ups were dropped at the bound."""
    added_s: float
    """Monotonic time of the oldest add that this run answers."""
    ready_s: float
    """When its delay, if it had one, was over."""
    begun_s: float
    place: int
    """Its place in the order of dequeueing: 1 for the first item this queue handed out."""
    aged: bool
    """Whether it was handed out before keys of a higher priority because it had waited too long."""

    @property
    def waited_s(self) -> float:
        """How long it was ready before a worker took it."""
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
class ItemOutcome:
    """How a run ended. A key that was woken during its run is run again in any case."""

    kind: OutcomeKind
    error: BaseException | None = None
    delay_s: float = 0.0

    @classmethod
    def success(cls) -> ItemOutcome:
        """Nothing is left to do until something changes. Resets the backoff."""
        return SUCCESS

    @classmethod
    def failure(cls, error: BaseException) -> ItemOutcome:
        """Try again after a backoff that grows with each failure in a row."""
        return cls(OutcomeKind.FAILURE, error)

    @classmethod
    def requeue(cls, *, delay_s: float) -> ItemOutcome:
        """The run succeeded; repeat it after a delay. Resets the backoff."""
        return cls(OutcomeKind.REQUEUE, None, delay_s)

    @classmethod
    def terminal(cls, error: BaseException) -> ItemOutcome:
        """It cannot succeed in the current state: no retry until something changes. The error stays visible."""
        return cls(OutcomeKind.TERMINAL, error)


SUCCESS = ItemOutcome(OutcomeKind.SUCCESS)


class RunEffects(NamedTuple):
    """The effects of a run, which distinguish work from a loop. Fingerprints are of content, never of versions."""

    changed: bool
    """Whether any write changed an object."""
    wrote: frozenset[tuple[Hashable, Hashable]] = frozenset()
    """Each object written, with a fingerprint of its new content."""
    saw: Hashable = None
    """A fingerprint of the inputs, own writes excluded. A fingerprint not seen lately means that there was work."""


class KeyState(Enum):
    WAITING = "waiting"
    """Not yet due: a delayed add, a backoff, a requeue, or a loop that is throttled."""
    READY = "ready"
    """Due, and waiting for a worker."""
    RUNNING = "running"
    """With a worker."""
    IDLE = "idle"
    """Not queued; its last runs are remembered."""


class WaitReason(Enum):
    NONE = ""
    QUEUED = "waiting for a worker"
    DELAYED = "added with a delay"
    BACKOFF = "backing off after a failure"
    REQUEUE = "requeued by its last run"
    RESYNC = "resync, spread out"
    LOOPING = "throttled, because it runs in a loop"
    FLOOR = "waiting for the caches to receive its writes"


class LoopKind(Enum):
    FUTILE = "runs without changing anything"
    OSCILLATION = "writes what it has written before"
    ECHO = "is woken only by its own writes, and writes the same places again"


@dataclass(frozen=True, slots=True)
class Loop(Generic[K]):
    """A key that runs in a loop, and the wake-up that keeps it there."""

    key: K
    kind: LoopKind
    woken_by: Wake
    runs: int
    """Runs in a row that this wake-up caused without progress."""
    hold_s: float
    """How long the next wake-up of this kind is held back. Others are not."""
    holds: int
    """How often it was held back: 1 when the loop is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReport(Generic[K]):
    """Everything the queue knows about one key."""

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
    """Its last run was terminal; only a change wakes it."""
    loop: Loop[K] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatistics(Generic[K]):
    """The whole queue at one moment."""

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
    """Adds rejected because the queue was full; each one makes a resync due."""
    resync_owed: bool
    closed: bool
    loops: tuple[Loop[K], ...] = field(default=())
