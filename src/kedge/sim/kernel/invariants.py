"""Promises a run must keep: safety at every commit, liveness once faults have ended, and marks a hunt must reach.

A program hands its invariants to `Simulation.check_always` and `check_eventually`. Invariants read what was committed;
one that reads a cache shares the cache's mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Finding: TypeAlias = tuple[str, str]
"""What a safety invariant yields: the cause to group by (an object's key, say) and what is wrong in words."""

Safety: TypeAlias = Callable[[Any], Iterator[Finding] | None]
Liveness: TypeAlias = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Invariant:
    """A named promise. `words` is the first line of its docstring, or its name with spaces."""

    name: str
    words: str


def words_of(function: Callable[..., object]) -> str:
    """The promise as a sentence."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name.replace("_", " ")


def safety(function: Safety) -> Safety:
    """Mark a function of one commit that yields what is wrong with it. Keep state in a class to be incremental."""
    function.kedge_invariant = "safety"  # type: ignore[attr-defined]
    return function


def liveness(function: Liveness) -> Liveness:
    """Mark a predicate that must come true once faults have stopped."""
    function.kedge_invariant = "liveness"  # type: ignore[attr-defined]
    return function
