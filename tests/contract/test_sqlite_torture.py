"""`kill -9` under load, hundreds of times on one file: nothing acknowledged is lost, and no commit is partial.

A kill proves nothing about syncs, because the page cache survives it. `tests/unit/store/test_sqlite_commit.py` checks
that full sync is on and that no commit is acknowledged before it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.contract.sqlite_load import check_history, check_rows, counters, run_load
from tests.torture.counts import report, scaled

from kedge.env import system_env
from kedge.store.sqlite import SqliteStore

KILLS = scaled("KILLS", 120)


class Evidence:
    """The acknowledged commits of killed processes, and the revision of the file at the last check."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, str], int] = {}
        self.newest = 0
        self.verified = 0
        self.incarnation = ""
        self.commits = 0

    def receive(self, message: bytes) -> None:
        revision, writer, what, count = message.decode().split()
        assert int(revision) > self.verified, (
            f"revision {revision} was used, but {self.verified} was in the file before"
        )
        place = (int(writer), what)
        before = self.acknowledged.get(place, 0)
        assert int(count) > before, f"{place} was acknowledged {before}, then {count}"
        self.acknowledged[place] = int(count)
        self.newest = max(self.newest, int(revision))
        self.commits += 1


@pytest.mark.slow
def test_a_store_survives_hundreds_of_kills_under_load(tmp_path: Path) -> None:
    seed = os.environ.get("KEDGE_TORTURE_SEED") or str(random.randrange(10**9))
    print(f"KEDGE_TORTURE_SEED={seed}")
    rng = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.contract.sqlite_load"])
    path, evidence = tmp_path / "a.db", Evidence()
    early = 0
    for round_ in range(KILLS):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=run_load, args=(path, f"{seed}/{round_}", send), daemon=True)
        child.start()
        send.close()
        if rng.random() < 0.2:
            early += 1  # while the process still opens, recovers or creates the file
            _listen(receive, evidence, rng.random() * 0.05)
        else:
            assert receive.poll(30), f"the load of round {round_} never started; seed {seed}"
            _listen(receive, evidence, rng.random() * 0.15)
        assert child.is_alive(), f"the load died by itself with code {child.exitcode}; seed {seed}, round {round_}"
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        _listen(receive, evidence, None)
        receive.close()
        child.close()
        if path.exists():
            # On a copy: the next load must recover the file itself.
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            for each in (path, path.with_name("a.db-wal")):
                if each.exists():
                    shutil.copy(each, copy / each.name)
            asyncio.run(_verify(copy / "a.db", evidence, whole=round_ % 10 == 0))
        else:
            assert not evidence.acknowledged, "the file is gone"
    print(f"{KILLS} kills, {early} of them early; {evidence.commits} commits acknowledged, newest {evidence.newest}")
    report("store", kills=KILLS, operations=evidence.commits, acknowledged=evidence.commits, lost=0, violations=0)
    assert early > KILLS // 20
    assert evidence.commits > 5 * KILLS, "too little load to prove anything"


def _listen(receive: Connection, evidence: Evidence, seconds: float | None) -> None:
    """Read acknowledgements for a while, or until the pipe of a dead process is empty."""
    deadline = time.monotonic() + seconds if seconds is not None else None
    while True:
        wait = max(0.0, deadline - time.monotonic()) if deadline is not None else 0.0
        if not receive.poll(wait):
            return
        try:
            evidence.receive(receive.recv_bytes())
        except (EOFError, OSError):
            return  # the pipe ends, perhaps in the middle of a message
        if deadline is not None and time.monotonic() >= deadline:
            return


async def _verify(path: Path, evidence: Evidence, *, whole: bool) -> None:
    store = await SqliteStore.open(path, system_env())
    evidence.incarnation = evidence.incarnation or store.incarnation
    assert store.incarnation == evidence.incarnation
    revision = await store.revision()
    assert revision >= evidence.newest, f"revision {evidence.newest} was acknowledged, the file is at {revision}"
    assert revision >= evidence.verified, f"the file went back from {evidence.verified} to {revision}"
    evidence.verified = revision
    found = {entry.key: entry for kind in ("Thing", "Other") for entry in (await store.list(kind)).entries}
    standing = counters(found)
    for place, count in evidence.acknowledged.items():
        assert standing[place] in (count, count + 1), (
            f"{place} was acknowledged {count}, and {standing[place]} is there"
        )
    evidence.acknowledged.update(standing)  # one more than reported may have been written; it must stay now
    await check_history(store, found)
    await store.close()
    check_rows(path, found, whole=whole)
