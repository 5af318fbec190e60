"""Logs of containers: written without agent or keeper, bounded, and read as `kubectl logs` asks for them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, driver_in, ended, keeper_pid, start

from kedge.agent.process import ProcessDriver
from kedge.agent.process.keeper_bounds import MARKS_MAX
from kedge.agent.process.log_files import LogFile, TimeMark, first_byte, log_path, read_marks
from kedge.agent.process.logs import LogOptions, NodeLogs
from kedge.errors import NotFound
from kedge.limits import Limits


async def text(pieces: AsyncIterator[bytes]) -> str:
    return b"".join([each async for each in pieces]).decode()


def written(folder: Path, *parts: bytes, attempt: int = 0, bytes_max: int = 1 << 20) -> tuple[Path, LogFile]:
    """A log of container `main` of pod `u1` whose parts the keeper has seen one after the other."""
    path = log_path(folder / "pods" / "default_web_u1", "main", attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    file = LogFile(path, bytes_max)
    for number, part in enumerate(parts):
        with path.open("ab") as output:
            output.write(part)
        os.utime(path, (1000.0 + number, 1000.0 + number))
        file.look()
    return path, file


def log_in(folder: Path) -> Path:
    return next(folder.glob("pods/*/logs/main/0.log"))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(1000.0 + seconds, UTC)


@on_loop
async def test_the_whole_log_the_last_lines_and_the_first_bytes(tmp_path: Path) -> None:
    written(tmp_path, b"one\ntwo\n", b"three\nfour")
    logs = NodeLogs(tmp_path)

    async def read(**options: int) -> str:
        return await text(logs.open("u1", "main", LogOptions(**options)))  # type: ignore[arg-type]

    assert await read() == "one\ntwo\nthree\nfour"
    assert await read(tail_lines=0) == ""
    assert await read(tail_lines=1) == "four"
    assert await read(tail_lines=3) == "two\nthree\nfour"
    assert await read(tail_lines=99) == "one\ntwo\nthree\nfour"
    assert await read(limit_bytes=5) == "one\nt"


@on_loop
async def test_a_tail_longer_than_one_chunk_is_found(tmp_path: Path) -> None:
    written(tmp_path, b"".join(b"line %06d\n" % number for number in range(20_000)))
    found = await text(NodeLogs(tmp_path).open("u1", "main", LogOptions(tail_lines=15_000)))
    assert found.splitlines() == [f"line {number:06d}" for number in range(5_000, 20_000)]


@on_loop
async def test_lines_since_a_time_and_with_their_times(tmp_path: Path) -> None:
    written(tmp_path, b"one\ntwo\n", b"three\n", b"four\n")
    logs = NodeLogs(tmp_path)
    assert await text(logs.open("u1", "main", LogOptions(since=at(1)))) == "three\nfour\n"
    assert await text(logs.open("u1", "main", LogOptions(since=at(0.5)))) == "three\nfour\n"
    assert await text(logs.open("u1", "main", LogOptions(since=at(60)))) == ""
    assert await text(logs.open("u1", "main", LogOptions(since=at(1), tail_lines=1))) == "four\n"
    stamped = await text(logs.open("u1", "main", LogOptions(timestamps=True, tail_lines=2)))
    assert stamped == "1970-01-01T00:16:41.000000000Z three\n1970-01-01T00:16:42.000000000Z four\n"


@on_loop
async def test_output_that_the_keeper_has_not_seen_yet_has_the_time_of_the_file(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    path.write_bytes(b"new\n")
    os.utime(path, (1005.0, 1005.0))
    found = await text(NodeLogs(tmp_path).open("u1", "main", LogOptions(timestamps=True, since=at(4))))
    assert found == "1970-01-01T00:16:45.000000000Z new\n"


@on_loop
async def test_a_line_that_the_keeper_has_not_seen_yet_is_not_as_old_as_the_lines_before_it(tmp_path: Path) -> None:
    path, _ = written(tmp_path, b"one\ntwo\n")
    with path.open("ab") as output:
        output.write(b"three\n")
    os.utime(path, (1003.0, 1003.0))
    logs = NodeLogs(tmp_path)
    stamped = await text(logs.open("u1", "main", LogOptions(timestamps=True)))
    assert [each[17:19] for each in stamped.splitlines()] == ["40", "40", "43"]
    assert await text(logs.open("u1", "main", LogOptions(since=at(3)))) == "three\n"
    assert await text(logs.open("u1", "main", LogOptions(since=at(4)))) == ""


@on_loop
async def test_a_reader_follows_until_the_process_has_ended_and_loses_nothing(tmp_path: Path) -> None:
    path, file = written(tmp_path, b"one\n")
    following = asyncio.ensure_future(text(NodeLogs(tmp_path).open("u1", "main", LogOptions(follow=True))))
    for part in (b"tw", b"o\n", b"three"):
        await asyncio.sleep(0.01)
        with path.open("ab") as output:
            output.write(part)
    assert not following.done()
    file.end()
    assert await following == "one\ntwo\nthree"


@on_loop
async def test_the_log_before_the_last_restart_is_the_previous_one(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path)
    with pytest.raises(NotFound, match="main"):
        logs.open("u1", "main", LogOptions())
    written(tmp_path, b"first\n", attempt=9)
    with pytest.raises(NotFound, match="previous"):
        logs.open("u1", "main", LogOptions(previous=True))
    written(tmp_path, b"second\n", attempt=10)
    assert await text(logs.open("u1", "main", LogOptions(previous=True))) == "first\n"
    assert await text(logs.open("u1", "main", LogOptions())) == "second\n"
    for name in ("../main", "none"):
        with pytest.raises(NotFound):
            logs.open("u1", name, LogOptions())


@on_loop
async def test_a_long_log_loses_its_oldest_lines_and_its_positions_stay(tmp_path: Path) -> None:
    lines = [b"line %08d\n" % number for number in range(40_000)]
    path, file = written(tmp_path, *[b"".join(lines[n : n + 4000]) for n in range(0, 40_000, 4000)], bytes_max=200_000)
    size = sum(len(each) for each in lines)
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 <= 200_000
    found = (await text(NodeLogs(tmp_path).open("u1", "main", LogOptions()))).encode().splitlines(keepends=True)
    assert found == lines[-len(found) :]
    assert 8_000 < len(found) < 16_000
    with path.open("ab") as output:
        output.write(b"more\n")
    file.look()
    assert path.stat().st_size == size + 5
    assert await text(NodeLogs(tmp_path).open("u1", "main", LogOptions(tail_lines=1))) == "more\n"
    assert len(read_marks(path)[0]) < 6


@on_loop
async def test_a_log_that_its_program_truncates_starts_again(tmp_path: Path) -> None:
    path, file = written(tmp_path, b"one\ntwo\n")
    path.write_bytes(b"3\n")
    file.look()
    assert [each.position for each in read_marks(path)[0]] == [0]
    assert await text(NodeLogs(tmp_path).open("u1", "main", LogOptions())) == "3\n"


def test_the_index_of_times_is_bounded_and_a_torn_line_of_it_is_ignored(tmp_path: Path) -> None:
    path, file = written(tmp_path)
    for number in range(MARKS_MAX + 10):
        file._add(TimeMark(number, 1000.0 + number, number + 1))
    marks, ended_ = read_marks(path)
    assert MARKS_MAX // 2 <= len(marks) <= MARKS_MAX
    assert marks[0].position == 0
    assert not ended_
    with path.with_suffix(".times").open("a") as index:
        index.write("99999")
    assert read_marks(path)[0] == marks


@on_loop
async def test_output_written_while_no_keeper_runs_is_kept_and_the_next_keeper_goes_on(tmp_path: Path) -> None:
    async with driver_in(tmp_path) as driver:
        await start(driver, "sh", "-c", "echo one; while ! test -e go; do sleep 0.02; done; echo two; exec sleep 600")
        logs = driver.logs
        await eventually(lambda: logs.attempts(POD.pod_uid, "main") == [0])
        os.kill(keeper_pid(tmp_path), signal.SIGKILL)
        path = log_in(tmp_path)
        (path.parents[2] / "work" / "go").touch()
        await eventually(lambda: path.read_text() == "one\ntwo\n")
        assert len(await driver.processes()) == 1
        await eventually(lambda: bool(read_marks(path)[0]))
        since = datetime.now(UTC) - timedelta(minutes=5)
        options = LogOptions(follow=True, timestamps=True, since=since)
        following = asyncio.ensure_future(text(logs.open(POD.pod_uid, "main", options)))
        await driver.stop(POD, grace_s=0)
        await eventually(ended(driver))
        lines = (await following).splitlines()
        assert [each.partition(" ")[2] for each in lines] == ["one", "two"]
        assert abs(datetime.fromisoformat(lines[0].partition(" ")[0][:26] + "+00:00").timestamp() - time.time()) < 300


@on_loop
async def test_a_program_that_prints_without_end_fills_no_disk_and_old_restarts_are_removed(tmp_path: Path) -> None:
    limits = Limits(agent_log_bytes_max=1 << 20)
    async with driver_in(tmp_path) as made:
        driver = ProcessDriver(tmp_path, environment=os.environ, limits=limits)
        await start(driver, "sh", "-c", "yes | head -c 8000000; exec sleep 600")
        path = log_in(tmp_path)
        await eventually(lambda: path.stat().st_size == 8_000_000 and path.stat().st_blocks * 512 <= 1 << 20)
        with path.open("rb") as file:
            assert first_byte(file.fileno()) > 6_000_000
        for attempt in (1, 2):
            await start(driver, "true", identity=POD._replace(attempt=attempt))
        assert made.logs.attempts(POD.pod_uid, "main") == [1, 2]
        await driver.close()
