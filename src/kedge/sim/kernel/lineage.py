"""Lineage: the messages that a good outcome rests on, followed from host to host while a program runs.

`lineage_search` cuts them. A host's state rests on every message that it has received, and on what these rested on: an
upper bound, so a search tries a few plans more than it needs, and misses none. Byte streams are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kedge.sim.kernel.faults import FixedRates
from kedge.sim.kernel.invariants import Liveness
from kedge.sim.kernel.policies import Chooser

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

PROGRAM_ENDS = "the program ends well"
"""The outcome of a program without liveness invariants. It rests on every message."""
_LOST = FixedRates({"lose": 1.0, "disconnect": 1.0})


class Message(NamedTuple):
    """A message by its fault point: a request, a reply, a one-way message, or an item of a stream."""

    label: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.label}, number {self.occurrence}"


class LineagePolicy:
    """The policy and fault plan of such runs: a fair schedule, and losses only. Its name is on their tapes."""

    name = "lineage"

    def chooser(self, seed: int) -> Chooser | None:  # noqa: ARG002
        return None

    rate = staticmethod(_LOST.rate)


LINEAGE = LineagePolicy()


class Lineage:
    """The messages that each host's state rests on in one run, as sets of messages: integers with a bit for each."""

    def __init__(self, world: SimWorld, lost: frozenset[Message]) -> None:
        self._world = world
        self._lost = lost
        self._messages: list[Message] = []
        self._occurrences: dict[str, int] = {}
        self._rests_on: dict[str, int] = {}
        """By host."""
        self._drawn = 0
        """The message whose fault point was passed last: it is sent next."""
        self.outcomes: dict[str, int] = {}
        """Liveness invariants that hold, with the messages that the state behind them rests on."""
        world.faults.draw = self._draw

    def _draw(self, label: str, bound: int, reached: Sequence[float] | None = None, /) -> int:
        value = 0
        if reached is not None:
            occurrence = self._occurrences[label] = self._occurrences.get(label, 0) + 1
            message = Message(label, occurrence)
            self._drawn = 1 << len(self._messages)
            self._messages.append(message)
            if message in self._lost:
                value = next(v for v in range(1, len(reached)) if reached[v] > reached[v - 1])
        self._world.choices.faults.taken.append((label, bound, value))
        return value

    def carried(self, source: str, target: str, arrive: Callable[..., Any]) -> Callable[..., Any]:
        """`arrive`, after which the state of `target` rests on what the state of `source` rests on now."""
        carries = self._rests_on.get(source, 0) | self._drawn
        self._drawn = 0

        def arrive_with_lineage(*args: Any) -> None:
            self._rests_on[target] = self._rests_on.get(target, 0) | carries
            arrive(*args)

        return arrive_with_lineage

    def committed(self, liveness: Iterable[tuple[str, Liveness]]) -> None:
        """A host has changed the committed state: which invariants hold now?"""
        host = self._world.current_host()
        rests_on = self._rests_on.get(host.name, 0) if host is not None else 0
        for name, invariant in liveness:
            if not invariant():
                self.outcomes.pop(name, None)
            else:
                self.outcomes.setdefault(name, rests_on)

    def supports(self) -> dict[str, frozenset[Message]]:
        """The messages that each outcome of the run rested on."""
        found = self.outcomes
        if not found:
            everything = 0
            for rests_on in self._rests_on.values():
                everything |= rests_on
            found = {PROGRAM_ENDS: everything}
        return {name: frozenset(self._of(bits)) for name, bits in found.items()}

    def _of(self, bits: int) -> Iterator[Message]:
        for place, message in enumerate(self._messages):
            if bits >> place & 1:
                yield message
