"""Detects loops: keys that keep being woken without making progress, with or without writes.

A run is judged by its reads and writes and attributed to its wake-ups. Only those wake-ups are throttled: others pass
at once, so a key in a loop still reacts to real changes. A run whose effects are unknown is never counted as a loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from enum import Enum, auto
from typing import Generic

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.runtime.queue.items import FLOOR, RESYNC, RETRY, K, Loop, LoopKind, RunEffects, Wake
from kedge.runtime.queue.items import REQUEUE as REQUEUE_WAKE

_PLANNED = frozenset((RETRY, RESYNC, REQUEUE_WAKE, FLOOR))
"""Wake-ups that the queue itself paces: they cannot run hot."""
_SEVERITY = {LoopKind.FUTILE: 0, LoopKind.ECHO: 1, LoopKind.OSCILLATION: 2}


class _Run(Enum):
    """The verdict on a run that is not part of a loop."""

    PROGRESS = auto()
    """There was work, and it was done."""
    NEUTRAL = auto()
    """Evidence for neither."""


class _Suspect:
    """One kind of wake-up of one key, and how many runs in a row it has caused without progress."""

    __slots__ = ("hold_s", "holds", "kind", "last_s", "runs", "until_s")

    def __init__(self) -> None:
        self.kind = LoopKind.FUTILE
        self.runs = 0
        self.last_s = 0.0
        self.holds = 0
        """How often it was held back. 0: suspected, not yet throttled."""
        self.hold_s = 0.0
        self.until_s = 0.0
        """Wake-ups of this kind wait until then."""


class _History:
    """The last runs of one key. Fingerprints are kept as hashes: they are only compared."""

    __slots__ = ("saw", "suspects", "targets", "terminal", "wrote")

    def __init__(self) -> None:
        self.wrote: list[int] = []
        self.targets: list[int] = []
        self.saw: list[int] = []
        self.suspects: dict[Wake, _Suspect] = {}
        """Least recently seen first."""
        self.terminal: BaseException | None = None
        """The error of the last run, if it was terminal."""

    def judge(
        self, facts: RunEffects | None, wakes: Iterable[Wake], *, failed: bool, own: str, memory: int
    ) -> LoopKind | _Run:
        """The verdict on this run, given those before it."""
        if facts is None:
            return LoopKind.FUTILE if failed else _Run.NEUTRAL
        news = facts.saw is not None and _is_new(self.saw, facts.saw, memory)
        if not facts.changed:
            return _Run.PROGRESS if news else LoopKind.FUTILE
        if not facts.wrote:
            return _Run.PROGRESS  # its writes are not known
        content_is_new = _is_new(self.wrote, facts.wrote, memory)
        targets_are_new = _is_new(self.targets, frozenset([target for target, _ in facts.wrote]), memory)
        if news:
            return _Run.PROGRESS
        if not content_is_new:
            return LoopKind.OSCILLATION
        if targets_are_new:
            return _Run.PROGRESS
        if all(wake.writer == own for wake in wakes):
            return LoopKind.ECHO
        return _Run.NEUTRAL if any(wake.writer == own for wake in wakes) else _Run.PROGRESS


class LoopDetector(Generic[K]):
    """The histories of the keys that ran last, and the keys among them that are throttled."""

    def __init__(self, env: Env, *, name: str) -> None:
        self._env = env
        self._limits = env.limits
        self._backoff = Backoff(env.limits.queue_loop_hold_s, env.limits.queue_loop_hold_s_max, jitter=(0.75, 1.0))
        self._name = name
        self._histories: OrderedDict[K, _History] = OrderedDict()
        """Least recently run first; the oldest are forgotten."""
        self.throttled: dict[K, None] = {}
        """Remembered keys with a throttled wake-up. For all others `hold_until_s` is 0."""

    def __len__(self) -> int:
        return len(self._histories)

    # -- a run ended -------------------------------------------------------------------------------

    def ran(
        self, key: K, wakes: tuple[Wake, ...], facts: RunEffects | None, *, error: BaseException | None, terminal: bool
    ) -> tuple[Loop[K], ...]:
        """Take note of a run. Returns loops, if it shows, or shows again, that its wake-ups cause no progress."""
        history = self._histories.get(key)
        if history is None:
            if facts is None and error is None:
                return ()
            history = self._histories[key] = _History()
            while len(self._histories) > self._limits.queue_loop_keys_max:
                self.throttled.pop(self._histories.popitem(last=False)[0], None)
        else:
            self._histories.move_to_end(key)
        history.terminal = error if terminal else None
        verdict = history.judge(
            facts, wakes, failed=error is not None, own=self._name, memory=self._limits.queue_loop_memory
        )
        if verdict is _Run.NEUTRAL:
            return ()
        if isinstance(verdict, _Run):
            if history.suspects:
                for wake in wakes:
                    history.suspects.pop(wake, None)
                self._note_throttled(key, history)
            return ()
        # Writes that come back are a conflict at any pace; planned runs that do nothing are the safety net at work.
        # So is the echo of an own write that finds nothing to do: the run that wrote was judged, and the echo ends.
        ended = error is None
        counted = [
            wake
            for wake in wakes
            if verdict is not LoopKind.FUTILE or (wake not in _PLANNED and not (ended and wake.writer == self._name))
        ]
        found = [self._suspect(key, history, wake, verdict) for wake in counted]
        self._note_throttled(key, history)
        loops = [loop for loop in found if loop is not None]
        # An echo accompanies any other loop. It is throttled too, but reported only where it is the only cause.
        rivals = [loop for loop in loops if loop.woken_by.writer != self._name]
        return tuple(rivals or loops)

    def _suspect(self, key: K, history: _History, wake: Wake, kind: LoopKind) -> Loop[K] | None:
        limits, now_s = self._limits, self._env.monotonic()
        suspect = history.suspects.pop(wake, None)
        if suspect is None:
            suspect = _Suspect()
            if len(history.suspects) >= limits.queue_wakes_max:
                del history.suspects[next(iter(history.suspects))]
        elif self._is_over(suspect, now_s):
            suspect.runs = suspect.holds = 0
        history.suspects[wake] = suspect
        if suspect.runs == 0 or _SEVERITY[kind] > _SEVERITY[suspect.kind]:
            suspect.kind = kind  # a conflict has futile runs in between; it remains a conflict
        suspect.last_s = now_s
        suspect.runs += 1
        if suspect.runs < (limits.queue_loop_echoes_max if kind is LoopKind.ECHO else limits.queue_loop_runs_max):
            return None
        suspect.holds += 1
        suspect.hold_s = self._backoff.pause_s(suspect.holds, self._env.random)
        suspect.until_s = now_s + suspect.hold_s
        return _report(key, wake, suspect)

    def _is_over(self, suspect: _Suspect, now_s: float) -> bool:
        """Whether it was quiet for so long that another run is not part of the same loop."""
        limits = self._limits
        gap_s = limits.queue_loop_gap_s if suspect.kind is LoopKind.FUTILE else limits.queue_fight_gap_s
        return now_s - suspect.last_s > gap_s + 2 * suspect.hold_s

    def _note_throttled(self, key: K, history: _History) -> None:
        if any(suspect.holds for suspect in history.suspects.values()):
            self.throttled[key] = None
        else:
            self.throttled.pop(key, None)

    # -- a key is woken ----------------------------------------------------------------------------

    def hold_until_s(self, key: K, wakes: Iterable[Wake]) -> float:
        """The time before which these wake-ups must not run the key. 0 if any wake-up is not throttled."""
        if key not in self.throttled:
            return 0.0
        suspects = self._histories[key].suspects
        untils = [suspect.until_s if (suspect := suspects.get(wake)) is not None else 0.0 for wake in wakes]
        return min(untils, default=0.0)

    # -- looking -----------------------------------------------------------------------------------

    def terminal(self, key: K) -> BaseException | None:
        history = self._histories.get(key)
        return history.terminal if history is not None else None

    def loop(self, key: K) -> Loop[K] | None:
        """The loop of `key`, attributed to its most frequent wake-up; to its own writes only if there is no other."""
        if key not in self.throttled:
            return None
        now_s = self._env.monotonic()
        throttled = [
            (wake, suspect)
            for wake, suspect in self._histories[key].suspects.items()
            if suspect.holds and not self._is_over(suspect, now_s)
        ]
        if not throttled:
            return None
        wake, suspect = max(throttled, key=lambda each: (each[0].writer != self._name, each[1].runs))
        return _report(key, wake, suspect)

    def loops(self) -> Iterator[Loop[K]]:
        for key in self.throttled:
            found = self.loop(key)
            if found is not None:
                yield found


def _report(key: K, wake: Wake, suspect: _Suspect) -> Loop[K]:
    return Loop(key, suspect.kind, wake, suspect.runs, suspect.hold_s, suspect.holds)


def _is_new(seen: list[int], value: Hashable, memory: int) -> bool:
    """Whether `value` is not among the last seen. Adds it."""
    mark = hash(value)
    if mark in seen:
        return False
    seen.append(mark)
    if len(seen) > memory:
        del seen[0]
    return True
