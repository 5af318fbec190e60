"""Completion of the three shells: the script that each reads, and the words that it gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

SHELLS = ("bash", "zsh", "fish")


def kedge(*words: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from kedge.cli import main; main(prog_name='kedge')", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_calls_kedge_and_the_shell_can_read_it(shell: str) -> None:
    script = kedge("completion", shell)
    assert f"_KEDGE_COMPLETE={shell}_complete" in script
    if (program := shutil.which(shell)) is not None:
        checked = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_verbs_are_suggested(shell: str) -> None:
    # bash and zsh count the words, fish sends the word itself.
    current = "desc" if shell == "fish" else "1"
    shown = kedge(_KEDGE_COMPLETE=f"{shell}_complete", COMP_WORDS="kedge desc", COMP_CWORD=current)
    assert "describe" in shown
    assert "apply" not in shown


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("delete --dry", ["--dry-run"]),
        ("delete --dry-run s", ["server"]),
        ("drain --dis", ["--disable-eviction"]),
        ("drain --dry-run c", ["client"]),
        ("get --output-w", ["--output-watch-events"]),
        ("get -o j", ["json", "jsonpath="]),
    ],
)
def test_options_and_their_values_are_suggested(words: str, suggested: list[str]) -> None:
    shown = kedge(_KEDGE_COMPLETE="bash_complete", COMP_WORDS=f"kedge {words}", COMP_CWORD=str(len(words.split())))
    assert [line.partition(",")[2] for line in shown.splitlines()] == suggested
