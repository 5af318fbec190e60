"""Slots: the number at the end of a pod's name. A second create of the same replica collides with the first.

A slot is taken while any pod has its name, whatever its owner, even if it is being deleted. Scaling fills the lowest
free slots and renames no pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.api.names import SUBDOMAIN_LENGTH_MAX
from kedge.errors import check

_SLOT_DIGITS_MAX = 10


def slot_name(owner: str, slot: int) -> str:
    """The name of the pod in a slot. An owner's name that is too long is cut, as Kubernetes cuts a prefix."""
    check(slot >= 0, "slots count from zero")
    prefix = owner[: SUBDOMAIN_LENGTH_MAX - 1 - _SLOT_DIGITS_MAX].rstrip("-.")
    return f"{prefix}-{slot}"


def slot_of(owner: str, name: str) -> int | None:
    """The slot of a name; None for a name that this owner would not give."""
    number = name.rpartition("-")[2]
    if not (number.isascii() and number.isdigit() and len(number) <= _SLOT_DIGITS_MAX):
        return None
    return int(number) if slot_name(owner, int(number)) == name else None


def free_slots(owner: str, count: int, is_taken: Callable[[str], bool]) -> tuple[int, ...]:
    """The lowest `count` slots whose names are free."""
    return tuple(slot for slot, _ in zip(_free(owner, is_taken), range(count), strict=False))


def _free(owner: str, is_taken: Callable[[str], bool]) -> Iterator[int]:
    slot = 0
    while True:
        if not is_taken(slot_name(owner, slot)):
            yield slot
        slot += 1
