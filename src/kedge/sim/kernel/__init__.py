"""A deterministic simulator for asyncio programs: loop, hosts, network, choices, faults, hunt, shrink, replay.

It has no dependency on control planes. Start with `run`; `docs/simulation.md` is the guide.
"""

from __future__ import annotations

from kedge.sim.kernel.artefacts import Artefact, BadArtefact, make_artefact, read_artefact, write_artefact
from kedge.sim.kernel.bounds import RunBounds
from kedge.sim.kernel.calls import Remote
from kedge.sim.kernel.choices import Tape, TapeMismatch
from kedge.sim.kernel.determinism import DeterminismReport, NotDeterministic, check_determinism
from kedge.sim.kernel.fault_registry import FAULTS, Fault, Placement
from kedge.sim.kernel.faults import NO_FAULTS, FaultPlan, Faults, FixedRates, Swarm
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.hunt import Hunt, hunt
from kedge.sim.kernel.invariants import liveness, safety
from kedge.sim.kernel.network import Latency, Link, Network, Partition
from kedge.sim.kernel.policies import Fifo, Mixed, Pct, SchedulePolicy, Uniform
from kedge.sim.kernel.real_io import RealIORefused
from kedge.sim.kernel.replay import Replay, ReplayVerdict, replay
from kedge.sim.kernel.shrink import Shrunk, shrink
from kedge.sim.kernel.simulation import Program, RunOutcome, Simulation, run
from kedge.sim.kernel.streams import RemoteStream
from kedge.sim.kernel.targets import SimulationTarget, UnknownTarget, find_target, simulate
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.violations import Violation

__all__ = [
    "FAULTS",
    "NO_FAULTS",
    "Artefact",
    "BadArtefact",
    "DeterminismReport",
    "Event",
    "Fault",
    "FaultPlan",
    "Faults",
    "Fifo",
    "FixedRates",
    "Host",
    "Hunt",
    "Latency",
    "Link",
    "Mixed",
    "Network",
    "NotDeterministic",
    "Partition",
    "Pct",
    "Placement",
    "Program",
    "RealIORefused",
    "Remote",
    "RemoteStream",
    "Replay",
    "ReplayVerdict",
    "RunBounds",
    "RunOutcome",
    "SchedulePolicy",
    "Shrunk",
    "Simulation",
    "SimulationTarget",
    "Swarm",
    "Tape",
    "TapeMismatch",
    "Trace",
    "Uniform",
    "UnknownTarget",
    "Violation",
    "check_determinism",
    "find_target",
    "hunt",
    "liveness",
    "make_artefact",
    "read_artefact",
    "replay",
    "run",
    "safety",
    "shrink",
    "simulate",
    "write_artefact",
]
