"""Invariants of a run: safety at every commit, and liveness once faults have ended.

A program passes its invariants to `Simulation.check_always` and `check_eventually`. Invariants read committed state:
one that reads a cache shares the mistakes of the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

Finding: TypeAlias = tuple[str, str]
"""Yielded by a safety invariant: the cause to group by (such as the key of an object), and a description."""

Safety: TypeAlias = Callable[[Any], Iterator[Finding] | None]
Liveness: TypeAlias = Callable[[], bool]


def name_of(function: Callable[..., object]) -> str:
    """The name of an invariant, as a sentence. A lambda has none: its place and its source line stand for it."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return _source_line(function) if name == "<lambda>" else name.replace("_", " ")


def _source_line(function: Callable[..., object]) -> str:
    try:
        lines, number = inspect.getsourcelines(function)
    except (OSError, TypeError):  # its source is not in a file
        code = function.__code__
        return f"lambda at {Path(code.co_filename).name}:{code.co_firstlineno}"
    return f"{Path(function.__code__.co_filename).name}:{number}: {' '.join(' '.join(lines).split())}"


def safety(function: Safety) -> Safety:
    """Mark a function of one commit that yields its violations. Keep state in a class to be incremental."""
    function.kedge_invariant = "safety"  # type: ignore[attr-defined]
    return function


def liveness(function: Liveness) -> Liveness:
    """Mark a predicate that must come true once faults have stopped."""
    function.kedge_invariant = "liveness"  # type: ignore[attr-defined]
    return function
