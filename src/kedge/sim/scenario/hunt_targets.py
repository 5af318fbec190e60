"""Scenarios as targets of a hunt: the steps stay, and each seed adds the faults of a swarm.

`kedge hunt FILE` uses `hunt_target`; each worker finds the same target again by its reference, with `hunted`. The
faults that a hunt adds are those of `ClusterSwarm`, and now and then one of the cluster as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from kedge.sim.kernel import SimulationTarget
from kedge.sim.kernel.targets import reference_to
from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.kept_scenarios import ScenarioVariant
from kedge.sim.scenario.library import load_scenario
from kedge.sim.scenario.runner import scenario_target
from kedge.sim.scenario.schema import Scenario

SHRINK_RUNS = 60
"""Runs to shrink one failure, unless others are asked for: a run of a scenario costs seconds, not milliseconds."""


def hunt_target(name_or_file: str, *, without: str = "", invariants: Sequence[str] = ()) -> SimulationTarget:
    """The target of a hunt over a scenario of the library, or over a file.

    Raises:
        ScenarioError: the scenario or the safeguard does not exist, or the file is invalid.
        UnknownTarget: an invariant does not exist.
    """
    scenario = load_scenario(name_or_file)
    arguments = {"file": name_or_file, "digest": _digest(scenario)}
    if without:
        arguments["without"] = without
    if invariants:
        arguments["invariants"] = ",".join(invariants)
    reference = reference_to(f"{__name__}:{hunted.__name__}", arguments)
    return replace(_target(scenario, without, tuple(invariants)), reference=reference)


def hunted(file: str, digest: str, without: str = "", invariants: str = "") -> SimulationTarget:
    """The same target in a worker, which reads the file again.

    Raises:
        ScenarioError: the file has changed since the hunt began.
    """
    scenario = load_scenario(file)
    if _digest(scenario) != digest:
        raise ScenarioError(f"{file} has changed since the hunt began, or is another file here: hunt again")
    return _target(scenario, without, tuple(each for each in invariants.split(",") if each))


def _target(scenario: Scenario, without: str, invariants: tuple[str, ...]) -> SimulationTarget:
    return scenario_target(scenario, ScenarioVariant(without, hunted=True, invariants=invariants))[0]


def _digest(scenario: Scenario) -> str:
    dump = scenario.world.dump
    text = scenario.source + ("" if dump is None else repr(dump.objects))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
