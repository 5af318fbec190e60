"""The durable log: flushed records can be read after any end of the process, and a failing disk harms no caller."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.kit.records import call, decision, full_decision, make_env, pod, read

from kedge.api.kinds import KINDS, Registry
from kedge.errors import NotFound, Terminal
from kedge.keys import Origin
from kedge.observe import Decision, DecisionLog, SkippedPart, read_decisions
from kedge.observe.records import Measured, decode_decision, encode_decision

ROOT = Path(__file__).parents[3]


def read_all(directory: Path, kinds: Registry = KINDS) -> tuple[list[Decision], list[SkippedPart]]:
    skipped: list[SkippedPart] = []
    return list(read_decisions(directory, kinds, report=skipped.append)), skipped


def ids(directory: Path) -> list[str]:
    return [each.id for each in read_all(directory)[0]]


def only_segment(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def same(a: Decision, b: Decision) -> bool:
    """Equal in every field, and in every byte of every object."""
    return encode_decision(a) == encode_decision(b)


# -- what is written -------------------------------------------------------------------------------


def test_records_read_back_as_they_were_written(tmp_path: Path) -> None:
    written = [full_decision(f"d-{n}", pod("a", 1), pod("b", n)) for n in range(3)]
    log = DecisionLog(tmp_path, make_env())
    for each in written:
        log.append(each)
    log.flush()
    found, skipped = read_all(tmp_path)
    assert not skipped
    assert len(found) == 3
    assert all(map(same, found, written))
    assert found[0].reads[0].objects[1].kind is KINDS.of_key_kind("Pod")


def test_a_single_record_survives_the_trip_through_bytes() -> None:
    written = full_decision("d-1", pod("a", 1))
    assert same(decode_decision(encode_decision(written)), written)


def test_nothing_is_written_before_a_flush_and_a_batch_is_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DecisionLog(tmp_path, make_env())
    log.append(decision("first"))
    assert list(tmp_path.iterdir()) == []
    log.flush()
    sizes: list[int] = []
    write = os.write

    def counted(descriptor: int, data: memoryview) -> int:
        sizes.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    for n in range(50):
        log.append(full_decision(f"d-{n}", pod("a", n)))
    log.flush()
    log.flush()
    assert len(sizes) == 1
    assert len(ids(tmp_path)) == 51


def test_a_version_that_many_decisions_read_is_written_once(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    for n in range(100):
        # Each time another copy of the same versions, as caches that list again have them.
        log.append(decision(f"d-{n}", [read(*(pod(f"web-{each}", each, text="marker") for each in range(20)))]))
    log.flush()
    assert only_segment(tmp_path).read_bytes().count(b"marker") == 20
    found, _ = read_all(tmp_path)
    assert len(found) == 100
    assert [each.key.name for each in found[-1].reads[0].objects] == [f"web-{n}" for n in range(20)]


def test_versions_that_share_a_revision_are_not_confused(tmp_path: Path) -> None:
    """Dry runs have no revision, and an object's last state may come with that of its removal."""
    log = DecisionLog(tmp_path, make_env())
    one, two = pod("a", 0, text="one"), pod("a", 0, text="two")
    seen = [one, two, pod("a", 0, text="two", origin=Origin("op", "another")), one]
    for n, each in enumerate(seen):
        log.append(decision(f"d-{n}", [read(each)]))
    log.flush()
    found = [each.reads[0].objects[0] for each in read_all(tmp_path)[0]]
    assert [(each.value, each.origin) for each in found] == [(each.value, each.origin) for each in seen]


def test_a_batch_that_grows_too_large_is_written_by_the_append_that_fills_it(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env(decision_log_pending_bytes_max=5_000))
    for n in range(50):
        log.append(full_decision(f"d-{n}", pod("a", n, text="x" * 500)))
    assert log.statistics().pending < 10
    assert log.statistics().written == 50 - log.statistics().pending == len(ids(tmp_path))


def test_another_process_continues_in_another_segment(tmp_path: Path) -> None:
    for n in range(3):
        log = DecisionLog(tmp_path, make_env())
        log.append(decision(f"d-{n}", [read(pod("a", 1))]))
        log.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert ids(tmp_path) == ["d-0", "d-1", "d-2"]
    assert DecisionLog(tmp_path, make_env()).statistics().segments == 3


def test_two_logs_in_one_directory_do_not_write_into_each_other(tmp_path: Path) -> None:
    logs = [DecisionLog(tmp_path, make_env()) for _ in range(2)]
    for n in range(6):
        logs[n % 2].append(decision(f"d-{n}", [read(pod("a", n))]))
        logs[n % 2].flush()
    assert sorted(ids(tmp_path)) == [f"d-{n}" for n in range(6)]


def test_a_directory_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Terminal, match="choose another directory"):
        DecisionLog(tmp_path / "file", make_env())


# -- bounds ----------------------------------------------------------------------------------------


def test_the_log_stays_within_its_bound_and_the_oldest_segments_go(tmp_path: Path) -> None:
    bound = 100_000
    env = make_env(
        decision_log_bytes_max=bound, decision_log_segment_bytes_max=20_000, decision_log_record_bytes_max=5_000
    )
    log = DecisionLog(tmp_path, env)
    for n in range(500):
        log.append(full_decision(f"d-{n}", *(pod(f"web-{each}", n // 10, text="x" * 200) for each in range(5))))
        log.flush()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound
    found, skipped = read_all(tmp_path)
    assert not skipped, "a segment must stand alone"
    assert [each.id for each in found] == [f"d-{n}" for n in range(500 - len(found), 500)]
    assert len(found) > 50
    statistics = log.statistics()
    assert statistics.segments_dropped > 5
    assert statistics.bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert statistics.segments == len(list(tmp_path.iterdir()))


def test_records_that_overfill_their_segments_do_not_overfill_the_log(tmp_path: Path) -> None:
    env = make_env(
        decision_log_bytes_max=50_000, decision_log_segment_bytes_max=10_000, decision_log_record_bytes_max=10_000
    )
    log = DecisionLog(tmp_path, env)
    for n in range(20):
        log.append(decision(f"d-{n}", [read(pod("a", n, text="x" * 9_300))]))
        log.flush()
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 50_000
    assert log.statistics().stripped == 0


def test_segments_of_an_earlier_run_count_towards_the_bound(tmp_path: Path) -> None:
    env = make_env(
        decision_log_bytes_max=30_000, decision_log_segment_bytes_max=10_000, decision_log_record_bytes_max=5_000
    )
    for n in range(20):
        log = DecisionLog(tmp_path, env)
        log.append(decision(f"d-{n}", [read(pod("a", n, text="x" * 4_000))]))
        log.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 30_000
    assert ids(tmp_path)[-1] == "d-19"


def test_a_record_that_is_too_large_is_kept_without_its_objects_and_counts_them(tmp_path: Path) -> None:
    env = make_env(decision_log_record_bytes_max=10_000)
    log = DecisionLog(tmp_path, env)
    pods = [pod(f"web-{n}", n, text="x" * 500) for n in range(40)]
    large = full_decision("large", *pods)
    log.append(large)
    # It sees what the large one saw: that must not be taken for written.
    log.append(decision("small", [read(pods[3])]))
    log.flush()
    found, skipped = read_all(tmp_path)
    assert not skipped
    assert [each.id for each in found] == ["large", "small"]
    assert found[0].objects_dropped == 41
    assert found[0].reads[0].objects == found[0].calls[0].reply == ()
    assert found[0].reads[0].found == 40
    assert found[1].objects_dropped == 0
    assert found[1].reads[0].objects[0].value == pods[3].value
    assert large.objects_dropped == 0, "the record in memory is as it was"
    assert len(large.reads[0].objects) == 40
    assert log.statistics().stripped == 1
    assert env.metrics.registry.get_sample_value("kedge_decisions_log_stripped_total") == 1


def test_a_record_that_is_too_large_without_its_objects_is_lost_and_counted(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env(decision_log_record_bytes_max=1_000))
    log.append(decision("large", [call(intent={"data": {"a": "x" * 2_000}})]))
    log.append(decision("small"))
    log.flush()
    assert ids(tmp_path) == ["small"]
    assert log.statistics().lost == 1
    assert "large" in log.statistics().last_error


# -- what a crash leaves ---------------------------------------------------------------------------


def test_a_log_cut_off_anywhere_gives_every_whole_record(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "whole", make_env())
    written, ends = [], []
    for n in range(4):
        written.append(full_decision(f"d-{n}", pod("a", n // 2), pod("b", n)))
        log.append(written[-1])
        log.flush()
        ends.append(log.statistics().bytes)
    data = only_segment(tmp_path / "whole").read_bytes()
    (tmp_path / "cut").mkdir()
    path = tmp_path / "cut" / only_segment(tmp_path / "whole").name
    close_by = {end + by for end in ends for by in (-9, -8, -1, 0, 1, 7, 8, 9)}
    for size in sorted({*range(30), *range(30, len(data), 11), *close_by} & {*range(len(data) + 1)}):
        path.write_bytes(data[:size])
        found, skipped = read_all(tmp_path / "cut")
        assert len(found) == sum(end <= size for end in ends)
        assert all(map(same, found, written))
        assert all(each.tail for each in skipped)
        assert not (skipped and size in ends)


def test_a_damaged_byte_never_gives_another_decision_and_never_raises(tmp_path: Path) -> None:
    for n in range(2):
        log = DecisionLog(tmp_path, make_env())
        for m in range(3):
            log.append(full_decision(f"d-{n}-{m}", pod("a", m)))
        log.close()
    originals = {each.id: each for each in read_all(tmp_path)[0]}
    first = min(tmp_path.iterdir())
    data = first.read_bytes()
    for at in [*range(60), *range(60, len(data), 11)]:
        first.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        found, skipped = read_all(tmp_path)
        assert all(same(each, originals[each.id]) for each in found)
        assert [each.id for each in found][-3:] == ["d-1-0", "d-1-1", "d-1-2"], "the other segment is whole"
        assert len(found) >= 5, "a damaged section costs the records that need it, and no other"
        assert {each.segment for each in skipped} == {first}
        assert not any(each.tail for each in skipped)


def test_zeroes_at_the_end_after_a_power_loss_are_no_records(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    log.append(decision("d-1"))
    log.close()
    with only_segment(tmp_path).open("ab") as file:
        file.write(bytes(4_096))
    found, (skipped,) = read_all(tmp_path)
    assert [each.id for each in found] == ["d-1"]
    assert skipped.bytes == 4_096
    assert skipped.tail


def test_a_missing_log_is_not_an_empty_log(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="give the directory"):
        next(read_decisions(tmp_path / "elsewhere"))


def test_a_file_of_another_format_is_skipped(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    log.append(decision("d-1"))
    log.close()
    (tmp_path / "notes.txt").write_text("not a segment")
    (tmp_path / "decisions-0000000000.log").write_bytes(b"kedge decisions 9\nfrom a later kedge")
    found, (skipped,) = read_all(tmp_path)
    assert [each.id for each in found] == ["d-1"]
    assert "in the format of an earlier kedge" in str(skipped)


def test_only_records_of_a_kind_that_the_reader_does_not_know_are_skipped(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    log.append(decision("d-1", [read(pod("a", 1))]))
    log.append(decision("d-2"))
    log.close()
    without_pods = Registry(kind for kind in KINDS if kind.key_kind != "Pod")
    found, (skipped,) = read_all(tmp_path, without_pods)
    assert [each.id for each in found] == ["d-2"]
    assert "'Pod'" in skipped.why


def test_skipped_parts_are_logged_when_there_is_no_report_callback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "decisions-0000000001.log").write_bytes(b"something else altogether")
    assert list(read_decisions(tmp_path)) == []
    assert "25 bytes at 0 were passed over" in caplog.text


def test_the_log_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    env = make_env(
        decision_log_bytes_max=75_000, decision_log_segment_bytes_max=10_000, decision_log_record_bytes_max=5_000
    )
    log = DecisionLog(tmp_path, env)
    expected = iter(range(10**6))

    def write(count: int) -> None:
        for n in range(count):
            log.append(decision(f"d-{next(expected)}", [read(pod("a", n, text="x" * 1_000))]))
            log.flush()

    write(30)
    skipped: list[SkippedPart] = []
    reading = read_decisions(tmp_path, report=skipped.append)
    begun = [next(reading).id]
    write(100)  # every segment there was goes meanwhile
    begun += [each.id for each in reading]
    assert begun == [f"d-{n}" for n in range(len(begun))]
    assert {each.why for each in skipped} == {"the log reached its bound meanwhile, and this segment was removed"}
    assert ids(tmp_path)[-1] == "d-129"


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_a_kill_loses_nothing_that_was_flushed(tmp_path: Path, seed: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.observe.log_load", str(tmp_path), seed],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert child.stdout is not None
        for _ in range(60 + 7 * ord(seed) % 50):
            flushed = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().splitlines()  # its last lines before it died
        flushed = int(rest[-1]) if rest and rest[-1] else flushed
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    found, skipped = read_all(tmp_path)
    assert [each.id for each in found] == [f"{seed}-{n}" for n in range(1, len(found) + 1)]
    assert len(found) >= flushed > 60
    assert all(len(each.reads[0].objects) == 5 for each in found)
    assert all(each.tail for each in skipped)
    assert len(list(tmp_path.iterdir())) > 1

    log = DecisionLog(tmp_path, make_env())  # the next writer continues
    log.append(decision("next"))
    log.close()
    assert ids(tmp_path)[-1] == "next"


# -- disks that fail -------------------------------------------------------------------------------


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The operating system writes what fits and then refuses, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_a_batch_and_nothing_else(tmp_path: Path) -> None:
    env = make_env()
    log = DecisionLog(tmp_path, env)
    seen = pod("a", 1, text="x" * 500)
    log.append(decision("before", [read(pod("b", 1))]))
    log.flush()
    for n in range(3):
        log.append(decision(f"lost-{n}", [read(seen)]))
    with files_no_larger_than(log.statistics().bytes + 700):
        log.flush()
    # The version that the lost ones saw was lost with them.
    log.append(decision("after", [read(seen, pod("b", 1))]))
    log.close()
    found, skipped = read_all(tmp_path)
    assert [each.id for each in found] == ["before", "after"]
    assert not skipped, "half a batch was cut off again"
    assert found[1].reads[0].objects[0].value == seen.value
    statistics = log.statistics()
    assert (statistics.appended, statistics.written, statistics.lost) == (5, 2, 3)
    assert statistics.errors == 1
    assert os.strerror(errno.EFBIG) in statistics.last_error
    assert env.metrics.registry.get_sample_value("kedge_decisions_log_errors_total", {"what": "write"}) == 1
    assert env.metrics.registry.get_sample_value("kedge_decisions_log_lost_total") == 3


def test_a_disk_that_stays_full_leaves_no_empty_segments_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = DecisionLog(tmp_path, make_env())
    with files_no_larger_than(0):
        for n in range(10):
            log.append(decision(f"d-{n}"))
            log.flush()
    assert list(tmp_path.iterdir()) == []
    assert log.statistics().lost == 10
    assert len(caplog.records) == 1
    log.append(decision("well again"))
    log.flush()
    assert ids(tmp_path) == ["well again"]
    with files_no_larger_than(0):
        log.append(decision("lost again"))
        log.flush()
    assert len(caplog.records) == 2


def test_a_directory_that_vanishes_costs_records_until_it_is_back(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = DecisionLog(directory, make_env())
    directory.rmdir()
    log.append(decision("lost"))
    log.flush()
    log.sync()
    directory.mkdir()
    log.append(decision("written"))
    log.close()
    assert ids(directory) == ["written"]
    assert log.statistics().lost == 1


def test_a_sync_that_fails_is_counted_and_does_not_stop_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env()
    log = DecisionLog(tmp_path, env)
    log.append(decision("d-1"))
    log.flush()

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        log.append(decision("d-2", [read(pod("a", 1))]))
        log.sync()
    log.append(decision("d-3", [read(pod("a", 1))]))
    log.close()
    assert ids(tmp_path) == ["d-1", "d-2", "d-3"]
    assert log.statistics().lost == 0
    assert env.metrics.registry.get_sample_value("kedge_decisions_log_errors_total", {"what": "sync"}) == 1


def test_a_filesystem_that_cannot_sync_still_has_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    log = DecisionLog(tmp_path, make_env())
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        for n in range(3):
            log.append(decision(f"d-{n}"))
            log.close()
    assert ids(tmp_path) == ["d-0", "d-1", "d-2"]
    assert log.statistics().lost == 0
    assert log.statistics().errors > 0


def test_a_segment_that_cannot_be_removed_does_not_stop_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(decision_log_bytes_max=10, decision_log_segment_bytes_max=10, decision_log_record_bytes_max=5_000)
    log = DecisionLog(tmp_path, env)
    log.append(decision("d-1"))

    def fail(_: Path, **__: bool) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", fail)
        log.append(decision("d-2"))
        log.flush()
    assert log.statistics().written == 2
    assert "cannot be removed" in log.statistics().last_error


def test_a_body_that_is_not_json_costs_no_record(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    endless: list[Any] = []
    endless.append(endless)
    bodies = [object(), endless, MappingProxyType({"spec": 1})]
    log.append(decision("d-1", [call(intent={"spec": each}) for each in bodies]))
    log.flush()
    found, skipped = read_all(tmp_path)
    assert not skipped
    *unreadable, plain = (each.intent for each in found[0].calls)
    assert all(each.startswith("not serializable: ") for each in unreadable)
    assert plain == {"spec": {"spec": 1}}


def test_only_a_record_that_cannot_be_encoded_is_lost(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, make_env())
    seen = pod("a", 1)
    endless: list[Any] = []
    endless.append(endless)
    for n, value in enumerate([object(), 1 << 80, endless]):
        log.append(decision(f"lost-{n}", [read(seen), Measured("load", value)]))
    log.append(decision("good", [read(seen), Measured("load", Decimal("0.5"))]))
    log.flush()
    found, skipped = read_all(tmp_path)
    assert not skipped
    assert [each.id for each in found] == ["good"]
    assert found[0].reads[0].objects[0].value == seen.value
    assert log.statistics().lost == 3


# -- in the background -----------------------------------------------------------------------------


def test_the_log_writes_and_syncs_by_itself_and_once_more_at_the_end(tmp_path: Path) -> None:
    env = make_env(decision_log_sync_s=0.001)
    log = DecisionLog(tmp_path, env)

    def syncs() -> float:
        return env.metrics.registry.get_sample_value("kedge_decisions_log_sync_seconds_count") or 0.0

    async def scene() -> None:
        running = asyncio.create_task(log.run())
        log.append(decision("d-1"))
        async with asyncio.timeout(30):
            while not syncs():  # noqa: ASYNC110  what is waited for has no event to wait on
                await asyncio.sleep(0.001)
        assert ids(tmp_path) == ["d-1"]
        log.append(decision("d-2"))
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scene())
    assert ids(tmp_path) == ["d-1", "d-2"]
    assert syncs() == 2


def test_an_idle_log_is_not_synced(tmp_path: Path) -> None:
    env = make_env()
    log = DecisionLog(tmp_path, env)
    log.append(decision("d-1"))
    for _ in range(5):
        log.flush()
        log.sync()
    assert env.metrics.registry.get_sample_value("kedge_decisions_log_sync_seconds_count") == 1


def test_restarts_do_not_add_up_to_segments_without_bound(tmp_path: Path) -> None:
    env = make_env(decision_log_segments_max=8)
    for n in range(30):
        log = DecisionLog(tmp_path, env)
        log.append(decision(f"d-{n}"))
        log.flush()
        log.close()
    assert len(list(tmp_path.iterdir())) <= 8
    assert ids(tmp_path)[-1] == "d-29"
