"""Slots: the number at the end of a pod's name, so that whoever creates the same replica twice collides with itself.

A slot is taken while anything has its name, whoever owns it and however near its end it is. Scaling renames nobody:
the lowest free slots are filled, and the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.api.names import SUBDOMAIN_LENGTH_MAX
from kedge.errors import check

_SLOT_DIGITS_MAX = 10


def slot_name(owner: str, slot: int) -> str:
    """The name of the pod in a slot. An owner's name that leaves no room is cut, as Kubernetes cuts a prefix."""
    check(slot >= 0, "slots count from zero")
    prefix = owner[: SUBDOMAIN_LENGTH_MAX - 1 - _SLOT_DIGITS_MAX].rstrip("-.")
    return f"{prefix}-{slot}"


def slot_of(owner: str, name: str) -> int | None:
    """The slot a name stands for; None for a name that this owner would not give."""
    number = name.rpartition("-")[2]
    if not (number.isascii() and number.isdigit() and len(number) <= _SLOT_DIGITS_MAX):
        return None
    return int(number) if slot_name(owner, int(number)) == name else None


def free_slots(owner: str, count: int, is_taken: Callable[[str], bool]) -> tuple[int, ...]:
    """The lowest `count` slots whose name nothing has."""
    return tuple(slot for slot, _ in zip(_free(owner, is_taken), range(count), strict=False))


def _free(owner: str, is_taken: Callable[[str], bool]) -> Iterator[int]:
    slot = 0
    while True:
        if not is_taken(slot_name(owner, slot)):
            yield slot
        slot += 1
