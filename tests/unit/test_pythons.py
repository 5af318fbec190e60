"""The runner of the quick suite on other Pythons: the versions that it finds, its parts, and traces that differ."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.pythons import QUICK, ROOT, WANTED, differences, pyenv_pythons


def test_the_newest_interpreter_of_each_wanted_version_is_found(tmp_path: Path) -> None:
    for name in ("2.7.18", "3.10.13", "3.12.1", "3.12.10", "3.13.0", "3.13.0t", "3.14-dev"):
        program = tmp_path / name / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.touch()
    (tmp_path / "3.11.7").mkdir()  # an installation that was broken off
    found = pyenv_pythons(tmp_path)
    assert {version: path.parts[-3] for version, path in found.items()} == {"3.12": "3.12.10", "3.13": "3.13.0"}


def test_traces_that_differ_are_named() -> None:
    assert differences({"a 1": "x", "a 2": "y"}, {"a 1": "x", "a 2": "y", "b 1": "z"}) == []
    assert differences({"a 1": "x", "a 2": "y"}, {"a 1": "z", "a 2": "y"}) == ["a 1"]


def test_every_part_of_the_quick_suite_exists() -> None:
    assert [each for each in QUICK if not (ROOT / each).exists()] == []


def test_the_package_names_the_versions_that_are_tested() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [each.rpartition(" ")[2] for each in settings["project"]["classifiers"] if "Python :: 3." in each]
    assert tuple(named) == WANTED
