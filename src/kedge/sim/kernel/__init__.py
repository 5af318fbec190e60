"""A deterministic world for asyncio programs: loop, hosts, network, choices, faults, hunt, shrink, replay.

It knows nothing of control planes. Begin with `run`; `docs/simulation.md` is the guide.
"""

from __future__ import annotations

from kedge.sim.kernel.calls import Remote, RemoteStream
from kedge.sim.kernel.choices import OutOfStep, Tape
from kedge.sim.kernel.faults import NO_FAULTS, FaultPlan, Faults, FixedRates, Swarm
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.invariants import liveness, safety
from kedge.sim.kernel.network import Latency, Link, Network, Partition
from kedge.sim.kernel.policies import Fifo, Pct, Policy, Uniform
from kedge.sim.kernel.refusals import OutsideWorld
from kedge.sim.kernel.simulation import Bounds, Outcome, Program, Simulation, run
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.verdicts import Violation

__all__ = [
    "NO_FAULTS",
    "Bounds",
    "Event",
    "FaultPlan",
    "Faults",
    "Fifo",
    "FixedRates",
    "Host",
    "Latency",
    "Link",
    "Network",
    "OutOfStep",
    "Outcome",
    "OutsideWorld",
    "Partition",
    "Pct",
    "Policy",
    "Program",
    "Remote",
    "RemoteStream",
    "Simulation",
    "Swarm",
    "Tape",
    "Trace",
    "Uniform",
    "Violation",
    "liveness",
    "run",
    "safety",
]
