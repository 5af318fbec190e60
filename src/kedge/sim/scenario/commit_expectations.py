"""Expectations that must hold at every commit, from a moment on: for simulated runs and for those on a live cluster."""

from __future__ import annotations

from kedge.sim.scenario.predicates import ClusterView
from kedge.sim.scenario.schema import Expectation


class StandingExpectation:
    """One expectation with `always`. It begins with its moment, and then holds to its end, or to that of the run."""

    def __init__(self, expectation: Expectation, *, begin_s: float) -> None:
        """`begin_s` is when the steps began: `from` counts from there."""
        self._predicate = expectation.predicate
        self._line = expectation.line
        self._when = expectation.begins.when
        self._at_s = begin_s + expectation.begins.at_s
        self._until = expectation.until
        self._begun = self._ended = False
        self.name = expectation.name

    def mismatch(self, view: ClusterView, now_s: float) -> str:
        """The state found instead, after a commit; empty if the expectation holds, or is not in force."""
        if not self._begun:
            if now_s < self._at_s or (self._when is not None and self._when.mismatch(view)):
                return ""
            self._begun = True
        self._ended = self._ended or (self._until is not None and not self._until.mismatch(view))
        if self._ended:
            return ""
        found = self._predicate.mismatch(view)
        return f"line {self._line}: {self._predicate.summary}, but {found}" if found else ""
