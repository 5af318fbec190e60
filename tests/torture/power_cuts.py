"""Opens stores as power cuts left them. With honest syncs nothing acknowledged is lost; with syncs that lie, a store
that lost commits is one that it had been before, whole, and reports it wherever anything on the disk can show it.
"""

from __future__ import annotations

import bisect
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract.sqlite_load import check_history, counters
from tests.torture.disk_trace import (
    ACKS,
    SURVIVALS,
    Choice,
    Disk,
    DiskCall,
    copy_store,
    fresh,
    read_trace,
    run_shimmed,
)

from kedge.env import system_env
from kedge.errors import StoreDamaged
from kedge.keys import Key, Revision
from kedge.store.contract import RESTORE_BUMP, Entry
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite.revision_mark import read_mark

Place = tuple[int, str]
LIE_SYNCS_MAX = 12


@dataclass
class Commits:
    """Every commit of a run: what each counter was at each revision."""

    start: Mapping[Place, int]
    revisions: dict[Place, list[int]] = field(default_factory=dict)
    complete: int = 0
    """Every commit up to this revision has a report. The last batch of a run may be durable and not reported whole."""

    def add(self, report: str) -> None:
        revision, writer, what, count = report.split()
        made = self.revisions.setdefault((int(writer), what), [])
        made.append(int(revision))
        assert int(count) == self.start[int(writer), what] + len(made)
        if int(revision) == self.complete + 1:
            self.complete += 1

    def at(self, revision: int) -> dict[Place, int]:
        found = dict(self.start)
        for place, made in self.revisions.items():
            found[place] += bisect.bisect_right(made, revision)
        return found


@dataclass
class CutCounts:
    """How the cuts ended, by kind."""

    honest: Counter[str] = field(default_factory=Counter)
    lying: Counter[str] = field(default_factory=Counter)
    noticed: int = 0
    """Lost commits that the store reported, or a file that it refused to open."""
    silent: int = 0
    """Lost commits of which no trace was left on the disk: the store is as it was before them."""
    whole: int = 0
    """The sync lied, and nothing was lost."""
    mixed: int = 0
    """Stores among the noticed ones that have a part of some commits: some pages of a checkpoint were lost."""
    acknowledged: int = 0


@dataclass
class TracedRun:
    """One run of the load from a store at rest."""

    start: Disk
    calls: list[DiskCall]
    commits: Commits
    incarnation: str
    acknowledged_before: list[int]
    """The newest acknowledged revision before each call."""


async def facts_of(path: Path) -> tuple[str, dict[Place, int], int]:
    store = await SqliteStore.open(path, system_env())
    try:
        found = {entry.key: entry for kind in ("Thing", "Other") for entry in (await store.list(kind)).entries}
        return store.incarnation, counters(found), await store.revision()
    finally:
        await store.close()


async def traced_run(folder: Path, store: Path, seed: str, commits: int) -> TracedRun:
    """Run the load on the store, which is left as by a kill."""
    incarnation, start, revision = await facts_of(copy_store(store, folder / "start"))
    disk = Disk.of(store)
    trace = folder / "trace"
    trace.unlink(missing_ok=True)
    run_shimmed(folder, store, ["trace", str(store), seed, str(commits)], trace=trace)
    calls = list(read_trace(trace))
    made, before = Commits(start, complete=revision), []
    reports = sorted(
        (line for call in calls if call.file == ACKS for line in call.data.decode().splitlines()),
        key=lambda line: int(line.split()[0]),
    )
    for report in reports:
        made.add(report)
    newest = revision
    for call in calls:
        before.append(newest)
        if call.file == ACKS:
            newest = max(newest, int(call.data.split()[0]))
    return TracedRun(disk, calls, made, incarnation, before)


@dataclass(frozen=True)
class Cut:
    """A power cut: before which call, and how many syncs before it lied."""

    place: int
    lies: int
    survival: str


def drawn_cuts(run: TracedRun, rng: random.Random, honest: int, lying: int) -> list[Cut]:
    """Cuts in drawn places."""
    places = range(1, len(run.calls))
    kinds = tuple(SURVIVALS)
    cuts = [Cut(rng.choice(places), 0, rng.choice(kinds)) for _ in range(honest)]
    cuts += [Cut(rng.choice(places), rng.randrange(1, LIE_SYNCS_MAX), rng.choice(kinds)) for _ in range(lying)]
    return sorted(cuts, key=lambda cut: cut.place)


def disks(run: TracedRun, cuts: list[Cut]) -> Iterator[tuple[Cut, Disk]]:
    """The disk at each cut."""
    syncs = [place for place, call in enumerate(run.calls) if call.kind.name == "SYNC"]
    for cut in cuts:
        before = syncs[: bisect.bisect_left(syncs, cut.place)]
        lies_from = before[-min(cut.lies, len(before))] if cut.lies and before else cut.place
        disk = run.start.copy()
        for place, call in enumerate(run.calls[: cut.place]):
            disk.apply(call, syncs_lie=place >= lies_from)
        yield cut, disk


async def check_cut(run: TracedRun, cut: Cut, disk: Disk, folder: Path, rng: random.Random, counts: CutCounts) -> None:
    """Open the store that the cut left, and judge it."""
    path = fresh(folder / "cut") / "a.db"
    choose: Choice = SURVIVALS[cut.survival](rng)
    disk.write(path, choose)
    mark = read_mark(path, run.incarnation)
    acknowledged = run.acknowledged_before[cut.place]
    try:
        store = await SqliteStore.open(path, system_env())
    except StoreDamaged:
        if not cut.lies:
            raise
        counts.lying[cut.survival] += 1
        counts.noticed += 1
        return
    try:
        revision, alarms = await store.revision(), store.statistics().alarms
        is_new = store.incarnation != run.incarnation
        assert is_new == bool(alarms), f"{cut}: incarnation and alarms {alarms} disagree"
        newest = revision - RESTORE_BUMP if is_new else revision
        found = {entry.key: entry for kind in ("Thing", "Other") for entry in (await store.list(kind)).entries}
        await check_history(store, found)
    finally:
        await store.close()
    if newest > run.commits.complete:
        return  # these commits have no report: not judged, and not counted
    (counts.lying if cut.lies else counts.honest)[cut.survival] += 1
    is_prefix = _is_prefix(run.commits, found, newest)
    assert is_prefix or (cut.lies and is_new), (
        f"{cut}: revision {newest} is a mixture, and the store does not report it"
    )
    counts.mixed += not is_prefix
    if not cut.lies:
        assert newest >= acknowledged, f"{cut}: revision {acknowledged} was acknowledged, the file is at {newest}"
        assert not alarms, f"{cut}: a false alarm: {alarms}"
    elif is_new:
        counts.noticed += 1
    elif newest >= acknowledged:
        counts.whole += 1
    else:
        assert mark <= newest, f"{cut}: the mark has {mark}, and the store opens at {newest} without an alarm"
        counts.silent += 1


def _is_prefix(commits: Commits, found: Mapping[Key, Entry], revision: Revision) -> bool:
    """Whether the store is as it was after the commit of this revision."""
    try:
        return counters(found) == commits.at(revision)
    except AssertionError:
        return False


async def cut_power(folder: Path, seed: str, *, runs: int, commits: int, honest: int, lying: int) -> CutCounts:
    """So many runs of the load on one store, each with so many cuts."""
    rng, counts = random.Random(seed), CutCounts()
    store = folder / "store" / "a.db"
    store.parent.mkdir()
    await (await SqliteStore.open(store, system_env())).close()
    for number in range(runs):
        run = await traced_run(folder, store, f"{seed}/{number}", commits)
        counts.acknowledged += commits
        for cut, disk in disks(run, drawn_cuts(run, rng, honest, lying)):
            await check_cut(run, cut, disk, folder, rng, counts)
    return counts
