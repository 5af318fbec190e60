"""Declarations of commit invariants: rules that hold for every commit, with the kinds whose changes may break them.

`placement_invariants` and `lifecycle_invariants` declare theirs in a set each; `invariants.Judge` checks them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kedge.sim.judges.facts import Finding, Step

Rule = Callable[[Step], Iterator[Finding] | None]
"""A function of one commit that yields what it breaks."""


@dataclass(frozen=True, slots=True)
class CommitInvariant:
    """One rule, and the kinds whose changes may break it. Without `kinds` it is checked at every commit."""

    rule: Rule
    kinds: frozenset[str]
    name: str
    """As violations report it."""


class InvariantSet:
    """The invariants of one subject, in the order in which they are checked."""

    def __init__(self) -> None:
        self.invariants: list[CommitInvariant] = []

    def invariant(self, *kinds: str) -> Callable[[Rule], Rule]:
        """Declare a function as an invariant; its name is the name of the invariant."""

        def register(rule: Rule) -> Rule:
            self.invariants.append(CommitInvariant(rule, frozenset(kinds), rule.__name__.replace("_", " ")))
            return rule

        return register
