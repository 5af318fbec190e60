"""Checks of durable stores: reopening, and `kill -9` under load.

The load runs in a child process that opens the store itself, so `make_store` must be picklable: a function at
the top of a module, or a `functools.partial` of one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

from kedge.errors import Compacted
from kedge.expectations import expect, same, within
from kedge.keys import Key, Revision
from kedge.limits import Limits
from kedge.store.conformance.subject import KIND, WAIT_S, MakeEnv, MakeStore, Subject, key, open_log, put_one, state_of
from kedge.store.conformance.watches import churn
from kedge.store.contract import DeleteKey, Put, Write

KILLS = 3
WRITERS = 4


async def check_reopening_finds_everything(subject: Subject) -> None:
    """Reopened: same objects, same incarnation, revisions continue, and history is complete or `Compacted`."""
    store = await subject.open()
    incarnation, start = store.incarnation, await store.revision()
    await asyncio.gather(*(churn(store, subject, writer, 20) for writer in range(3)))
    middle = await store.revision()
    await asyncio.gather(*(churn(store, subject, writer + 3, 20) for writer in range(3)))
    before = await store.list(KIND)
    whole = await open_log(store, after=start)
    changes = list(await whole.until(before.revision))
    then = (await store.list(KIND, at=middle)).entries
    await store.close()

    store = await subject.open()
    same(store.incarnation, incarnation, "the incarnation of a store opened again")
    after = await store.list(KIND)
    same(after.entries, before.entries, "objects of a store opened again")
    expect(after.revision >= before.revision, f"opened again at {after.revision}, closed at {before.revision}")
    try:
        log = await open_log(store, after=start)
        same(await log.until(before.revision), changes, "history of a store opened again")
        same((await store.list(KIND, at=middle)).entries, then, f"objects at {middle}, of a store opened again")
    except Compacted as error:
        expect(error.oldest > start, f"history from {start} was refused, but the oldest is {error.oldest}")
    next_one = await put_one(store, "next")
    expect(next_one > before.revision, f"revision {next_one} was used after {before.revision}")


async def check_reopening_after_compaction(subject: Subject) -> None:
    """Revisions continue after a reopen even if the newest commits left no objects."""
    store = await subject.open()
    await put_one(store, "kept")
    await put_one(store, "gone")
    last = await store.commit([], [DeleteKey(key("gone"))])
    await store.compact(last)
    await store.close()
    store = await subject.open()
    expect(await store.revision() >= last, f"opened again at {await store.revision()}, closed at {last}")
    same([e.key for e in (await store.list(KIND)).entries], [key("kept")], "objects after compaction and reopening")
    expect(await put_one(store, "gone") > last, "a revision was used twice")


async def check_no_deleted_version_reappears(subject: Subject) -> None:
    """Ordinary and `latest_only` versions of one object, deletes, compactions and reopenings in any order.

    A store that drops versions must not drop the record that made them obsolete: an old version would reappear.
    """
    store = await subject.open()
    rng = subject.random
    keys = [key(f"k{n}") for n in range(4)]
    state: dict[Key, tuple[bytes, Revision, Revision]] = {}
    for n in range(250):
        chosen = rng.choice(keys)
        before = state.get(chosen)
        if before is not None and rng.random() < 0.25:
            await store.commit([], [DeleteKey(chosen)])
            del state[chosen]
        else:
            put = Put(chosen, b"%d" % n, latest_only=rng.random() < 0.4)
            revision = await store.commit([], [put])
            state[chosen] = (put.value, before[1] if before is not None else revision, revision)
        if rng.random() < 0.1:
            await store.compact(rng.randrange(store.statistics().compacted, await store.revision() + 1))
        if rng.random() < 0.1:
            await store.close()
            store = await subject.open()
        found = {e.key: (e.value, e.created, e.modified) for e in (await store.list(KIND)).entries}
        same(found, state, f"objects after {n + 1} commits, some compactions and some reopenings")


async def check_reopening_after_kill(subject: Subject) -> None:
    """Killed with SIGKILL under load, several times: acknowledged commits are there, and none is partial."""
    rng = subject.random
    context = multiprocessing.get_context("spawn")
    name = subject.name()
    incarnation = ""
    newest: Revision = 0
    acknowledged: dict[int, int] = {}
    for round_ in range(KILLS):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(
            target=run_load, args=(subject.make_store, subject.make_env, name, round_, send), daemon=True
        )
        child.start()
        send.close()
        wanted = len(acknowledged) + rng.randrange(40, 200)
        received = 0
        try:
            async with within(WAIT_S, "acknowledgements from the load's process"):
                while received < wanted:
                    if not receive.poll():
                        expect(child.is_alive(), f"the load's process died by itself with code {child.exitcode}")
                        await asyncio.sleep(0.001)
                        continue
                    newest, received = _receive(receive, acknowledged, newest), received + 1
        finally:
            if child.pid is not None and child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
            child.join()
        try:
            while receive.poll():
                newest = _receive(receive, acknowledged, newest)
        except EOFError:
            pass
        receive.close()
        child.close()

        store = await subject.open()
        incarnation = incarnation or store.incarnation
        same(store.incarnation, incarnation, "the incarnation after a kill")
        now = await store.revision()
        expect(now >= newest, f"revision {newest} was acknowledged, but after the kill the newest is {now}")
        listing = await store.list(KIND)
        found = {entry.key: entry for entry in listing.entries}
        for writer, count in acknowledged.items():
            pair = [found.get(each) for each in pair_of(writer)]
            values = [entry and entry.value for entry in pair]
            expect(values[0] == values[1], f"writer {writer} wrote its pair in one commit, but left {values}")
            expect(pair[0] is not None and int(pair[0].value) >= count,
                   f"writer {writer} was acknowledged {count}, but {values} is there")  # fmt: skip
        compacted = store.statistics().compacted
        log = await open_log(store, after=compacted)
        changes = await log.until(now)
        if compacted < min(entry.created for entry in listing.entries):
            same(state_of(changes), found, "the state that history leads to, after a kill")
        expect(await put_one(store, "after-kill", b"%d" % round_) > newest, "a revision was used twice")
        await store.close()


def _receive(receive: Connection, acknowledged: dict[int, int], newest: Revision) -> Revision:
    revision, writer, count = (int(part) for part in receive.recv_bytes().split())
    acknowledged[writer] = max(count, acknowledged.get(writer, 0))
    return max(revision, newest)


def pair_of(writer: int) -> tuple[Key, Key]:
    return key(f"{writer}-left", namespace="a"), key(f"{writer}-right", namespace="b")


def run_load(make_store: MakeStore, make_env: MakeEnv, name: str, round_: int, send: Connection) -> None:
    """Write without end in this process, and report each acknowledged commit. Ends only by a kill."""
    asyncio.run(_load(make_store, make_env, name, round_, send))


async def _load(make_store: MakeStore, make_env: MakeEnv, name: str, round_: int, send: Connection) -> None:
    store = await make_store(name, make_env(Limits()))

    async def write(writer: int) -> None:
        pair = pair_of(writer)
        count = 0
        for entry in (await store.get(pair)).entries:
            count = max(count, int(entry.value) if entry else 0)
        while True:
            count += 1
            passing = key(f"{writer}-passing-{round_}")
            writes: list[Write] = [Put(each, b"%d" % count) for each in pair]
            writes.append(Put(passing, b"%d" % count) if count % 2 else DeleteKey(passing))
            if count % 2 == 0 and (await store.get([passing])).entries[0] is None:
                writes.pop()
            revision = await store.commit([], writes)
            send.send_bytes(b"%d %d %d" % (revision, writer, count))

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
