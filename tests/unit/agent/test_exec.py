"""Commands beside a process: streams byte by byte, exit codes, terminals, and how they end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, alive, driver_in, ended, only, pod_of, start, start_pod

from kedge.agent.process import ProcessDriver
from kedge.agent.process.exec import CommandFailed, ExecProcess
from kedge.errors import NotFound

MANY = os.urandom(1024) * 3 * 1024
"""3 MiB: many times the buffer of a pipe."""


@asynccontextmanager
async def command(driver: ProcessDriver, *argv: str, terminal: bool = False) -> AsyncIterator[ExecProcess]:
    running = await driver.exec(POD.pod_uid, POD.container, argv, terminal=terminal)
    try:
        yield running
    finally:
        running.close()


def pod_folder(folder: Path) -> bytes:
    return str(next(folder.glob("pods/*/work"))).encode()


async def output(running: ExecProcess, *, stderr: bool = False) -> bytes:
    found = b""
    while data := await running.read(stderr=stderr):
        found += data
    return found


async def finish(running: ExecProcess) -> tuple[bytes, bytes, int]:
    out, err, code = await asyncio.gather(output(running), output(running, stderr=True), running.wait())
    return out, err, code


@on_loop
async def test_a_command_has_the_environment_of_its_container_and_an_exit_code(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        pod, container = pod_of("sleep", "600", env={"COLOR": "blue"})
        await start_pod(driver, pod, container)
        async with command(driver, "sh", "-c", "echo $COLOR; pwd; echo oops >&2; exit 7") as running:
            out, err, code = await finish(running)
        assert out.split() == [b"blue", pod_folder(tmp_path)]
        assert (err, code) == (b"oops\n", 7)


@on_loop
async def test_three_megabytes_pass_each_way_unchanged(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        async with command(driver, "cat") as running:

            async def send() -> None:
                await running.write(MANY)
                running.end_input()

            out, (_, code), _ = await asyncio.gather(
                output(running), asyncio.gather(output(running, stderr=True), running.wait()), send()
            )
        assert out == MANY
        assert code == 0


@on_loop
async def test_a_program_left_in_the_background_does_not_hold_the_command_open(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        async with command(driver, "sh", "-c", "echo first; sleep 601 & echo $!") as running:
            out, _, code = await finish(running)
        assert code == 0
        pid = int(out.split()[1])
        assert alive(pid)
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))
        assert not alive(pid)


@on_loop
async def test_a_terminal_has_a_size_and_ctrl_c_interrupts(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        async with command(driver, "sh", "-c", "sleep 0.3; stty size; exec sleep 600", terminal=True) as running:
            running.resize(91, 17)
            waiting = asyncio.ensure_future(running.wait())
            assert await running.read() == b"17 91\r\n"
            await running.write(b"\x03")
            assert await waiting == 130
            assert await output(running) == b"^C"


@on_loop
async def test_a_closed_terminal_ends_its_programs(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        async with command(driver, "sh", "-c", "echo $$; exec sleep 600", terminal=True) as running:
            pid = int(await running.read())
        await eventually(lambda: not alive(pid))


@on_loop
async def test_a_killed_command_ends_with_everything_it_started(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        async with command(driver, "sh", "-c", "setsid sleep 601 & echo $!; wait") as running:
            pid = int(await running.read())
            await running.kill()
            assert await running.wait() == 137
        await eventually(lambda: not alive(pid))
        assert (await only(driver)).running


@on_loop
async def test_a_command_ends_with_its_container(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        async with command(driver, "sleep", "602") as running:
            await driver.stop(POD, grace_s=0)
            assert await running.wait() == 137
        with pytest.raises(NotFound, match="does not run"):
            await driver.exec(POD.pod_uid, POD.container, ["true"], terminal=False)


@on_loop
async def test_a_program_that_is_missing_fails_as_in_a_shell(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sleep", "600")
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        with pytest.raises(CommandFailed, match="no-such-program") as failed:
            await driver.exec(POD.pod_uid, POD.container, ["no-such-program"], terminal=False)
        assert failed.value.exit_code == 127
        with pytest.raises(CommandFailed) as failed:
            await driver.exec(POD.pod_uid, POD.container, [str(tmp_path)], terminal=True)
        assert failed.value.exit_code == 126
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
