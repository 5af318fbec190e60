"""Strategies of a hunt: the swarm under several schedules, and targeted plans in the manner of Sieve.

A targeted plan injects one kind of fault only: a crash just after the n-th write, a lost reply to it, a stale list, a
late event. It finds bugs that need one precise fault sooner, and a run with few faults costs less. The seed draws which
fault strikes, where and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.kernel import Fifo, FixedRates, Mixed, Pct, Simulation, Uniform
from kedge.sim.kernel.choices import SWARM
from kedge.sim.kernel.faults import FaultPlan, Faults
from kedge.sim.kernel.policies import SchedulePolicy
from kedge.sim.kernel.targets import SimulationTarget

WRITES = ("create", "patch", "update", "bind", "delete")
WRITES_MAX = 24
"""The last write that a targeted plan aims at."""
HORIZON = 6_000
"""Schedule choices of a small world, within which PCT changes priorities."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A schedule policy, a fault plan and scripted faults for a seed."""

    name: str
    policy: SchedulePolicy
    faults: FaultPlan
    aim: Callable[[Simulation], None] | None = None

    @property
    def targeted(self) -> bool:
        """Whether it injects only particular faults. Swarms may inject any."""
        return not isinstance(self.faults, ClusterSwarm)

    def applied(self, target: SimulationTarget) -> SimulationTarget:
        program, aim = target.program, self.aim

        async def aimed(sim: Simulation) -> object:
            if aim is not None:
                aim(sim)
            return await program(sim)

        return replace(target, program=aimed, policy=self.policy, faults=self.faults)


@dataclass(frozen=True, slots=True)
class RareFaults:
    """A few kinds of fault with the rates of a swarm, and some with fixed rates. No other fault strikes."""

    kinds: tuple[str, ...]
    always: Mapping[str, float] = field(default_factory=dict)

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        found = self.always.get(f"{point}: {kind}", self.always.get(kind))
        if found is not None:
            return found
        if kind in self.kinds or f"{point}: {kind}" in self.kinds:
            return ClusterSwarm().rate(point, kind, faults)
        return 0.0


@dataclass(frozen=True, slots=True)
class DrawnRates:
    """A few faults that every seed has, at rates that the seed draws. No other fault strikes."""

    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By "point: kind"."""

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        name = f"{point}: {kind}"
        options = self.rates.get(name, ())
        return options[faults.draw(f"{SWARM}{name}", len(options))] if options else 0.0


def _write(sim: Simulation) -> tuple[str, int]:
    return sim.choose("aimed verb", WRITES), sim.choose_int("aimed write", 1, WRITES_MAX)


def _of_the_control_plane(about: str) -> bool:
    return about.startswith(("manager", "default-scheduler", "other-scheduler", "node-"))


def crash_after_write(sim: Simulation) -> None:
    """The writer crashes between its write and the reply."""
    verb, nth = _write(sim)
    sim.faults.script(f"reply of api.{verb}", "crash caller", nth=nth, where=_of_the_control_plane)


def lose_reply_of_write(sim: Simulation) -> None:
    """A write is carried out, and its reply is lost."""
    verb, nth = _write(sim)
    sim.faults.script(f"reply of api.{verb}", "lose", nth=nth)


PLAIN_RANDOM = "swarm"
"""The baseline of comparisons: any fault, any order."""
BASELINE = (
    Strategy(PLAIN_RANDOM, Uniform(), ClusterSwarm()),
    Strategy("swarm, pct", Pct(horizon=HORIZON), ClusterSwarm()),
)
GENERAL = (
    *BASELINE,
    Strategy("crash after write", Fifo(), FixedRates(), crash_after_write),
    Strategy("swarm, fifo", Fifo(), ClusterSwarm()),
    Strategy("lost reply", Fifo(), FixedRates(), lose_reply_of_write),
    Strategy(
        "deposed leaders",
        Uniform(),
        RareFaults(("delay", "crash caller"), {"event of cluster: depose": 0.6, "request of api.patch: delay": 0.1}),
    ),
    Strategy("stale view", Mixed(), RareFaults(("stale", "disconnect", "compact", "delay", "crash caller"))),
)
"""For any world. Each seed uses the next one."""

SOME, MUCH = (0.04, 0.12, 0.3), (0.2, 0.5, 0.8)
"""Rates of faults at messages, and of faults that are drawn periodically."""
LATE = {"delivery of api.watch: delay": (*SOME, 0.6)}
COMPACTED = {"watch of api: compact": MUCH, "event of cluster: compact": MUCH}

OLD_LISTS = Strategy(
    "old lists", Uniform(), DrawnRates({"delivery of api.watch: delay": MUCH, "list of api: stale": MUCH})
)
CUT_OFF = Strategy("cut off after a bind", Uniform(), DrawnRates({"reply of api.bind: partition": MUCH}))
"""For a while the scheduler gets neither the reply to its bind, nor a read, nor an event."""

SLOW_RESERVES = Strategy("slow reserves", Uniform(), DrawnRates({"request of api.reserve: delay": MUCH}))

BROKEN_WATCHES = Strategy(
    "broken watches", Uniform(), DrawnRates({"delivery of api.watch: disconnect": SOME, **COMPACTED})
)

OF_VIEWS = (
    Strategy(
        "deposed leaders",
        Uniform(),
        DrawnRates({"event of cluster: depose": MUCH, "reply of api.create: crash caller": SOME, **LATE}),
    ),
    Strategy("lost replies", Fifo(), DrawnRates({f"reply of api.{verb}: lose": SOME for verb in WRITES})),
    Strategy("lost requests", Fifo(), DrawnRates({f"request of api.{verb}: lose": MUCH for verb in WRITES})),
    BROKEN_WATCHES,
    OLD_LISTS,
    Strategy("dead watches", Uniform(), DrawnRates({"watch of api: stall": MUCH})),
    Strategy(
        "late views",
        Pct(horizon=HORIZON),
        DrawnRates({**LATE, "change of api: conflict": SOME, "status of api: late": MUCH}),
    ),
    Strategy("crash after write", Fifo(), FixedRates(), crash_after_write),
)
"""For a world whose controller relies on the runtime alone: faults that a cache must survive."""

OF_SILENCE = (
    Strategy("lost creates", Uniform(), DrawnRates({"reply of api.create: lose": MUCH, **LATE})),
    Strategy("cut off after a create", Uniform(), DrawnRates({"reply of api.create: partition": MUCH, **LATE})),
)
"""For a client that must find the outcome of a write: it gets no reply and, for a while, no event."""

OF_QUEUES = (Strategy("any order", Uniform(), DrawnRates()), Strategy("in order", Fifo(), DrawnRates()))
"""For bugs of a queue: no fault strikes, and only the order is drawn."""

OF_RACES = (
    Strategy(
        "slow commits",
        Uniform(),
        DrawnRates({"request of store.commit: delay": SOME, "reply of store.get: delay": SOME}),
    ),
    Strategy("late writes", Uniform(), DrawnRates({f"request of api.{verb}: delay": MUCH for verb in WRITES})),
    Strategy("late views", Uniform(), DrawnRates(LATE)),
)
"""For checks in a commit or reads from the authority: time passes between the read and the write."""

OF_DISKS = (
    *BASELINE,
    Strategy("power cuts", Uniform(), DrawnRates({"sync of sqlite: power cut": SOME})),
    Strategy("full disks", Uniform(), DrawnRates({"sync of sqlite: full": SOME})),
    Strategy("any disk", Fifo(), DrawnRates({"sync of sqlite: power cut": SOME, "sync of sqlite: full": SOME})),
)
"""For a world whose store is on a disk."""
