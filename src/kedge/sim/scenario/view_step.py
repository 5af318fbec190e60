"""The step `view`: the debug view of a workload at that moment, as lines of the story."""

from __future__ import annotations

from typing import Any

from kedge.observe.readers.why import debug_view, evidence_of
from kedge.sim.scenario.predicates import key_named
from kedge.sim.scenario.steps import ScenarioState, StepFailed, must, verb


@verb("view", sole="workload", workload=must(key_named))
async def view(state: ScenarioState, args: Any) -> None:
    """Print the signals that explain the state of a workload, joined by workload and generation."""
    evidence = evidence_of(state.cluster.record().recording())
    found = evidence.objects.get(args["workload"])
    if found is None:
        raise StepFailed(f"{args['workload']} does not exist: name another workload")
    for name, value in debug_view(found, evidence):
        state.cluster.sim.note("view", f"{name}: {value}")
