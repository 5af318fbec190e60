"""Scenario files: a world, what happens in it, and what must come of it, in YAML that a person reads.

`document` reads YAML with its places, `schema` checks it, `runner` plays it on `sim.cluster`, `kept_runs` keeps
the run in a file. The lessons' worked examples are in `library`.
"""

from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.kept_runs import keep_run
from kedge.sim.scenario.library import library_names, load_scenario
from kedge.sim.scenario.runner import ScenarioRun, run_scenario
from kedge.sim.scenario.schema import Scenario, parse_scenario, read_scenario

__all__ = [
    "Scenario",
    "ScenarioError",
    "ScenarioRun",
    "keep_run",
    "library_names",
    "load_scenario",
    "parse_scenario",
    "read_scenario",
    "run_scenario",
]
