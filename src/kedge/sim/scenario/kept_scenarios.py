"""The section `scenario` of a kept run: the file, its dump, and the variant that was run.

`runner` adds it to each run that is kept; `kept_runs` reads it and runs it again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kedge.kept import Section
from kedge.keys import Key
from kedge.sim.kernel.artefacts import Artefact, BadArtefact
from kedge.sim.scenario.schema import Scenario

SCENARIO: Final = "scenario"
CODEC_VERSION: Final = 1


class ScenarioVariant(msgspec.Struct, frozen=True):
    """How a scenario is run."""

    without: str = ""
    """The safeguard that is removed; empty if there is none."""
    hunted: bool = False
    """Faults of the swarm strike beside those of the steps."""
    invariants: tuple[str, ...] = ()
    """Invariants beside those of kedge and of the file, as `module:function`."""
    lenient: bool = False
    """A step that cannot be done is left out, and an expectation between steps is not judged, as in a hunt."""
    unjudged: tuple[str, ...] = ()
    """Invariants that are left out, by name."""


class KeptScenario(msgspec.Struct, frozen=True):
    """The section `scenario`, as JSON."""

    name: str
    source: str
    """The file as it was run. A dump is named `dump.json` in it."""
    without: str
    """The safeguard that was removed; empty if there was none."""
    dump: list[dict[str, Any]] | None
    begin_s: float
    """When the first step began, in virtual seconds."""
    hunted: bool = False
    invariants: tuple[str, ...] = ()
    lenient: bool = False
    names: dict[str, Key] = {}
    """The names of the story, each with the pattern of its object."""
    unjudged: tuple[str, ...] = ()

    @property
    def variant(self) -> ScenarioVariant:
        return ScenarioVariant(self.without, self.hunted, self.invariants, self.lenient, self.unjudged)


def scenario_section(scenario: Scenario, variant: ScenarioVariant, begin_s: float) -> Section:
    dump = scenario.world.dump
    kept = KeptScenario(
        scenario.name,
        _source(scenario),
        variant.without,
        None if dump is None else [dict(each) for each in dump.objects],
        begin_s,
        variant.hunted,
        variant.invariants,
        variant.lenient,
        dict(scenario.names),
        variant.unjudged,
    )
    return Section(SCENARIO, CODEC_VERSION, msgspec.json.encode(kept))


def _source(scenario: Scenario) -> str:
    """The text of the file. The dump is kept beside it, and named as `extract_run` names it."""
    dump = scenario.world.dump
    if dump is None:
        return scenario.source
    lines, at = scenario.source.splitlines(), dump.where.column - 1
    line = lines[dump.where.line - 1]
    lines[dump.where.line - 1] = line[:at] + line[at:].replace(dump.name, "dump.json", 1)
    return "\n".join(lines)


def kept_scenario(artefact: Artefact) -> KeptScenario | None:
    """The scenario in a kept file; None for the file of another run.

    Raises:
        BadArtefact: the section is of another version, or cannot be decoded.
    """
    for section in artefact.sections:
        if section.name != SCENARIO:
            continue
        if section.version != CODEC_VERSION:
            raise BadArtefact(f"section {SCENARIO!r} has codec version {section.version}: use a matching kedge")
        try:
            return msgspec.json.decode(section.body, type=KeptScenario)
        except msgspec.MsgspecError as error:
            raise BadArtefact(f"section {SCENARIO!r} cannot be decoded: {error}") from error
    return None
