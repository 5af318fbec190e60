"""The keeper under attack: hostile clients and programs, kills between any two lines, full disks, reused pids."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import (
    POD,
    alive,
    child_pid,
    driver_in,
    ended,
    keeper_pid,
    keeper_pids,
    log_of,
    only,
    start,
)

from kedge.agent.core.driver import Identity
from kedge.agent.process import ProcessDriver, proc_table
from kedge.agent.process.channel import start_keeper
from kedge.agent.process.driver import record_id
from kedge.agent.process.keeper import ProcessKeeper
from kedge.api.views import Probe
from kedge.errors import OperatingError, OutcomeUnknown, Unavailable
from kedge.limits import Limits


@contextmanager
def connection_to(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(folder / "keeper.sock"))
        yield client


def record_in(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "processes" / f"{record_id(POD)}.json"
    return path, json.loads(path.read_bytes())


def exec_probe(*command: str, timeout_s: int = 1) -> Probe:
    return msgspec.convert({"exec": {"command": list(command)}, "timeoutSeconds": timeout_s}, Probe)


async def kill_keeper(folder: Path) -> None:
    pid = keeper_pid(folder)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))


# -- clients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [b"garbage\n", b"[]\n", b"7\n", b'{"op": "list"}\n', b'{"id": 1, "op": "start", "record"', b"\xff\xfe\n"],
)
@on_loop
async def test_a_client_that_sends_garbage_is_disconnected_and_harms_nothing(sent: bytes, tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        keeper = keeper_pid(tmp_path)
        with connection_to(tmp_path) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(10)
            assert await asyncio.get_running_loop().run_in_executor(None, client.recv, 4096) == b""
        assert (await only(driver)).running
        assert keeper_pid(tmp_path) == keeper


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "start", "record": {"id": "x"}, "keep_until_s": None},
        {"op": "start", "record": None, "keep_until_s": None},
        {"op": "stop", "process": [], "grace_s": "soon"},
        {"op": "run", "process": "none", "argv": [], "timeout_s": 1},
        {"op": 5},
        {},
    ],
)
@on_loop
async def test_a_malformed_request_is_refused(request_: dict[str, Any], tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        with connection_to(tmp_path) as client:
            client.sendall(json.dumps({"id": 1, **request_}).encode() + b"\n")
            client.settimeout(10)
            reply = await asyncio.get_running_loop().run_in_executor(None, client.recv, 4096)
        assert "error" in json.loads(reply)
        assert (await only(driver)).running


@on_loop
async def test_a_client_that_never_reads_delays_no_other(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        with connection_to(tmp_path) as client:
            client.settimeout(0.2)
            with suppress(TimeoutError):
                while True:
                    client.sendall(b'{"id": 1, "op": "list"}\n' * 1000)
            async with asyncio.timeout(3):
                for _ in range(20):
                    await driver.processes()


@on_loop
async def test_an_agent_that_dies_during_a_probe_does_not_end_the_keeper(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        keeper = keeper_pid(tmp_path)
        first = ProcessDriver(tmp_path, environment=os.environ)
        probe = asyncio.ensure_future(first.probe(POD, exec_probe("sleep", "0.3")))
        await asyncio.sleep(0.1)
        await first.close()
        probe.cancel()
        await asyncio.sleep(0.5)
        assert (await only(driver)).running
        assert keeper_pid(tmp_path) == keeper


@on_loop
async def test_thousands_of_ended_records_can_be_listed(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "true")
        await eventually(ended(driver))
    path, record = record_in(tmp_path)
    assert (record["env"], record["argv"]) == ({}, [])
    for number in range(3000):
        name = f"old-{number}"
        path.with_name(f"{name}.json").write_text(json.dumps({**record, "id": name, "env": {"A": "x" * 2000}}))
    async with driver_in(tmp_path) as driver:
        assert len(await driver.processes()) == 3001


@on_loop
async def test_a_folder_deeper_than_the_path_of_a_socket_may_be(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 20) / ("er" * 40)
    async with driver_in(folder) as driver:
        await start(driver, "sh", "-c", "exit 3")
        await eventually(ended(driver))
        assert (await only(driver)).exit_code == 3


@on_loop
async def test_a_paused_keeper_does_not_block_the_agent_for_ever(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        keeper = keeper_pid(tmp_path)
        os.kill(keeper, signal.SIGSTOP)
        impatient = ProcessDriver(tmp_path, environment=os.environ, limits=replace(Limits(), agent_keeper_reply_s=0.2))
        with pytest.raises(OutcomeUnknown, match=r"did not reply in 0\.2 s"):
            await impatient.processes()
        await impatient.close()
        os.kill(keeper, signal.SIGCONT)
        assert (await only(driver)).running


# -- programs ----------------------------------------------------------------------------------------


@on_loop
async def test_a_command_that_no_kernel_accepts_ends_with_a_reason(tmp_path: Path) -> None:
    """A child that raised instead of executing would go on as a second keeper."""
    async with driver_in(tmp_path) as driver:
        await start(driver, "echo", "a\0b")
        found = await only(driver)
        assert (found.running, found.exit_code, found.reason) == (False, 126, "StartError")
        assert len(keeper_pids(tmp_path)) == 1


@on_loop
async def test_a_probe_without_a_command_fails_and_harms_nothing(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        assert await driver.probe(POD, exec_probe()) != ""
        assert (await only(driver)).running


@on_loop
async def test_a_probe_that_prints_without_end_is_killed_with_its_children(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        assert await driver.probe(POD, exec_probe("sh", "-c", "setsid sh -c 'echo $$ > child; exec yes' & yes"))
        pid = child_pid(tmp_path)
        assert pid is not None
        await eventually(lambda: not alive(pid))
        assert (await only(driver)).running


@on_loop
async def test_a_child_that_cleared_its_environment_and_session_ends_with_its_process(tmp_path: Path) -> None:
    """It has no marker, is in no known session, and its parent is gone: only the keeper as its subreaper is left."""
    program = "(env -i PATH=$PATH setsid sh -c 'echo $$$$ > child; exec sleep 600' &); sleep 600"
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", program)
        await eventually(lambda: child_pid(tmp_path) is not None)
        pid = child_pid(tmp_path)
        assert pid is not None
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))
        assert not alive(pid)


@on_loop
async def test_the_end_of_one_process_leaves_the_children_of_another_alone(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "(setsid sh -c 'echo $$$$ > child; exec sleep 600' &); sleep 600")
        await eventually(lambda: child_pid(tmp_path) is not None)
        pid = child_pid(tmp_path)
        assert pid is not None
        other = POD._replace(attempt=1)
        await start(driver, "true", identity=other)
        path = tmp_path / "processes" / f"{record_id(other)}.json"
        await eventually(lambda: bool(json.loads(path.read_bytes())["ended"]))
        assert alive(pid)


@on_loop
async def test_signals_that_the_keeper_ignores_are_not_ignored_by_its_processes(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "grep", "SigIgn", "/proc/self/status")
        await eventually(ended(driver))
        ignored = int(log_of(tmp_path).split()[1], 16)
        changed = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)
        assert [each for each in changed if ignored >> (each - 1) & 1] == []


def test_a_process_that_ends_between_two_polls_keeps_its_exit_code(tmp_path: Path) -> None:
    """It is a zombie when the keeper looks for adopted processes, and is reaped in the next turn."""
    program = (
        "import os,sys,time\nfrom pathlib import Path\nfrom kedge.agent.process import proc_table\n"
        "from kedge.agent.process.keeper import ProcessKeeper\n"
        "keeper = ProcessKeeper(Path(sys.argv[1])); keeper.recover()\n"
        "asked = dict(id='a', identity=['uid'], namespace='', pod='', address='', ports={}, env=dict(os.environ))\n"
        "keeper._start({**asked, 'argv': ['sh', '-c', 'exit 3'], 'cwd': '/', 'log': sys.argv[1] + '/log'}, None)\n"
        "while proc_table.read_entry(keeper._records['a']['pid']).runs: time.sleep(0.01)\n"
        "keeper._watch_adopted(); keeper._reap(); keeper._settle()\n"
        "print(keeper._records['a']['exit_code'])"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


@on_loop
async def test_no_exit_code_is_lost_however_fast_processes_end(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        for attempt in range(60):
            await start(driver, "sh", "-c", "exit 3", identity=POD._replace(attempt=attempt))

        async def done() -> bool:
            return not any(each.running for each in await driver.processes())

        await eventually(done)
        assert {each.exit_code for each in await driver.processes()} == {3}


# -- kills, disks, pids and clocks -------------------------------------------------------------------


def test_a_program_runs_only_after_its_record(tmp_path: Path) -> None:
    def full(pid: int) -> None:
        raise OSError(28, "No space left on device", str(pid))

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            proc_table.spawn(["touch", "ran"], dict(os.environ), str(tmp_path), proc_table.SILENT, full)
    assert not (tmp_path / "ran").exists()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_keeper_killed_between_fork_and_record_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "import os,signal,sys\nfrom kedge.agent.process import proc_table\n"
        "proc_table.spawn(['touch', 'ran'], dict(os.environ), sys.argv[1], proc_table.SILENT,"
        " lambda pid: (print(pid, flush=True), os.kill(os.getpid(), signal.SIGKILL)))"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    asyncio.run(eventually(lambda: not alive(int(done.stdout))))
    assert not (tmp_path / "ran").exists()


def test_a_record_and_its_name_are_on_disk_before_they_are_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    keeper = ProcessKeeper(tmp_path)
    keeper.recover()
    keeper._files.write({"id": "a"})
    folder = tmp_path / "processes"
    assert synced == [str(folder / "a.partial"), str(folder)]


@on_loop
async def test_two_keepers_started_at_once_are_one(tmp_path: Path) -> None:
    for _ in range(4):
        start_keeper(tmp_path)
    async with driver_in(tmp_path) as driver:
        assert await driver.processes() == ()
        await eventually(lambda: len(keeper_pids(tmp_path)) == 1)


@on_loop
async def test_a_program_that_cleared_its_environment_is_found_by_the_next_keeper(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "env", "-i", "sleep", "600")
        pid = await driver.pid_of(POD.pod_uid)
        await kill_keeper(tmp_path)
        assert (await only(driver)).running
        assert await driver.pid_of(POD.pod_uid) == pid
    assert not alive(pid)


@on_loop
async def test_a_full_disk_starts_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """The folder of the records is moved away: every write fails, as it does on a full or read-only disk."""
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "sleep 0.5; exit 3")
        keeper = keeper_pid(tmp_path)
        (tmp_path / "processes").rename(tmp_path / "away")
        other = POD._replace(attempt=1)
        with pytest.raises(Unavailable):
            await start(driver, "sh", "-c", "echo ran", identity=other)
        await eventually(ended(driver))
        (tmp_path / "away").rename(tmp_path / "processes")
        await eventually(lambda: record_in(tmp_path)[1]["exit_code"] == 3)
        assert keeper_pid(tmp_path) == keeper
        assert "ran" not in log_of(tmp_path)
        await start(driver, "sh", "-c", "echo ran", identity=other)
        await eventually(lambda: log_of(tmp_path) == "ran\n")


@on_loop
async def test_a_log_on_a_full_disk_does_not_end_the_keeper(tmp_path: Path) -> None:
    (tmp_path / "keeper.log").symlink_to("/dev/full")
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "sleep 0.2; exit 3")
        keeper = keeper_pid(tmp_path)
        (tmp_path / "processes").rename(tmp_path / "away")
        await eventually(ended(driver))
        (tmp_path / "away").rename(tmp_path / "processes")
        await eventually(lambda: record_in(tmp_path)[1]["exit_code"] == 3)
        assert keeper_pid(tmp_path) == keeper


@on_loop
async def test_orphans_of_a_process_that_ended_while_no_keeper_ran_are_killed(tmp_path: Path) -> None:
    """They have no marker, no leader and no parent left: the log that they write to is the evidence."""
    program = "(env -i PATH=$PATH setsid sh -c 'echo $$$$ > child; exec sleep 600' &); sleep 600"
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", program)
        await eventually(lambda: child_pid(tmp_path) is not None)
        pid, leader = child_pid(tmp_path), await driver.pid_of(POD.pod_uid)
        assert pid is not None
        await kill_keeper(tmp_path)
        os.killpg(leader, signal.SIGKILL)
        await eventually(lambda: not alive(leader))
        assert not (await only(driver)).running
        assert not alive(pid)


@on_loop
async def test_no_kill_of_the_keeper_at_any_time_doubles_or_loses_a_start(tmp_path: Path) -> None:
    """Each program writes a line when it runs. The keeper is killed at another moment of each start."""
    runs = tmp_path / "runs"
    identities = [POD._replace(attempt=attempt) for attempt in range(25)]

    async def start_until_acknowledged(identity: Identity) -> None:
        while True:
            try:
                return await start(
                    driver, "sh", "-c", f"echo {identity.attempt} >> {runs}; exec sleep 600", identity=identity
                )
            except OperatingError:
                await asyncio.sleep(0.01)

    async with driver_in(tmp_path) as driver:
        for identity in identities:
            await driver.processes()  # a keeper serves
            starting = asyncio.ensure_future(start_until_acknowledged(identity))
            await asyncio.sleep(identity.attempt * 0.0005)
            for pid in keeper_pids(tmp_path):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await starting
        found = await driver.processes()
        assert {each.identity for each in found} == set(identities)
        running = {each.identity.attempt for each in found if each.running}
        await eventually(lambda: running <= {int(line) for line in runs.read_text().split()})
        lines = runs.read_text().split()
        assert len(lines) == len(set(lines))


def test_a_log_that_others_write_to_is_no_evidence(tmp_path: Path) -> None:
    """Half of the processes of a machine write to /dev/null."""
    sweep = (
        "import sys\nfrom pathlib import Path\nfrom kedge.agent.process import keeper, proc_table\n"
        "proc_table.kill_all = lambda pids: print(*pids)\n"
        "print(keeper.ProcessKeeper(Path(sys.argv[1]))._sweep('x', 0, 0, '/dev/null', session=False))"
    )
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}) as innocent:
        done = subprocess.run([sys.executable, "-c", sweep, tmp_path], capture_output=True, text=True, check=True)
        innocent.kill()
    assert done.stdout.split() == ["False"]


@on_loop
async def test_a_record_that_cannot_be_read_ends_its_process_and_is_set_aside(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        pid = await driver.pid_of(POD.pod_uid)
        await kill_keeper(tmp_path)
        path, _ = record_in(tmp_path)
        path.write_bytes(b'{"id": "cut sho')
        assert await driver.processes() == ()
        await eventually(lambda: not alive(pid))
        assert path.with_suffix(".unreadable").exists()
        await start(driver, "sleep", "600")
        assert (await only(driver)).running


@pytest.mark.parametrize("change", [{"ticks": 1}, {"boot": "another"}])
@on_loop
async def test_a_process_that_has_the_pid_of_an_old_one_is_left_alone(change: dict[str, Any], tmp_path: Path) -> None:
    innocent = subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220
    try:
        async with driver_in(tmp_path) as driver:
            await start(driver, "true")
            await eventually(ended(driver))
            await kill_keeper(tmp_path)
            path, record = record_in(tmp_path)
            entry = proc_table.read_entry(innocent.pid)
            assert entry is not None
            path.write_text(json.dumps({**record, "ended": "", "pid": entry.pid, "ticks": entry.start_ticks, **change}))
            found = await only(driver)
            assert (found.running, found.reason) == (False, "ExitCodeLost")
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


@on_loop
async def test_a_process_whose_time_ran_out_while_the_keeper_was_paused_is_killed_not_kept(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600", keep_s=0.3)
        keeper = keeper_pid(tmp_path)
        os.kill(keeper, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        late = asyncio.ensure_future(driver.keep(POD, 600))
        await asyncio.sleep(0.1)
        os.kill(keeper, signal.SIGCONT)
        await late
        await eventually(ended(driver))


@on_loop
async def test_a_keep_that_a_paused_keeper_reads_late_counts_from_when_it_was_sent(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600", keep_s=60)
        keeper = keeper_pid(tmp_path)
        os.kill(keeper, signal.SIGSTOP)
        late = asyncio.ensure_future(driver.keep(POD, 0.3))
        await asyncio.sleep(0.6)
        os.kill(keeper, signal.SIGCONT)
        await late
        found = driver.processes()
        await asyncio.sleep(0.15)
        assert not any(each.running for each in await found)


@on_loop
async def test_nothing_is_started_while_the_node_shuts_down(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
        await eventually(lambda: "up" in log_of(tmp_path))
        stopping = asyncio.ensure_future(driver.shutdown(grace_s=1))
        await asyncio.sleep(0.2)
        with pytest.raises(Unavailable, match="shuts down"):
            await start(driver, "sleep", "600", identity=POD._replace(attempt=1))
        await stopping
        assert keeper_pids(tmp_path) == []


@on_loop
async def test_a_keeper_that_is_killed_while_it_shuts_down_leaves_nothing_running(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
        await eventually(lambda: "up" in log_of(tmp_path))
        pid = await driver.pid_of(POD.pod_uid)
        stopping = asyncio.ensure_future(driver.shutdown(grace_s=1))
        await asyncio.sleep(0.2)
        await kill_keeper(tmp_path)
        await stopping
        assert not alive(pid)


@on_loop
async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    driver = ProcessDriver(tmp_path / "file" / "node", environment=os.environ)
    with pytest.raises(Unavailable, match="file/node"):
        await driver.processes()
