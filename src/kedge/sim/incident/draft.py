"""A scenario that is being made or changed: its document as plain data, and the dump beside it.

`rebuild` makes one of a recording and `kept_draft` one of a kept run; changes are copies. `scenario` parses it like any
other file, so that what is written out is what was run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from kedge.api.durations import format_duration, parse_duration
from kedge.sim.scenario.document import parse
from kedge.sim.scenario.kept_scenarios import KeptScenario
from kedge.sim.scenario.schema import Scenario, read_scenario

DUMP: Final = "dump.json"
_WIDTH = 140


@dataclass(frozen=True, slots=True)
class ScenarioDraft:
    """The document of a scenario file."""

    document: Mapping[str, Any]
    dump: tuple[Mapping[str, Any], ...] | None = None
    """The objects of `world.dump`, which is named `dump.json`."""

    @property
    def name(self) -> str:
        return str(self.document["scenario"])

    def text(self) -> str:
        """The file as YAML."""
        return yaml.dump(dict(self.document), Dumper=_PlainDumper, sort_keys=False, width=_WIDTH, allow_unicode=True)

    def write(self, folder: Path, name: str = "scenario.yaml") -> Path:
        """Write the file and its dump into a folder. Returns the path of the file."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.dump is not None:
            body = {"apiVersion": "v1", "kind": "List", "items": [dict(each) for each in self.dump]}
            (folder / DUMP).write_text(json.dumps(body, indent=1), encoding="utf-8")
        path = folder / name
        path.write_text(self.text(), encoding="utf-8")
        return path

    def scenario(self) -> Scenario:
        """The scenario, parsed as from its file.

        Raises:
            ScenarioError: the document is not a valid scenario.
        """
        with TemporaryDirectory() as folder:
            return read_scenario(self.write(Path(folder)))

    def changed(self, **parts: Any) -> ScenarioDraft:
        """A copy with these parts of the document."""
        return replace(self, document={**self.document, **parts})

    def beside(self, *steps: Mapping[str, Any]) -> ScenarioDraft:
        """A copy with further steps in `meanwhile`, in the order of their times."""
        made = [*self.document.get("meanwhile", ()), *deepcopy(steps)]
        return self.changed(meanwhile=sorted(made, key=lambda step: seconds_of(step["at"])))

    def expecting(self, *expectations: Mapping[str, Any]) -> ScenarioDraft:
        """A copy with further expectations."""
        return self.changed(expect=[*self.document.get("expect", ()), *deepcopy(expectations)])


class _PlainDumper(yaml.SafeDumper):
    """Repeats equal parts: an anchor is no plain scenario."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def kept_draft(kept: KeptScenario) -> ScenarioDraft:
    """The scenario of a kept run, as it was run."""
    document = parse(kept.source, "scenario.yaml").plain()
    return ScenarioDraft(document, None if kept.dump is None else tuple(kept.dump))


def duration(seconds: float) -> str:
    """A duration in a scenario, to the millisecond."""
    return format_duration(max(0, round(seconds * 1000)) * 10**6)


def seconds_of(text: str) -> float:
    """The seconds of a duration in a scenario."""
    return parse_duration(text) / 1e9


def named(kind: str, namespace: str, name: str) -> str:
    """An object in the words of scenarios: `Pod/default/web`, `Node/a`."""
    short = kind.partition(".")[0]
    return f"{short}/{namespace}/{name}" if namespace else f"{short}/{name}"


def verbs_of(step: Mapping[str, Any]) -> Sequence[str]:
    """The verb of a step, which may be `expect`."""
    return [name for name in step if name not in ("at", "after", "when", "waiting at most")]
