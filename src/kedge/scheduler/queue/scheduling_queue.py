"""Pods that wait for a node: who is next, who waits for what, and what happened meanwhile.

A pod that fitted nowhere names what could help, and is woken by just that; a flush now and then is the safety net.
No I/O. `scheduler` takes pods from it; `placing`, `binder` and `gangs` give them back; `picture` says what happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush

import msgspec

from kedge.api.objects import Object
from kedge.backoff import Backoff
from kedge.env import Env
from kedge.keys import Key
from kedge.metrics import Counter
from kedge.scheduler.queue.events import ANYTHING, NOTHING, ClusterEvent


class QueueStage(StrEnum):
    """Where a pod is. It is in exactly one of them."""

    ACTIVE = "active"
    BACKOFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    IN_FLIGHT = "in flight"


@dataclass(slots=True, eq=False)
class QueuedPod:
    """One pod that has no node yet. Known by its uid: one of the same name is another."""

    pod: Object
    uid: str
    key: Key
    priority: int
    arrived: int
    """Its place among those of its priority; kept through retries, so that nobody overtakes by failing."""
    added_s: float
    since_s: float
    """When it entered its stage."""
    stage: QueueStage = QueueStage.ACTIVE
    attempts: int = 0
    failures: int = 0
    """In a row, for which it has to back off; a wait for room is none."""
    ticket: int = 0
    """Its valid place in a heap."""
    helped_by: ClusterEvent = ANYTHING
    equivalence: Hashable = None
    """Those of one sort fail alike: it is enough that one of them is woken."""
    woken_by: str = "added"
    events_seen: int = 0
    """Which changes it has seen: later ones, while it was in flight, may concern it."""
    gang: tuple[str, str] | None = None
    """Namespace and name of the gang that it is bound with, or not at all."""


QueueingHint = Callable[[QueuedPod], bool]
"""Whether a change could help a pod, beyond its sort: whether what a node now has left is enough, say. It answers alike
for all of one sort, but for a gang: its members may each ask for something else."""


@dataclass(slots=True)
class _EquivalenceClass:
    """Pods that failed alike, in order of coming."""

    pods: dict[str, QueuedPod] = field(default_factory=dict)
    helped_by: int = 0
    """A `ClusterEvent` of all of them: the cluster may have stood in the way of each in another manner."""

    def may_be_unblocked(self, change: int, always: int, hint: QueueingHint | None) -> bool:
        """In plain integers: flags of an enumeration are slow, and this is asked at every bind."""
        if self.helped_by & always:
            return True
        if not self.helped_by & change:
            return False
        first = next(iter(self.pods.values()))
        return hint is None or hint(first) or (first.gang is not None and any(map(hint, self.pods.values())))


class _RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """A change, for those who were in flight."""

    number: int
    change: int
    always: int
    hint: QueueingHint | None
    why: str

    def concerns(self, queued: QueuedPod) -> bool:
        helped_by = int(queued.helped_by)
        if helped_by & self.always:
            return True
        return bool(helped_by & self.change) and (self.hint is None or self.hint(queued))


class SchedulingQueue:
    """All pods of one scheduler that wait.

    Invariants: a pod is in one stage; every pod that waits is in `_pods`; a pod in flight is given back by `failed`,
    `pause`, `unschedulable` or `done`; a change while it was in flight counts as one after it.
    """

    def __init__(self, env: Env, on_ready: Callable[[], None] = lambda: None) -> None:
        self._env = env
        self._limits = env.limits
        self._pods: dict[str, QueuedPod] = {}
        self._active: list[tuple[int, int, int, QueuedPod]] = []
        self._backoff: list[tuple[float, int, QueuedPod]] = []
        self._pauses = Backoff(env.limits.scheduler_backoff_s, env.limits.scheduler_backoff_s_max, jitter=(0.5, 1.0))
        self._unschedulable: dict[Hashable, _EquivalenceClass] = {}
        self._hot: dict[Hashable, None] = {}
        """Sorts of which one was woken: if it finds a place, the next is woken. Somebody is of each of them."""
        self._gangs: dict[tuple[str, str], dict[str, QueuedPod]] = {}
        """Those of `_pods` that are members of each gang, in order of coming."""
        self._tickets = 0
        self._arrivals = 0
        self._events: deque[_RecordedEvent] = deque()
        """What happened while pods are in flight."""
        self._event_count = 0
        self._in_flight: dict[str, QueuedPod] = {}
        self._flushed_s = env.monotonic()
        self._on_ready = on_ready
        """Called when a pod becomes active."""
        gauge = env.metrics.gauge("kedge_scheduler_pending", "Pods without a node, by where they are", ("stage",))
        self._wait_s = env.metrics.histogram("kedge_scheduler_wait_seconds", "Time a pod was active before its attempt")
        self._wakes = env.metrics.counter("kedge_scheduler_wakes_total", "Pods woken, by what", ("what",))
        self._woken: dict[str, Counter] = {}
        for stage in QueueStage:
            gauge.labels(stage.value).set_function(lambda stage=stage: self.count(stage))  # type: ignore[misc]
        env.metrics.gauge("kedge_scheduler_flush_age_seconds", "Since all were last woken").set_function(
            lambda: env.monotonic() - self._flushed_s
        )

    def __len__(self) -> int:
        return len(self._pods)

    def count(self, stage: QueueStage) -> int:
        return sum(each.stage is stage for each in self._pods.values())

    def get(self, uid: str) -> QueuedPod | None:
        return self._pods.get(uid)

    def __iter__(self) -> Iterator[QueuedPod]:
        return iter(tuple(self._pods.values()))

    # -- coming and going --------------------------------------------------------------------------

    def put(self, pod: Object, priority: int, *, gang: str = "") -> None:
        """A pod wants a node, or wants something else than before."""
        uid = pod.uid
        queued = self._pods.get(uid)
        now_s = self._env.monotonic()
        if queued is None:
            self._arrivals += 1
            queued = self._pods[uid] = QueuedPod(pod, uid, pod.key, priority, self._arrivals, now_s, now_s)
            self._join(queued, gang)
            self._activate(queued, now_s, "added")
            return
        queued.pod = pod
        if priority != queued.priority:
            queued.priority = priority
        if gang != (queued.gang[1] if queued.gang is not None else ""):
            self._quit(queued)
            self._join(queued, gang)
        self.wake(uid, "changed itself")

    def _join(self, queued: QueuedPod, name: str) -> None:
        if name:
            gang = queued.gang = (queued.key.namespace, name)
            self._gangs.setdefault(gang, {})[queued.uid] = queued
            self.notify(ClusterEvent.GANG, "a member of its gang came", lambda each: each.gang == gang)

    def _quit(self, queued: QueuedPod) -> None:
        if queued.gang is not None:
            members = self._gangs.get(queued.gang, {})
            members.pop(queued.uid, None)
            if not members:
                self._gangs.pop(queued.gang, None)
            queued.gang = None

    def refresh(self, pod: Object) -> None:
        """A newer version of a pod that asks for the same."""
        queued = self._pods.get(pod.uid)
        if queued is not None:
            queued.pod = pod

    def remove(self, uid: str) -> bool:
        """It has a node, or is gone."""
        queued = self._pods.get(uid)
        if queued is None:
            return False
        self._leave(queued)
        self._forget(queued)
        if self._hot:
            self._wake_next(queued)
        return True

    def _forget(self, queued: QueuedPod) -> None:
        self._pods.pop(queued.uid, None)
        gang = queued.gang
        if gang is not None:
            self._quit(queued)
            queued.gang = gang  # whoever still has it in hand asks

    # -- taking ------------------------------------------------------------------------------------

    def take(self) -> QueuedPod | None:
        """The next pod to try. Give it back."""
        now_s = self._env.monotonic()
        if self._backoff:
            self._promote(now_s)
        while self._active:
            _, _, ticket, queued = heappop(self._active)
            if queued.ticket != ticket or queued.stage is not QueueStage.ACTIVE:
                continue
            self._wait_s.observe(now_s - queued.since_s)
            self._start_flight(queued)
            return queued
        return None

    def take_gang(self, queued: QueuedPod) -> list[QueuedPod]:
        """The members of the gang of a pod that was taken, and that are not in flight otherwise. Give each back."""
        if queued.gang is None:
            return [queued]
        members = [queued]
        for each in self._gangs.get(queued.gang, {}).values():
            if each is not queued and each.stage is not QueueStage.IN_FLIGHT:
                self._leave(each)
                self._start_flight(each)
                members.append(each)
        return sorted(members, key=lambda each: each.arrived)

    def _start_flight(self, queued: QueuedPod) -> None:
        queued.stage, queued.ticket = QueueStage.IN_FLIGHT, 0
        queued.attempts += 1
        queued.events_seen = self._event_count
        self._in_flight[queued.uid] = queued

    def next_s(self) -> float | None:
        """When the next pod becomes active by time alone."""
        while self._backoff and self._backoff[0][2].ticket != self._backoff[0][1]:
            heappop(self._backoff)
        return self._backoff[0][0] if self._backoff else None

    def done(self, queued: QueuedPod) -> None:
        """It has a node. The next of its sort may have more luck too."""
        if self._is_current(queued):
            self._end_flight(queued)
            self._forget(queued)
        self._wake_next(queued)

    def failed(self, queued: QueuedPod, *, pause: bool = True) -> None:
        """The attempt came to nothing by no fault of the cluster's state: try again, after a pause that grows."""
        if not self._is_current(queued):
            return
        self._end_flight(queued)
        now_s = self._env.monotonic()
        if not pause:
            self._activate(queued, now_s, "tried again")
            return
        queued.failures += 1
        self._start_backoff(queued, now_s)
        self._wake_next(queued)  # what kept it from its place need not keep the others

    def pause(self, queued: QueuedPod, for_s: float, why: str) -> None:
        """It is not to be tried for so long, unless it changes itself."""
        if self._is_current(queued):
            self._end_flight(queued)
            now_s = self._env.monotonic()
            self._wait_until(queued, now_s, now_s + for_s, why)
            self._wake_next(queued)

    def unschedulable(self, queued: QueuedPod, helped_by: ClusterEvent, equivalence: Hashable) -> None:
        """It fits nowhere now. It waits for what could help, unless that has happened since it was taken."""
        if not self._is_current(queued):
            return
        now_s = self._env.monotonic()
        before, queued.equivalence, queued.helped_by = queued.equivalence, equivalence, helped_by
        seen = queued.events_seen
        missed = next((each for each in self._events if each.number > seen and each.concerns(queued)), None)
        self._end_flight(queued)
        if before != equivalence and before in self._hot:
            self._wake_one(before, "another like it is so no more")
        if missed is not None:
            queued.failures += 1
            self._start_backoff(queued, now_s, missed.why)
            return
        queued.failures = 0  # it waits for something now, and is not kept waiting
        self._hot.pop(equivalence, None)
        queued.stage, queued.since_s = QueueStage.UNSCHEDULABLE, now_s
        sort = self._unschedulable.setdefault(equivalence, _EquivalenceClass())
        sort.pods[queued.uid] = queued
        sort.helped_by |= int(helped_by)

    # -- waking ------------------------------------------------------------------------------------

    def notify(
        self, change: ClusterEvent, why: str, hint: QueueingHint | None = None, *, always: ClusterEvent = NOTHING
    ) -> None:
        """Something happened that may help: wake those that it concerns, one of each sort.

        `helps` is asked of those that `change` could help, but not of those that `always` could: they are woken.
        """
        self._record_event(change, always, hint, why)
        if not self._unschedulable:
            return
        change_bits, always_bits = int(change), int(always)
        for equivalence, sort in tuple(self._unschedulable.items()):
            if sort.may_be_unblocked(change_bits, always_bits, hint):
                self._hot[equivalence] = None
                self._wake_one(equivalence, why)

    def wake(self, uid: str, why: str) -> None:
        """Something concerns one pod alone, whatever it waits for: try it."""
        queued = self._pods.get(uid)
        if queued is None:
            return
        if queued.stage is QueueStage.IN_FLIGHT:
            self._record_event(ANYTHING, ANYTHING, None, why, only=queued)
        else:
            self._activate(queued, self._env.monotonic(), why)

    def retry(self, uid: str) -> None:
        """What was begun for a pod that waits has failed: try it again, after a pause that grows."""
        queued = self._pods.get(uid)
        if queued is not None and queued.stage is QueueStage.UNSCHEDULABLE:
            self._leave(queued)
            queued.failures += 1
            self._start_backoff(queued, self._env.monotonic())

    def flush(self) -> int:
        """The safety net: wake all that have waited for long. How many there were."""
        now_s = self._env.monotonic()
        if now_s - self._flushed_s < self._limits.scheduler_flush_s / 2:
            return 0
        self._flushed_s = now_s
        old_s = now_s - self._limits.scheduler_flush_s
        old = [each for sort in self._unschedulable.values() for each in sort.pods.values() if each.since_s <= old_s]
        for queued in old:
            self._activate(queued, now_s, "flush")
        return len(old)

    # -- private -----------------------------------------------------------------------------------

    def _wake_one(self, equivalence: Hashable, why: str) -> None:
        sort = self._unschedulable.get(equivalence)
        if sort is None:
            self._hot.pop(equivalence, None)  # nobody of it waits for his turn, and whoever comes to it has just failed
        else:
            best = min(sort.pods.values(), key=lambda each: (-each.priority, each.arrived))
            self._activate(best, self._env.monotonic(), why)

    def _wake_next(self, queued: QueuedPod) -> None:
        """One that was woken for all of its sort is out of the way: the next has its turn."""
        if queued.equivalence in self._hot:
            self._wake_one(queued.equivalence, "another like it found a place, or left")

    def _record_event(
        self,
        change: ClusterEvent,
        always: ClusterEvent,
        hint: QueueingHint | None,
        why: str,
        *,
        only: QueuedPod | None = None,
    ) -> None:
        if not self._in_flight:
            return
        if only is not None:
            hint, always = (lambda each: each is only), NOTHING
        self._event_count += 1
        self._events.append(_RecordedEvent(self._event_count, int(change), int(always), hint, why))
        if len(self._events) > self._limits.scheduler_changes_max:
            # Too many to keep apart: whatever is in flight has to look again.
            self._events.clear()
            self._events.append(
                _RecordedEvent(self._event_count, int(ANYTHING), int(ANYTHING), None, "too much happened")
            )

    def _activate(self, queued: QueuedPod, now_s: float, why: str) -> None:
        self._leave(queued)
        self._tickets += 1
        queued.stage, queued.ticket, queued.since_s, queued.woken_by = QueueStage.ACTIVE, self._tickets, now_s, why
        heappush(self._active, (-queued.priority, queued.arrived, self._tickets, queued))
        count = self._woken.get(why)
        if count is None:
            count = self._woken[why] = self._wakes.labels(why)
        count.inc()
        self._on_ready()

    def _start_backoff(self, queued: QueuedPod, now_s: float, why: str = "backoff over") -> None:
        self._wait_until(queued, now_s, now_s + self._pauses.pause_s(queued.failures, self._env.random), why)

    def _wait_until(self, queued: QueuedPod, now_s: float, until_s: float, why: str) -> None:
        self._tickets += 1
        queued.stage, queued.ticket, queued.since_s = QueueStage.BACKOFF, self._tickets, now_s
        queued.woken_by = why
        heappush(self._backoff, (until_s, self._tickets, queued))
        self._on_ready()  # whoever sleeps until the next one is due may have to wake earlier

    def _promote(self, now_s: float) -> None:
        while self._backoff and self._backoff[0][0] <= now_s:
            _, ticket, queued = heappop(self._backoff)
            if queued.ticket == ticket and queued.stage is QueueStage.BACKOFF:
                self._activate(queued, now_s, queued.woken_by)

    def _is_current(self, queued: QueuedPod) -> bool:
        """False for a pod that went, or was replaced by its namesake, while it was in flight."""
        return self._pods.get(queued.uid) is queued

    def _end_flight(self, queued: QueuedPod) -> None:
        if self._in_flight.get(queued.uid) is queued:
            del self._in_flight[queued.uid]
        if not self._in_flight:
            self._events.clear()
        else:
            oldest = next(iter(self._in_flight.values())).events_seen  # the first taken has seen least
            while self._events and self._events[0].number <= oldest:
                self._events.popleft()

    def _leave(self, queued: QueuedPod) -> None:
        """Take it out of wherever it is."""
        queued.ticket = 0
        if queued.stage is QueueStage.UNSCHEDULABLE:
            sort = self._unschedulable[queued.equivalence]
            del sort.pods[queued.uid]
            if not sort.pods:
                del self._unschedulable[queued.equivalence]
        elif queued.stage is QueueStage.IN_FLIGHT:
            self._end_flight(queued)
