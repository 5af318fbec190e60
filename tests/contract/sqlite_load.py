"""The load of the SQLite torture tests: writers whose objects show every partial commit; and checks of its files."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from kedge.env import system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.store.contract import Absent, AtRevision, Change, Check, DeleteKey, Entry, Put, Write
from kedge.store.sqlite import SqliteStore

WRITERS = 12
LIMITS = replace(Limits(), compact_every_s=0.01, history_s=0.03, compact_rows_max=25, wal_pages_max=40, sync_ops_max=40)
"""Frequent compactions and checkpoints, and several syncs for waiting commits."""


class Sends(Protocol):
    """Takes the report of each acknowledged commit."""

    def send_bytes(self, report: bytes, /) -> None: ...


def key(writer: int, name: str) -> Key:
    return Key("Thing" if writer % 2 else "Other", f"w{writer}", name)


def group(writer: int, names: str) -> list[Key]:
    return [key(writer, name) for name in names]


def counters(entries: Mapping[Key, Entry]) -> dict[tuple[int, str], int]:
    """The four counters of each writer; raises if any commit is partial."""
    found: dict[tuple[int, str], int] = {}
    for writer in range(WRITERS):
        for what, names in (("pair", "lr"), ("many", "abcdefghij")):
            values = {entry.value if (entry := entries.get(each)) else b"0" for each in group(writer, names)}
            assert len(values) == 1, f"writer {writer}: a partial commit, {what} has {values}"
            found[writer, what] = int(values.pop())
        witness, toggle = (entries.get(key(writer, name)) for name in ("witness", "toggle"))
        count = int(witness.value) if witness else 0
        assert (toggle is not None) == bool(count % 2), f"writer {writer}: witness {count} beside toggle {toggle}"
        assert toggle is None or (int(toggle.value) == count and toggle.created == toggle.modified)
        found[writer, "toggle"] = count
        beat = entries.get(key(writer, "beat"))
        found[writer, "beat"] = int(beat.value) if beat else 0
    return found


def run_load(path: Path, seed: str, send: Sends) -> None:
    """Write until killed, and report each acknowledged commit."""
    asyncio.run(_load(path, seed, send))


async def _load(path: Path, seed: str, send: Sends) -> None:
    store = await SqliteStore.open(path, system_env(limits=LIMITS))
    rng = random.Random(seed)
    entries = {e.key: e for kind in ("Thing", "Other") for e in (await store.list(kind)).entries}
    at = counters(entries)

    def plan(writer: int, what: str, count: int) -> tuple[list[Check], list[Write]]:
        value = b"%d" % count
        match what:
            case "pair":
                left = entries.get(key(writer, "l"))
                guard = AtRevision(left.key, left.modified) if left else Absent(key(writer, "l"))
                return [guard], [Put(each, value) for each in group(writer, "lr")]
            case "many":
                return [], [Put(each, value) for each in group(writer, "abcdefghij")]
            case "toggle":
                toggle = key(writer, "toggle")
                return [], [Put(key(writer, "witness"), value), Put(toggle, value) if count % 2 else DeleteKey(toggle)]
        return [], [Put(key(writer, "beat"), value, latest_only=rng.random() < 0.7)]

    async def write(writer: int) -> None:
        while True:
            what = rng.choice(("pair", "many", "toggle", "beat", "beat"))
            count = at[writer, what] + 1
            checks, writes = plan(writer, what, count)
            revision = await store.commit(checks, writes)
            send.send_bytes(f"{revision} {writer} {what} {count}".encode())
            at[writer, what] = count
            if what == "pair":
                found = (await store.get([key(writer, "l")])).entries[0]
                assert found is not None
                assert found.modified == revision
                entries[found.key] = found
            if rng.random() < 0.05:
                await asyncio.sleep(rng.random() * 0.01)

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))


async def check_history(store: SqliteStore, found: dict[Key, Entry]) -> None:
    """Replaying history gives the current objects."""
    begin, end = store.statistics().compacted, await store.revision()
    state = (
        {e.key: e for kind in ("Thing", "Other") for e in (await store.list(kind, at=begin)).entries} if begin else {}
    )
    watch = await store.watch("", after=begin)
    changes: list[Change] = []
    while watch.revision < end:
        watch.request_progress()
        changes.extend((await watch.__anext__()).changes)
    assert [c.revision for c in changes] == sorted(c.revision for c in changes)
    for change in changes:
        if change.entry is None:
            del state[change.key]
        else:
            state[change.key] = change.entry
    assert state == found


def check_rows(path: Path, found: dict[Key, Entry], *, whole: bool) -> None:
    """The rows, read with plain SQLite, give the current objects."""
    db = sqlite3.connect(path)
    try:
        state: dict[Key, tuple[bytes, int, int]] = {}
        for id_, kind, namespace, name, created, value in db.execute(
            "SELECT id, kind, namespace, name, created, value FROM versions ORDER BY id"
        ):
            state.pop(Key(kind, namespace, name), None)
            if value is not None:
                state[Key(kind, namespace, name)] = (value, created, id_ >> 10)
        assert state == {each: (e.value, e.created, e.modified) for each, e in found.items()}
        facts = dict(db.execute("SELECT name, value FROM facts").fetchall())
        assert facts["swept"] >> 10 <= facts["compacted"]
        stale = db.execute(
            "SELECT count(*) FROM versions old JOIN versions new"
            " ON old.kind = new.kind AND old.namespace = new.namespace AND old.name = new.name AND old.id < new.id"
            " WHERE new.id <= ?",
            (facts["swept"],),
        ).fetchone()
        assert stale == (0,), f"{stale[0]} obsolete rows are still there"
        if whole:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        db.close()
