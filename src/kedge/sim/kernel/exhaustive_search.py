"""Exhaustive search of a small world: every order in which its first deliveries can arrive, with few faults.

Two deliveries to different hosts commute, so only one of their orders is run (sleep sets, Godefroid 1996). That holds
as long as hosts share nothing but messages. `delivery_orders` has the runs; a search makes one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kedge.sim.kernel.choices import Tape
from kedge.sim.kernel.delivery_orders import NEXT_DELIVERY, Delivery, DeliveryOrders
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget
from kedge.sim.kernel.world import SimWorld

SEARCH_RUNS_MAX = 100_000
"""Runs of one search. The report states when this bound ended it."""

DeliveryId: TypeAlias = tuple[str, str, int]

CLOCK: DeliveryId = ("", "", 0)
"""In place of a delivery: the clock goes on. It does not commute with anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBounds:
    """How far a search goes."""

    deliveries: int = 12
    overtakes: int = 0
    faults: int = 0
    """Faults in one run, at most."""
    kinds: tuple[str, ...] = ("lose",)
    runs: int = SEARCH_RUNS_MAX

    def orders(self, *, from_start: bool) -> DeliveryOrders:
        kinds = tuple(sorted(self.kinds)) if self.faults else ()
        return DeliveryOrders(deliveries=self.deliveries, overtakes=self.overtakes, faults=kinds, from_start=from_start)

    def __str__(self) -> str:
        text = f"the first {self.deliveries} deliveries"
        if self.faults:
            text += f", with at most {self.faults} fault{'s' if self.faults > 1 else ''} ({', '.join(self.kinds)})"
        if self.overtakes:
            text += f", with at most {self.overtakes} timers before a message"
        return text


@dataclass(slots=True)
class ExhaustiveSearch:
    """The progress of a search."""

    target: SimulationTarget
    bounds: SearchBounds
    runs: int = 0
    """Runs to their end: no two of them look alike to every host."""
    equal: int = 0
    """Runs that were stopped: their order differs from an earlier one only between independent deliveries."""
    longest: int = 0
    """Deliveries in order, in the longest run."""
    finished: bool = False
    failure: RunOutcome | None = None

    @property
    def all_orders(self) -> bool:
        """Whether no run had more deliveries than the bound: the search is of all orders, not of the first ones."""
        return self.finished and self.longest < self.bounds.deliveries


@dataclass(slots=True)
class _OrderPoint:
    """A point at which several deliveries were possible."""

    options: tuple[DeliveryId, ...]
    asleep: frozenset[DeliveryId]
    """Explored before, in an order that is equal to this one."""
    index: int
    tried: set[DeliveryId] = field(default_factory=set)

    def move_on(self) -> bool:
        self.tried.add(self.options[self.index])
        for index, option in enumerate(self.options):
            if option not in self.tried and option not in self.asleep:
                self.index = index
                return True
        return False


@dataclass(slots=True)
class _FaultPoint:
    """A point at which a fault could strike."""

    values: tuple[int, ...]
    index: int = 0

    def move_on(self) -> bool:
        self.index += 1
        return self.index < len(self.values)


class _SearchedRun:
    """The choices of one run: those of the path, then the first possible ones, which are added to the path."""

    def __init__(self, path: list[_OrderPoint | _FaultPoint], bounds: SearchBounds) -> None:
        self.path = path
        self.equal = False
        self._bounds = bounds
        self._place = 0
        self._asleep: frozenset[DeliveryId] = frozenset()
        self._faults = 0
        self.world: SimWorld

    def begin(self, world: SimWorld) -> None:
        self.world = world
        assert world.deliveries is not None
        world.deliveries.chooser = self
        world.faults.draw = self.choose_fault

    def choose(self, possible: Sequence[Delivery], *, clock: bool) -> int:
        options = tuple(delivery.id for delivery in possible) + ((CLOCK,) if clock else ())
        if self._place < len(self.path):
            point = self.path[self._place]
            assert isinstance(point, _OrderPoint), "the same choices lead to the same point"
            assert point.options == options, "the same choices lead to the same point"
        else:
            awake = [index for index, option in enumerate(options) if option not in self._asleep]
            if not awake:
                self._stop()
                return 0
            point = _OrderPoint(options, self._asleep, awake[0])
            self.path.append(point)
        self._place += 1
        self._asleep = point.asleep | point.tried
        self.world.choices.network.taken.append((NEXT_DELIVERY, len(options), point.index))
        return point.index

    def delivered(self, delivery: Delivery) -> None:
        if delivery.id in self._asleep:
            self._stop()
        self._asleep = frozenset(each for each in self._asleep if each is not CLOCK and each[1] != delivery.target)

    def clock_advances(self) -> None:
        self._asleep = frozenset()

    def choose_fault(self, label: str, bound: int, reached: Sequence[float] | None = None, /) -> int:
        value = 0
        deliveries = self.world.deliveries
        if deliveries is not None and deliveries.exploring and reached is not None:
            value = self._explored_fault(reached)
        self.world.choices.faults.taken.append((label, bound, value))
        return value

    def _explored_fault(self, reached: Sequence[float]) -> int:
        if self._faults >= self._bounds.faults:
            return 0
        if self._place < len(self.path):
            point = self.path[self._place]
            assert isinstance(point, _FaultPoint), "the same choices lead to the same point"
        else:
            point = _FaultPoint((0, *(v for v in range(1, len(reached)) if reached[v] > reached[v - 1])))
            self.path.append(point)
        self._place += 1
        value = point.values[point.index]
        self._faults += value > 0
        return value

    def _stop(self) -> None:
        self.equal = True
        self.world.loop.stop()


def search(
    target: SimulationTarget,
    bounds: SearchBounds,
    *,
    on_run: Callable[[ExhaustiveSearch], object] = lambda search: None,  # noqa: ARG005
) -> ExhaustiveSearch:
    """Run `target` in every order within `bounds`, depth first, until one breaks an invariant.

    The search begins where the program calls `sim.explore_orders()`, or at its start if it never does.
    """
    orders = bounds.orders(from_start=False)
    _, first = _run(target, orders, [], bounds)
    if first.world.deliveries is not None and not first.world.deliveries.began:
        orders = bounds.orders(from_start=True)
    found = ExhaustiveSearch(replace(target, policy=orders), bounds)
    path: list[_OrderPoint | _FaultPoint] = []
    while found.runs + found.equal < bounds.runs:
        outcome, one = _run(target, orders, path, bounds)
        found.runs += not one.equal
        found.equal += one.equal
        found.longest = max(found.longest, one.world.deliveries.explored if one.world.deliveries is not None else 0)
        on_run(found)
        if outcome.violation is not None and not one.equal:
            found.failure = outcome
            return found
        while path and not path[-1].move_on():
            path.pop()
        if not path:
            found.finished = True
            return found
    return found


def _run(
    target: SimulationTarget, orders: DeliveryOrders, path: list[_OrderPoint | _FaultPoint], bounds: SearchBounds
) -> tuple[RunOutcome, _SearchedRun]:
    one = _SearchedRun(path, bounds)

    def make_simulation(world: SimWorld) -> object:
        one.begin(world)
        return target.make_simulation(world)

    return replace(target, make_simulation=make_simulation).run(Tape(0, orders.name), lenient=True), one
