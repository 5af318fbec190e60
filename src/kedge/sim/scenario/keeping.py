"""A run on disk, to be looked at when it is over: what was played and how it ended, timeline, events and objects.

`kedge scenario run --out` writes it. The objects are as kubectl would list them, so that any tool for those reads them,
and `sim.dump` loads them as the beginning of another world.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.wellknown import FENCE_KIND, OPERATION_KIND
from kedge.sim.scenario.document import ScenarioError
from kedge.sim.scenario.runner import ScenarioRun
from kedge.sim.scenario.schema import Scenario
from kedge.store import Entry

SCENARIO, OUTCOME, TIMELINE, TRACE, OBJECTS, DUMP = (
    "scenario.yaml", "outcome.json", "timeline.txt", "trace.txt", "objects.json", "dump.json",
)  # fmt: skip


def keep_run(played: ScenarioRun, folder: Path) -> Path:
    """Write a run into a folder of its own below `folder`. A run of the same name and seed takes its place.

    Raises:
        ScenarioError: it cannot be written there.
    """
    variant = f"-without-{played.without}" if played.without else ""
    place = folder / f"{played.scenario.name}{variant}-seed-{played.outcome.seed}"
    parts = {
        SCENARIO: _source(played.scenario),
        OUTCOME: json.dumps(summary_of(played), indent=2),
        TIMELINE: "\n".join(f"{at}  {kind:<10} {words}" for at, kind, words in played.timeline),
        TRACE: played.outcome.timeline(),
        OBJECTS: json.dumps(_listed(played.entries), indent=1),
    }
    if (dump := played.scenario.world.dump) is not None:
        parts[DUMP] = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*dump.objects]}, indent=1)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in parts.items():
            (place / name).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{place}: the run cannot be kept there ({error}): give another folder") from error
    return place


def _source(scenario: Scenario) -> str:
    """The file as it was played. The dump that its world begins with is kept beside it, and named as it is there."""
    dump = scenario.world.dump
    if dump is None:
        return scenario.source
    lines, at = scenario.source.splitlines(), dump.where.column - 1
    line = lines[dump.where.line - 1]
    lines[dump.where.line - 1] = line[:at] + line[at:].replace(dump.name, DUMP, 1)
    return "\n".join(lines)


def summary_of(played: ScenarioRun) -> dict[str, Any]:
    """How a run ended, and how to play it again."""
    again = ["kedge", "scenario", "run", SCENARIO, "--seed", str(played.outcome.seed)]
    if played.without:
        again += ["--without", played.without]
    broken = played.violation
    return {
        "scenario": played.scenario.name,
        "lesson": played.scenario.lesson,
        "seed": played.outcome.seed,
        "without": played.without or None,
        "passed": played.passed,
        "broken": None if broken is None else broken.invariant,
        "seen": None if broken is None else broken.message,
        "detail": None if broken is None else broken.detail or None,
        "virtualSeconds": round(played.outcome.virtual_s, 3),
        "traceHash": played.outcome.hash,
        "again": " ".join(again),
    }


def _listed(entries: tuple[Entry, ...]) -> dict[str, Any]:
    items = []
    for entry in sorted(entries, key=lambda each: each.key):
        if entry.key.kind not in _OWN:
            kind = KINDS.of_key_kind(entry.key.kind)
            body = Object(kind, entry.key, entry.value, revision=entry.modified, created=entry.created).edit()
            items.append({**body, "metadata": {**body["metadata"], "resourceVersion": str(entry.modified)}})
    return {"apiVersion": "v1", "kind": "List", "items": items}


_OWN = (FENCE_KIND, OPERATION_KIND)
"""What a store keeps for itself: no objects."""
