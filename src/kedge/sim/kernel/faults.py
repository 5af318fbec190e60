"""Faults of a run: named fault points, a plan that decides at each, and scripts for tests and scenarios.

Every request, reply and delivery is a fault point, and a program may have points of its own. Faults are declared in
`fault_registry`. Every decision is a choice on the faults stream of the tape. After `stop` no fault strikes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeVar

from kedge.errors import check
from kedge.sim.kernel.choices import DETAIL, SWARM
from kedge.sim.kernel.fault_registry import FAULTS, Placement
from kedge.sim.kernel.trace import Event

if TYPE_CHECKING:
    from kedge.sim.kernel.hosts import Host
    from kedge.sim.kernel.network import Partition
    from kedge.sim.kernel.world import SimWorld

_T = TypeVar("_T")

NOTHING = ""
"""The result of a fault point at which no fault strikes."""

_RATES_REACHED = (0.5, 0.7, 0.9, 1.0)


class FaultPlan(Protocol):
    """The rate of each kind of fault at each point. Must be picklable."""

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        """Called once per run for each point and kind."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """Each seed draws which faults may strike at all, and how often. Most may in few runs only."""

    without: tuple[str, ...] = field(default_factory=partial(FAULTS.not_placed_by, Placement.SWARM))
    """Kinds, or "point: kind", that never strike. By default the faults that a sound transport rules out."""

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        if kind in self.without or f"{point}: {kind}" in self.without:
            return 0.0
        rates = FAULTS.rates(point, kind)
        if not rates:
            return 0.0
        return rates[faults.draw(f"{SWARM}{point}: {kind}", len(rates), _RATES_REACHED)]


@dataclass(frozen=True, slots=True)
class FixedRates:
    """The same rates in every run, by "point: kind" or by kind alone. Other faults never strike."""

    rates: Mapping[str, float] = field(default_factory=dict)

    def rate(self, point: str, kind: str, faults: Faults) -> float:  # noqa: ARG002
        return self.rates.get(f"{point}: {kind}", self.rates.get(kind, 0.0))


NO_FAULTS = FixedRates()


@dataclass(slots=True)
class _Script:
    """One scripted fault at a point."""

    point: str
    kind: str
    nth: int
    where: Callable[[str], bool]
    seen: int = 0


class FaultPoint:
    """One named point, its subject (such as a link), and the kinds of fault that may strike there."""

    __slots__ = ("_about", "_bound", "_faults", "_kinds", "_label", "_point", "_reached")

    def __init__(self, faults: Faults, point: str, about: str, kinds: tuple[str, ...]) -> None:
        self._faults = faults
        self._point = point
        self._about = about
        self._kinds = kinds
        self._label = f"{point} {about}"
        self._bound = len(kinds) + 1
        self._reached: tuple[float, ...] | None = None

    def draw_fault(self) -> str:
        """Draw whether a fault strikes this time: its kind, or `NOTHING`."""
        faults = self._faults
        if not faults.active:
            return NOTHING
        kind = faults.scripted(self._point, self._about) if faults.scripts else NOTHING
        if not kind:
            if self._reached is None:
                self._reached = faults.reached(self._point, self._kinds)
            if not self._reached:
                return NOTHING
            value = faults.draw(self._label, self._bound, self._reached)
            if not value:
                return NOTHING
            kind = self._kinds[value - 1]
        faults.record_strike(f"{kind}: {self._label}")
        return kind


class Faults:
    """The faults of one run."""

    def __init__(self, world: SimWorld, plan: FaultPlan) -> None:
        self._world = world
        self._plan = plan
        self.active = True
        self.draw = world.choices.faults.choose
        """A choice on the faults stream."""
        self._rates: dict[str, float] = {}
        self._points: dict[tuple[str, str, tuple[str, ...]], FaultPoint] = {}
        self.scripts: list[_Script] = []
        self.struck: list[Event] = []
        """Every fault that struck, in order."""

    def at(self, point: str, about: str, kinds: tuple[str, ...]) -> str:
        """Draw at a named point whether a fault strikes: one of `kinds`, or `NOTHING`."""
        return self.point(point, about, kinds).draw_fault()

    def point(self, point: str, about: str, kinds: tuple[str, ...]) -> FaultPoint:
        """A reusable `at`, for points that many messages pass."""
        key = (point, about, kinds)
        found = self._points.get(key)
        if found is None:
            found = self._points[key] = FaultPoint(self, point, about, kinds)
        return found

    def reached(self, point: str, kinds: tuple[str, ...]) -> tuple[float, ...]:
        """Cumulative probabilities of no fault and of each kind; empty if no kind can strike."""
        rates = [self._rate(point, kind) for kind in kinds]
        if not any(rates):
            return ()
        if (total := sum(rates)) > 1.0:
            rates = [rate / total for rate in rates]
        return tuple(accumulate((max(0.0, 1.0 - total), *rates)))

    def pick(self, label: str, options: Sequence[_T]) -> _T:
        """Draw the duration, size or direction of a fault that struck. The mildest option goes first."""
        return options[self.draw(f"{DETAIL}{label}", len(options))]

    def record_strike(self, text: str) -> None:
        """Record a fault in the trace."""
        self._world.note("fault", text)
        self.struck.append(self._world.trace.events[-1])

    def stop(self) -> None:
        """End all faults, scripted ones included."""
        if self.active:
            self.active = False
            self._world.note("faults", "stopped")

    def _rate(self, point: str, kind: str) -> float:
        name = f"{point}: {kind}"
        if name not in self._rates:
            self._rates[name] = self._plan.rate(point, kind, self)
        return self._rates[name]

    # -- scripts

    def script(self, point: str, kind: str, *, nth: int = 1, where: Callable[[str], bool] = bool) -> None:
        """Make `kind` strike the `nth` time that `point` is passed with an `about` that matches `where`."""
        check(nth >= 1, "the first time is nth=1")
        self.scripts.append(_Script(point, kind, nth, where))

    def partition(self, one: Host, others: Iterable[Host], *, both_ways: bool = True) -> Partition:
        """Partition one host from others: `async with sim.faults.partition(node, servers): ...`."""
        return self._world.network.partition([one], others, both_ways=both_ways)

    def at_time(self, at_s: float, action: Callable[[], object]) -> None:
        """Run `action` at a moment of virtual time."""
        world = self._world
        world.loop.call_later(max(0.0, at_s - world.loop.now), self._act, action, context=world.context)

    def after(self, kind: str, action: Callable[[], object], *, nth: int = 1, containing: str = "") -> None:
        """Run `action` after the `nth` event of `kind` whose text contains `containing`."""
        left = [nth]

        def fits(event: Event) -> bool:
            if event.kind == kind and containing in event.text:
                left[0] -= 1
            return left[0] == 0

        self._watch(fits, action)

    def when(self, predicate: Callable[[], bool], action: Callable[[], object]) -> None:
        """Run `action` once, after the first event at which `predicate` holds."""
        self._watch(lambda event: predicate(), action)  # noqa: ARG005

    def _watch(self, fits: Callable[[Event], bool], action: Callable[[], object]) -> None:
        world = self._world
        done = [False]

        def listen(event: Event) -> None:
            if not done[0] and self.active and fits(event):
                done[0] = True
                world.loop.call_soon(self._act, action, context=world.context)

        world.listeners.append(listen)

    def _act(self, action: Callable[[], object]) -> None:
        if self.active:
            action()

    def scripted(self, point: str, about: str) -> str:
        for script in self.scripts:
            if script.point == point and script.where(about):
                script.seen += 1
                if script.seen == script.nth:
                    return script.kind
        return NOTHING
