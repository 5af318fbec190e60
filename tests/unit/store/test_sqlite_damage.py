"""A damaged file is never served and never stays locked: it is rejected by an error that names it, or is sound."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.filled_files import fill, opened

from kedge.errors import StoreDamaged


def check_damaged(path: Path, match: str) -> None:
    """The error names the file, the damage and the next steps, and the second attempt finds the file free."""
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=match) as caught:
            asyncio.run(opened(path))
        for part in (str(path), "restore a backup", "kedge store check", "kedge store salvage"):
            assert part in str(caught.value)


def zero(content: bytearray, at: int, size: int) -> None:
    content[at : at + size] = bytes(min(size, len(content) - at))


def test_a_zeroed_block_is_damage_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asyncio.run(fill(path))
    whole = path.read_bytes()
    for at in range(0, len(whole), 4096):
        content = bytearray(whole)
        zero(content, at, 4096)
        if content != whole and content[at : at + 4096] != whole[at : at + 4096]:
            path.write_bytes(content)
            try:
                asyncio.run(opened(path))
            except StoreDamaged:
                continue
            pytest.fail(f"a zeroed block at {at} went unnoticed")


@pytest.mark.parametrize(
    ("sql", "match"),
    [
        ("DELETE FROM facts", "it has no fact 'incarnation' or 'compacted' or 'swept'"),
        ("DELETE FROM facts WHERE name = 'compacted'", "it has no fact 'compacted'"),
        ("UPDATE facts SET value = value + 1 WHERE name = 'compacted'", "the fact 'compacted' does not have"),
        ("PRAGMA user_version=0", "its schema version is 0"),
        ("PRAGMA user_version=2", "duplicate column"),
        ("PRAGMA user_version=77", "its header has schema version 77, its facts have 4"),
        ("DROP TABLE facts", "no such table: facts"),
        ("DROP TABLE versions", "no such table: versions"),
        ("UPDATE versions SET previous = 7 WHERE name = 't9'", "Thing/ns/t9 at .* does not have its checksum"),
        ("UPDATE versions SET created = 'x' WHERE name = 't9'", "Thing/ns/t9"),
        ("UPDATE versions SET id = id + 512 WHERE name = 't9'", "Thing/ns/t9"),
    ],
)
def test_content_that_no_store_wrote_is_damage(sql: str, match: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asyncio.run(fill(path))
    db = sqlite3.connect(path)
    db.execute(sql)
    db.commit()
    db.close()
    check_damaged(path, match)


def _flip(content: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice([1, 1, 1, 4])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def _zero(content: bytearray, draw: random.Random) -> None:
    zero(content, draw.randrange(len(content)), draw.choice([16, 512, 4096]))


def _truncate(content: bytearray, draw: random.Random) -> None:
    del content[draw.randrange(len(content)) :]


def _overwrite(content: bytearray, draw: random.Random) -> None:
    at, size = draw.randrange(len(content)), draw.choice([1, 8, 512])
    content[at : at + size] = draw.randbytes(min(size, len(content) - at))


@pytest.mark.parametrize("harm", [_flip, _zero, _truncate, _overwrite])
def test_damage_at_random_is_noticed_or_harmless(
    harm: Callable[[bytearray, random.Random], None], tmp_path: Path
) -> None:
    """A file opens with every object as it was, or not at all; and is free for the next attempt."""
    source = tmp_path / "source.db"
    state = asyncio.run(fill(source))
    whole = source.read_bytes()
    draw = random.Random(harm.__name__)
    noticed = 0
    for n in range(int(os.environ.get("KEDGE_DAMAGE_ROUNDS", "60"))):
        path = tmp_path / f"{n}" / "a.db"
        path.parent.mkdir()
        content = bytearray(whole)
        harm(content, draw)
        path.write_bytes(content)
        try:
            found = asyncio.run(opened(path))
        except StoreDamaged:
            noticed += 1
            check_damaged(path, "is damaged")
        else:
            assert found == state, f"round {n} changed objects silently"
        shutil.rmtree(path.parent)
    assert noticed > 20
