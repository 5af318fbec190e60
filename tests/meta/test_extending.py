"""Every example of docs/extending.md, applied to a copy of the source as its page describes it, and checked."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = 60
COPIED = ("src", "tests", "docs", "pyproject.toml")
GENERATED = "rewritten by a command"
CHECKED_BY = (
    "tests/meta/test_wellknown.py",
    "tests/meta/test_security_page.py",
    "tests/unit/http/test_access_matrix.py",
    "tests/meta/test_fault_table.py::test_the_table_in_the_docs_is_made_from_the_registry",
    "tests/unit/api/test_kinds.py::test_there_is_a_manifest_of_every_kind_and_a_kind_for_every_manifest",
    "tests/unit/api/test_types.py",
    "tests/unit/api/test_validation.py::test_a_valid_manifest_of_every_kind_passes_without_a_warning",
)
"""Tests that a new name, kind or fault breaks if a file is left out."""
BLOCK = re.compile(
    r"^\*\*(?P<place>[^*]+)\*\*(?: \((?P<how>[^\n]+)\))?\n```(?:py|diff|sh)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass
class Example:
    """One section of the page."""

    title: str
    edits: list[tuple[str, str, str]] = field(default_factory=list)
    """File, how it is changed, and the lines."""
    check: str = ""

    @property
    def lines(self) -> int:
        return sum(code.count("\n") for _, _, code in self.edits)


def examples() -> list[Example]:
    found = []
    for section in (ROOT / "docs" / "extending.md").read_text().split("\n## ")[1:]:
        example = Example(section.partition("\n")[0])
        for match in BLOCK.finditer(section):
            if match["place"] == "check":
                example.check = match["code"]
            else:
                example.edits.append((match["place"], match["how"], match["code"]))
        found.append(example)
    return found


def run(copy: Path, *arguments: str) -> None:
    """Run Python with the sources of the copy."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def apply(copy: Path, place: str, how: str, code: str) -> None:
    path = copy / place
    if how == GENERATED:
        before = path.read_text()
        program, *arguments = shlex.split(code)
        assert program == "python"
        run(copy, *arguments)
        assert path.read_text() != before, f"{code.strip()} leaves {place} as it is: remove it from docs/extending.md"
        return
    if how == "new":
        assert not path.exists(), f"{place} exists already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        return
    added = "".join(line.removeprefix("+") for line in code.splitlines(keepends=True))
    anchor = how.removeprefix("after `").removesuffix("`")
    lines = path.read_text().splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.rstrip("\n") == anchor]
    assert at, f"{place} has no line {anchor!r}: bring docs/extending.md up to date"
    lines.insert(at[0] + 1, added)
    path.write_text("".join(lines))


def test_the_page_has_every_way_to_extend() -> None:
    assert [each.title for each in examples()] == [
        "A scheduler filter",
        "A score",
        "A kind with a controller",
        "A store backend",
        "A fault with an invariant",
        "A CLI verb",
    ]


@pytest.mark.parametrize("example", examples(), ids=lambda each: each.title)
def test_an_example_works_with_the_files_that_it_names_alone(example: Example, tmp_path: Path) -> None:
    assert example.check
    assert example.lines <= LINES_MAX
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    for place, how, code in example.edits:
        apply(tmp_path, place, how, code)
    (tmp_path / "check.py").write_text(example.check)
    run(tmp_path, "check.py")
    python = sorted({place for place, _, _ in example.edits if place.endswith(".py")})
    run(tmp_path, "-m", "ruff", "check", "--no-cache", *python)
    run(tmp_path, "-m", "ruff", "format", "--check", "--no-cache", *python)
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKED_BY)
