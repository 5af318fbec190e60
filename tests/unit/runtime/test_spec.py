"""The keys that a change wakes."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.controllers import REPLICA_SET, ControllerHarness, pod_of, until, with_harness
from tests.objects import POD

from kedge import Action, Context
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import WatchSpec
from kedge.runtime.cache import Index

ALONE = Limits(decisions_sample_every=1, resync_every_s=100_000, relist_every_s=100_000)
"""No periodic resync: only keys that are woken run."""


@with_harness(ALONE)
async def test_a_change_of_owner_wakes_both_and_a_deletion_wakes_the_last(harness: ControllerHarness) -> None:
    woken: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        woken.append(key.name)
        return Action.await_change()

    async def next_woken() -> list[str]:
        await asyncio.sleep(1)
        names = sorted(woken)
        woken.clear()
        return names

    one, two = await harness.create("one"), await harness.create("two")
    harness.open(work, owns=(POD,))
    assert await next_woken() == ["one", "two"]
    body = pod_of(one, 0)
    await harness.cluster.authority.create(POD, body)
    assert await next_woken() == ["one"]
    key = Key("Pod", "default", "one-0")
    await harness.cluster.authority.patch(key, {"metadata": {"labels": {"a": "b"}}})
    assert await next_woken() == ["one"]
    reference = {**body["metadata"]["ownerReferences"][0], "name": "two", "uid": two.uid}
    await harness.cluster.authority.patch(key, {"metadata": {"ownerReferences": [reference]}})
    assert await next_woken() == ["one", "two"]
    await harness.cluster.authority.delete(key)
    assert set(await next_woken()) == {"two"}


@with_harness(ALONE)
async def test_an_owner_that_does_not_control_or_is_of_another_group_is_not_woken(harness: ControllerHarness) -> None:
    woken: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        woken.append(key.name)
        return Action.await_change()

    one = await harness.create("one")
    harness.open(work, owns=(POD,))
    await until(lambda: woken)
    woken.clear()
    for n, change in enumerate(
        ({"controller": False}, {"apiVersion": "apps.example.com/v1"}, {"kind": "Deployment"}),
    ):
        body: dict[str, Any] = pod_of(one, n)
        body["metadata"]["ownerReferences"][0].update(change)
        await harness.cluster.authority.create(POD, body)
    await asyncio.sleep(5)
    assert woken == []


@with_harness(ALONE)
async def test_an_owned_kind_may_have_indexes_of_its_own(harness: ControllerHarness) -> None:
    found: list[int] = []
    by_colour = Index("colour", lambda each: (each.metadata.labels.get("colour", ""),))

    async def work(ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        assert owner is not None
        found.append(len(ctx.by_index(POD, by_colour, "red")))
        ctx.owned(POD, owner)
        return Action.await_change()

    one = await harness.create("one")
    harness.open(work, owns=(WatchSpec(kind=POD, indexes=(by_colour,)),))
    await until(lambda: found)
    body = pod_of(one, 0)
    body["metadata"]["labels"]["colour"] = "red"
    await harness.cluster.authority.create(POD, body)
    await until(lambda: found[-1] == 1)
    assert await harness.recheck(work) >= 2


@with_harness(ALONE)
async def test_a_namespace_and_a_selector_narrow_what_is_followed(harness: ControllerHarness) -> None:
    woken: list[Key] = []

    async def work(ctx: Context, key: Key) -> Action:
        woken.append(key)
        assert len(ctx.list(REPLICA_SET)) == 1
        return Action.await_change()

    await harness.create("plain")
    await harness.create("chosen")
    chosen = Key("ReplicaSet.apps", "default", "chosen")
    await harness.cluster.authority.patch(chosen, {"metadata": {"labels": {"mine": "yes"}}})
    harness.open(work, namespace="default", label_selector="mine=yes")
    await asyncio.sleep(5)
    assert woken == [chosen]
    assert await harness.recheck(work) == 1


@with_harness(ALONE)
async def test_a_thousand_changes_of_one_key_while_it_runs_are_one_more_run(harness: ControllerHarness) -> None:
    runs: list[int] = []

    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        assert found is not None
        runs.append(found.view.spec.replicas)
        await asyncio.sleep(10)
        return Action.await_change()

    await harness.create("web", 0)
    harness.open(work)
    await until(lambda: runs)
    for n in range(1, 101):
        await harness.scale("web", n)
    await asyncio.sleep(60)
    assert runs == [0, 100]
