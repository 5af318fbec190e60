"""What an entry of the zoo is: one safeguard taken out of a real component, and where the hunt for it goes.

`without` is the whole of the mechanism: what it decorates takes the place of a method or function for as long as a hunt
lasts. The parts of the zoo (`PARTS`) declare their entries with it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kedge.errors import KedgeError, check
from kedge.sim.kernel.violations import Violation

_F = TypeVar("_F", bound=Callable[..., Any])

PARTS = ("service", "runtime", "workloads", "nodes", "rollouts", "repairs")
KEPT: dict[str, ZooEntry] = {}
"""Every entry that was declared, by name, in order."""


class UnknownZooEntry(KedgeError):
    """There is no such entry in the zoo. `kedge zoo --list` names them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One bug, kept on purpose."""

    name: str
    source: str
    """The lesson or the issue that it comes from."""
    safeguard: str
    """What is taken away, in words."""
    breaks: tuple[str, ...]
    """The invariants that it should break; any of them is a find."""
    says: str
    """What the violation must say as well; empty if the invariant is enough."""
    world: str
    """The world to hunt in."""
    by: tuple[str, ...]
    """The strategies that aim at it, by name; empty for all of the world."""
    places: tuple[Any, ...]
    """The class or modules that have the safeguard, under `attribute`."""
    attribute: str
    unsafe: Callable[..., Any]

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Take the safeguard away, for a while."""
        with ExitStack() as stack:
            for place in self.places:
                stack.enter_context(swap(place, self.attribute, self.unsafe))
            yield

    def is_found_by(self, violation: Violation) -> bool:
        return violation.invariant in self.breaks and self.says in violation.message


@contextmanager
def swap(place: Any, attribute: str, unsafe: Any) -> Iterator[None]:
    """Put `unsafe` in the place of an attribute of a class or module, for a while."""
    before = place.__dict__[attribute]
    setattr(place, attribute, unsafe)
    try:
        yield
    finally:
        setattr(place, attribute, before)


def without(
    place: Any,
    attribute: str,
    *also: Any,
    source: str,
    breaks: str | tuple[str, ...],
    world: str,
    by: str | tuple[str, ...] = (),
    says: str = "",
) -> Callable[[_F], _F]:
    """Declare an entry: the decorated function stands in for `attribute` of `place`, and of each of `also`.

    Its name is the entry's, its docstring says what is missing.
    """

    def keep(unsafe: _F) -> _F:
        name = unsafe.__name__.replace("_", "-")
        check(name not in KEPT, f"the zoo has two entries {name}: rename one")
        for each in (place, *also):
            check(
                attribute in each.__dict__, f"{name}: {each.__name__} has no {attribute} any more: say what it is now"
            )
        KEPT[name] = ZooEntry(
            name=name,
            source=source,
            safeguard=inspect.cleandoc(unsafe.__doc__ or "").rstrip("."),
            breaks=(breaks,) if isinstance(breaks, str) else breaks,
            says=says,
            world=world,
            by=(by,) if isinstance(by, str) else by,
            places=(place, *also),
            attribute=attribute,
            unsafe=unsafe,
        )
        return unsafe

    return keep


def all_entries() -> tuple[ZooEntry, ...]:
    for part in PARTS:
        importlib.import_module(f"kedge.sim.zoo.entries.{part}")  # its entries are declared by that
    return tuple(KEPT.values())


def entry_named(name: str) -> ZooEntry:
    for entry in all_entries():
        if entry.name == name:
            return entry
    raise UnknownZooEntry(f"the zoo has no {name!r}: `kedge zoo --list` names what it has")
