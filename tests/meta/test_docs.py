"""Every command and every program in README and docs is run here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`((?:make|kedge) [a-z][^`]*)`")

PLANNED = {"make test", "make test-slow", "make lint", "make bench", "make venv", "make zoo", "make soak"}
"""Targets too long to run inside a test, or that run this very test: make is asked what it would do."""


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), body)
        for page in PAGES
        for found, body in BLOCK.findall(page.read_text())
        if found == language
    ]


def commands() -> list[str]:
    in_blocks = [line.split("#")[0].strip() for _, body in blocks("sh") for line in body.splitlines()]
    inline = [found for page in PAGES for found in INLINE.findall(page.read_text())]
    return sorted({command for command in [*in_blocks, *inline] if command})


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("command", commands())
def test_a_command_in_the_docs_works(command: str, tmp_path: Path) -> None:
    words = command.split()
    if words[0] == "make":
        plan = [] if command not in PLANNED else ["-n"]
        done = run("make", *plan, *words[1:])
    else:
        assert words[0] == "kedge", f"no test knows how to run {command!r}: teach tests/meta/test_docs.py"
        if any(word.isupper() for word in words):  # a placeholder, as in `kedge replay FILE`
            words = [words[0], words[1], "--help"]
        done = run(sys.executable, "-m", "kedge", *words[1:], cwd=tmp_path)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("page", "body"), blocks("python"))
def test_a_program_in_the_docs_runs(page: str, body: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(body)
    done = run(sys.executable, str(program), cwd=tmp_path)
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"


def test_the_complete_controller_in_the_docs_is_short() -> None:
    (body,) = [body for page, body in blocks("python") if page == "docs/controllers.md"]
    assert len(body.splitlines()) < 60
