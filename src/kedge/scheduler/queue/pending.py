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
    alike: Hashable = None
    """Those of one sort fail alike: it is enough that one of them is woken."""
    woken_by: str = "added"
    looked_at: int = 0
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

    def concerned(self, change: int, always: int, helps: QueueingHint | None) -> bool:
        """In plain integers: flags of an enumeration are slow, and this is asked at every bind."""
        if self.helped_by & always:
            return True
        if not self.helped_by & change:
            return False
        first = next(iter(self.pods.values()))
        return helps is None or helps(first) or (first.gang is not None and any(map(helps, self.pods.values())))


class _RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """A change, for those who were in flight."""

    number: int
    change: int
    always: int
    helps: QueueingHint | None
    why: str

    def concerns(self, waiting: QueuedPod) -> bool:
        helped_by = int(waiting.helped_by)
        if helped_by & self.always:
            return True
        return bool(helped_by & self.change) and (self.helps is None or self.helps(waiting))


class Pending:
    """All pods of one scheduler that wait.

    Invariants: a pod is in one stage; every pod that waits is in `_pods`; a pod in flight is given back by `failed`,
    `pause`, `unschedulable` or `done`; a change while it was in flight counts as one after it.
    """

    def __init__(self, env: Env) -> None:
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
        self._changes: deque[_RecordedEvent] = deque()
        """What happened while pods are in flight."""
        self._changed = 0
        self._in_flight: dict[str, QueuedPod] = {}
        self._flushed_s = env.monotonic()
        self.on_ready: Callable[[], None] = lambda: None
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
        waiting = self._pods.get(uid)
        now_s = self._env.monotonic()
        if waiting is None:
            self._arrivals += 1
            waiting = self._pods[uid] = QueuedPod(pod, uid, pod.key, priority, self._arrivals, now_s, now_s)
            self._join(waiting, gang)
            self._activate(waiting, now_s, "added")
            return
        waiting.pod = pod
        if priority != waiting.priority:
            waiting.priority = priority
        if gang != (waiting.gang[1] if waiting.gang is not None else ""):
            self._quit(waiting)
            self._join(waiting, gang)
        self.wake(uid, "changed itself")

    def _join(self, waiting: QueuedPod, name: str) -> None:
        if name:
            gang = waiting.gang = (waiting.key.namespace, name)
            self._gangs.setdefault(gang, {})[waiting.uid] = waiting
            self.happened(ClusterEvent.GANG, "a member of its gang came", lambda each: each.gang == gang)

    def _quit(self, waiting: QueuedPod) -> None:
        if waiting.gang is not None:
            members = self._gangs.get(waiting.gang, {})
            members.pop(waiting.uid, None)
            if not members:
                self._gangs.pop(waiting.gang, None)
            waiting.gang = None

    def refresh(self, pod: Object) -> None:
        """A newer version of a pod that asks for the same."""
        waiting = self._pods.get(pod.uid)
        if waiting is not None:
            waiting.pod = pod

    def remove(self, uid: str) -> bool:
        """It has a node, or is gone."""
        waiting = self._pods.get(uid)
        if waiting is None:
            return False
        self._leave(waiting)
        self._forget(waiting)
        if self._hot:
            self._pass_on(waiting)
        return True

    def _forget(self, waiting: QueuedPod) -> None:
        self._pods.pop(waiting.uid, None)
        gang = waiting.gang
        if gang is not None:
            self._quit(waiting)
            waiting.gang = gang  # whoever still has it in hand asks

    # -- taking ------------------------------------------------------------------------------------

    def take(self) -> QueuedPod | None:
        """The next pod to try. Give it back."""
        now_s = self._env.monotonic()
        if self._backoff:
            self._promote(now_s)
        while self._active:
            _, _, ticket, waiting = heappop(self._active)
            if waiting.ticket != ticket or waiting.stage is not QueueStage.ACTIVE:
                continue
            self._wait_s.observe(now_s - waiting.since_s)
            self._take_off(waiting)
            return waiting
        return None

    def take_gang(self, waiting: QueuedPod) -> list[QueuedPod]:
        """The members of the gang of a pod that was taken, and that are not in flight otherwise. Give each back."""
        if waiting.gang is None:
            return [waiting]
        members = [waiting]
        for each in self._gangs.get(waiting.gang, {}).values():
            if each is not waiting and each.stage is not QueueStage.IN_FLIGHT:
                self._leave(each)
                self._take_off(each)
                members.append(each)
        return sorted(members, key=lambda each: each.arrived)

    def _take_off(self, waiting: QueuedPod) -> None:
        waiting.stage, waiting.ticket = QueueStage.IN_FLIGHT, 0
        waiting.attempts += 1
        waiting.looked_at = self._changed
        self._in_flight[waiting.uid] = waiting

    def next_s(self) -> float | None:
        """When the next pod becomes active by time alone."""
        while self._backoff and self._backoff[0][2].ticket != self._backoff[0][1]:
            heappop(self._backoff)
        return self._backoff[0][0] if self._backoff else None

    def done(self, waiting: QueuedPod) -> None:
        """It has a node. The next of its sort may have more luck too."""
        if self._still_here(waiting):
            self._land(waiting)
            self._forget(waiting)
        self._pass_on(waiting)

    def failed(self, waiting: QueuedPod, *, pause: bool = True) -> None:
        """The attempt came to nothing by no fault of the cluster's state: try again, after a pause that grows."""
        if not self._still_here(waiting):
            return
        self._land(waiting)
        now_s = self._env.monotonic()
        if not pause:
            self._activate(waiting, now_s, "tried again")
            return
        waiting.failures += 1
        self._back_off(waiting, now_s)
        self._pass_on(waiting)  # what kept it from its place need not keep the others

    def pause(self, waiting: QueuedPod, for_s: float, why: str) -> None:
        """It is not to be tried for so long, unless it changes itself."""
        if self._still_here(waiting):
            self._land(waiting)
            now_s = self._env.monotonic()
            self._wait_until(waiting, now_s, now_s + for_s, why)
            self._pass_on(waiting)

    def unschedulable(self, waiting: QueuedPod, helped_by: ClusterEvent, alike: Hashable) -> None:
        """It fits nowhere now. It waits for what could help, unless that has happened since it was taken."""
        if not self._still_here(waiting):
            return
        now_s = self._env.monotonic()
        before, waiting.alike, waiting.helped_by = waiting.alike, alike, helped_by
        seen = waiting.looked_at
        missed = next((each for each in self._changes if each.number > seen and each.concerns(waiting)), None)
        self._land(waiting)
        if before != alike and before in self._hot:
            self._wake_one(before, "another like it is so no more")
        if missed is not None:
            waiting.failures += 1
            self._back_off(waiting, now_s, missed.why)
            return
        waiting.failures = 0  # it waits for something now, and is not kept waiting
        self._hot.pop(alike, None)
        waiting.stage, waiting.since_s = QueueStage.UNSCHEDULABLE, now_s
        sort = self._unschedulable.setdefault(alike, _EquivalenceClass())
        sort.pods[waiting.uid] = waiting
        sort.helped_by |= int(helped_by)

    # -- waking ------------------------------------------------------------------------------------

    def happened(
        self, change: ClusterEvent, why: str, helps: QueueingHint | None = None, *, always: ClusterEvent = NOTHING
    ) -> None:
        """Something happened that may help: wake those that it concerns, one of each sort.

        `helps` is asked of those that `change` could help, but not of those that `always` could: they are woken.
        """
        self._note(change, always, helps, why)
        if not self._unschedulable:
            return
        change_bits, always_bits = int(change), int(always)
        for alike, sort in tuple(self._unschedulable.items()):
            if sort.concerned(change_bits, always_bits, helps):
                self._hot[alike] = None
                self._wake_one(alike, why)

    def wake(self, uid: str, why: str) -> None:
        """Something concerns one pod alone, whatever it waits for: try it."""
        waiting = self._pods.get(uid)
        if waiting is None:
            return
        if waiting.stage is QueueStage.IN_FLIGHT:
            self._note(ANYTHING, ANYTHING, None, why, only=waiting)
        else:
            self._activate(waiting, self._env.monotonic(), why)

    def retry(self, uid: str) -> None:
        """What was begun for a pod that waits has failed: try it again, after a pause that grows."""
        waiting = self._pods.get(uid)
        if waiting is not None and waiting.stage is QueueStage.UNSCHEDULABLE:
            self._leave(waiting)
            waiting.failures += 1
            self._back_off(waiting, self._env.monotonic())

    def flush(self) -> int:
        """The safety net: wake all that have waited for long. How many there were."""
        now_s = self._env.monotonic()
        if now_s - self._flushed_s < self._limits.scheduler_flush_s / 2:
            return 0
        self._flushed_s = now_s
        old_s = now_s - self._limits.scheduler_flush_s
        old = [each for sort in self._unschedulable.values() for each in sort.pods.values() if each.since_s <= old_s]
        for waiting in old:
            self._activate(waiting, now_s, "flush")
        return len(old)

    # -- private -----------------------------------------------------------------------------------

    def _wake_one(self, alike: Hashable, why: str) -> None:
        sort = self._unschedulable.get(alike)
        if sort is None:
            self._hot.pop(alike, None)  # nobody of it waits for his turn, and whoever comes to it has just failed
        else:
            best = min(sort.pods.values(), key=lambda each: (-each.priority, each.arrived))
            self._activate(best, self._env.monotonic(), why)

    def _pass_on(self, waiting: QueuedPod) -> None:
        """One that was woken for all of its sort is out of the way: the next has its turn."""
        if waiting.alike in self._hot:
            self._wake_one(waiting.alike, "another like it found a place, or left")

    def _note(
        self,
        change: ClusterEvent,
        always: ClusterEvent,
        helps: QueueingHint | None,
        why: str,
        *,
        only: QueuedPod | None = None,
    ) -> None:
        if not self._in_flight:
            return
        if only is not None:
            helps, always = (lambda each: each is only), NOTHING
        self._changed += 1
        self._changes.append(_RecordedEvent(self._changed, int(change), int(always), helps, why))
        if len(self._changes) > self._limits.scheduler_changes_max:
            # Too many to keep apart: whatever is in flight has to look again.
            self._changes.clear()
            self._changes.append(_RecordedEvent(self._changed, int(ANYTHING), int(ANYTHING), None, "too much happened"))

    def _activate(self, waiting: QueuedPod, now_s: float, why: str) -> None:
        self._leave(waiting)
        self._tickets += 1
        waiting.stage, waiting.ticket, waiting.since_s, waiting.woken_by = QueueStage.ACTIVE, self._tickets, now_s, why
        heappush(self._active, (-waiting.priority, waiting.arrived, self._tickets, waiting))
        count = self._woken.get(why)
        if count is None:
            count = self._woken[why] = self._wakes.labels(why)
        count.inc()
        self.on_ready()

    def _back_off(self, waiting: QueuedPod, now_s: float, why: str = "backoff over") -> None:
        self._wait_until(waiting, now_s, now_s + self._pauses.pause_s(waiting.failures, self._env.random), why)

    def _wait_until(self, waiting: QueuedPod, now_s: float, until_s: float, why: str) -> None:
        self._tickets += 1
        waiting.stage, waiting.ticket, waiting.since_s = QueueStage.BACKOFF, self._tickets, now_s
        waiting.woken_by = why
        heappush(self._backoff, (until_s, self._tickets, waiting))
        self.on_ready()  # whoever sleeps until the next one is due may have to wake earlier

    def _promote(self, now_s: float) -> None:
        while self._backoff and self._backoff[0][0] <= now_s:
            _, ticket, waiting = heappop(self._backoff)
            if waiting.ticket == ticket and waiting.stage is QueueStage.BACKOFF:
                self._activate(waiting, now_s, waiting.woken_by)

    def _still_here(self, waiting: QueuedPod) -> bool:
        """False for a pod that went, or was replaced by its namesake, while it was in flight."""
        return self._pods.get(waiting.uid) is waiting

    def _land(self, waiting: QueuedPod) -> None:
        if self._in_flight.get(waiting.uid) is waiting:
            del self._in_flight[waiting.uid]
        if not self._in_flight:
            self._changes.clear()
        else:
            oldest = next(iter(self._in_flight.values())).looked_at  # the first taken has seen least
            while self._changes and self._changes[0].number <= oldest:
                self._changes.popleft()

    def _leave(self, waiting: QueuedPod) -> None:
        """Take it out of wherever it is."""
        waiting.ticket = 0
        if waiting.stage is QueueStage.UNSCHEDULABLE:
            sort = self._unschedulable[waiting.alike]
            del sort.pods[waiting.uid]
            if not sort.pods:
                del self._unschedulable[waiting.alike]
        elif waiting.stage is QueueStage.IN_FLIGHT:
            self._land(waiting)
