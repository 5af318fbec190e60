"""One key inside the queue: where it stands and what is known of it.

Neighbours: `queue` moves entries between states, `order` and `delays` hold them. An entry moves nothing by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from kedge.runtime.queue.items import K, KeyState, WaitReason, Wake

if TYPE_CHECKING:
    from kedge.runtime.queue.order import Lane


class Entry(Generic[K]):
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

    def __init__(self, key: K, tenant: str, priority: int) -> None:
        self.key = key
        self.tenant = tenant
        self.base_priority = priority
        """What its retries and requeues have."""
        self.priority = priority
        """What this turn in the queue has: the highest that was asked for."""
        self.state = KeyState.WAITING
        self.reason = WaitReason.NONE
        self.due_s = 0.0
        """Only while WAITING: it becomes ready then."""
        self.ticket = 0
        """Its valid ticket in `delays`; others of this entry are void. 0 unless WAITING."""
        self.again_s: float | None = None
        """Only while RUNNING: it was added meanwhile, and is due then."""
        self.again_reason = WaitReason.NONE
        self.added_s = 0.0
        self.ready_s = 0.0
        self.begun_s = 0.0
        self.place = 0
        """Only while RUNNING: the item that is out. `done` takes no other."""
        self.failures = 0
        self.last_error: BaseException | None = None
        self.wakes: list[Wake] = []
        """Since the last run began, each once, bounded."""
        self.wakes_dropped = 0
        self.lane: Lane[K] | None = None
        """While READY the lane it stands in; while RUNNING the one that pays for it."""
        self.charged_s = 0.0
        self.reserved = False
        self.aged = False
