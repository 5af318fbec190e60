"""`python -m tests.torture.disk_load STORE ...`: the load of a store whose disk is watched by `disk_shim.c`.

`trace STORE SEED COMMITS` writes until so many commits are acknowledged, and ends as by a kill. Each acknowledgement
is written to a file beside the store, so that the trace has it in its place. `errors FOLDER SEED CASES` fails a drawn
write or sync with EIO in each case, and checks the store that is opened again. `stalls FOLDER MILLISECONDS CASES` lets
every sync take so much longer. Both print counts as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from tests.contract.sqlite_load import LIMITS, check_history, counters, run_load
from tests.torture.disk_trace import Call

from kedge.env import system_env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.store import Put
from kedge.store.sqlite import SqliteStore


class AckFile:
    """Reports of acknowledged commits, in the file that a trace shows."""

    def __init__(self, store: Path, commits_max: int) -> None:
        self._descriptor = os.open(f"{store}-acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._left = commits_max

    def send_bytes(self, report: bytes, /) -> None:
        os.write(self._descriptor, report + b"\n")
        self._left -= 1
        if not self._left:
            os._exit(0)


class PipeReports:
    """Reports of acknowledged commits, to the process that opens the store again."""

    def __init__(self, descriptor: int, commits_max: int) -> None:
        self._descriptor = descriptor
        self._left = commits_max

    def send_bytes(self, report: bytes, /) -> None:
        os.write(self._descriptor, report + b"\n")
        self._left -= 1
        if not self._left:
            end_life(self._descriptor, "outlived")  # the fault cost nothing that a caller sees, or never struck


def end_life(descriptor: int, error: str) -> NoReturn:
    """End the process as by a kill, and report how many calls the shim has failed."""
    os.write(descriptor, f"{ctypes.CDLL(None).kedge_disk_failures()} {error}\n".encode())
    os._exit(0)


FAULTS: dict[str, tuple[Call, int, int]] = {
    "write of the log": (Call.WRITE, 1, 60),
    "sync of the log": (Call.SYNC, 1, 20),
    "write of the database": (Call.WRITE, 0, 8),
    "sync of the database": (Call.SYNC, 0, 2),
    "write of the mark": (Call.WRITE, 2, 10),
    "cut of the log": (Call.CUT, 1, 1),
}
"""Calls that fail, and how many of them succeed before at most."""


def fail_disk(folder: Path, seed: str, cases: int) -> dict[str, Any]:
    """One fault drawn for each of so many lives of a store; counts of the faults that struck, by kind."""
    rng = random.Random(seed)
    struck: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    store = folder / "a.db"
    asyncio.run(_created(store))
    standing: dict[tuple[int, str], int] = {}
    for case in range(cases):
        name, (kind, file, after_max) = rng.choice(tuple(FAULTS.items()))
        fault = (int(kind), file, rng.randrange(after_max), rng.random() < 0.5)
        *acknowledged, ended = _one_life(store, f"{seed}/{case}", fault, rng.randrange(20, 120))
        failures, error = ended.split()
        struck[name] += int(failures) > 0
        totals[error] += 1
        totals["acknowledged"] += len(acknowledged)
        about = f"{name}, case {case}, ended by {ended}"
        standing = asyncio.run(_reopened(store, standing, acknowledged, about))
    return {"struck": dict(struck), "ended": dict(totals)}


def _one_life(store: Path, seed: str, fault: tuple[int, int, int, bool], commits_max: int) -> list[str]:
    """The acknowledgements of a process of its own, and how many calls failed and with what it ended."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        ctypes.CDLL(None).kedge_disk_arm(*fault)
        try:
            run_load(store, seed, PipeReports(send, commits_max))
        except OperatingError as error:
            end_life(send, type(error).__name__)
        finally:
            os._exit(1)
    os.close(send)
    with os.fdopen(receive) as reports:
        lines = reports.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert not status, f"a life of the store ended with {status}"
    return lines


async def _created(store: Path) -> None:
    await (await SqliteStore.open(store, system_env(limits=LIMITS))).close()


async def _reopened(
    path: Path, before: dict[tuple[int, str], int], acknowledged: list[str], about: str
) -> dict[tuple[int, str], int]:
    """Open the store without faults: everything that was acknowledged is there, and nothing in part."""
    least = dict(before)
    newest = 0
    for report in acknowledged:
        revision, writer, what, count = report.split()
        least[int(writer), what] = int(count)
        newest = max(newest, int(revision))
    store = await SqliteStore.open(path, system_env(limits=LIMITS))
    try:
        lost = [each for each in store.statistics().alarms if "acknowledged commits are missing" in each]
        assert not lost, f"{about}: {lost}"
        assert await store.revision() >= newest, f"{about}: acknowledged revision {newest} is lost"
        found = {entry.key: entry for kind in ("Thing", "Other") for entry in (await store.list(kind)).entries}
        standing = counters(found)
        for place, known in least.items():
            assert standing[place] in (known, known + 1), f"{about}: {place} was {known}, and is {standing[place]}"
        await check_history(store, found)
        return standing
    finally:
        await store.close()


async def stall_disk(path: Path, stall_ms: int, commits: int) -> dict[str, float]:
    """Commits and a compaction on a disk whose syncs stall: the turns of the loop meanwhile, and the longest one."""
    disk = ctypes.CDLL(None)
    store = await SqliteStore.open(path, system_env(limits=replace(LIMITS, wal_pages_max=10)))
    turns, longest_s, last_s = 0, 0.0, time.monotonic()

    async def turn() -> None:
        nonlocal turns, longest_s, last_s
        while True:
            await asyncio.sleep(0.001)
            now_s = time.monotonic()
            turns, longest_s, last_s = turns + 1, max(longest_s, now_s - last_s), now_s
            if turns == 100:
                disk.kedge_disk_stall(stall_ms)
            elif stall_ms < 0 and turns % 100 == 0:
                disk.kedge_disk_stall(0)  # the disk answers again: only a loop that it does not hold gets here

    turning = asyncio.create_task(turn())
    while turns < 100:  # noqa: ASYNC110  turns are what is counted
        await asyncio.sleep(0.001)
    for n in range(commits):
        await store.commit([], [Put(Key("Thing", "ns", f"t{n % 5}"), b"x" * 100)])
        if stall_ms < 0:
            disk.kedge_disk_stall(stall_ms)
    await store.compact(await store.revision())
    turning.cancel()
    disk.kedge_disk_stall(0)
    await store.close()
    return {"turns": turns, "longest_ms": round(longest_s * 1000, 1), "sync_s_max": store.statistics().sync_s_max}


def main() -> None:
    what, path, seed, count = sys.argv[1:]
    if what == "trace":
        run_load(Path(path), seed, AckFile(Path(path), int(count)))
    elif what == "stalls":
        print(json.dumps(asyncio.run(stall_disk(Path(path), int(seed), int(count)))))
    else:
        print(json.dumps(fail_disk(Path(path), seed, int(count))))


if __name__ == "__main__":
    main()
