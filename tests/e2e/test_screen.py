"""`kedge up` on a terminal, read as a person reads it: tmux draws the screen and the test looks at the characters."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.up_workload import MANIFEST, until
from tests.kit.process_nodes import keeper_pids
from tests.kit.recordings import small_recording, write_recording
from tests.tools import need_kubectl

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None and not os.environ.get("CI"), reason="tmux is not installed (.ci/install-tools)"
)


class Screen:
    """A tmux server of its own with one window that runs a shell."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux.sock")
        own = {"TMPDIR": str(folder), "PS1": "$ ", "TERM": "xterm-256color"}
        self._environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
        } | own
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "180", "-y", "50", "sh")
        self._tmux("set-option", "-g", "history-limit", "5000")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    @property
    def text(self) -> str:
        """Every line of the window, those that scrolled away too."""
        return self._tmux("capture-pane", "-p", "-S", "-5000")

    @property
    def cursor_is_shown(self) -> bool:
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def screen(folder: Path) -> Iterator[Screen]:
    shown = Screen(folder)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Screen]:
    with screen(tmp_path) as shown:
        yield shown


KEDGE = f"{shlex.quote(sys.executable)} -m kedge"


def test_the_demo_on_a_terminal(terminal: Screen, tmp_path: Path) -> None:
    terminal.type(f"cd {tmp_path} && {KEDGE} up --demo; echo code $?")
    until(lambda: "\ncode " in terminal.text, "the demo ends", 240)
    text = terminal.text
    assert "\ncode 0" in text, text
    steps = ["applied risk-api", "killed process", "Ready=False", "Ready=True", "repaired", "$ kedge why risk-api"]
    steps += ["$ kedge timeline risk-api", "bound to node-", "hunted in simulation", "run again from", "0 failures"]
    place = 0
    for step in steps:
        place = text.find(step, place)
        assert place >= 0, f"no {step!r} after the step before it: {text}"
    assert terminal.cursor_is_shown
    assert keeper_pids(tmp_path) == []


def test_the_stages_are_drawn_in_place_and_the_terminal_is_left_clean(terminal: Screen, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (tmp_path / "web.yaml").write_text(MANIFEST)
    terminal.type(f"{KEDGE} up --state {state} --listen 127.0.0.1:0 --nodes 2")
    until(lambda: "2 of 2 nodes are ready" in terminal.text, "the view is drawn")
    assert f"export KUBECONFIG={state}/admin.kubeconfig" in terminal.text
    kubectl = [need_kubectl(), "--kubeconfig", str(state / "admin.kubeconfig"), "--cache-dir", str(tmp_path / "cache")]
    subprocess.run([*kubectl, "apply", "-f", str(tmp_path / "web.yaml")], check=True, timeout=60)
    until(lambda: "default/web" in terminal.text, "the workload is shown")
    terminal.press("C-c")
    until(lambda: "stopped; " in terminal.text, "it stops")
    terminal.type("echo all done")
    until(lambda: terminal.text.count("all done") == 2, "the shell answers")
    text = terminal.text
    assert "default/web" not in text, text
    assert "WORKLOAD" not in text, text
    assert terminal.cursor_is_shown
    subprocess.run([sys.executable, "-m", "kedge", "down", "--state", str(state), "--grace", "0"], check=True)
    assert keeper_pids(tmp_path) == []


def test_the_shell_of_a_recording_on_a_terminal(terminal: Screen, tmp_path: Path) -> None:
    kept = write_recording(tmp_path / "small.kedge", small_recording())
    terminal.type(f"{KEDGE} shell {kept}; echo code $?")
    until(lambda: "revision 4, 00:00:00.000>" in terminal.text, "the prompt is shown")
    terminal.press("Enter")
    until(lambda: "#1 of 3" in terminal.text, "an empty line is a step")
    terminal.type("goto 6")
    until(lambda: "revision 6, 00:00:02.000>" in terminal.text, "the prompt shows the moment")
    terminal.type("get pods")
    until(lambda: "READY" in terminal.text, "a table is shown")
    terminal.type("nonsense")
    until(lambda: "there is no verb nonsense" in terminal.text, "an error is shown")
    terminal.press("C-c")
    terminal.press("C-d")
    until(lambda: "\ncode 0" in terminal.text, "the end of the input ends it")
