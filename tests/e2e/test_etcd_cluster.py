"""Three etcd members on this machine, killed and restarted under load, the leader among them.

Two stores on one cluster, as two API servers have. Nothing acknowledged is lost, unknown outcomes are settled by
reading, and every watch delivers each change once and in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.etcd_server import EtcdServer, etcd_cluster, is_leader, sound_etcd
from tests.tools import missing_tool

from kedge.env import system_env
from kedge.errors import Conflict, Lagged, OutcomeUnknown, Unavailable
from kedge.keys import Key, Origin, Revision
from kedge.limits import Limits
from kedge.store.contract import Absent, AtRevision, Change, Check, DeleteKey, Entry, Put, Write
from kedge.store.etcd import EtcdStore

KIND = "Thing.cluster"
WRITERS = 8
ROUNDS = 10
LIMITS = replace(Limits(), store_request_s=2.0)

pytestmark = pytest.mark.slow


@dataclass
class Outcomes:
    """The outcomes that the writers got."""

    acknowledged: dict[Revision, tuple[Key, bytes | None]] = field(default_factory=dict)
    unknown: int = 0
    unknown_but_made: int = 0
    unavailable: int = 0


@dataclass
class Writer:
    """Increments a counter and a companion by guarded commits; sometimes it deletes the companion."""

    store: EtcdStore
    name: str
    outcomes: Outcomes
    rng: random.Random
    count: int = 0
    entry: Entry | None = None

    @property
    def key(self) -> Key:
        return Key(KIND, "counters", self.name)

    @property
    def companion(self) -> Key:
        return Key(KIND, "companions", self.name)

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.step()
            await asyncio.sleep(self.rng.random() * 0.01)

    async def step(self) -> None:
        """Increment exactly once, with as many attempts as needed."""
        origin = Origin(f"{self.name}-{self.count + 1}")
        value = b"%d" % (self.count + 1)
        while True:
            guard: Check = AtRevision(self.key, self.entry.modified) if self.entry else Absent(self.key)
            writes: list[Write] = [Put(self.key, value)]
            checks: list[Check] = [guard]
            if self.count % 3 == 2:
                writes.append(DeleteKey(self.companion))
            else:
                writes.append(Put(self.companion, value))
            try:
                revision = await self.store.commit(checks, writes, origin=origin)
            except Unavailable:
                self.outcomes.unavailable += 1
                await asyncio.sleep(0.05)
            except OutcomeUnknown:
                self.outcomes.unknown += 1
                if await self.settle(origin):
                    self.outcomes.unknown_but_made += 1
                    break
            except Conflict:
                # No other writer has this key: it can only be an earlier attempt with an unknown outcome.
                assert await self.settle(origin), f"{self.key} was written by another writer"
                self.outcomes.unknown_but_made += 1
                break
            else:
                self.outcomes.acknowledged[revision] = (self.key, value)
                self.entry = Entry(self.key, value, self.entry.created if self.entry else revision, revision, origin)
                break
        self.count += 1

    async def settle(self, origin: Origin) -> bool:
        """Read until the outcome is known. True if the attempt was made."""
        while True:
            try:
                self.entry = (await self.store.get([self.key])).entries[0]
            except Unavailable:
                self.outcomes.unavailable += 1
                await asyncio.sleep(0.05)
                continue
            return self.entry is not None and self.entry.origin == origin


@dataclass
class Follower:
    """One watch that resumes after errors, as a cache does."""

    store: EtcdStore
    after: Revision
    received: list[Change] = field(default_factory=list)
    resumed: int = 0

    async def run(self) -> None:
        while True:
            try:
                watch = await self.store.watch(KIND, after=self.after)
                async for batch in watch:
                    for change in batch.changes:
                        assert change.revision > self.after, f"{change.key} came again at {change.revision}"
                    self.received.extend(batch.changes)
                    self.after = batch.revision
            except (Unavailable, Lagged):
                self.resumed += 1
                await asyncio.sleep(0.05)


async def trouble(members: Sequence[EtcdServer], rng: random.Random) -> int:
    """Kill and restart members, the leader every other time. Returns how many leaders died."""
    leaders = 0
    for number in range(ROUNDS):
        await asyncio.sleep(0.5 + rng.random())
        leading = [member for member in members if await asyncio.to_thread(is_leader, member)]
        victims = leading if number % 2 == 0 and leading else [rng.choice(members)]
        if number == ROUNDS - 2:
            victims = list(members)[:2]  # and once the majority, so that there is no quorum for a while
        leaders += sum(victim in leading for victim in victims)
        for victim in victims:
            victim.kill()
        await asyncio.sleep(0.5 + 2 * rng.random())
        for victim in victims:
            victim.start()
        for victim in victims:
            await asyncio.to_thread(victim.wait_ready)
    return leaders


def test_a_cluster_whose_members_are_killed_loses_nothing_acknowledged() -> None:
    binary = sound_etcd() or missing_tool("a sound etcd", install="apt-get install etcd-server")

    async def run_test(members: list[EtcdServer]) -> None:
        rng = random.Random(7)
        endpoints = [member.endpoint for member in members]
        stores = [
            await EtcdStore.open(endpoints, system_env(limits=LIMITS), prefix="/cluster", compactor=False)
            for _ in range(2)
        ]
        tasks: list[asyncio.Task[None]] = []
        try:
            start = await stores[0].revision()
            outcomes, stop = Outcomes(), asyncio.Event()
            followers = [Follower(store, start) for store in stores for _ in range(2)]
            writers = [Writer(stores[n % 2], f"w{n}", outcomes, random.Random(n)) for n in range(WRITERS)]
            tasks = [asyncio.ensure_future(follower.run()) for follower in followers]
            loads = asyncio.gather(*(writer.run(stop) for writer in writers))
            leaders = await trouble(members, rng)
            stop.set()
            async with asyncio.timeout(60):
                await loads
                final = await settled_list(stores[0])
                while any(follower.after < final[1] for follower in followers):
                    await asyncio.sleep(0.05)
                    check_running(tasks)
            check_outcome(writers, outcomes, followers, final[0])
            assert leaders >= 2, "the leader was hardly ever killed: the test is void"
            assert outcomes.unavailable + outcomes.unknown > 0, "no writer noticed a failure: the test is void"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for store in stores:
                await store.close()

    with etcd_cluster(binary) as members:
        asyncio.run(asyncio.wait_for(run_test(members), 180))


async def settled_list(store: EtcdStore) -> tuple[list[Entry], Revision]:
    while True:
        try:
            listing = await store.list(KIND)
        except Unavailable:
            await asyncio.sleep(0.1)
            continue
        return listing.entries, max(entry.modified for entry in listing.entries)


def check_running(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def check_outcome(
    writers: Sequence[Writer], outcomes: Outcomes, followers: Sequence[Follower], entries: Sequence[Entry]
) -> None:
    received = followers[0].received
    for follower in followers[1:]:
        assert follower.received == received, "two watches delivered different changes"
    assert [change.revision for change in received] == sorted(change.revision for change in received)
    assert len({(change.revision, change.key) for change in received}) == len(received)

    by_place = {(change.revision, change.key): change for change in received}
    for revision, (key, value) in outcomes.acknowledged.items():
        change = by_place[revision, key]
        assert change.entry is not None
        assert change.entry.value == value
    state: dict[Key, Entry] = {}
    for change in received:
        assert change.previous == state.get(change.key), (
            f"{change.key} at {change.revision} replaced a version that was never delivered"
        )
        if change.entry is None:
            del state[change.key]
        else:
            state[change.key] = change.entry
    assert state == {entry.key: entry for entry in entries}
    for writer in writers:
        counts = [change.entry.value for change in received if change.key == writer.key and change.entry is not None]
        assert counts == [b"%d" % number for number in range(1, writer.count + 1)], (
            f"{writer.name} lost or repeated an increment"
        )
    made = sum(writer.count for writer in writers)
    print(
        f"{made} commits, {outcomes.unknown} unknown of which {outcomes.unknown_but_made} made,"
        f" {outcomes.unavailable} unavailable, {sum(follower.resumed for follower in followers)} watches resumed"
    )
