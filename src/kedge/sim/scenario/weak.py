"""Safeguards that a weak variant goes without, by name: those of the zoo, and some that only a story needs.

Each is a small patch of a real component, never a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kedge.sim.zoo.entries import Patch
from kedge.sim.zoo.hunting import all_entries


@cache
def weaknesses() -> Mapping[str, Patch]:
    """Every patch by the name of what it takes away."""
    return {entry.name: entry.patch for entry in all_entries()}


def find_weakness(name: str) -> Patch | None:
    return weaknesses().get(name)
