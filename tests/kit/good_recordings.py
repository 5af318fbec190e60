"""Runs of the worked examples that end well although a safeguard is missing: each has a bad neighbour.

People act as in the lesson, at fixed times, and no fault strikes, but for the late heartbeat that
`binding-during-node-failure` is about. In `pending-after-rollback` the quota is freed before the load grows, because
the order of the lesson is bad without any fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kedge.sim.incident.draft import ScenarioDraft, verbs_of
from kedge.sim.scenario import load_scenario
from kedge.sim.scenario.document import parse
from kedge.sim.scenario.kept_runs import keep_run
from kedge.sim.scenario.runner import run_scenario

END: Final = "the end"
ACTS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "missing-replica": (("5m", END),),
    "stale-policy-canary": (
        ("2s", "admit Pod"),
        ("3s", "admit Rollout"),
        ("22s", "delete"),
        ("23s", "scale"),
        ("60s", END),
    ),
    "binding-during-node-failure": (("8s", "partition node"), ("20s", "admit Deployment"), ("90s", END)),
    "pending-after-rollback": (
        ("10s", "change"),
        ("20s", "roll back policy"),
        ("32s", "scale"),
        ("37s", "admit HorizontalPodAutoscaler"),
        ("44s", "delete"),
        ("45s", "load"),
        ("80s", "load"),
        ("4m", END),
    ),
    "duplicate-reservation": (("0s", "change"), ("1s", "scale"), ("3s", "roll back policy"), ("40s", END)),
    "rollback-races-repair": (
        ("10s", "roll out"),
        ("40s", "change"),
        ("170s", "roll back"),
        ("200s", "change"),
        ("240s", END),
    ),
}
"""By scenario: the times of people's actions, in the order of its steps but for the names that come earlier."""
UNTIL: Final = {"pending-after-rollback": {"count": "Pod", "labels": {"app": "risk-api"}, "ready": True, "at least": 8}}
"""By scenario: the end of its standing expectation. Once eight replicas are ready, more of them may be added."""


def good_draft(name: str) -> ScenarioDraft:
    """The scenario of the library without its faults and the expectations between steps."""
    document = parse(load_scenario(name).source, f"{name}.yaml").plain()
    left = [dict(step) for step in document["steps"]]
    steps = []
    for at, act in ACTS[name]:
        if act == END:
            steps.append({"at": at, "note": END})
            continue
        step = next(each for each in left if _act(each) == act)
        left.remove(step)
        [verb] = verbs_of(step)
        steps.append({"at": at, verb: step[verb]})
    expect = [
        {**each, "until": UNTIL[name]} if each.get("always") and name in UNTIL else each for each in document["expect"]
    ]
    return ScenarioDraft({**document, "steps": steps, "expect": expect})


def _act(step: Mapping[str, Any]) -> str:
    verb = verbs_of(step)[0]
    return f"admit {step['admit']['kind']}" if verb == "admit" else verb


def record_good(name: str, folder: Path, *, weak: bool = True) -> Path:
    """Run the first weak variant of a good draft, or the real components, and keep the run."""
    scenario = good_draft(name).scenario()
    run = run_scenario(scenario, without=scenario.weak_variant.name if weak else "", keep=True)
    assert run.passed, run.violation
    return keep_run(run, folder)
