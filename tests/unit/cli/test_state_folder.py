"""Commands on state folders that are taken, missing, unwritable or of another program: one sentence and exit 1."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, alive, keeper_pid, keeper_pids, start

from kedge.agent.process import ProcessDriver
from kedge.cli.state_folder import UP_LOCK, folder_lock, holder_of, stop_holder
from kedge.cli.up import with_state
from kedge.errors import Unavailable

HOLDER = """
import signal, sys, time
from pathlib import Path
from kedge.cli.state_folder import folder_lock
if len(sys.argv) > 2: signal.signal(signal.SIGTERM, signal.SIG_IGN)
with folder_lock(Path(sys.argv[1]), "kedge up"):
    print("held", flush=True)
    time.sleep(600)
"""


def kedge(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kedge", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@contextmanager
def held(path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", HOLDER, path, *options], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def test_a_lock_that_another_process_has_is_refused_with_its_pid(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held(path) as holder:
        assert holder_of(path) == holder.pid
        with pytest.raises(Unavailable, match=f"process {holder.pid}"), folder_lock(path, "kedge up"):
            pass
    with folder_lock(path, "kedge up"):
        pass
    assert holder_of(path) == 0


@pytest.mark.parametrize("options", [(), ("ignores SIGTERM",)])
def test_the_holder_of_a_lock_is_stopped(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.cli.state_folder.STOP_S", 0.5)
    with held(tmp_path / "lock", *options) as holder:
        assert stop_holder(tmp_path / "lock") == holder.pid
        assert holder.wait(10) == -(signal.SIGKILL if options else signal.SIGTERM)
    assert stop_holder(tmp_path / "lock") == 0


def test_up_twice_on_one_folder_is_refused(tmp_path: Path) -> None:
    with held(tmp_path / UP_LOCK) as holder:
        code, text = kedge("up", "--state", str(tmp_path), "--listen", "127.0.0.1:0")
    assert code == 1
    assert f"process {holder.pid}" in text
    assert f"stop it with `kedge down --state {tmp_path}` first" in text


def test_up_in_the_background_twice_on_one_folder_is_refused(tmp_path: Path) -> None:
    with held(tmp_path / UP_LOCK) as holder:
        code, text = kedge("up", "--detach", "--state", str(tmp_path), "--listen", "127.0.0.1:0")
    assert code == 1
    assert f"process {holder.pid}" in text
    assert f"stop it with `kedge down --state {tmp_path}` first" in text


def test_a_command_for_a_folder_can_be_typed_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert with_state("kedge down", tmp_path / "kedge") == "kedge down"
    assert with_state("kedge down", tmp_path / "a b") == f"kedge down --state '{tmp_path}/a b'"


def test_a_restore_of_another_file_names_the_command_that_writes_backups(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear reader")
    code, text = kedge("restore", str(tmp_path / "letter"), "--state", str(tmp_path / "state"))
    assert code == 1
    assert "letter is not a file that kedge kept" in text
    assert "`kedge backup` writes those for a restore" in text


@pytest.mark.parametrize("verb", ["up", "server"])
def test_a_port_in_use_is_named_with_the_next_step(verb: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = kedge(verb, "--state", str(tmp_path), "--listen", f"127.0.0.1:{port}")
    assert code == 1
    assert f"127.0.0.1:{port}" in text
    assert "--listen" in text


@pytest.mark.parametrize("verb", ["up", "server"])
def test_a_state_folder_that_cannot_be_made_is_named(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, text = kedge(verb, "--state", str(tmp_path / "file" / "state"), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "file/state" in text


@pytest.mark.parametrize("verb", ["up", "server"])
def test_a_state_folder_of_something_else_is_refused(verb: str, tmp_path: Path) -> None:
    (tmp_path / "kedge.db").write_text("not a database")
    code, text = kedge(verb, "--state", str(tmp_path), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "kedge.db" in text


def test_a_second_agent_of_one_folder_is_refused(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    with held(tmp_path / "agent.lock") as holder:
        code, text = kedge("agent", "--state", str(tmp_path), "--kubeconfig", str(kubeconfig))
    assert code == 1
    assert f"process {holder.pid}" in text


def test_down_of_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    code, text = kedge("down", "--state", str(tmp_path / "typo"))
    assert code == 1
    assert "typo" in text


def test_down_under_an_agent_that_runs_is_refused(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "a"
    (node / "processes").mkdir(parents=True)
    (node / "processes" / "x.json").write_text('{"ended": ""}')
    with held(node / "agent.lock") as holder:
        code, text = kedge("down", "--state", str(tmp_path))
    assert code == 1
    assert f"process {holder.pid}" in text


@on_loop
async def test_down_finds_processes_of_a_killed_keeper_without_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "a"
    driver = ProcessDriver(folder, environment=os.environ)
    await start(driver, "sleep", "600")
    pid = await driver.pid_of(POD.pod_uid)
    await driver.close()
    keeper = keeper_pid(folder)
    os.kill(keeper, signal.SIGKILL)
    await eventually(lambda: not alive(keeper))
    (folder / "keeper.sock").unlink()
    code, text = kedge("down", "--state", str(tmp_path), "--grace", "0")
    assert code == 0, text
    assert not alive(pid)
    assert keeper_pids(folder) == []


def test_reset_asks_first_and_removes_the_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "kedge.db").write_text("")
    asked = subprocess.run(
        [sys.executable, "-m", "kedge", "reset", "--state", str(state)],
        input="n\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert asked.returncode == 1
    assert state.exists()
    code, text = kedge("reset", "--state", str(state), "--yes")
    assert code == 0, text
    assert not state.exists()


def test_reset_of_a_folder_that_is_no_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("mine")
    code, text = kedge("reset", "--state", str(tmp_path), "--yes")
    assert code == 1
    assert "kedge.db" in text
    assert (tmp_path / "letters").exists()


def test_reset_stops_the_cluster_first(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "kedge.db").write_text("")
    with held(state / UP_LOCK) as holder:
        assert kedge("reset", "--state", str(state), "--yes")[0] == 0
        assert holder.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("options", [("--keep",), ("--demo", "--detach")])
def test_options_of_up_that_do_not_go_together_are_refused(options: tuple[str, ...]) -> None:
    assert kedge("up", *options)[0] == 2


def test_down_of_nodes_without_pods_does_not_count_them(tmp_path: Path) -> None:
    (tmp_path / "nodes" / "node-1").mkdir(parents=True)
    assert kedge("down", "--state", str(tmp_path)) == (0, f"no process of a pod runs in {tmp_path}\n")
