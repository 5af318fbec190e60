"""Known bugs of other control planes, tried on a whole controller; each returns when its safeguard is removed.

Bugs of floors, leaders, conflicts, loops and fairness are with the tests of those subjects: `test_controller_fairness`
here, `test_controller`, `test_context` and `test_status` among the unit tests.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.controllers import POD, ControllerHarness, pod_of, until, with_harness
from tests.kit.safeguards import no_guard, replaced, resume_past_compaction

from kedge import Action, Context, Controller
from kedge.keys import Fence, Key
from kedge.limits import Limits
from kedge.runtime.watcher import Watcher

WEB = Key("ReplicaSet.apps", "default", "web")
NO_NETS = Limits(decisions_sample_every=1, relist_every_s=1e6, resync_every_s=1e6)


def broken_without(target: type, name: str, unsafe: object, test: Any) -> None:
    """The test passes, and fails without the safeguard."""
    test()
    with replaced(target, name, unsafe), pytest.raises(AssertionError):
        test()


# -- caches that do not sync -----------------------------------------------------------------------


async def start_anyhow(self: Controller, _: Fence | None) -> None:
    for cache in self._by_kind.values():
        cache._listed = True  # as if it had


def test_a_controller_whose_caches_cannot_sync_decides_nothing() -> None:
    """cluster-api#13649 (bug 2): a cache that did not sync in time is not an empty cluster."""

    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        made: list[Key] = []

        async def work(ctx: Context, key: Key) -> Action:
            owner = ctx.get(key)
            made.append(key)
            if owner is not None and not ctx.owned(POD, owner):
                metadata = {**pod_of(owner, 0)["metadata"], "generateName": "web-"}
                del metadata["name"]
                await ctx.create(POD, {**pod_of(owner, 0), "metadata": metadata})
            return Action.await_change()

        owner = await harness.create("web", 1)
        await harness.cluster.authority.create(POD, pod_of(owner, 0))
        harness.transport.mute = True
        controller = harness.open(work, owns=(POD,))
        controller.wake(WEB)
        await asyncio.sleep(120)
        assert made == []
        harness.transport.mute = False
        await until(lambda: made, within_s=120)
        await asyncio.sleep(5)
        assert [e.key.name for e in harness.cluster.store.entries() if e.key.kind == "Pod"] == ["web-0"]

    broken_without(Controller, "_wait_caches", start_anyhow, test)


@with_harness(NO_NETS)
async def test_an_object_created_and_deleted_between_list_and_watch_blocks_nothing(harness: ControllerHarness) -> None:
    """karpenter#3176 (bug 5): synced depends on list and stream, not on a count of objects still to arrive."""
    seen: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        seen.append(key.name)
        return Action.await_change()

    async def come_and_go() -> None:
        await harness.create("ghost")
        await harness.cluster.authority.delete(Key("ReplicaSet.apps", "default", "ghost"))

    await harness.create("web")
    harness.transport.after_list = come_and_go
    controller = harness.open(work)
    await until(lambda: "web" in seen, within_s=5)
    await until(lambda: harness.caches.freshness()[0].synced, within_s=5)
    await harness.create("later")
    await until(lambda: "later" in seen, within_s=5)
    assert controller.statistics().leading


# -- objects that are shared -----------------------------------------------------------------------


@with_harness()
async def test_a_cached_object_cannot_be_poisoned_for_later_decisions(harness: ControllerHarness) -> None:
    """kubernetes#140702 (bug 6): an object that one run tries to change in place is unchanged for the next run."""
    refused: list[str] = []
    read: list[tuple[int, dict[str, str]]] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        read.append((found.view.spec.replicas, dict(found.metadata.labels)))
        for attempt in (
            lambda: setattr(found.view.spec, "replicas", 9),
            lambda: setattr(found, "value", b"{}"),
            lambda: found.metadata.labels.__setitem__("a", "b"),
            lambda: found.metadata.owner_references.append(None),  # type: ignore[attr-defined]
        ):
            try:
                attempt()
            except (TypeError, AttributeError) as error:
                refused.append(type(error).__name__)
        found.edit()["spec"]["replicas"] = 9
        return Action.await_change()

    await harness.create("web", 3)
    controller = harness.open(work)
    await until(lambda: read)
    controller.wake(WEB)
    await until(lambda: len(read) == 2)
    assert len(refused) == 8
    assert read == [(3, {}), (3, {})]


# -- streams that end, lie or die ------------------------------------------------------------------


def counting(seen: dict[str, int]) -> Any:
    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        seen[key.name] = -1 if owner is None else len(ctx.owned(POD, owner))
        return Action.await_change()

    return work


def test_a_watcher_that_was_too_slow_for_a_compaction_skips_nothing() -> None:
    """etcd#17529 (bug 17): events that were compacted before they were read are listed, deletions too."""

    @with_harness(replace(NO_NETS, watch_probe_s=1e6))  # and no probes of the store's revision
    async def test(harness: ControllerHarness) -> None:
        seen: dict[str, int] = {}
        owner = await harness.create("web", 2)
        for slot in range(2):
            await harness.cluster.authority.create(POD, pod_of(owner, slot))
        harness.open(counting(seen), owns=(POD,))
        await until(lambda: seen == {"web": 2})
        await asyncio.sleep(5)  # its streams are up
        harness.sim.network.partition([harness.host], harness.cluster.servers)
        await asyncio.sleep(60)  # and gone
        await harness.cluster.authority.delete(Key("Pod", "default", "web-0"))
        for n in range(5):
            await harness.create(f"s{n}")
        await asyncio.sleep(1)  # the servers have received it
        await harness.cluster.compact()
        harness.sim.network.heal()
        await asyncio.sleep(240)
        assert seen == {"web": 1, **{f"s{n}": 0 for n in range(5)}}

    broken_without(Watcher, "_after_failure", resume_past_compaction, test)


def test_a_stream_that_is_dead_without_an_error_is_noticed() -> None:
    """kopf#996, #787 (bug 20): the operator must not continue without its watch."""

    @with_harness(NO_NETS)
    async def test(harness: ControllerHarness) -> None:
        seen: dict[str, int] = {}
        await harness.create("web")
        harness.open(counting(seen), owns=(POD,))
        await until(lambda: seen == {"web": 0})
        await asyncio.sleep(5)  # the streams are up
        assert harness.transport.streams == 2
        harness.transport.dead = 2
        await harness.create("later")
        await asyncio.sleep(60)
        assert "later" in seen

    broken_without(Watcher, "_guard", no_guard, test)


def requests_of_an_outage(limits: Limits) -> list[int]:
    """The requests of each of ten processes to a server that is down for five minutes."""
    counts: list[int] = []

    @with_harness(limits)
    async def test(harness: ControllerHarness) -> None:
        seen: dict[str, int] = {}
        await harness.create("web")
        shops = [harness, *(harness.another(f"other-{n}") for n in range(9))]
        for each in shops:
            each.open(counting(seen), owns=(POD,), name=each.host.name)
        await asyncio.sleep(10)
        harness.cluster.servers[0].crash()
        before = [len(each.transport.asked) for each in shops]
        await asyncio.sleep(300)
        counts.extend(len(each.transport.asked) - begun for each, begun in zip(shops, before, strict=True))

    test()
    return counts


def test_requests_to_a_server_that_is_down_become_rarer() -> None:
    """kubernetes#87794 (bug 19): a fixed pause of a second would be a storm when many wait for one server."""
    alone = Limits(client_attempts_max=1, breaker_failures_max=10_000)  # the watcher's own pauses, and no others
    assert max(requests_of_an_outage(alone)) < 100
    fixed = replace(alone, watch_backoff_s=1.0, watch_backoff_s_max=1.0)
    assert min(requests_of_an_outage(fixed)) > 200, "the bound would hold without backoff, too"
