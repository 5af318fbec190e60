"""Kept files whose checksums hold and whose content is hostile: one clear error from every reader."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from kedge.errors import KedgeError, Terminal
from kedge.kept import Section, write_kept
from kedge.observe.records import BadRecord, RecordReader
from kedge.observe.records.codec import CODEC_VERSION as RECORD_VERSION
from kedge.sim.kernel import BadArtefact, read_artefact
from kedge.sim.kernel.artefacts import ATTACHMENT, CODEC_VERSION, RUN, TAPE, TRACE
from kedge.store.backup import check_backup

BRACKETS, DIGITS, ARRAYS = b"[" * 100_000, b"9" * 5_000, b"\x91" * 100_000
HOSTILE = pytest.mark.parametrize(
    "body",
    [
        BRACKETS, DIGITS, ARRAYS, zlib.compress(ARRAYS), b'["a",' + BRACKETS, b'["a",' + DIGITS + b"]",
        b'{"seed":' + DIGITS,
    ],
    ids=["brackets", "digits", "arrays", "packed", "attached brackets", "attached digits", "field of digits"],
)  # fmt: skip


@HOSTILE
@pytest.mark.parametrize("name", [RUN, TAPE, TRACE, ATTACHMENT])
def test_an_artefact_of_brackets_or_digits_is_rejected_in_one_sentence(name: str, body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.kedge"
    write_kept(path, [Section(each, CODEC_VERSION, body) for each in {name: 0, RUN: 0, TAPE: 0, TRACE: 0}])
    with pytest.raises(BadArtefact) as caught:
        read_artefact(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500


@HOSTILE
@pytest.mark.parametrize("name", ["decision", "version", "state", "commit", "received"])
def test_a_record_of_brackets_or_digits_is_rejected(name: str, body: bytes) -> None:
    reader = RecordReader()
    section = Section(name, RECORD_VERSION, body)
    if reader.knows(section):
        with pytest.raises(BadRecord):
            reader.read(section)


@HOSTILE
@pytest.mark.parametrize("name", ["backup", "entries", "total"])
def test_a_backup_of_brackets_or_digits_is_rejected(name: str, body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b"
    head = b'{"backend":"sqlite","incarnation":"i","revision":1,"made":"now"}'
    sections = [
        Section("backup", 3, head),
        Section("entries", 3, b"\x90"),
        Section("total", 3, b'{"objects":0,"digest":""}'),
    ]
    write_kept(path, [each._replace(body=body) if each.name == name else each for each in sections])
    with pytest.raises(Terminal, match="is damaged") as caught:
        check_backup(path)
    assert isinstance(caught.value, KedgeError)
