"""The memory of the invariants of conditions: changes of status, quotas of late, and conditions to judge again.

`condition_invariants` reads it; `facts` writes it. Nothing here judges.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping
from math import inf
from typing import NamedTuple

from kedge.api.objects import Object
from kedge.api.views import Condition, ResourceQuotaView

REMOVED = "(removed)"
"""In place of the reason of a condition that a commit removed; no real one is written so."""
_NO_QUOTAS: Mapping[str, ResourceQuotaView] = {}


class WrittenCondition(NamedTuple):
    """A condition that a commit wrote on an object, and the one before it."""

    of: Object
    now: Condition
    was: Condition | None


def written_conditions(old: Object | None, new: Object | None) -> Iterator[WrittenCondition]:
    """Conditions that a commit added, removed, or changed in status, reason or generation."""
    if new is None or new.kind.view is None:
        return
    conditions = getattr(getattr(new.view, "status", None), "conditions", ())
    known = old.view.status.conditions if old is not None and old.uid == new.uid and conditions else ()
    if conditions == known:
        return
    before = {each.type: each for each in known}
    for each in conditions:
        was = before.pop(each.type, None)
        if was is None or _claim_of(was) != _claim_of(each):
            yield WrittenCondition(new, each, was)
    for type_, was in before.items():
        yield WrittenCondition(new, Condition(type=type_, status="False", reason=REMOVED), was)


def _claim_of(each: Condition) -> tuple[str, str, int]:
    return each.status, each.reason, each.observed_generation


class ConditionFlip(NamedTuple):
    """The last change of a condition's status."""

    at_s: float
    seen_s: float
    """The oldest state that explains it: its writer has seen that state, and sees no older one later."""
    process: str
    """The process that wrote it; empty for an agent."""
    before: str
    content: object
    """The object's own content at this change, as far as the condition is about it."""
    explained: bool


class ConditionHistories:
    """One for a cluster."""

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self.flips: dict[tuple[str, str], ConditionFlip] = {}
        """By uid and condition type."""
        self.writers: dict[str, str] = {}
        """By uid, or of nodes by their kind: the controller that wrote conditions last."""
        self.policies_changed_s: dict[str, float] = {}
        """By namespace, empty for all: the last change of an object that may refuse pods there, but for the use of a
        quota."""
        self._quotas: dict[str, deque[tuple[float, Mapping[str, ResourceQuotaView]]]] = {}
        """By namespace: times, with the quotas since then, by name."""
        self._due: list[tuple[float, str]] = []
        """A heap: when to judge the standing conditions of an object, by its uid or, of a node, its name."""
        self._waits: dict[str, None] = {}

    # -- quotas ------------------------------------------------------------------------------------

    def note_policy(self, namespace: str, now_s: float) -> None:
        self.policies_changed_s[namespace] = now_s

    def policy_changed_s(self, namespace: str) -> float:
        """The last change of an object that may refuse pods in a namespace."""
        return max(self.policies_changed_s.get(each, -inf) for each in ("", namespace))

    def note_quota(self, namespace: str, name: str, old: Object | None, new: Object | None, now_s: float) -> None:
        history = self._quotas.setdefault(namespace, deque([(now_s - self._lag_s, _NO_QUOTAS)]))
        known = {each: view for each, view in history[-1][1].items() if each != name}
        history.append((now_s, known if new is None else {**known, name: new.as_view(ResourceQuotaView)}))
        while len(history) > 1 and history[1][0] <= now_s - self._lag_s:
            history.popleft()
        if old is None or new is None or old.view.spec != new.view.spec:
            self.note_policy(namespace, now_s)

    def quotas_between(
        self, namespace: str, since_s: float, until_s: float
    ) -> Iterator[Mapping[str, ResourceQuotaView]]:
        """The quotas of a namespace, by name, at each time in a span."""
        history = self._quotas.get(namespace, ())
        first = max((n for n, (at_s, _) in enumerate(history) if at_s <= since_s), default=0)
        return (quotas for n, (at_s, quotas) in enumerate(history) if n >= first and at_s <= until_s)

    # -- standing conditions -----------------------------------------------------------------------

    def judge_again(self, place: str, at_s: float) -> None:
        """Judge the standing conditions of this object at that time; at most one time is kept for each."""
        if place not in self._waits:
            self._waits[place] = None
            heapq.heappush(self._due, (at_s, place))

    def is_due(self, now_s: float) -> bool:
        return bool(self._due) and self._due[0][0] <= now_s

    def take_due(self, now_s: float) -> Iterator[str]:
        """Take the objects whose time has come. A caller puts one back with `judge_again` if it must wait longer."""
        while self.is_due(now_s):
            place = heapq.heappop(self._due)[1]
            del self._waits[place]
            yield place
