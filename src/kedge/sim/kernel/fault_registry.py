"""The registry of faults: each fault declared once, with its point, duration, rates and the plans that may place it.

The kernel declares the faults of calls, streams, messages, connections and hosts here; other layers add theirs with
`FAULTS.declare`. Fault points take their kinds from it, and `Swarm` its rates. `kedge.sim.fault_table` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from kedge.errors import check

RATES = (0.0, 0.01, 0.05, 0.2)
"""How often a fault may strike at its point. A swarm draws one rate for each fault."""
LASTING_RATES = (0.0, 0.002, 0.006, 0.02)
"""For most faults that outlast their message: at the rates above a run would be broken most of the time."""
HOST_RATES = (0.0, 0.2, 0.5, 1.0)
"""For faults that a host is born with: drawn once a host, not at every message."""


class Placement(StrEnum):
    """The plans that may place a fault."""

    NAMED = "named"
    """A script, or a plan of rates that names the fault: `FixedRates`, a strategy of the zoo."""
    SWARM = "swarm"
    """`Swarm`, the default plan."""
    CLUSTER_SWARM = "cluster swarm"
    """The swarm of simulated clusters, with lower rates."""
    SCENARIO = "scenario"
    """A step of a scenario file."""


EVERY_PLAN = (Placement.NAMED, Placement.SWARM, Placement.CLUSTER_SWARM)
ONLY_NAMED = (Placement.NAMED,)


@dataclass(frozen=True, slots=True)
class Fault:
    """The declaration of one fault at one point."""

    name: str
    """The kind that `Faults.at` returns, and that plans and scripts name."""
    point: str
    """Where it strikes. Words in capitals stand for any name, as in `request of SERVICE.METHOD`."""
    effect: str
    lasts: bool = False
    """Whether it goes on after the event it struck at."""
    rates: tuple[float, ...] = RATES
    """The rates that a swarm draws from; empty for a fault that strikes only when a step or a script places it."""
    plans: tuple[Placement, ...] = EVERY_PLAN

    @property
    def prefix(self) -> str:
        """The fixed beginning of `point`."""
        fixed = takewhile(lambda word: not word.isupper(), self.point.split(" "))
        return " ".join(fixed)

    def strikes_at(self, point: str) -> bool:
        return point == self.point or (self.prefix != self.point and point.startswith(f"{self.prefix} "))


class FaultRegistry:
    """Every declared fault, in order of declaration."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[Fault]] = {}
        self._all: list[Fault] = []

    def declare(self, *faults: Fault) -> None:
        for fault in faults:
            declared = self._by_name.setdefault(fault.name, [])
            check(
                all(other.point != fault.point for other in declared),
                f"{fault.point}: {fault.name} is declared twice: remove one declaration, or rename one",
            )
            check(
                len(fault.rates) in (0, len(RATES)),
                f"{fault.point}: {fault.name} has {len(fault.rates)} rates: give {len(RATES)}, or none",
            )
            declared.append(fault)
            self._all.append(fault)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._all)

    def kinds_at(self, point: str) -> tuple[str, ...]:
        """The faults declared for `point`, as it was declared, in order: what a fault point passes to `Faults.at`."""
        kinds = tuple(fault.name for fault in self._all if fault.point == point)
        check(bool(kinds), f"no fault is declared at {point!r}: declare one with FAULTS.declare")
        return kinds

    def find(self, point: str, kind: str) -> Fault | None:
        """The declaration of a fault at a point of a run, such as `request of api.create`."""
        return next((fault for fault in self._by_name.get(kind, ()) if fault.strikes_at(point)), None)

    def rates(self, point: str, kind: str) -> tuple[float, ...]:
        """The rates a swarm draws from; `RATES` for a program's own fault that is not declared."""
        fault = self.find(point, kind)
        return RATES if fault is None else fault.rates

    def not_placed_by(self, plan: Placement) -> tuple[str, ...]:
        """Faults at points that `plan` never places, as `Swarm.without` takes them."""
        excluded = (fault for fault in self._all if fault.rates and plan not in fault.plans)
        names = (fault.name if fault.prefix != fault.point else f"{fault.point}: {fault.name}" for fault in excluded)
        return tuple(dict.fromkeys(names))


REQUEST, REPLY, MESSAGE = "request of SERVICE.METHOD", "reply of SERVICE.METHOD", "message NAME"
DELIVERY, BYTES, HOST_BIRTH = "delivery of SERVICE.METHOD", "bytes of HOST:PORT", "birth of host"


def _lasting(point: str) -> tuple[Fault, ...]:
    """Faults that strike as a call passes, and go on after it."""
    effects = {
        "partition": "caller and callee are cut off for a while, in one direction or both",
        "pause caller": "the calling host stands still for a while",
        "pause callee": "the called host stands still for a while",
        "crash caller": "the calling host crashes, and restarts later",
        "crash callee": "the called host crashes, and restarts later",
    }
    return tuple(Fault(name, point, effect, lasts=True, rates=LASTING_RATES) for name, effect in effects.items())


FAULTS = FaultRegistry()
"""All faults of a process. A layer above the kernel adds its own when it is imported."""
FAULTS.declare(
    Fault("lose", REQUEST, "the request never arrives"),
    Fault("delay", REQUEST, "the request arrives late"),
    Fault("duplicate", REQUEST, "the request is carried out twice", plans=ONLY_NAMED),
    *_lasting(REQUEST),
    Fault("lose", REPLY, "the call is carried out; its reply never arrives"),
    Fault("delay", REPLY, "the reply arrives late"),
    *_lasting(REPLY),
    Fault("lose", MESSAGE, "the message never arrives"),
    Fault("delay", MESSAGE, "the message arrives late"),
    Fault("duplicate", MESSAGE, "the message arrives twice", plans=ONLY_NAMED),
    Fault("delay", DELIVERY, "an item of a stream arrives late"),
    Fault("disconnect", DELIVERY, "the stream ends, and its reader learns of it"),
    Fault("hide", DELIVERY, "one item of a stream is dropped silently", plans=ONLY_NAMED),
    Fault("reset", BYTES, "the connection is reset"),
    Fault("delay", BYTES, "the bytes arrive late"),
    Fault("wrong clock", HOST_BIRTH, "the wall clock of the host is off", lasts=True, rates=HOST_RATES),
    Fault("fast clock", HOST_BIRTH, "the clocks of the host run fast", lasts=True, rates=HOST_RATES),
    Fault("slow clock", HOST_BIRTH, "the clocks of the host run slow", lasts=True, rates=HOST_RATES),
    Fault("slow cpu", HOST_BIRTH, "each step on the host takes time", lasts=True, rates=HOST_RATES),
)
