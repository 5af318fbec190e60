"""Commands at a moment of a recording: get, describe, replay --step and the shell. `tests/scenarios` has the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.kit.recordings import small_recording, write_recording

from kedge.cli import main


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "small.kedge", small_recording())


def kedge(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], input=stdin)


def answer(*arguments: str | Path) -> str:
    done = kedge(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_get_prints_the_objects_of_the_moment(kept: Path) -> None:
    def pods(*at: str) -> dict[str, tuple[str, str]]:
        found = json.loads(answer("get", "pods", "--recording", kept, *at, "-o", "json"))["items"]
        return {
            each["metadata"]["name"]: (each["status"]["phase"], each["metadata"]["resourceVersion"]) for each in found
        }

    assert pods("--at", "4") == {"a": ("Pending", "3"), "b": ("Running", "4")}
    assert pods("--at", "00:00:02") == {"a": ("Pending", "3")}
    assert pods() == pods("--at", "9") == {"a": ("Running", "9")}
    assert answer("get", "pod/a", "--recording", kept, "--at", "5", "-o", "jsonpath={.status.phase}") == "Pending"
    assert "Phase:  Pending" in answer("describe", "pod", "a", "--recording", kept, "--at", "5")
    gone = kedge("get", "pod", "b", "--recording", kept)
    assert (gone.exit_code, 'pods "b" not found' in gone.output) == (1, True), gone.output


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["get", "pods", "--at", "4"], 2, "--at goes with --recording"),
        (["describe", "pod", "a", "--at", "4"], 2, "--at goes with --recording"),
        (["timeline", "web", "--at", "4"], 2, "--at goes with --recording"),
        (["coupling", "deployment", "--at", "4"], 2, "--at goes with --recording"),
        (["why", "web", "--at", "4"], 2, "--at goes with --recording"),
        (["get", "pods", "--recording", "FILE", "--at", "x"], 2, "neither a revision nor a time"),
        (["get", "pods", "--recording", "FILE", "--watch"], 2, "a recording does not change"),
        (["get", "pods", "--recording", "FILE", "--at", "1"], 1, "the recording begins at revision 4"),
        (["replay", "FILE", "--step", "--from", "2031-01-01"], 1, "has no decision there"),
        (["shell", "FILE", "--at", "1"], 1, "the recording begins at revision 4"),
    ],
)
def test_mistakes_are_one_sentence(kept: Path, arguments: list[str], code: int, text: str) -> None:
    done = kedge(*(str(kept) if each == "FILE" else each for each in arguments))
    assert (done.exit_code, text in done.output) == (code, True), done.output
    assert done.output.count("\n") == 1


def test_replay_steps_through_decisions_as_plain_lines(kept: Path) -> None:
    whole = answer("replay", kept, "--step")
    assert [line for line in whole.splitlines() if line.startswith("#")] == [
        "#1 of 3  00:00:01.000  revision 4  deployments  Deployment.apps/default/web",
        "#2 of 3  00:00:04.000  revision 6  deployments  Deployment.apps/default/web",
        "#3 of 3  00:00:06.000  no cache  deployments  Deployment.apps/default/web",
    ]
    assert "    read     list Pod default: 1 objects: a@3 (cache at 9, 0.500 s old)\n" in whole
    assert "    wrote    patch Pod/default/a: done at revision 9 after 0.200 s\n" in whole
    assert "    result   await change, took 1.000 s\n" in whole
    assert "    again    not run: decisions of controllers that are not kedge's own\n" in whole
    assert answer("replay", kept, "--step", "--from", "5", "--until", "00:00:05").startswith("#1 of 1  00:00:04.000")


SCRIPT = """\
step

back
goto #3
step
goto 4
get pods -o name
goto 00:00:03
get pods -o name
get pods -o name --at 4
get pods -o
goto nowhere
unknown
timeline "pod/a
step many
replay 4 9
where
help
quit
step
"""


def test_the_shell_reads_verbs_from_a_pipe_and_errors_do_not_end_it(kept: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", "shell", str(kept)],
        input=SCRIPT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("#")]
    assert shown == ["#1", "#2", "#1", "#3", "#1", "#1"]
    names = [line for line in done.stdout.splitlines() if line.startswith("pod/")]
    assert names == ["pod/a", "pod/b", "pod/a", "pod/a", "pod/b"]
    assert "revision 4, 00:00:00.000, before the first decision" in done.stdout
    assert "revision 6, 00:00:03.000, after the begin of:" in done.stdout
    assert "no decision was run again" in done.stdout
    assert "goto REVISION|TIME|#N" in done.stdout
    errors = done.stderr.splitlines()
    assert [each.startswith("Error: ") for each in errors] == [True] * 6, errors
    assert "there are 3 decisions, and this is #3" in errors[0]
    assert "there is no verb unknown: use one of step, back" in errors[3]
    assert "close its quotes" in errors[4]


def test_the_shell_ends_with_its_input(kept: Path) -> None:
    assert kedge("shell", kept, stdin="step\n").output.startswith("#1 of 3")
    assert kedge("shell", kept, "--at", "6", stdin="").output.startswith("revision 6, 00:00:02.000, after")
