"""The folder of incidents: slices in any order, names from the network, and its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit.full_disk import small_disk

from kedge.env import Env, system_env
from kedge.errors import BadRequest, NotFound, TooManyRequests, Unavailable
from kedge.limits import Limits
from kedge.server.incidents import IncidentFolder


def make(folder: Path, **limits: int) -> IncidentFolder:
    return IncidentFolder(folder, env(**limits))


def env(**limits: int) -> Env:
    return system_env(limits=Limits(**limits))


def test_slices_are_taken_once_and_in_order(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.begin("first", "scheduler-1")
    assert folder.append("first", "scheduler-1", "a.log", 0, b"abc") == 3
    assert folder.append("first", "scheduler-1", "a.log", 0, b"abc") == 3, "a repeat"
    assert folder.append("first", "scheduler-1", "a.log", 2, b"cdef") == 6, "an overlap"
    assert folder.append("first", "scheduler-1", "a.log", 9, b"x") == 6, "a slice after a missing one"
    assert folder.read("first", "scheduler-1", "a.log", 0, 100) == b"abcdef"
    assert folder.read("first", "scheduler-1", "a.log", 4, 1) == b"e"
    assert not folder.find("first").processes[0].done
    folder.end("first", "scheduler-1")
    (process,) = folder.find("first").processes
    assert (process.name, process.done, process.parts[0].bytes) == ("scheduler-1", True, 6)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", ".done", "A", "a\0", "é", "a" * 300, "-a", "a."])
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / "incidents")
    folder.begin("first", "one")
    for names in ((name, "one", "part"), ("first", name, "part"), ("first", "one", name)):
        with pytest.raises(BadRequest):
            folder.append(*names, 0, b"x")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["first", "incidents", "one"]


def test_the_bounds_hold_and_a_deletion_makes_room(tmp_path: Path) -> None:
    folder = make(tmp_path, incidents_max=2, incidents_bytes_max=10)
    for name in ("first", "second"):
        folder.begin(name, "one")
    with pytest.raises(TooManyRequests, match="kedge incident delete"):
        folder.begin("third", "one")
    folder.append("first", "one", "a", 0, b"12345678")
    with pytest.raises(TooManyRequests, match="kedge incident delete"):
        folder.append("second", "one", "a", 0, b"123")
    folder.delete("first")
    assert folder.append("second", "one", "a", 0, b"123") == 3
    folder.begin("third", "one")
    again = make(tmp_path, incidents_max=2, incidents_bytes_max=10)  # after a restart
    with pytest.raises(TooManyRequests):
        again.append("second", "one", "a", 3, b"12345678")


def test_parts_of_processes_that_do_not_take_part_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with pytest.raises(NotFound):
        folder.append("first", "one", "a", 0, b"x")
    with pytest.raises(NotFound):
        folder.find("first")
    folder.begin("first", "one")
    with pytest.raises(NotFound):
        folder.read("first", "one", "a", 0, 1)


def test_a_full_disk_takes_no_part_of_a_slice_and_the_sender_repeats_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "32k") as disk:
        folder = make(disk)
        folder.begin("first", "one")
        assert folder.append("first", "one", "a", 0, b"x" * 10) == 10
        (disk / "filler").write_bytes(bytes(20_000))
        with pytest.raises(Unavailable, match="No space left"):
            folder.append("first", "one", "a", 10, b"y" * 20_000)
        assert folder.find("first").processes[0].parts[0].bytes == 10, "nothing of the slice is there"
        (disk / "filler").unlink()
        assert folder.append("first", "one", "a", 10, b"y" * 20_000) == 20_010
        assert folder.find("first").bytes == 20_010
