"""A test of an incident: a scenario and a pytest test that fail on this build for the recorded reason.

The reason is a broken invariant or expectation, or a bad state in the words of expectations. Before anything is written
the scenario is run once more as the test runs it, so a test that is written fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kedge.errors import KedgeError
from kedge.sim.incident.draft import ScenarioDraft
from kedge.sim.incident.rerun import IncidentProgram, nearest
from kedge.sim.scenario.document import ScenarioError, parse
from kedge.sim.scenario.predicates import parse_predicate
from kedge.sim.scenario.runner import run_scenario

_TEST = '''\
"""{title}

The scenario beside this file is the incident: edit it like any other. The test passes once the cause is fixed.
"""

from pathlib import Path

from kedge.sim.scenario import read_scenario, run_scenario


def test_{name}_does_not_happen_again() -> None:
    run = run_scenario(read_scenario(Path(__file__).with_name("{file}")))
    assert run.passed, run.violation
'''


class NothingBroken(KedgeError):
    """The incident breaks no rule on this build. Name the bad state with --bad."""


@dataclass(frozen=True, slots=True)
class IncidentTest:
    """The files of a test, and the reason for which it fails."""

    scenario: Path
    test: Path
    rule: str
    message: str


def read_bad(text: str) -> dict[str, Any]:
    """A bad state as a predicate of scenarios: `count: Pod, labels: {app: web}, at least: 4`.

    Raises:
        ScenarioError: it is none.
    """
    part = parse(text if text.lstrip().startswith("{") else f"{{{text}}}", "--bad")
    if not isinstance(part.value, dict):
        raise ScenarioError("--bad is no predicate: write it like an expectation, such as 'count: Pod, at least: 4'")
    parse_predicate(part)
    found: dict[str, Any] = part.plain()
    return found


def with_bad(program: IncidentProgram, text: str) -> IncidentProgram:
    """The program with the expectation that a bad state never comes; the same program without a text."""
    if not text:
        return program
    return replace(program, draft=program.draft.expecting({**read_bad(text), "never": True}))


def write_test(program: IncidentProgram, folder: Path) -> IncidentTest:
    """Write the scenario and the test into a folder.

    Raises:
        NothingBroken: no rule is broken on this build.
    """
    program, _, _ = nearest(program)
    name = re.sub("[^a-z0-9]+", "_", program.draft.name.lower()).strip("_")
    draft = program.draft.changed(scenario=program.draft.name, seed=program.seed)
    run = run_scenario(draft.scenario(), without=program.without)
    if run.violation is None:
        raise NothingBroken("no invariant or expectation is broken on this build: name the bad state with --bad")
    rule, message = run.violation.invariant, run.violation.message
    scenario = _named(draft, f"Fails on the build that recorded it: {rule}.").write(folder, f"{name}.yaml")
    test = folder / f"test_{name}.py"
    title = f"An incident: {rule}."
    test.write_text(_TEST.format(title=title, name=name, file=scenario.name), encoding="utf-8")
    return IncidentTest(scenario, test, rule, message)


def _named(draft: ScenarioDraft, why: str) -> ScenarioDraft:
    return draft.changed(story=f"{str(draft.document['story']).rstrip()} {why}")
