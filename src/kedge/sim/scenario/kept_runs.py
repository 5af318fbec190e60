"""A scenario's run in one kept file: the scenario itself, the run with its tape, and the recording of the cluster.

`kedge scenario run --out` writes it and `kedge replay` runs it again from the file alone. `extract_run` writes readable
copies of its parts for other tools.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from kedge.api.objects import Object
from kedge.kept import SUFFIX, write_kept
from kedge.keys import Key
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.observe.records import Decision, OutsideEvent
from kedge.sim.kernel import Artefact, Replay, make_artefact, replay
from kedge.sim.kernel.artefacts import RUN, sections_of
from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.kept_scenarios import KeptScenario, kept_scenario
from kedge.sim.scenario.runner import ScenarioRun, scenario_target
from kedge.sim.scenario.schema import Scenario, read_scenario
from kedge.sim.scenario.story import named_story

FILES: Final = (
    "scenario.yaml",
    "dump.json",
    "run.json",
    "timeline.txt",
    "trace.txt",
    "initial.json",
    "policies.json",
    "decisions.json",
    "objects.json",
)
"""The readable copies, in the order in which `extract_run` writes them."""


def keep_run(run: ScenarioRun, folder: Path) -> Path:
    """Write a run to a file in `folder`. A run of the same scenario and seed replaces it.

    Raises:
        BadKeptFile: it cannot be written there.
    """
    variant = f"-without-{run.without}" if run.without else ""
    path = folder / f"{run.scenario.name}{variant}-seed-{run.outcome.seed}{SUFFIX}"
    write_kept(path, sections_of(make_artefact(run.target, run.outcome)))
    return path


# -- reading ---------------------------------------------------------------------------------------


def load_kept_scenario(kept: KeptScenario) -> Scenario:
    """The scenario as it was run, read again from the file's own text."""
    with TemporaryDirectory() as folder:
        _write_scenario(kept, Path(folder))
        return read_scenario(Path(folder) / "scenario.yaml")


def replay_kept(artefact: Artefact, kept: KeptScenario, *, regression: bool | None = None) -> Replay:
    """Run a kept scenario again: the same variant, with the same faults."""
    target, _ = scenario_target(load_kept_scenario(kept), kept.variant)
    return replay(artefact, target=target, regression=regression)


def recording_of(artefact: Artefact) -> Recording:
    """The records of the cluster that ran; empty if the program had none."""
    return decode_recording([*artefact.sections, *artefact.gaps])


def story_of(artefact: Artefact, *, verbose: bool = False) -> list[str]:
    """The lines of the story from the file's records alone, with the names of its scenario; empty without a cluster."""
    kept = kept_scenario(artefact)
    begin_s, names = (0.0, {}) if kept is None else (kept.begin_s, kept.names)
    return [str(each) for each in named_story(recording_of(artefact), begin_s=begin_s, names=names, verbose=verbose)]


def extract_run(artefact: Artefact, folder: Path) -> list[Path]:
    """Write readable copies of the parts of a kept run, and return their paths.

    Raises:
        ScenarioError: they cannot be written there.
    """
    recording = recording_of(artefact)
    kept = kept_scenario(artefact)
    begin_s = kept.begin_s if kept is not None else 0.0
    summary = next(section.body for section in sections_of(artefact) if section.name == RUN)
    parts = {
        "run.json": msgspec.json.format(summary, indent=2).decode(),
        "timeline.txt": "\n".join(story_of(artefact, verbose=True)),
        "trace.txt": "\n".join(map(str, artefact.trace.events)),
        "initial.json": _list_of(objects_at(recording, begin_s=begin_s)),
        "policies.json": json.dumps([_policies(each) for each in recording.outside if each.data], indent=1),
        "decisions.json": json.dumps([_decision(each) for each in recording.decisions], indent=1),
        "objects.json": _list_of(objects_at(recording)),
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


def objects_at(recording: Recording, *, begin_s: float | None = None) -> list[dict[str, Any]]:
    """The objects when the first step began, or after the last commit, as kubectl lists them.

    `sim.cluster.dump` loads them into another cluster.
    """
    held: dict[Key, Object] = {each.key: each for state in recording.states for each in state.objects}
    for commit in recording.commits:
        if begin_s is not None and commit.at > recording.states[0].at + timedelta(seconds=begin_s):
            break
        for each in commit.written:
            held[each.key] = each
        for key in commit.deleted:
            held.pop(key, None)
    items = []
    for key in sorted(held):
        body = held[key].edit()
        items.append({**body, "metadata": {**body["metadata"], "resourceVersion": str(held[key].revision)}})
    return items


def _list_of(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1)


def _policies(event: OutsideEvent) -> dict[str, Any]:
    """The limits and admission policies from a moment on."""
    return {"at": event.at.isoformat(), "what": event.text, **event.data}


def _decision(decision: Decision) -> dict[str, Any]:
    """A decision that was kept in full, without the versions that it read."""
    return {
        "at": decision.began.isoformat(),
        "id": decision.id,
        "controller": decision.controller,
        "key": str(decision.key),
        "generation": decision.generation,
        "attempt": decision.attempt,
        "result": decision.result,
        "reason": decision.reason,
        "error": decision.error,
        "kept": decision.kept,
    }
