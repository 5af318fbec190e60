"""A log that lost acknowledged commits: `open` reports it, and the store takes a new incarnation."""

from __future__ import annotations

import asyncio
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.sqlite_faults import env_with

from kedge.errors import Compacted
from kedge.keys import Key
from kedge.store.contract import RESTORE_BUMP, Put
from kedge.store.sqlite import SqliteStore, file
from kedge.store.sqlite.revision_mark import mark_path

_FRAME = 24 + 16_384


async def killed_store(folder: Path, *, checkpoint_at: int = 0) -> Path:
    """The files after a kill and twenty commits: the database, its log and its mark, copied while the store runs."""
    store = await SqliteStore.open(folder / "a.db", env_with())
    for n in range(1, 21):
        await store.commit([], [Put(Key("Thing", "ns", f"t{n}"), b"x" * 200)])
        if n == checkpoint_at:
            store._checkpoint()
    killed = folder / "killed"
    killed.mkdir()
    for name in ("a.db", "a.db-wal", "a.db-mark"):
        shutil.copy(folder / name, killed)
    await store.close()
    return killed / "a.db"


async def facts_of(path: Path) -> tuple[int, str, tuple[str, ...]]:
    store = await SqliteStore.open(path, env_with())
    revision, incarnation, alarms = await store.revision(), store.incarnation, store.statistics().alarms
    await store.close()
    return revision, incarnation, alarms


async def incarnation_of(path: Path) -> str:
    return (await facts_of(path))[1]


def test_a_kill_costs_nothing_and_raises_no_alarm(tmp_path: Path) -> None:
    async def run() -> None:
        path = await killed_store(tmp_path)
        original = await incarnation_of(tmp_path / "a.db")
        for _ in range(2):
            assert await facts_of(path) == (20, original, ())

    asyncio.run(run())


def test_a_torn_last_commit_was_never_acknowledged(tmp_path: Path) -> None:
    """After a crash the last transaction may be there in part, its commit frame included."""

    async def run() -> None:
        path = await killed_store(tmp_path)
        mark_path(path).unlink()
        log = file.log_of(path)
        content = bytearray(log.read_bytes())
        content[-_FRAME + 24 + 100] ^= 1
        log.write_bytes(content)
        assert await facts_of(path) == (19, await incarnation_of(tmp_path / "a.db"), ())

    asyncio.run(run())


def cut_in_half(log: Path) -> None:
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])


def flip_in_the_middle(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 4
    log.write_bytes(content)


def break_the_header(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[9] ^= 4
    log.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "mark", "reason"),
    [
        (cut_in_half, True, "revision 20 had been acknowledged"),
        (Path.unlink, True, "revision 20 had been acknowledged"),
        (flip_in_the_middle, False, "has frames of later commits after one that is damaged"),
        (break_the_header, False, "the header of .* is damaged, and frames follow it"),
    ],
)
def test_lost_commits_are_reported(harm: Callable[[Path], None], mark: bool, reason: str, tmp_path: Path) -> None:
    async def run() -> None:
        path = await killed_store(tmp_path)
        if not mark:
            mark_path(path).unlink()
        harm(file.log_of(path))
        original = await incarnation_of(tmp_path / "a.db")
        store = await SqliteStore.open(path, env_with())
        (alarm,) = store.statistics().alarms
        assert "acknowledged commits are missing" in alarm
        assert re.search(reason, alarm)
        assert store.incarnation != original
        assert await store.revision() >= RESTORE_BUMP
        with pytest.raises(Compacted):  # a client that has seen revision 20 lists again
            await store.watch("Thing", after=20)
        revision, incarnation = await store.revision(), store.incarnation
        await store.close()
        assert await facts_of(path) == (revision, incarnation, ())

    asyncio.run(run())


@pytest.mark.parametrize("kept_bytes", [1, 9, 20, 31])
def test_a_power_cut_while_a_log_begins_again_raises_no_alarm(kept_bytes: int, tmp_path: Path) -> None:
    """All commits were moved to the database. A part of the new header is written, and old frames follow it."""

    async def run() -> None:
        path = await killed_store(tmp_path, checkpoint_at=20)
        log = file.log_of(path)
        content = bytearray(log.read_bytes())
        content[:kept_bytes] = bytes(each ^ 0xFF for each in content[:kept_bytes])
        log.write_bytes(content)
        assert await facts_of(path) == (20, await incarnation_of(tmp_path / "a.db"), ())

    asyncio.run(run())


def break_a_frame_too(log: Path) -> None:
    break_the_header(log)
    content = bytearray(log.read_bytes())
    content[32 + 3 * _FRAME + 100] ^= 4
    log.write_bytes(content)


def clear_the_first_frame_too(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[: 32 + _FRAME] = bytes(32 + _FRAME)
    log.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "checkpoint_at"),
    [(break_the_header, 10), (break_the_header, 19), (break_a_frame_too, 20), (clear_the_first_frame_too, 20)],
)
def test_a_damaged_header_is_reported_unless_the_database_has_every_frame(
    harm: Callable[[Path], None], checkpoint_at: int, tmp_path: Path
) -> None:
    """Commits after the checkpoint are only in the log, and damaged frames are not compared. No mark would show it."""

    async def run() -> None:
        path = await killed_store(tmp_path, checkpoint_at=checkpoint_at)
        mark_path(path).unlink()
        harm(file.log_of(path))
        _, incarnation, alarms = await facts_of(path)
        assert incarnation != await incarnation_of(tmp_path / "a.db")
        assert "is damaged, and frames follow it" in alarms[0]

    asyncio.run(run())


def test_a_database_ahead_of_its_log_shows_the_loss(tmp_path: Path) -> None:
    """A checkpoint moved revision 20 to the database; the log then lost its end."""

    async def run() -> None:
        path = await killed_store(tmp_path, checkpoint_at=20)
        mark_path(path).unlink()
        log = file.log_of(path)
        content = log.read_bytes()
        # All but the first commits, at the end of one: nothing in the log itself shows that it was longer.
        starts = range(32, len(content) - _FRAME + 1, _FRAME)
        ends = [start + _FRAME for start in starts if struct.unpack_from(">I", content, start + 4)[0]]
        log.write_bytes(content[: ends[9]])
        _, incarnation, alarms = await facts_of(path)
        assert incarnation != await incarnation_of(tmp_path / "a.db")
        assert "revision 20 had been moved from the log to the database" in alarms[0]

    asyncio.run(run())


def test_a_mark_of_another_store_is_no_evidence(tmp_path: Path) -> None:
    async def run() -> None:
        path = await killed_store(tmp_path)
        (tmp_path / "other").mkdir()
        shutil.copy(mark_path(path), mark_path(tmp_path / "other" / "a.db"))
        assert (await facts_of(tmp_path / "other" / "a.db"))[2] == ()

    asyncio.run(run())
