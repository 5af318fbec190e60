"""The audit log: entries reach the disk in groups, files rotate, and a disk that fails costs only what is counted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.kit.full_disk import small_disk
from tests.kit.loops import eventually, on_loop
from tests.kit.safeguards import replaced

from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.audit import AuditEvent, AuditGap, AuditLog, AuditReader, encode_event
from kedge.server.audit.events import AuditUser
from kedge.server.audit.files import AuditFiles, audit_files

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = Limits(audit_sync_s=0.01)


def entry(number: int, text: str = "") -> bytes:
    return encode_event(
        AuditEvent(
            kind="Event", api_version="audit.k8s.io/v1", level="Metadata", audit_id=str(number), request_uri=text,
            stage="ResponseComplete", verb="get", user=AuditUser("ada"), received=NOW, at=NOW,
        )
    )  # fmt: skip


def numbers(folder: Path) -> list[int]:
    return [int(each.audit_id) for each in AuditReader(folder).read() if isinstance(each, AuditEvent)]


def metric(env: Env, name: str) -> float:
    found = [line for line in env.metrics.page("")[0].decode().splitlines() if line.startswith(f"{name} ")]
    return float(found[0].split()[-1])


@contextmanager
def failing_syncs() -> Iterator[None]:
    """A disk on which no sync succeeds."""

    def fail(descriptor: int) -> None:
        del descriptor
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with replaced(os, "fsync", fail):
        yield


@on_loop
async def test_entries_are_synced_within_the_stated_time_and_the_rest_at_the_close(tmp_path: Path) -> None:
    env = system_env(limits=SOON)
    log = AuditLog(tmp_path / "audit", env)
    log.start()
    log.append(entry(1))
    await eventually(lambda: numbers(tmp_path / "audit") == [1])
    for number in range(2, 500):
        log.append(entry(number))
    await log.close()
    assert numbers(tmp_path / "audit") == list(range(1, 500))
    assert (metric(env, "kedge_audit_entries_total"), metric(env, "kedge_audit_dropped_total")) == (499, 0)
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "audit").iterdir()} == {0o600}


@on_loop
async def test_files_rotate_by_size_and_the_oldest_is_removed(tmp_path: Path) -> None:
    limits = Limits(audit_sync_s=0.01, audit_file_bytes_max=2_000, audit_files_max=3)
    env = system_env(limits=limits)
    log = AuditLog(tmp_path, env)
    log.start()
    for number in range(100):
        log.append(entry(number))
        await asyncio.sleep(0.003)
    await log.close()
    found = audit_files(tmp_path)
    assert len(found) == 3 == metric(env, "kedge_audit_files")
    assert min(found) > 1, "the first files are gone"
    assert all(path.stat().st_size <= 2_000 for path in found.values())
    assert metric(env, "kedge_audit_bytes") == sum(path.stat().st_size for path in found.values())
    left = numbers(tmp_path)
    assert left == list(range(left[0], 100)), "the newest are there without a gap"


@on_loop
async def test_the_next_start_goes_on_after_a_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    (tmp_path / "audit-0000000007.log").write_bytes(entry(1) + entry(2)[:50])
    log = AuditLog(tmp_path, system_env(limits=SOON))
    log.start()
    log.append(entry(3))
    await log.close()
    assert list(audit_files(tmp_path)) == [7]
    reader = AuditReader(tmp_path)
    assert [each.audit_id for each in reader.read() if isinstance(each, AuditEvent)] == ["1", "3"]
    assert reader.unreadable == 1


@on_loop
async def test_a_disk_that_fails_for_a_while_costs_no_entry_that_fits_in_memory(tmp_path: Path) -> None:
    env = system_env(limits=SOON)
    log = AuditLog(tmp_path, env)
    log.start()
    with failing_syncs():
        for number in range(20):
            log.append(entry(number))
        await eventually(lambda: log.failing)
        assert not log.accepts
        for number in range(20, 40):
            log.append(entry(number))
        await eventually(lambda: metric(env, "kedge_audit_errors_total") >= 3)
        assert numbers(tmp_path) == [], "a batch that is not synced is taken back, so that it is not there twice"
    await eventually(lambda: not log.failing)
    await log.close()
    assert numbers(tmp_path) == list(range(40))
    assert metric(env, "kedge_audit_dropped_total") == 0


@on_loop
async def test_entries_past_the_bound_are_dropped_and_the_log_has_their_number(tmp_path: Path) -> None:
    env = system_env(limits=Limits(audit_sync_s=0.01, audit_pending_bytes_max=4_000))
    log = AuditLog(tmp_path, env)
    log.start()
    with failing_syncs():
        for number in range(100):
            log.append(entry(number))
        assert log.pending_bytes <= 4_000
        await eventually(lambda: log.failing)
    await eventually(lambda: not log.failing)
    log.append(entry(100))
    await log.close()
    found = list(AuditReader(tmp_path).read())
    gaps = [each.dropped for each in found if isinstance(each, AuditGap)]
    assert len(gaps) == 1
    assert gaps[0] == metric(env, "kedge_audit_dropped_total") == 100 - (len(found) - 2) > 0
    assert numbers(tmp_path)[-1] == 100


@on_loop
async def test_a_full_disk_leaves_no_half_line_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        env = system_env(limits=SOON)
        log = AuditLog(disk / "audit", env)
        log.start()
        (disk / "filler").write_bytes(b"x" * 8_192)
        for number in range(60):
            log.append(entry(number))
        await eventually(lambda: log.failing)
        assert all(path.read_bytes()[-1:] in (b"", b"\n") for path in (disk / "audit").iterdir())
        (disk / "filler").unlink()
        await eventually(lambda: not log.failing)
        await log.close()
        assert numbers(disk / "audit") == list(range(60))


@on_loop
async def test_a_slow_disk_never_holds_the_event_loop(tmp_path: Path) -> None:
    slow_s, sync = 0.5, os.fsync

    def wait(descriptor: int) -> None:
        import time

        time.sleep(slow_s)
        sync(descriptor)

    log = AuditLog(tmp_path, system_env(limits=SOON))
    log.start()
    loop = asyncio.get_running_loop()
    longest_s, end_s = 0.0, loop.time() + 1.2
    with replaced(os, "fsync", wait):
        while loop.time() < end_s:
            began_s = loop.time()
            log.append(entry(1))
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, loop.time() - began_s)
        await log.close()
    assert longest_s < slow_s / 2
    assert len(numbers(tmp_path)) > 10


@on_loop
async def test_a_close_does_not_wait_for_ever_for_a_disk_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = system_env(limits=Limits(audit_sync_s=0.01, audit_close_s=0.2))
    log = AuditLog(tmp_path, env)
    log.start()
    with failing_syncs():
        log.append(entry(1))
        log.append(entry(2))
        await log.close()
    assert metric(env, "kedge_audit_dropped_total") == 2
    assert "ended without its last 2 entries" in caplog.text


def test_a_new_file_that_cannot_be_opened_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    found = AuditFiles(tmp_path, Limits(audit_file_bytes_max=1))
    found.write(entry(1))
    (tmp_path / "audit-0000000002.log").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        found.write(entry(2))
    (tmp_path / "audit-0000000002.log").rmdir()
    found.write(entry(2))
    found.close()
    assert sorted(json.loads(path.read_text())["auditID"] for path in tmp_path.iterdir()) == ["1", "2"]
