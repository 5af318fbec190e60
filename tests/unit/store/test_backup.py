"""The rows of a backup file: callers are in them, and files of before are read and verified."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from kedge.kept import HEADER, encode_end, encode_section
from kedge.keys import Key, Origin
from kedge.store.backup import BackupHead, Digest, check_backup, read_backup
from kedge.store.contract import Entry

ENTRIES = [
    Entry(Key("ConfigMap", "default", "a"), b"{}", 3, 7, Origin("op-1", "deployment:1")),
    Entry(Key("ConfigMap", "default", "b"), b"{}", 4, 4, Origin()),
]


def old_row(entry: Entry) -> tuple[object, ...]:
    return *entry.key, entry.created, entry.modified, entry.origin.operation, entry.origin.decision, entry.value


def test_a_backup_of_before_callers_is_read_and_verified(tmp_path: Path) -> None:
    digest = Digest()
    digest.add(ENTRIES)
    head = BackupHead(made="2026-01-01T00:00:00Z", revision=7, incarnation="i", backend="sqlite")
    parts = [
        encode_section("backup", msgspec.json.encode(head), version=1),
        encode_section("entries", msgspec.msgpack.encode([old_row(each) for each in ENTRIES]), version=1),
        encode_section("total", msgspec.json.encode(digest.total), version=1),
    ]
    path = tmp_path / "old.backup"
    path.write_bytes(b"".join((HEADER, *parts, encode_end(len(parts)))))
    assert check_backup(path) == digest.total
    assert [each for part in read_backup(path) for each in part] == ENTRIES


def test_the_digest_covers_callers_and_their_groups() -> None:
    plain, named, grouped = Digest(), Digest(), Digest()
    plain.add(ENTRIES)
    named.add([replace(each, origin=each.origin._replace(caller="ada")) for each in ENTRIES])
    grouped.add([replace(each, origin=each.origin._replace(caller="ada", groups=("people",))) for each in ENTRIES])
    assert len({plain.total.digest, named.total.digest, grouped.total.digest}) == 3
