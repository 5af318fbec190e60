"""The kept format: written sections read back, only damaged ones are lost, and the gaps are stated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.kept import HEADER, BadKeptFile, Gap, Section, encode_end, encode_section, read_bytes, read_kept, write_kept

HERE = Path("file.kedge")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda name: name != "end")
SECTIONS = st.lists(st.tuples(NAMES, st.integers(1, 255), st.binary(max_size=80)), max_size=6)


def file_of(sections: list[tuple[str, int, bytes]]) -> bytes:
    made = [encode_section(name, body, version=version) for name, version, body in sections]
    return b"".join((HEADER, *made, encode_end(len(made))))


def read_all(data: bytes) -> tuple[list[tuple[str, int, bytes]], list[Gap]]:
    sections, gaps = [], []
    for each in read_bytes(data, HERE):
        if isinstance(each, Section):
            sections.append((each.name, each.version, each.body))
        else:
            gaps.append(each)
    return sections, gaps


def is_subsequence(few: list[tuple[str, int, bytes]], many: list[tuple[str, int, bytes]]) -> bool:
    rest = iter(many)
    return all(each in rest for each in few)


@given(SECTIONS)
def test_sections_read_back_as_they_were_written(sections: list[tuple[str, int, bytes]]) -> None:
    assert read_all(file_of(sections)) == (sections, [])


@given(SECTIONS)
@settings(max_examples=30)
def test_a_file_cut_at_any_byte_gives_every_whole_section_and_states_the_gap(
    sections: list[tuple[str, int, bytes]],
) -> None:
    data = file_of(sections)
    ends = [len(HEADER)]
    for name, version, body in sections:
        ends.append(ends[-1] + len(encode_section(name, body, version=version)))
    for cut in range(len(data)):
        found, gaps = read_all(data[:cut])
        whole = sum(end <= cut for end in ends[1:])
        assert found == sections[:whole]
        assert gaps
        assert gaps[-1].tail
        assert gaps[-1].at + gaps[-1].bytes == cut, "the gap reaches to the cut"


@given(SECTIONS, st.data())
@settings(max_examples=200)
def test_a_changed_byte_costs_one_section_and_is_reported(
    sections: list[tuple[str, int, bytes]], data: st.DataObject
) -> None:
    whole = file_of(sections)
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    try:
        found, gaps = read_all(damaged)
    except BadKeptFile:
        assert at < len(HEADER)
        return
    assert gaps
    assert any(gap.at <= at < gap.at + max(gap.bytes, 1) for gap in gaps)
    assert is_subsequence(found, sections)
    assert len(found) >= len(sections) - 1


@given(SECTIONS, st.binary(min_size=1, max_size=200), st.integers(0, 6))
def test_foreign_bytes_between_sections_are_passed_over(
    sections: list[tuple[str, int, bytes]], junk: bytes, place: int
) -> None:
    made = [encode_section(name, body, version=version) for name, version, body in sections]
    made.insert(min(place, len(made)), junk)
    found, gaps = read_all(b"".join((HEADER, *made, encode_end(len(sections)))))
    assert found == sections
    assert sum(gap.bytes for gap in gaps) == len(junk)


def test_a_section_that_was_cut_out_whole_is_missed() -> None:
    parts = [encode_section(name, b"x") for name in ("a", "b", "c")]
    found, (gap,) = read_all(b"".join((HEADER, parts[0], parts[2], encode_end(3))))
    assert [name for name, _, _ in found] == ["a", "c"]
    assert "closed after 3 sections, and 2 are here" in gap.why


def test_a_stream_that_was_closed_may_go_on() -> None:
    one, two = encode_section("a", b"1"), encode_section("b", b"2")
    found, gaps = read_all(b"".join((HEADER, one, encode_end(1), two, encode_end(2))))
    assert [name for name, _, _ in found] == ["a", "b"]
    assert gaps == []


def test_a_whole_file_is_written_under_a_temporary_name_and_then_renamed(tmp_path: Path) -> None:
    path = tmp_path / "runs" / f"one{HERE.suffix}"
    write_kept(path, [Section("a", 3, b"old")])

    def failing() -> list[Section]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_kept(path, (each for each in failing()))
    assert [each[:3] for each in read_kept(path) if isinstance(each, Section)] == [("a", 3, b"old")]
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    (tmp_path / "file").touch()
    with pytest.raises(BadKeptFile, match="choose another directory"):
        write_kept(tmp_path / "file" / "below.kedge", [])


def test_two_processes_that_write_the_same_file_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept.kedge"
    other = "import sys; from pathlib import Path; from kedge.kept import *; write_kept(Path(sys.argv[1]), [])"

    def sections() -> Iterator[Section]:
        yield Section("a", 1, b"first")
        subprocess.run([sys.executable, "-c", other, str(path)], check=True)
        assert list(read_kept(path)) == [], "the other one wrote it whole, in the middle of this writing"
        yield Section("b", 1, b"second")

    write_kept(path, sections())
    assert [each.name for each in read_kept(path) if isinstance(each, Section)] == ["a", "b"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"kedge kept 2\nwhatever", "has format version 2; this build reads version 1: use a matching kedge"),
        (b'{\n "format": "kedge simulation failure",\n', "a failure of a simulation in the format of an earlier kedge"),
        (b"kedge decisions 1\n\x00\x01", "a segment of a decision log in the format of an earlier kedge"),
        (b"hello, world", "is not a file that kedge kept"),
    ],
)
def test_files_of_other_formats_are_refused_with_what_to_do(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other.kedge"
    path.write_bytes(content)
    with pytest.raises(BadKeptFile, match=message):
        list(read_kept(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadKeptFile, match=r"cannot read .*nothing\.kedge: No such file"):
        list(read_kept(tmp_path / "nothing.kedge"))


def test_temporary_files_of_killed_writers_are_removed_by_the_next_write(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    stale, living, other = (
        tmp_path / name for name in (f"a.{killed.pid}.partial", f"b.{os.getppid()}.partial", "notes.partial")
    )
    for each in (stale, living, other):
        each.write_bytes(b"half")
    write_kept(tmp_path / "c", [])
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([living.name, other.name, "c"])
