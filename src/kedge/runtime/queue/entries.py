"""One key inside the queue: its state, its failures and its wake-ups.

Neighbours: `queue` moves entries between states, `order` and `delays` hold them. An entry moves nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from kedge.runtime.queue.items import K, KeyState, WaitReason, Wake

if TYPE_CHECKING:
    from kedge.runtime.queue.order import Lane

# A member lookup on an enumeration is slow enough to show in a profile, and every add, get and done does it.
WAITING: KeyState = KeyState.WAITING
READY: KeyState = KeyState.READY
RUNNING: KeyState = KeyState.RUNNING
NO_REASON: WaitReason = WaitReason.NONE


class QueueEntry(Generic[K]):
    """Invariants:

    - A key has at most one entry, and the entry is in exactly one state: WAITING (in `delays`), READY (in one lane of
      `order`), RUNNING (with one worker). So a key never runs twice at once.
    - A key that is queued or running has an entry, and a key without one has nothing left to do. So no add is lost:
      while the key waits it joins that run, and while the key runs it sets `again_s`.
    """

    __slots__ = (
        "added_s",
        "again_reason",
        "again_s",
        "aged",
        "base_priority",
        "begun_s",
        "charged_s",
        "due_s",
        "failures",
        "given",
        "key",
        "lane",
        "last_error",
        "place",
        "priority",
        "ready_s",
        "reason",
        "reserved",
        "state",
        "tenant",
        "ticket",
        "wakes",
        "wakes_dropped",
    )

    due_s: float
    """Set while WAITING: it becomes ready then."""
    ready_s: float
    """Set once it is READY: since when."""
    lane: Lane[K]
    """Set while READY: the lane it is in; while RUNNING: the lane that is charged for the run."""
    place: int
    """Set while RUNNING, as are the fields below: the number of the item that is out. `done` accepts no other."""
    begun_s: float
    charged_s: float
    reserved: bool
    aged: bool
    again_reason: WaitReason
    """Set while `again_s` is."""

    def __init__(self, key: K, tenant: str, priority: int, added_s: float, *, given: bool = False) -> None:
        self.key = key
        self.tenant = tenant
        self.base_priority = priority
        """The priority of its retries and requeues."""
        self.given = given
        """Whether a caller gave the priority; otherwise it is computed from the key for each turn."""
        self.priority = priority
        """The priority of this turn in the queue: the highest of its adds."""
        self.state = WAITING
        self.reason = NO_REASON
        self.ticket = 0
        """Its valid ticket in `delays`; all others of this entry are void. 0 unless WAITING."""
        self.again_s: float | None = None
        """Only while RUNNING: it was added during the run, and is due then."""
        self.added_s = added_s
        self.failures = 0
        self.last_error: BaseException | None = None
        self.wakes: list[Wake] = []
        """The distinct wake-ups since the last run began, bounded."""
        self.wakes_dropped = 0

    def begin_turn(self, priority_of: Callable[[K], int]) -> None:
        """It was handed out: later adds are about its next turn."""
        self.reason = NO_REASON
        self.wakes = []
        self.wakes_dropped = 0
        if not self.given:
            # Computed again: at the first add its object, or the class of that, may not have been known yet.
            self.base_priority = priority_of(self.key)
        self.priority = self.base_priority
