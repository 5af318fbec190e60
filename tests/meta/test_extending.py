"""Every example of docs/extending.md, applied to a copy of the source as its page describes it, and checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = 60
BLOCK = re.compile(
    r"^\*\*(?P<place>[^*]+)\*\*(?: \((?P<how>[^\n]+)\))?\n```(?:py|diff)\n(?P<code>.*?)^```$", re.M | re.S
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


def apply(source: Path, place: str, how: str, code: str) -> None:
    path = source / place
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
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for place, how, code in example.edits:
        apply(tmp_path, place, how, code)
    program = tmp_path / "check.py"
    program.write_text(example.check)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
