"""Events of a process in its own log: its start, its end, terms of its leaders, and the limits of its decisions.

A segment of a log stands alone, so each one names the limits. Nothing is decided here.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from kedge.env import Env
from kedge.limits import Limits
from kedge.observe.records import Decision, OutsideEvent

START: Final = "start"
END: Final = "end"
ELECTION: Final = "election"
"""A term of a leader begins or ends."""
PROCESS_KINDS: Final = frozenset({START, END, ELECTION})


def is_process_event(event: OutsideEvent) -> bool:
    """Whether it is about the life of a process: the limits of a segment are not, nor is the start of a simulation."""
    return event.kind in PROCESS_KINDS and bool(event.where) and "limits" not in event.data


def started(env: Env, component: str) -> OutsideEvent:
    """The start of a process, with what it runs on."""
    data = {"kedge": version("kedge"), "python": platform.python_version()}
    return OutsideEvent(env.now(), START, f"{component} starts", component, data)


def ended(env: Env, component: str) -> OutsideEvent:
    """The end of a process that had time to record it; one that is killed has none."""
    return OutsideEvent(env.now(), END, f"{component} ends", component)


def limits_event(env: Env, component: str, deciders: Iterable[str]) -> OutsideEvent:
    """The limits that differ from the defaults. `deciders` are the values of `Decision.process` that they are for."""
    data: dict[str, Any] = {"limits": changed_limits(env.limits), "deciders": sorted(deciders)}
    return OutsideEvent(env.now(), START, f"limits of {component}", component, data)


def changed_limits(limits: Limits) -> dict[str, Any]:
    usual = asdict(Limits())
    return {name: value for name, value in asdict(limits).items() if value != usual[name]}


class ProcessHead:
    """The limits of a process, in each segment of a log before the records of each decider."""

    def __init__(self, env: Env, component: str) -> None:
        self._env = env
        self._component = component
        self._named: set[str] = set()
        """Deciders that the current segment has: few, and they live as long as the process."""

    def pieces(self, decisions: Sequence[Decision], *, fresh: bool) -> Iterator[OutsideEvent]:
        """The event to write before these records. `fresh`: into a new segment, which has nothing yet."""
        if fresh:
            self._named = set()
        new = {each.process for each in decisions} - self._named
        if new:
            self._named |= new
            yield limits_event(self._env, self._component, new)
