"""Delivery orders: messages arrive one at a time, in an order that choices decide. Latency has no part in it.

`exhaustive_search` runs a program in all of these orders. A run ends with a plain tape, whose policy is the name of a
`DeliveryOrders`, so `replay` and `shrink` treat it as any other. Byte streams (`connections`) keep their latencies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kedge.errors import check
from kedge.sim.kernel.loop import SimLoop
from kedge.sim.kernel.policies import Chooser

if TYPE_CHECKING:
    from kedge.sim.kernel.faults import Faults
    from kedge.sim.kernel.world import SimWorld

NEXT_DELIVERY = "next delivery"
"""Label of the choices of order, on the network stream."""
LOCAL_FAULTS = ("crash callee", "duplicate", "lose")
"""Faults that touch only the host whose step they strike in: steps of different hosts stay independent."""
_NAME = re.compile(r"orders\(deliveries=(\d+), overtakes=(\d+), faults=([\w +]*), from_start=(True|False)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOrders:
    """The policy under which orders are chosen. Hosts run in turn: in between they exchange nothing."""

    deliveries: int
    """The number of deliveries whose order is chosen. Later ones arrive as they were sent."""
    overtakes: int = 0
    """How often the clock may go on although a message is under way: a timer fires before the message arrives."""
    faults: tuple[str, ...] = ()
    """Kinds of fault that may strike at requests, replies and messages."""
    from_start: bool = False
    """Choose from the start of the program on, not only from `sim.explore_orders()` on."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.faults) - set(LOCAL_FAULTS))
        check(not unknown, f"{unknown}: only {', '.join(LOCAL_FAULTS)} strike one host alone")

    @property
    def name(self) -> str:
        faults = "+".join(self.faults)
        bounds = f"deliveries={self.deliveries}, overtakes={self.overtakes}, faults={faults}"
        return f"orders({bounds}, from_start={self.from_start})"

    @classmethod
    def of_name(cls, name: str) -> DeliveryOrders | None:
        """The policy that made a tape, if it was one of these."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        deliveries, overtakes, faults, from_start = found.groups()
        return cls(
            deliveries=int(deliveries),
            overtakes=int(overtakes),
            faults=tuple(faults.split("+")) if faults else (),
            from_start=from_start == "True",
        )

    def chooser(self, seed: int) -> Chooser | None:  # noqa: ARG002
        return None

    def rate(self, point: str, kind: str, faults: Faults) -> float:  # noqa: ARG002
        """It is the fault plan too: each kind is as likely as none."""
        return 1.0 if kind in self.faults else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """A message under way."""

    way: tuple[str, str]
    number: int
    """Counts the messages of its way. A host sends the same ones in every order that looks alike to it."""
    channel: object
    """Deliveries of one channel keep their order. None: it may arrive before and after any other."""
    arrive: Callable[..., object]
    args: tuple[Any, ...]

    @property
    def id(self) -> tuple[str, str, int]:
        return (*self.way, self.number)

    @property
    def target(self) -> str:
        return self.way[1]


class OrderChooser(Protocol):
    """Picks the next delivery by its index, or `len(possible)` for the clock, if it may overtake."""

    def choose(self, possible: Sequence[Delivery], *, clock: bool) -> int: ...

    def delivered(self, delivery: Delivery) -> None:
        """Called before each delivery, chosen or not."""

    def clock_advances(self) -> None: ...


class TapedOrders:
    """The order on the tape; without one it is drawn."""

    def __init__(self, world: SimWorld) -> None:
        self._choices = world.choices

    def choose(self, possible: Sequence[Delivery], *, clock: bool) -> int:
        return self._choices.network.choose(NEXT_DELIVERY, len(possible) + clock)

    def delivered(self, delivery: Delivery) -> None:
        pass

    def clock_advances(self) -> None:
        pass


class Deliveries:
    """All messages under way in one run."""

    def __init__(self, world: SimWorld, orders: DeliveryOrders) -> None:
        self.chooser: OrderChooser = TapedOrders(world)
        self.explored = 0
        """Deliveries whose order was chosen."""
        self.exploring = orders.from_start
        self.began = orders.from_start
        """Whether the program has called `explore_orders`, if it has to."""
        self._orders = orders
        self._under_way: list[Delivery] = []
        self._sent: dict[tuple[str, str], int] = {}
        self._overtaken = 0

    def explore(self) -> None:
        self.exploring = self.began = True

    def stop(self) -> None:
        self.exploring = False

    def put(self, way: tuple[str, str], channel: object, arrive: Callable[..., object], *args: Any) -> None:
        number = self._sent[way] = self._sent.get(way, 0) + 1
        self._under_way.append(Delivery(way, number, channel, arrive, args))

    def take_next(self, *, timers: bool) -> Delivery | None:
        """The message that arrives now. None if the clock is next."""
        if not self._under_way:
            self.chooser.clock_advances()
            return None
        possible = self._possible()
        index = 0
        if self.exploring:
            clock = timers and self._overtaken < self._orders.overtakes
            if len(possible) + clock > 1:
                index = self.chooser.choose(possible, clock=clock)
            if index == len(possible):
                self._overtaken += 1
                self.chooser.clock_advances()
                return None
            self.explored += 1
            self.exploring = self.explored < self._orders.deliveries
        delivery = possible[index]
        self._under_way.remove(delivery)
        self.chooser.delivered(delivery)
        return delivery

    def _possible(self) -> list[Delivery]:
        """Deliveries that may be next, oldest first."""
        seen: set[int] = set()
        possible = []
        for delivery in self._under_way:
            if delivery.channel is None:
                possible.append(delivery)
            elif id(delivery.channel) not in seen:
                seen.add(id(delivery.channel))
                possible.append(delivery)
        return possible


class OrderedLoop(SimLoop):
    """A loop that delivers messages whenever every host waits, and moves the clock only when none is under way."""

    def __init__(self, deliveries: Deliveries, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deliveries = deliveries

    def _next_timers(self) -> bool:
        while not self._ready and not self._stopping:
            delivery = self._deliveries.take_next(timers=bool(self._moments))
            if delivery is None:
                return super()._next_timers()
            self._run_as_world(self._world_strand, delivery.arrive, delivery.args)
        return bool(self._ready) and not self._stopping
