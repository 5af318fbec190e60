"""Ways to look for a bug: the swarm under several schedules, and plans that aim at one place in the manner of Sieve.

A targeted plan keeps the world quiet but for one kind of mischief: a crash just after the j-th write, a reply that is
lost there, a list from the past, an event that is late. Bugs that need one precise fault are found sooner, and a quiet
world costs less. What exactly strikes, where and when, is the seed's to draw.
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
"""Scheduling choices of a small world, within which PCT changes priorities."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run a seed."""

    name: str
    policy: SchedulePolicy
    faults: FaultPlan
    aim: Callable[[Simulation], None] | None = None

    @property
    def targeted(self) -> bool:
        """Whether it keeps the world quiet but for what it aims at. The swarms aim at nothing."""
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
    """Quiet, but for a few kinds that are drawn as a swarm would, and those that are always there."""

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
    """A few faults that every seed has; how often each strikes is drawn by the seed. Nothing else goes wrong."""

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
    """Who wrote dies between its write and the answer."""
    verb, nth = _write(sim)
    sim.faults.script(f"reply of api.{verb}", "crash caller", nth=nth, where=_of_the_control_plane)


def lose_reply_of_write(sim: Simulation) -> None:
    """A write is carried out, and nobody is told."""
    verb, nth = _write(sim)
    sim.faults.script(f"reply of api.{verb}", "lose", nth=nth)


PLAIN_RANDOM = "swarm"
"""What the others are measured against: any fault, any order."""
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
"""For any world. Each seed takes the next."""

SOME, MUCH = (0.04, 0.12, 0.3), (0.2, 0.5, 0.8)
"""Rates of what strikes at messages, and of what is asked about once a while."""
LATE = {"delivery of api.watch: delay": (*SOME, 0.6)}
COMPACTED = {"watch of api: compact": MUCH, "event of cluster: compact": MUCH}

OLD_LISTS = Strategy(
    "old lists", Uniform(), DrawnRates({"delivery of api.watch: delay": MUCH, "list of api: stale": MUCH})
)
CUT_OFF = Strategy("cut off after a bind", Uniform(), DrawnRates({"reply of api.bind: partition": MUCH}))
"""Neither a reply, nor a read, nor an event tells a scheduler soon what became of its bind."""

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
"""For a world whose controller has the runtime alone to rely on: all that goes wrong is what a cache may miss."""

OF_SILENCE = (
    Strategy("lost creates", Uniform(), DrawnRates({"reply of api.create: lose": MUCH, **LATE})),
    Strategy("cut off after a create", Uniform(), DrawnRates({"reply of api.create: partition": MUCH, **LATE})),
)
"""For who must find out what became of a write: neither a reply nor, for a while, an event tells."""

OF_QUEUES = (Strategy("any order", Uniform(), DrawnRates()), Strategy("in order", Fifo(), DrawnRates()))
"""For what a queue alone is to blame for: nothing goes wrong, and only the order is drawn."""

OF_RACES = (
    Strategy(
        "slow commits",
        Uniform(),
        DrawnRates({"request of store.commit: delay": SOME, "reply of store.get: delay": SOME}),
    ),
    Strategy("late writes", Uniform(), DrawnRates({f"request of api.{verb}: delay": MUCH for verb in WRITES})),
    Strategy("late views", Uniform(), DrawnRates(LATE)),
)
"""For what is proved in a commit or asked of the authority: time passes between what was read and what is written."""
