"""Ways to look for a bug: the swarm under several schedules, and plans that aim at one place in the manner of Sieve.

A targeted plan keeps the world quiet but for one kind of mischief: a crash just after the j-th write, a reply that is
lost there, a list from the past, an event that is late. Bugs that need one precise fault are found sooner, and a quiet
world costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kedge.sim.cluster_faults import ClusterSwarm
from kedge.sim.kernel import Fifo, FixedRates, Mixed, Pct, Simulation, Uniform
from kedge.sim.kernel.faults import FaultPlan, Faults
from kedge.sim.kernel.policies import Policy
from kedge.sim.kernel.scenarios import Scenario

WRITES = ("create", "patch", "update", "bind", "delete")
WRITES_MAX = 24
"""The last write that a targeted plan aims at."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run a seed."""

    name: str
    policy: Policy
    faults: FaultPlan
    aim: Callable[[Simulation], None] | None = None

    def applied(self, scenario: Scenario) -> Scenario:
        program, aim = scenario.program, self.aim

        async def aimed(sim: Simulation) -> object:
            if aim is not None:
                aim(sim)
            return await program(sim)

        return replace(scenario, program=aimed, policy=self.policy, faults=self.faults)


@dataclass(frozen=True, slots=True)
class Rare:
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


STRATEGIES = (
    Strategy("swarm", Uniform(), ClusterSwarm()),
    Strategy("swarm, pct", Pct(), ClusterSwarm()),
    Strategy("sieve: crash after write", Fifo(), FixedRates(), crash_after_write),
    Strategy("swarm, fifo", Fifo(), ClusterSwarm()),
    Strategy("sieve: lost reply", Fifo(), FixedRates(), lose_reply_of_write),
    Strategy(
        "sieve: deposed leaders",
        Uniform(),
        Rare(("delay", "crash caller"), {"weather: depose": 0.6, "request of api.patch: delay": 0.1}),
    ),
    Strategy("sieve: stale view", Mixed(), Rare(("stale", "disconnect", "compact", "delay", "crash caller"))),
)
"""Each seed takes the next."""


def strategy_of(seed: int) -> Strategy:
    return STRATEGIES[seed % len(STRATEGIES)]
