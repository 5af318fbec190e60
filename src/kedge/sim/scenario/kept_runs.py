"""A scenario's run in one kept file: the scenario itself, the run with its tape, and the recording of the cluster.

`kedge scenario run --out` writes it and `kedge replay` runs it again from the file alone. `extract_run` writes readable
copies of its parts for other tools.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from kedge.api.objects import Object
from kedge.kept import SUFFIX, Section, write_kept
from kedge.keys import Key
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.sim.kernel import Artefact, Replay, make_artefact, replay
from kedge.sim.kernel.artefacts import RUN, BadArtefact, sections_of
from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.runner import ScenarioRun, scenario_target, timeline_rows, without_safeguard
from kedge.sim.scenario.schema import Scenario, read_scenario

SCENARIO: Final = "scenario"
CODEC_VERSION: Final = 1
FILES: Final = ("scenario.yaml", "dump.json", "run.json", "timeline.txt", "trace.txt", "objects.json")
"""The readable copies, in the order in which `extract_run` writes them."""


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


def keep_run(run: ScenarioRun, folder: Path) -> Path:
    """Write a run to a file in `folder`. A run of the same scenario and seed replaces it.

    Raises:
        BadKeptFile: it cannot be written there.
    """
    variant = f"-without-{run.without}" if run.without else ""
    path = folder / f"{run.scenario.name}{variant}-seed-{run.outcome.seed}{SUFFIX}"
    dump = run.scenario.world.dump
    kept = KeptScenario(
        run.scenario.name,
        _source(run.scenario),
        run.without,
        None if dump is None else [dict(each) for each in dump.objects],
        run.begin_s,
    )
    with without_safeguard(run.without):
        artefact = make_artefact(run.target, run.outcome)
    own = Section(SCENARIO, CODEC_VERSION, msgspec.json.encode(kept))
    write_kept(path, sections_of(replace(artefact, sections=(own, *artefact.sections))))
    return path


def _source(scenario: Scenario) -> str:
    """The text of the file. The dump is kept beside it, and named as `extract_run` names it."""
    dump = scenario.world.dump
    if dump is None:
        return scenario.source
    lines, at = scenario.source.splitlines(), dump.where.column - 1
    line = lines[dump.where.line - 1]
    lines[dump.where.line - 1] = line[:at] + line[at:].replace(dump.name, "dump.json", 1)
    return "\n".join(lines)


# -- reading ---------------------------------------------------------------------------------------


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


def load_kept_scenario(kept: KeptScenario) -> Scenario:
    """The scenario as it was run, read again from the file's own text."""
    with TemporaryDirectory() as folder:
        _write_scenario(kept, Path(folder))
        return read_scenario(Path(folder) / "scenario.yaml")


def replay_kept(artefact: Artefact, kept: KeptScenario, *, regression: bool | None = None) -> Replay:
    """Run a kept scenario again, without the same safeguard."""
    target, _ = scenario_target(load_kept_scenario(kept))
    with without_safeguard(kept.without):
        return replay(artefact, target=target, regression=regression)


def timeline_of(artefact: Artefact, kept: KeptScenario) -> list[tuple[str, str, str]]:
    """The timeline from the file's records alone."""
    recording = decode_recording([*artefact.sections, *artefact.gaps])
    return timeline_rows(recording, begin_s=kept.begin_s)


def extract_run(artefact: Artefact, folder: Path) -> list[Path]:
    """Write readable copies of the parts of a kept run, and return their paths.

    Raises:
        ScenarioError: they cannot be written there.
    """
    recording = decode_recording([*artefact.sections, *artefact.gaps])
    kept = kept_scenario(artefact)
    summary = next(section.body for section in sections_of(artefact) if section.name == RUN)
    parts = {
        "run.json": msgspec.json.format(summary, indent=2).decode(),
        "timeline.txt": "\n".join(
            f"{at}  {kind:<10} {text}"
            for at, kind, text in timeline_rows(recording, begin_s=kept.begin_s if kept is not None else 0.0)
        ),
        "trace.txt": "\n".join(map(str, artefact.trace.events)),
        "objects.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": final_objects(recording)}, indent=1),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if kept is not None:
            _write_scenario(kept, folder)
        for name, text in parts.items():
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{folder}: the run cannot be written there ({error}): give another folder") from error
    return [folder / name for name in FILES if (folder / name).exists()]


def _write_scenario(kept: KeptScenario, folder: Path) -> None:
    (folder / "scenario.yaml").write_text(f"{kept.source.rstrip()}\n", encoding="utf-8")
    if kept.dump is not None:
        dump = {"apiVersion": "v1", "kind": "List", "items": kept.dump}
        (folder / "dump.json").write_text(json.dumps(dump, indent=1), encoding="utf-8")


def final_objects(recording: Recording) -> list[dict[str, Any]]:
    """The objects after the last commit, as kubectl lists them: `sim.cluster.dump` loads them into another cluster."""
    held: dict[Key, Object] = {each.key: each for state in recording.states for each in state.objects}
    for commit in recording.commits:
        for each in commit.written:
            held[each.key] = each
        for key in commit.deleted:
            held.pop(key, None)
    items = []
    for key in sorted(held):
        body = held[key].edit()
        items.append({**body, "metadata": {**body["metadata"], "resourceVersion": str(held[key].revision)}})
    return items
