"""Chaos signals the processes of its state folder, no others, and leaves none of them stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.up_workload import until
from tests.kit.process_nodes import POD, driver_in, keeper_pid, start

from kedge.agent.process import proc_table
from kedge.cli.live_faults.own_processes import OwnProcesses
from kedge.errors import NotFound


def state_of(pid: int) -> str:
    entry = proc_table.read_entry(pid)
    return entry.state if entry is not None else ""


def record_of(folder: Path) -> Path:
    (found,) = (folder / "processes").glob("*.json")
    return found


def test_processes_of_the_folder_are_found_stopped_and_continued(tmp_path: Path) -> None:
    async def run() -> None:
        async with driver_in(tmp_path / "nodes" / "node-1") as driver:
            await start(driver, "sh", "-c", "sleep 1000 & exec sleep 1000")
            own = OwnProcesses(tmp_path)
            until(lambda: len(own.of_node("node-1")) == 3, "keeper, process and child run")
            entries = own.of_node("node-1")
            assert entries[0].pid == keeper_pid(tmp_path) == own.keeper("node-1")
            (process,) = own.of_pod(POD.pod_uid)
            assert process.pid == json.loads(record_of(tmp_path / "nodes" / "node-1").read_text())["pid"]
            try:
                assert own.stop(entries) == 3
                until(lambda: all(state_of(each.pid) == "T" for each in entries), "they are stopped")
                own.resume(entries)
                until(lambda: all(state_of(each.pid) != "T" for each in entries), "they are continued")
                own.stop(entries)
            finally:
                own.close()
            until(lambda: all(state_of(each.pid) != "T" for each in entries), "the end continues them")
            assert own.kill([process]) == 1
            until(lambda: not own.of_pod(POD.pod_uid), "it is killed")

    asyncio.run(run())


def test_a_process_that_is_not_proved_is_not_touched(tmp_path: Path) -> None:
    """A record may be old, or written by another program: its pid alone proves nothing."""
    own = OwnProcesses(tmp_path)
    processes = tmp_path / "nodes" / "node-1" / "processes"
    processes.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        entry = proc_table.read_entry(stranger.pid)
        assert entry is not None
        record = {
            "id": "x",
            "identity": ["uid", "main", 0, 1, "n"],
            "pid": stranger.pid,
            "ticks": entry.start_ticks,
            "ended": "",
            "namespace": "default",
            "pod": "web",
        }
        (processes / "x.json").write_text(json.dumps(record))
        assert own.of_pod("uid") == []
        assert own.of_node("node-1") == []
        assert list(own.doubles()) == []
        assert own.kill([entry._replace(start_ticks=entry.start_ticks - 1)]) == 0
        assert stranger.poll() is None
        stranger.kill()
    assert own.up == 0
    for name in ("../node-1", "node-2", ""):
        with pytest.raises(NotFound, match="there is no node"):
            own.of_node(name)


def test_two_processes_of_one_container_are_reported(tmp_path: Path) -> None:
    async def run() -> None:
        own = OwnProcesses(tmp_path)
        async with driver_in(tmp_path / "nodes" / "a") as one, driver_in(tmp_path / "nodes" / "b") as other:
            await start(one, "sleep", "1000")
            assert list(own.doubles()) == []
            await start(other, "sleep", "1000")
            (found,) = own.doubles()
            assert "default/web runs on a and b" in found

    asyncio.run(run())


STOPPER = """
import sys
from pathlib import Path
from kedge.cli.live_faults.own_processes import OwnProcesses
own = OwnProcesses(Path(sys.argv[1]))
own.stop(own.of_node("node-1"))
print("stopped", flush=True)
sys.stdin.read()
"""


def stop_and_be_killed(state: Path, pid: int) -> None:
    command = [sys.executable, "-c", STOPPER, str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stopper:
        assert stopper.stdout is not None
        assert stopper.stdout.readline() == b"stopped\n"
        until(lambda: state_of(pid) == "T", "it is stopped")
        os.kill(stopper.pid, signal.SIGKILL)


def test_a_guard_continues_what_a_killed_chaos_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        async with driver_in(tmp_path / "nodes" / "node-1") as driver:
            await start(driver, "sleep", "1000")
            pid = (OwnProcesses(tmp_path).of_pod(POD.pod_uid))[0].pid
            stop_and_be_killed(tmp_path, pid)
            until(lambda: state_of(pid) not in ("T", ""), "the guard continues it")

    asyncio.run(run())
