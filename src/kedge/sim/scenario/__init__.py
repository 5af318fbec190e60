"""Scenario files: a cluster, the steps of an incident and the expected outcome, as readable YAML.

`document` reads YAML with its locations, `schema` checks it, `runner` runs it on `sim.cluster`, `kept_runs` keeps
the run in a file. The scenarios that ship with kedge are in `library`.
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
