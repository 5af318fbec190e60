"""The scheduling queue: pods without a node, ordered by priority and arrival, with backoff and wake-ups by event.

An unschedulable pod waits for the events that its failed filters name; a periodic flush is the safety net. No I/O.
`scheduler` takes pods; the scheduling cycle and the binder return them; `cluster_state` and `cache_follower` notify.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush

import msgspec

from kedge.api.objects import Object
from kedge.backoff import Backoff
from kedge.env import Env
from kedge.keys import Key
from kedge.metrics import Counter
from kedge.observe.records import WakeCause
from kedge.runtime.cache import CacheChange
from kedge.scheduler.queue.events import ANYTHING, NOTHING, ClusterEvent

_SWEEP_MIN = 64
"""Below this a sweep costs more than the void entries of a heap do."""


class QueueStage(StrEnum):
    """The stage of a pod: exactly one at a time."""

    ACTIVE = "active"
    BACKOFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    IN_FLIGHT = "in flight"


@dataclass(slots=True, eq=False)
class QueuedPod:
    """A pod without a node. Its uid identifies it: a pod of the same name may be another."""

    pod: Object
    uid: str
    key: Key
    priority: int
    arrived: int
    """Its order among pods of its priority. Kept through retries, so a failure does not change the order."""
    added_s: float
    since_s: float
    """When it entered its stage."""
    stage: QueueStage = QueueStage.ACTIVE
    attempts: int = 0
    failures: int = 0
    """In a row; they set the backoff. An unschedulable attempt does not count."""
    ticket: int = 0
    """The ticket of its valid heap entry. Entries with another ticket are skipped."""
    unblocked_by: ClusterEvent = ANYTHING
    equivalence: Hashable = None
    """Its equivalence class: pods of one class fail for the same reason, so only one is woken."""
    woken_by: str = "added"
    cause: WakeCause | None = None
    """The change of an object behind `woken_by`, for the record. Nothing depends on it."""
    events_seen: int = 0
    """The number of the last event before its attempt. Later events may unblock it."""
    gang: tuple[str, str] | None = None
    """Namespace and name of its gang: all members are bound, or none."""


QueueingHint = Callable[[QueuedPod], bool]
"""Whether an event may unblock a pod: for example, whether a node now has enough free resources. The answer is the same
for a whole equivalence class, except for a gang: its members may have different requests."""


@dataclass(slots=True)
class _EquivalenceClass:
    """Unschedulable pods that failed for the same reason, in order of arrival."""

    pods: dict[str, QueuedPod] = field(default_factory=dict)
    unblocked_by: int = 0
    """The events that may unblock any of them, as an integer."""

    def may_be_unblocked(self, change: int, always: int, hint: QueueingHint | None) -> bool:
        """In plain integers: enum flags are slow, and every bind calls this."""
        if self.unblocked_by & always:
            return True
        if not self.unblocked_by & change:
            return False
        first = next(iter(self.pods.values()))
        return hint is None or hint(first) or (first.gang is not None and any(map(hint, self.pods.values())))


class _RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, kept for pods whose attempt was in flight."""

    number: int
    change: int
    always: int
    hint: QueueingHint | None
    why: str
    cause: WakeCause | None

    def concerns(self, queued: QueuedPod) -> bool:
        unblocked_by = int(queued.unblocked_by)
        if unblocked_by & self.always:
            return True
        return bool(unblocked_by & self.change) and (self.hint is None or self.hint(queued))


class SchedulingQueue:
    """The pending pods of one scheduler.

    Invariants: a pod is in one stage; every pending pod is in `_pods`; `failed`, `pause`, `unschedulable` or `done`
    returns a pod in flight; an event during its attempt has the same effect as one after it.
    """

    def __init__(self, env: Env, on_ready: Callable[[], None] = lambda: None) -> None:
        self._env = env
        self._limits = env.limits
        self._pods: dict[str, QueuedPod] = {}
        self._active: list[tuple[int, int, int, QueuedPod]] = []
        """A heap, as is `_backoff`. A standby takes nothing from it: entries that became void are swept out."""
        self._backoff: list[tuple[float, int, QueuedPod]] = []
        self._pauses = Backoff(env.limits.scheduler_backoff_s, env.limits.scheduler_backoff_s_max, jitter=(0.5, 1.0))
        self._unschedulable: dict[Hashable, _EquivalenceClass] = {}
        self._probed: dict[Hashable, None] = {}
        """Classes of which one pod was woken. If it is bound, the next is woken. No class in it is empty."""
        self._gangs: dict[tuple[str, str], dict[str, QueuedPod]] = {}
        """The members of each gang that are in `_pods`, in order of arrival."""
        self._tickets = 0
        self._arrivals = 0
        self._events: deque[_RecordedEvent] = deque()
        """The events since the oldest attempt in flight began."""
        self._event_count = 0
        self._in_flight: dict[str, QueuedPod] = {}
        self._flushed_s = env.monotonic()
        self._on_ready = on_ready
        """Called when a pod becomes active."""
        self.change: CacheChange | None = None
        """The change that is being applied, set by `cache_follower`: wake-ups meanwhile are caused by it."""
        gauge = env.metrics.gauge("kedge_scheduler_pending", "Pods without a node, by stage", ("stage",))
        self._wait_s = env.metrics.histogram("kedge_scheduler_wait_seconds", "Time a pod was active before its attempt")
        self._wakes = env.metrics.counter("kedge_scheduler_wakes_total", "Pods woken, by reason", ("what",))
        self._woken: dict[str, Counter] = {}
        for stage in QueueStage:
            gauge.labels(stage.value).set_function(lambda stage=stage: self.count(stage))  # type: ignore[misc]
        env.metrics.gauge("kedge_scheduler_flush_age_seconds", "Time since the last flush").set_function(
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

    # -- adding and removing -----------------------------------------------------------------------

    def put(self, pod: Object, priority: int, *, gang: str = "") -> None:
        """Add a pod, or a new version of it whose request differs."""
        uid = pod.uid
        queued = self._pods.get(uid)
        now_s = self._env.monotonic()
        if queued is None:
            self._arrivals += 1
            queued = self._pods[uid] = QueuedPod(pod, uid, pod.key, priority, self._arrivals, now_s, now_s)
            self._join_gang(queued, gang)
            self._activate(queued, now_s, "added")
            return
        queued.pod = pod
        if priority != queued.priority:
            queued.priority = priority
        if gang != (queued.gang[1] if queued.gang is not None else ""):
            self._leave_gang(queued)
            self._join_gang(queued, gang)
        self.wake(uid, "changed itself")

    def _join_gang(self, queued: QueuedPod, name: str) -> None:
        if name:
            gang = queued.gang = (queued.key.namespace, name)
            self._gangs.setdefault(gang, {})[queued.uid] = queued
            self.notify(ClusterEvent.GANG, "a member of its gang was added", lambda each: each.gang == gang)

    def _leave_gang(self, queued: QueuedPod) -> None:
        if queued.gang is not None:
            members = self._gangs.get(queued.gang, {})
            members.pop(queued.uid, None)
            if not members:
                self._gangs.pop(queued.gang, None)
            queued.gang = None

    def refresh(self, pod: Object) -> None:
        """Set a new version of a pod whose request is the same."""
        queued = self._pods.get(pod.uid)
        if queued is not None:
            queued.pod = pod

    def remove(self, uid: str) -> bool:
        """It has a node, or is gone."""
        queued = self._pods.get(uid)
        if queued is None:
            return False
        self._leave_stage(queued)
        self._forget(queued)
        if self._probed:
            self._wake_next(queued)
        return True

    def _forget(self, queued: QueuedPod) -> None:
        self._pods.pop(queued.uid, None)
        gang = queued.gang
        if gang is not None:
            self._leave_gang(queued)
            queued.gang = gang  # an attempt in flight still reads it

    # -- taking ------------------------------------------------------------------------------------

    def take(self) -> QueuedPod | None:
        """The next pod to try. The caller returns it."""
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
        """A taken pod and the other members of its gang that are not in flight. The caller returns each."""
        if queued.gang is None:
            return [queued]
        members = [queued]
        for each in self._gangs.get(queued.gang, {}).values():
            if each is not queued and each.stage is not QueueStage.IN_FLIGHT:
                self._leave_stage(each)
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
        """It has a node. The next pod of its class may fit too."""
        if self._is_current(queued):
            self._end_flight(queued)
            self._forget(queued)
        self._wake_next(queued)

    def failed(self, queued: QueuedPod, *, pause: bool = True) -> None:
        """The attempt failed for a reason other than the cluster's state: retry after a backoff."""
        if not self._is_current(queued):
            return
        self._end_flight(queued)
        now_s = self._env.monotonic()
        if not pause:
            self._activate(queued, now_s, "tried again")
            return
        queued.failures += 1
        self._start_backoff(queued, now_s)
        self._wake_next(queued)  # the failure may be its own: others of its class may fit

    def pause(self, queued: QueuedPod, for_s: float, why: str) -> None:
        """Do not try it for this long, unless the pod itself changes."""
        if self._is_current(queued):
            self._end_flight(queued)
            now_s = self._env.monotonic()
            self._wait_until(queued, now_s, now_s + for_s, why)
            self._wake_next(queued)

    def unschedulable(
        self, queued: QueuedPod, unblocked_by: ClusterEvent, equivalence: Hashable, *, preempts: bool = False
    ) -> None:
        """No node is feasible. It waits for these events, unless one has happened since it was taken.

        If it preempts, or waits for its victims, others of its class need not fail: the next one is woken.
        """
        if not self._is_current(queued):
            return
        now_s = self._env.monotonic()
        before, queued.equivalence, queued.unblocked_by = queued.equivalence, equivalence, unblocked_by
        seen = queued.events_seen
        missed = next((each for each in self._events if each.number > seen and each.concerns(queued)), None)
        self._end_flight(queued)
        if before != equivalence and before in self._probed:
            self._wake_one(before, "another pod left its class")
        if missed is not None:
            queued.failures += 1
            self._start_backoff(queued, now_s, missed.why, missed.cause)
            return
        queued.failures = 0  # it waits for an event, not for a backoff
        if not preempts or not self._wake_later(queued):
            self._probed.pop(equivalence, None)
        queued.stage, queued.since_s = QueueStage.UNSCHEDULABLE, now_s
        members = self._unschedulable.setdefault(equivalence, _EquivalenceClass())
        members.pods[queued.uid] = queued
        members.unblocked_by |= int(unblocked_by)

    # -- waking ------------------------------------------------------------------------------------

    def notify(
        self, change: ClusterEvent, why: str, hint: QueueingHint | None = None, *, always: ClusterEvent = NOTHING
    ) -> None:
        """Wake one pod of each equivalence class that the events may unblock.

        For events in `change`, `hint` decides; pods that wait for an event in `always` are woken without it.
        """
        self._record_event(change, always, hint, why)
        if not self._unschedulable:
            return
        change_bits, always_bits = int(change), int(always)
        for equivalence, members in tuple(self._unschedulable.items()):
            if members.may_be_unblocked(change_bits, always_bits, hint):
                self._probed[equivalence] = None
                self._wake_one(equivalence, why)

    def wake(self, uid: str, why: str) -> None:
        """Try one pod now, whatever events it waits for."""
        queued = self._pods.get(uid)
        if queued is None:
            return
        if queued.stage is QueueStage.IN_FLIGHT:
            self._record_event(ANYTHING, ANYTHING, None, why, only=queued)
        else:
            self._activate(queued, self._env.monotonic(), why)

    def retry(self, uid: str) -> None:
        """Preemption for an unschedulable pod has failed: retry the pod after a backoff."""
        queued = self._pods.get(uid)
        if queued is not None and queued.stage is QueueStage.UNSCHEDULABLE:
            self._leave_stage(queued)
            queued.failures += 1
            self._start_backoff(queued, self._env.monotonic())

    def flush(self) -> int:
        """The safety net: wake every pod that was unschedulable for long. Returns how many."""
        now_s = self._env.monotonic()
        if now_s - self._flushed_s < self._limits.scheduler_flush_s / 2:
            return 0
        self._flushed_s = now_s
        old_s = now_s - self._limits.scheduler_flush_s
        old = [
            each for members in self._unschedulable.values() for each in members.pods.values() if each.since_s <= old_s
        ]
        for queued in old:
            self._activate(queued, now_s, "flush")
        return len(old)

    # -- private -----------------------------------------------------------------------------------

    def _wake_one(self, equivalence: Hashable, why: str) -> None:
        members = self._unschedulable.get(equivalence)
        if members is None:
            self._probed.pop(equivalence, None)  # empty; a pod that joins the class has just failed
        else:
            best = min(members.pods.values(), key=lambda each: (-each.priority, each.arrived))
            self._activate(best, self._env.monotonic(), why)

    def _wake_next(self, queued: QueuedPod) -> None:
        """The pod that was woken for its class is bound or gone: wake the next."""
        if queued.equivalence in self._probed:
            self._wake_one(queued.equivalence, "another pod of its class was bound, or left")

    def _wake_later(self, queued: QueuedPod) -> bool:
        """Wake the pod of its class that arrived next, if the class is probed: those before it have been woken."""
        members = self._unschedulable.get(queued.equivalence) if queued.equivalence in self._probed else None
        later = [each for each in members.pods.values() if each.arrived > queued.arrived] if members is not None else []
        if later:
            best = min(later, key=lambda each: each.arrived)
            self._activate(best, self._env.monotonic(), "another pod of its class preempts")
        return bool(later)

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
        self._events.append(_RecordedEvent(self._event_count, int(change), int(always), hint, why, self._cause()))
        if len(self._events) > self._limits.scheduler_changes_max:
            # Too many to keep: every pod in flight has to be tried again.
            self._events.clear()
            self._events.append(
                _RecordedEvent(self._event_count, int(ANYTHING), int(ANYTHING), None, "too many events", None)
            )

    def _cause(self) -> WakeCause | None:
        change = self.change
        if change is None:
            return None
        # A deletion has no writer: the writer of the last version would be blamed.
        return WakeCause(change.key, change.revision, "" if change.new is None else change.new.origin.writer)

    def _activate(self, queued: QueuedPod, now_s: float, why: str) -> None:
        self._leave_stage(queued)
        queued.cause = self._cause()
        self._tickets += 1
        queued.stage, queued.ticket, queued.since_s, queued.woken_by = QueueStage.ACTIVE, self._tickets, now_s, why
        heappush(self._active, (-queued.priority, queued.arrived, self._tickets, queued))
        if len(self._active) > _SWEEP_MIN + 2 * len(self._pods):
            self._active = [each for each in self._active if each[3].ticket == each[2]]
            heapify(self._active)
        count = self._woken.get(why)
        if count is None:
            count = self._woken[why] = self._wakes.labels(why)
        count.inc()
        self._on_ready()

    def _start_backoff(
        self, queued: QueuedPod, now_s: float, why: str = "backoff over", cause: WakeCause | None = None
    ) -> None:
        self._wait_until(queued, now_s, now_s + self._pauses.pause_s(queued.failures, self._env.random), why)
        queued.cause = cause

    def _wait_until(self, queued: QueuedPod, now_s: float, until_s: float, why: str) -> None:
        self._tickets += 1
        queued.stage, queued.ticket, queued.since_s = QueueStage.BACKOFF, self._tickets, now_s
        queued.woken_by, queued.cause = why, None
        heappush(self._backoff, (until_s, self._tickets, queued))
        if len(self._backoff) > _SWEEP_MIN + 2 * len(self._pods):
            self._backoff = [each for each in self._backoff if each[2].ticket == each[1]]
            heapify(self._backoff)
        self._on_ready()  # the loop may have to wake earlier than it planned

    def _promote(self, now_s: float) -> None:
        while self._backoff and self._backoff[0][0] <= now_s:
            _, ticket, queued = heappop(self._backoff)
            if queued.ticket == ticket and queued.stage is QueueStage.BACKOFF:
                cause = queued.cause
                self._activate(queued, now_s, queued.woken_by)
                queued.cause = cause

    def _is_current(self, queued: QueuedPod) -> bool:
        """False for a pod that was removed, or replaced by a pod of the same name, while it was in flight."""
        return self._pods.get(queued.uid) is queued

    def _end_flight(self, queued: QueuedPod) -> None:
        if self._in_flight.get(queued.uid) is queued:
            del self._in_flight[queued.uid]
        if not self._in_flight:
            self._events.clear()
        else:
            oldest = next(iter(self._in_flight.values())).events_seen  # the pod taken first has seen the fewest
            while self._events and self._events[0].number <= oldest:
                self._events.popleft()

    def _leave_stage(self, queued: QueuedPod) -> None:
        """Remove it from its stage."""
        queued.ticket = 0
        if queued.stage is QueueStage.UNSCHEDULABLE:
            members = self._unschedulable[queued.equivalence]
            del members.pods[queued.uid]
            if not members.pods:
                del self._unschedulable[queued.equivalence]
        elif queued.stage is QueueStage.IN_FLIGHT:
            self._end_flight(queued)
