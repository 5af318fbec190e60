"""`EtcdStore` with a faulty network and server: real etcd, behind a proxy that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.e2e.tcp_proxy import Proxy, proxy_to
from tests.etcd_server import EtcdServer, etcd_server, etcdctl, restored_server, save_snapshot, sound_etcd, wheel_etcd
from tests.tools import missing_tool

from kedge.env import system_env
from kedge.errors import Compacted, Misconfigured, OutcomeUnknown, Unavailable
from kedge.keys import Key, Origin, Revision
from kedge.limits import Limits
from kedge.store.contract import RESTORE_BUMP, Change, DeleteKey, Put, StoreWatch
from kedge.store.etcd import EtcdStore, EtcdTls
from kedge.store.etcd import messages as m
from kedge.store.etcd.transport import STATUS

KIND = "Thing.e2e"
WAIT_S = 30.0
PATIENT = Limits()
HASTY = replace(Limits(), store_request_s=0.6)


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    with etcd_server(wheel_etcd() or missing_tool("etcd", install="make venv"), "--unsafe-no-fsync") as running:
        yield running


@pytest.fixture(scope="module")
def sound_server() -> Iterator[EtcdServer]:
    with etcd_server(sound_etcd() or missing_tool("a sound etcd", install="apt-get install etcd-server")) as running:
        yield running


def key(name: str) -> Key:
    return Key(KIND, "ns", name)


@asynccontextmanager
async def opened(*endpoints: str, prefix: str, limits: Limits = PATIENT) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(endpoints, system_env(limits=limits), prefix=prefix, compactor=False)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def beside_a_proxy(
    server: EtcdServer, prefix: str, limits: Limits = PATIENT
) -> AsyncIterator[tuple[Proxy, EtcdStore, EtcdStore]]:
    """A proxy, a store that uses it, and one that does not."""
    async with (
        proxy_to(server.endpoint) as proxy,
        opened(server.endpoint, prefix=prefix) as direct,
        opened(proxy.endpoint, prefix=prefix, limits=limits) as store,
    ):
        yield proxy, store, direct


async def eventually(found: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not await found():  # noqa: ASYNC110 - what is waited for happens elsewhere
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"did not happen within {WAIT_S} s: {what}")


async def changes_until(watch: StoreWatch, revision: Revision) -> list[Change]:
    """The changes of a watch up to a revision, each checked to be new and in order."""
    received: list[Change] = []
    async with asyncio.timeout(WAIT_S):
        while watch.revision < revision:
            watch.request_progress()
            received.extend((await watch.__anext__()).changes)
    assert [change.revision for change in received] == sorted(change.revision for change in received)
    assert len({(change.revision, change.key) for change in received}) == len(received)
    return received


def test_a_lost_reply_is_an_unknown_outcome_and_a_read_shows_the_write(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with beside_a_proxy(server, "/lost-reply") as (proxy, store, direct):
            proxy.swallow_replies = True
            commit = asyncio.ensure_future(store.commit([], [Put(key("a"), b"1")], origin=Origin("mine")))

            async def written() -> bool:
                return (await direct.get([key("a")])).entries[0] is not None

            await eventually(written, "the request reached etcd")
            proxy.hang_up()
            with pytest.raises(OutcomeUnknown):
                await commit
            proxy.swallow_replies = False
            entry = (await store.get([key("a")])).entries[0]
            assert entry is not None
            assert entry.origin == Origin("mine")

    asyncio.run(run_test())


def test_a_delayed_request_has_an_unknown_outcome_at_its_deadline(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with beside_a_proxy(server, "/held-up", HASTY) as (proxy, store, direct):
            proxy.requests_flow.clear()
            with pytest.raises(OutcomeUnknown):
                await store.commit([], [Put(key("a"), b"1")])
            with pytest.raises(Unavailable):
                await store.get([key("a")])
            assert (await direct.get([key("a")])).entries == (None,)

    asyncio.run(run_test())


def test_a_refused_connection_means_that_nothing_was_written(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with beside_a_proxy(server, "/refused", HASTY) as (proxy, store, direct):
            await proxy.refuse()
            with pytest.raises(Unavailable):  # by then the broken connection has been detected
                await store.revision()
            with pytest.raises(Unavailable):
                await store.commit([], [Put(key("a"), b"1")])
            assert (await direct.get([key("a")])).entries == (None,)
            await proxy.listen()

            async def back() -> bool:
                try:
                    await store.commit([], [Put(key("b"), b"1")])
                except Unavailable:
                    return False
                return True

            await eventually(back, "commits go through again")

    asyncio.run(run_test())


def test_an_unreachable_cluster_cannot_be_opened(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with proxy_to(server.endpoint) as proxy:
            await proxy.refuse()
            with pytest.raises(Unavailable):
                await EtcdStore.open([proxy.endpoint], system_env(limits=HASTY), prefix="/unreachable")

    asyncio.run(run_test())


def test_a_watch_survives_broken_connections_with_each_change_once(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with beside_a_proxy(server, "/broken") as (proxy, store, direct):
            watch = await store.watch(KIND, after=await store.revision())
            made = []
            for number in range(120):
                made.append(await direct.commit([], [Put(key(f"{number % 5}"), b"%d" % number)]))
                if number % 20 == 10:
                    proxy.hang_up()
                    await asyncio.sleep(0.01)
            received = await changes_until(watch, made[-1])
            assert [change.revision for change in received] == made

    asyncio.run(run_test())


def test_a_watch_moves_away_from_an_endpoint_that_stops_delivering(server: EtcdServer) -> None:
    """The connection stays open without data; only a read through another endpoint shows that changes are missing."""

    async def run_test() -> None:
        limits = replace(Limits(), store_request_s=1.0, store_silence_s=0.2)
        async with (
            proxy_to(server.endpoint) as first,
            proxy_to(server.endpoint) as second,
            opened(server.endpoint, prefix="/silent") as direct,
            opened(first.endpoint, second.endpoint, prefix="/silent", limits=limits) as store,
        ):
            used, spare = (first, second) if first._writers else (second, first)
            assert not spare._writers or used._writers
            watch = await store.watch(KIND, after=await store.revision())
            used.replies_flow.clear()
            made = [await direct.commit([], [Put(key("a"), b"%d" % number)]) for number in range(10)]
            assert [change.revision for change in await changes_until(watch, made[-1])] == made

    asyncio.run(run_test())


def test_a_feed_that_falls_behind_is_reopened_and_disconnects_no_watch_that_keeps_up(server: EtcdServer) -> None:
    async def run_test() -> None:
        env = system_env(limits=replace(Limits(), store_watch_lag_max=5, watch_backlog_max=20))
        store = await EtcdStore.open([server.endpoint], env, prefix="/bulk", compactor=False)
        try:
            watch = await store.watch(KIND, after=await store.revision())
            received: list[Revision] = []

            async def read() -> None:
                async for batch in watch:
                    received.extend(change.revision for change in batch.changes)

            reading = asyncio.ensure_future(read())
            made: list[Revision] = []
            for _ in range(8):
                made += await asyncio.gather(*(store.commit([], [Put(key(f"{n}"), b"")]) for n in range(64)))
            made.sort()

            async def delivered() -> bool:
                return reading.done() or watch.revision >= made[-1]

            await eventually(delivered, "the watch delivers everything")
            watch.close()
            await reading  # raises if it was disconnected
            assert received == made
            begun_again = env.metrics.registry.get_sample_value("kedge_store_reconnects_total", {"cause": "behind"})
            assert begun_again, "the feed never fell behind: the test is void"
        finally:
            await store.close()

    asyncio.run(run_test())


def test_reads_and_commits_go_to_a_healthy_endpoint(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with (
            proxy_to(server.endpoint) as first,
            proxy_to(server.endpoint) as second,
            opened(first.endpoint, second.endpoint, prefix="/failover") as store,
        ):
            for well, ill in ((first, second), (second, first)):
                await ill.refuse()
                await well.listen() if well._server is None else None
                await store.revision()  # an idempotent request may use the broken connection; it is retried elsewhere
                made = await store.commit([], [Put(key("a"), b"1")])
                entry = (await store.get([key("a")])).entries[0]
                assert entry is not None
                assert entry.modified == made

    asyncio.run(run_test())


def test_after_a_failure_the_next_commit_goes_to_a_member_that_answers(server: EtcdServer) -> None:
    """Two of three members are paused: their connections stand, and nothing comes back. One commit fails, not two."""

    async def run_test() -> None:
        async with (
            proxy_to(server.endpoint) as one,
            proxy_to(server.endpoint) as two,
            proxy_to(server.endpoint) as three,
        ):
            order = [one.endpoint, two.endpoint, three.endpoint]
            async with opened(*order, prefix="/probed", limits=HASTY) as store:
                transport = store._transport
                transport._members.sort(key=lambda member: order.index(member.address))
                for address in order:
                    await transport.send_to(address, STATUS, m.StatusRequest())
                one.requests_flow.clear()
                two.requests_flow.clear()
                with pytest.raises(OutcomeUnknown):
                    await store.commit([], [Put(key("a"), b"1")])
                await store.commit([], [Put(key("a"), b"2")])

    asyncio.run(run_test())


def test_compaction_that_overtakes_the_feed_ends_watches_with_compacted(sound_server: EtcdServer) -> None:
    async def run_test() -> None:
        async with beside_a_proxy(sound_server, "/overtaken") as (proxy, store, direct):
            first = await direct.commit([], [Put(key("a"), b"0")])
            watch = await store.watch(KIND, after=first)
            await proxy.refuse()
            made = [await direct.commit([], [Put(key("a"), b"%d" % number)]) for number in range(1, 20)]
            await direct.compact(made[-1])
            await proxy.listen()
            with pytest.raises(Compacted):
                await changes_until(watch, made[-1])
            with pytest.raises(Compacted):
                await store.watch(KIND, after=first)
            listing = await store.list(KIND)
            assert [entry.modified for entry in listing.entries] == [made[-1]]
            again = await store.watch(KIND, after=listing.revision)
            last = await direct.commit([], [DeleteKey(key("a"))])
            assert [change.revision for change in await changes_until(again, last)] == [last]

    asyncio.run(run_test())


def test_compaction_that_overtakes_a_slow_connection_is_reported_and_leaves_no_gap(sound_server: EtcdServer) -> None:
    """As in etcd#17529: the connection is up, but so slow that etcd buffers thousands of changes."""

    async def run_test() -> None:
        async with beside_a_proxy(sound_server, "/skipped") as (proxy, store, direct):
            start = await store.revision()
            watch = await store.watch(KIND, after=start)
            proxy.replies_flow.clear()
            made: list[Revision] = []
            for first in range(0, 2_560, 64):
                writes = ([Put(key(f"{number % 100}"), b"x" * 4_000)] for number in range(first, first + 64))
                made += await asyncio.gather(*(direct.commit([], each) for each in writes))
            made.sort()
            await direct.compact(made[-1])
            proxy.replies_flow.set()
            received: list[Revision] = []
            message = ""
            try:
                async with asyncio.timeout(WAIT_S):
                    while watch.revision < made[-1]:
                        watch.request_progress()
                        received += [change.revision for change in (await watch.__anext__()).changes]
            except Compacted as error:
                message = error.message
            assert received == made[: len(received)], "the received changes have a gap"
            assert message, "compaction did not overtake the watch: the test is void"
            listing = await store.list(KIND)
            again = await store.watch(KIND, after=listing.revision)
            last = await direct.commit([], [Put(key("last"), b"")])
            assert [change.revision for change in await changes_until(again, last)] == [last]

    asyncio.run(run_test())


def test_history_that_begins_at_a_delete_is_rejected_whole(sound_server: EtcdServer) -> None:
    """etcd#18089: compacted exactly at a delete, etcd would leave the delete out of a watch that begins there."""

    async def run_test() -> None:
        async with opened(sound_server.endpoint, prefix="/delete") as store:
            before = await store.commit([], [Put(key("a"), b"1")])
            deleted = await store.commit([], [DeleteKey(key("a"))])
            last = await store.commit([], [Put(key("a"), b"2")])
            await store.compact(deleted)
            async with opened(sound_server.endpoint, prefix="/delete") as late:  # it has no history in memory
                for each in (store, late):
                    with pytest.raises(Compacted):
                        await each.watch(KIND, after=before)
                    watch = await each.watch(KIND, after=deleted)
                    assert [change.revision for change in await changes_until(watch, last)] == [last]

    asyncio.run(run_test())


def test_an_object_edited_outside_the_store_ends_watches(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with opened(server.endpoint, prefix="/edited") as store:
            first = await store.commit([], [Put(key("a"), b"1")])
            watch = await store.watch(KIND, after=first)
            etcdctl(server, "del", f"/edited/objects/{KIND}!ns!a")
            with pytest.raises(Compacted):
                async with asyncio.timeout(WAIT_S):
                    await watch.__anext__()
            assert (await store.list(KIND)).entries == []

            async def counted() -> bool:
                return store.statistics().objects == 0

            await eventually(counted, "the store counts its objects again")

    asyncio.run(run_test())


@pytest.mark.parametrize("same_cluster_id", [False, True], ids=["another cluster id", "the same cluster id"])
def test_a_backup_restored_under_a_running_store_is_a_new_incarnation(
    server: EtcdServer, same_cluster_id: bool
) -> None:
    prefix = f"/beneath-{same_cluster_id}"

    async def run_test() -> None:
        async with proxy_to(server.endpoint) as proxy, opened(proxy.endpoint, prefix=prefix) as store:
            kept = await store.commit([], [Put(key("kept"), b"1")])
            snapshot = server.folder / f"{same_cluster_id}.snapshot"
            save_snapshot(server, snapshot)
            lost = [await store.commit([], [Put(key("lost"), b"%d" % number)]) for number in range(3)]
            former = store.incarnation
            watch = await store.watch(KIND, after=lost[-1])
            with restored_server(server, snapshot, like=server if same_cluster_id else None) as restored:
                proxy.target = restored.endpoint
                proxy.hang_up()
                await asyncio.gather(*(store.revision() for _ in range(8)))  # many detect it at once
                with pytest.raises(Compacted):
                    async with asyncio.timeout(WAIT_S):
                        await watch.__anext__()
                made = await store.commit([], [Put(key("new"), b"1")])
                assert RESTORE_BUMP < made < 2 * RESTORE_BUMP, "it must advance, and only once"
                assert store.incarnation != former
                listing = await store.list(KIND)
                assert [(entry.key.name, entry.modified) for entry in listing.entries] == [
                    ("kept", kept),
                    ("new", made),
                ]
                with pytest.raises(Compacted):
                    await store.watch(KIND, after=lost[-1])
                async with opened(restored.endpoint, prefix=prefix) as other:
                    assert other.incarnation == store.incarnation
                    assert (await other.list(KIND)).entries == listing.entries

    asyncio.run(run_test())


def test_a_restored_backup_with_new_commits_is_still_a_new_incarnation(server: EtcdServer) -> None:
    """Neither cluster id nor revision shows it: only the history at the feed's position differs."""

    async def run_test() -> None:
        async with proxy_to(server.endpoint) as proxy, opened(proxy.endpoint, prefix="/moved-on") as store:
            await store.commit([], [Put(key("kept"), b"1")])
            snapshot = server.folder / "moved-on.snapshot"
            save_snapshot(server, snapshot)
            lost = [await store.commit([], [Put(key("lost"), b"%d" % number)]) for number in range(3)]
            former = store.incarnation
            watch = await store.watch(KIND, after=lost[-1])
            await changes_until(watch, lost[-1])
            with restored_server(server, snapshot, like=server) as restored:
                for number in range(20):  # revisions, but no commits
                    etcdctl(restored, "put", "/elsewhere", f"{number}")
                proxy.target = restored.endpoint
                proxy.hang_up()
                with pytest.raises(Compacted):
                    async with asyncio.timeout(WAIT_S):
                        await watch.__anext__()
                assert await store.commit([], [Put(key("new"), b"1")]) > RESTORE_BUMP
                assert store.incarnation != former

    asyncio.run(run_test())


def test_mark_restored_moves_the_store_ahead_for_every_opener(server: EtcdServer) -> None:
    async def run_test() -> None:
        async with (
            opened(server.endpoint, prefix="/marked") as store,
            opened(server.endpoint, prefix="/marked") as other,
        ):
            made = await store.commit([], [Put(key("a"), b"1")])
            watches = [await each.watch(KIND, after=made) for each in (store, other)]
            await store.mark_restored()
            # The other opener does not know yet; its commit must detect it, or it would use a past revision.
            after = await other.commit([], [Put(key("b"), b"1")])
            assert after > made + 1_000_000
            for watch in watches:
                with pytest.raises(Compacted):
                    async with asyncio.timeout(WAIT_S):
                        await watch.__anext__()
            assert other.incarnation == store.incarnation
            assert [entry.modified for entry in (await other.list(KIND)).entries] == [made, after]

    asyncio.run(run_test())


def test_one_of_several_openers_compacts_and_another_takes_over(server: EtcdServer) -> None:
    async def run_test() -> None:
        limits = replace(Limits(), history_s=0.15)
        first = await EtcdStore.open([server.endpoint], system_env(limits=limits), prefix="/turns")
        second = await EtcdStore.open([server.endpoint], system_env(limits=limits), prefix="/turns")
        try:
            for store in (first, second):
                made = await store.commit([], [Put(key("a"), b"1")])
                await store.commit([], [Put(key("a"), b"2")])

                async def compacted(made: Revision = made) -> bool:
                    try:
                        await second.get([key("a")], at=made)
                    except Compacted:
                        return True
                    return False

                await eventually(compacted, f"history up to {made} is compacted")
                entry = (await second.get([key("a")])).entries[0]
                assert entry is not None
                assert entry.value == b"2"
                await first.close()
        finally:
            await first.close()
            await second.close()

    asyncio.run(run_test())


def test_a_full_server_leaves_the_outcome_unknown() -> None:
    """etcd makes the write that first exceeds its limit, and reports that there is no space."""

    async def run_test(endpoint: str) -> None:
        async with opened(endpoint, prefix="/full") as store:
            acknowledged, unknown = [], 0
            for number in range(90):  # etcd measures its size at intervals, so a fast client gets further
                try:
                    await store.commit([], [Put(key(f"{number:02}"), b"x" * 1_000_000)])
                    acknowledged.append(f"{number:02}")
                except OutcomeUnknown:
                    unknown += 1
                if unknown == 3:
                    break
            found = [entry.key.name for entry in (await store.list(KIND)).entries]
            assert unknown > 0
            assert found[: len(acknowledged)] == acknowledged

    binary = wheel_etcd() or missing_tool("etcd", install="make venv")
    with etcd_server(binary, "--unsafe-no-fsync", "--quota-backend-bytes", "4000000") as small:
        asyncio.run(run_test(small.endpoint))


def test_a_cluster_with_tls_is_trusted_by_its_certificate_only() -> None:
    async def run_test(server: EtcdServer, stranger: bytes) -> None:
        endpoint = f"https://{server.endpoint}"
        store = await EtcdStore.open([endpoint], system_env(), tls=EtcdTls(server.certificate))
        try:
            made = await store.commit([], [Put(key("a"), b"1")])
            watch = await store.watch(KIND, after=made - 1)
            assert [change.revision for change in await changes_until(watch, made)] == [made]
        finally:
            await store.close()
        with pytest.raises(Misconfigured, match="authority"):
            await EtcdStore.open([endpoint], system_env(limits=HASTY), tls=EtcdTls(stranger))

    binary = wheel_etcd() or missing_tool("etcd", install="make venv")
    with etcd_server(binary, "--auto-tls") as server, etcd_server(binary, "--auto-tls") as other:
        asyncio.run(run_test(server, other.certificate))


def test_unsound_releases_raise_an_alarm_and_sound_ones_do_not(server: EtcdServer, sound_server: EtcdServer) -> None:
    async def alarms(endpoint: str) -> tuple[str, ...]:
        async with opened(endpoint, prefix="/release") as store:
            return store.statistics().alarms

    (alarm,) = asyncio.run(alarms(server.endpoint))
    assert "3.5.1" in alarm
    assert asyncio.run(alarms(sound_server.endpoint)) == ()
