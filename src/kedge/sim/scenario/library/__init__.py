"""The scenarios that ship with kedge, one file each, found by the name of the file."""

from __future__ import annotations

from pathlib import Path

from kedge.sim.scenario.document import ScenarioError, suggest
from kedge.sim.scenario.schema import Scenario, read_scenario

FOLDER = Path(__file__).parent


def library_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_scenario(name_or_file: str) -> Scenario:
    """Read a scenario of the library by name, or any file.

    Raises:
        ScenarioError: neither exists, or the file is invalid.
    """
    if name_or_file in library_names():
        return read_scenario(FOLDER / f"{name_or_file}.yaml")
    path = Path(name_or_file)
    if path.exists() or path.suffix in (".yaml", ".yml"):
        return read_scenario(path)
    raise ScenarioError(f"there is no scenario or file {name_or_file!r}{suggest(name_or_file, library_names())}")
