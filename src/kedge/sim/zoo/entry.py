"""An entry of the zoo: one safeguard taken out of a real component, and the world in which it is hunted.

The function that `without` decorates replaces a method or function during a hunt. The modules of `entries` (`PARTS`)
declare their entries with it.
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

PARTS = ("service", "runtime", "workloads", "nodes", "rollouts", "repairs", "costs")
KEPT: dict[str, ZooEntry] = {}
"""Every declared entry, by name, in order."""


class UnknownZooEntry(KedgeError):
    """There is no such entry in the zoo. `kedge zoo --list` lists all entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One bug, kept on purpose."""

    name: str
    source: str
    """The design rule, or the issue of another project, that it comes from."""
    safeguard: str
    """A description of the safeguard that is taken out."""
    breaks: tuple[str, ...]
    """The invariants that it should break; a violation of any of them is a find."""
    message_part: str
    """Text that the message of the violation must contain; empty if the invariant is enough."""
    world: str
    """The world in which it is hunted."""
    by: tuple[str, ...]
    """The strategies that aim at it, by name; empty for all strategies of the world."""
    places: tuple[Any, ...]
    """The class or modules that have the safeguard as `attribute`."""
    attribute: str
    unsafe: Callable[..., Any]

    @contextmanager
    def patch(self) -> Iterator[None]:
        """Take the safeguard out until the context ends."""
        with ExitStack() as stack:
            for place in self.places:
                stack.enter_context(swap(place, self.attribute, self.unsafe))
            yield

    def is_found_by(self, violation: Violation) -> bool:
        return violation.invariant in self.breaks and self.message_part in violation.message


@contextmanager
def swap(place: Any, attribute: str, unsafe: Any) -> Iterator[None]:
    """Replace an attribute of a class or module until the context ends."""
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
    message_part: str = "",
) -> Callable[[_F], _F]:
    """Declare an entry: the decorated function replaces `attribute` of `place`, and of each of `also`.

    The entry gets its name from the function, and its safeguard from the docstring.
    """

    def keep(unsafe: _F) -> _F:
        name = unsafe.__name__.replace("_", "-")
        check(name not in KEPT, f"the zoo has two entries {name}: rename one")
        for each in (place, *also):
            check(attribute in each.__dict__, f"{name}: {each.__name__} has no {attribute} any more: update the entry")
        KEPT[name] = ZooEntry(
            name=name,
            source=source,
            safeguard=inspect.cleandoc(unsafe.__doc__ or "").rstrip("."),
            breaks=(breaks,) if isinstance(breaks, str) else breaks,
            message_part=message_part,
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
        importlib.import_module(f"kedge.sim.zoo.entries.{part}")  # importing it declares its entries
    return tuple(KEPT.values())


def entry_named(name: str) -> ZooEntry:
    for entry in all_entries():
        if entry.name == name:
            return entry
    raise UnknownZooEntry(f"the zoo has no entry {name!r}: `kedge zoo --list` lists all entries")
