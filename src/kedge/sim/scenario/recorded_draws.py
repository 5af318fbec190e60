"""Draws of a recorded run that break ties between nodes: a run of its scenario breaks them as they were broken then.

`incident.rebuild` writes them into a scenario, `schema` reads them, and `components` passes them to schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kedge.env import Env
from kedge.keys import Key


class RecordedDraw(NamedTuple):
    """The draw of one attempt."""

    pod: Key
    at_s: float
    """When the attempt began, in seconds since the begin of the steps."""
    draw: int


class RecordedDraws:
    """The draws of one run."""

    def __init__(self, draws: Sequence[RecordedDraw], now_s: Callable[[], float]) -> None:
        """`now_s` returns the seconds since the begin of the steps."""
        self._now_s = now_s
        self._by_pod: dict[Key, list[RecordedDraw]] = {}
        for each in draws:
            self._by_pod.setdefault(each.pod, []).append(each)

    def of_scheduler(self, env: Env) -> Callable[[Key], int]:
        """The draws for a scheduler: of a pod's recorded attempts the nearest in time. Pauses between attempts are
        random, so two runs have different numbers of them. The draw of a pod that has no recorded one is random."""

        def draw_for(pod: Key) -> int:
            known, now_s = self._by_pod.get(pod), self._now_s()
            if known is None:
                return env.random.getrandbits(31)
            return min(known, key=lambda each: abs(each.at_s - now_s)).draw

        return draw_for
