"""Tells work from loops: keys that keep being woken and get nowhere, with or without writes.

A run is judged by what it wrote and saw; its cost is put down to what woke it. Only that wake-up is slowed: others pass
at once, so a key in a loop still answers to real changes. What is not known about a run is never held against it.
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
"""Wake-ups that come at the queue's own pace: they cannot run hot."""
_GRAVITY = {LoopKind.FUTILE: 0, LoopKind.ECHO: 1, LoopKind.OSCILLATION: 2}


class _Run(Enum):
    """What a run that was no loop's says."""

    PROGRESS = auto()
    """There was something to do, and it was done."""
    NEUTRAL = auto()
    """It says nothing."""


class _Suspect:
    """One sort of wake-up of one key, and how many runs in a row it has caused for nothing."""

    __slots__ = ("hold_s", "holds", "kind", "last_s", "runs", "until_s")

    def __init__(self) -> None:
        self.kind = LoopKind.FUTILE
        self.runs = 0
        self.last_s = 0.0
        self.holds = 0
        """How often it was held back. 0: suspected, not convicted."""
        self.hold_s = 0.0
        self.until_s = 0.0
        """Wake-ups of this sort wait until then."""


class _History:
    """What one key did lately. Fingerprints are kept as hashes: they are only ever compared."""

    __slots__ = ("saw", "suspects", "targets", "terminal", "wrote")

    def __init__(self) -> None:
        self.wrote: list[int] = []
        self.targets: list[int] = []
        self.saw: list[int] = []
        self.suspects: dict[Wake, _Suspect] = {}
        """Least recently seen first."""
        self.terminal: BaseException | None = None
        """The error of a last run that ended for good."""

    def judge(
        self, facts: RunEffects | None, wakes: Iterable[Wake], *, failed: bool, own: str, memory: int
    ) -> LoopKind | _Run:
        """What this run was, given those before it."""
        if facts is None:
            return LoopKind.FUTILE if failed else _Run.NEUTRAL
        news = facts.saw is not None and _is_new(self.saw, facts.saw, memory)
        if not facts.changed:
            return _Run.PROGRESS if news else LoopKind.FUTILE
        if not facts.wrote:
            return _Run.PROGRESS  # what it wrote is not known
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
    """The histories of the keys that ran last, and the keys among them that are slowed."""

    def __init__(self, env: Env, *, name: str) -> None:
        self._env = env
        self._limits = env.limits
        self._backoff = Backoff(env.limits.queue_loop_hold_s, env.limits.queue_loop_hold_s_max, jitter=(0.75, 1.0))
        self._name = name
        self._histories: OrderedDict[K, _History] = OrderedDict()
        """Least recently run first; the oldest are forgotten."""
        self.slowed: dict[K, None] = {}
        """Keys with a convicted suspect, among those remembered. The rest need not ask `hold_until_s`."""

    def __len__(self) -> int:
        return len(self._histories)

    # -- a run ended -------------------------------------------------------------------------------

    def ran(
        self, key: K, wakes: tuple[Wake, ...], facts: RunEffects | None, *, error: BaseException | None, terminal: bool
    ) -> tuple[Loop[K], ...]:
        """Take note of a run. Loops, if it convicts, or goes on convicting, what woke it."""
        history = self._histories.get(key)
        if history is None:
            if facts is None and error is None:
                return ()
            history = self._histories[key] = _History()
            while len(self._histories) > self._limits.queue_loop_keys_max:
                self.slowed.pop(self._histories.popitem(last=False)[0], None)
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
                self._note_slowed(key, history)
            return ()
        # Writes that come back are a fight at any pace; runs that do nothing are the safety net at work.
        # So is the echo of an own write that finds nothing to do: what wrote is judged by itself, and this ends there.
        ended = error is None
        counted = [
            wake
            for wake in wakes
            if verdict is not LoopKind.FUTILE or (wake not in _PLANNED and not (ended and wake.writer == self._name))
        ]
        found = [self._suspect(key, history, wake, verdict) for wake in counted]
        self._note_slowed(key, history)
        loops = [loop for loop in found if loop is not None]
        # An echo comes along with whatever else is wrong. It is held too, but blamed only where it is alone.
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
        if suspect.runs == 0 or _GRAVITY[kind] > _GRAVITY[suspect.kind]:
            suspect.kind = kind  # a fight has runs in between that find nothing to do; it is a fight all the same
        suspect.last_s = now_s
        suspect.runs += 1
        if suspect.runs < (limits.queue_loop_echoes_max if kind is LoopKind.ECHO else limits.queue_loop_runs_max):
            return None
        suspect.holds += 1
        suspect.hold_s = self._backoff.pause_s(suspect.holds, self._env.random)
        suspect.until_s = now_s + suspect.hold_s
        return _report(key, wake, suspect)

    def _is_over(self, suspect: _Suspect, now_s: float) -> bool:
        """Whether it has been quiet for so long that another run is not of the same loop."""
        limits = self._limits
        gap_s = limits.queue_loop_gap_s if suspect.kind is LoopKind.FUTILE else limits.queue_fight_gap_s
        return now_s - suspect.last_s > gap_s + 2 * suspect.hold_s

    def _note_slowed(self, key: K, history: _History) -> None:
        if any(suspect.holds for suspect in history.suspects.values()):
            self.slowed[key] = None
        else:
            self.slowed.pop(key, None)

    # -- a key is woken ----------------------------------------------------------------------------

    def hold_until_s(self, key: K, wakes: Iterable[Wake]) -> float:
        """Before when these wake-ups shall not run the key. 0 if one of them is above suspicion."""
        if key not in self.slowed:
            return 0.0
        suspects = self._histories[key].suspects
        untils = [suspect.until_s if (suspect := suspects.get(wake)) is not None else 0.0 for wake in wakes]
        return min(untils, default=0.0)

    # -- looking -----------------------------------------------------------------------------------

    def terminal(self, key: K) -> BaseException | None:
        history = self._histories.get(key)
        return history.terminal if history is not None else None

    def loop(self, key: K) -> Loop[K] | None:
        """The loop `key` is in, put down to what woke it most; to its own writes only if nothing else did."""
        if key not in self.slowed:
            return None
        now_s = self._env.monotonic()
        convicted = [
            (wake, suspect)
            for wake, suspect in self._histories[key].suspects.items()
            if suspect.holds and not self._is_over(suspect, now_s)
        ]
        if not convicted:
            return None
        wake, suspect = max(convicted, key=lambda each: (each[0].writer != self._name, each[1].runs))
        return _report(key, wake, suspect)

    def loops(self) -> Iterator[Loop[K]]:
        for key in self.slowed:
            found = self.loop(key)
            if found is not None:
                yield found


def _report(key: K, wake: Wake, suspect: _Suspect) -> Loop[K]:
    return Loop(key, suspect.kind, wake, suspect.runs, suspect.hold_s, suspect.holds)


def _is_new(seen: list[int], value: Hashable, memory: int) -> bool:
    """Whether `value` was not seen lately. It is now."""
    mark = hash(value)
    if mark in seen:
        return False
    seen.append(mark)
    if len(seen) > memory:
        del seen[0]
    return True
