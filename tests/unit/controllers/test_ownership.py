"""The keys that a change of an owned object wakes: its owner, or the workloads that select it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.controllers import POD, REPLICA_SET, ControllerHarness, pod_of, until, with_harness

from kedge import Action, Context, WatchSpec
from kedge.api.objects import Object
from kedge.controllers.shared.ownership import wake_claimants
from kedge.keys import Key
from kedge.limits import Limits

ALONE = Limits(decisions_sample_every=1, resync_every_s=100_000, relist_every_s=100_000)
"""No resync: only woken keys run."""


def pod_named(owner: Object, slot: int, **reference: Any) -> dict[str, Any]:
    """A pod of `owner`, with the given changes to its reference; without a reference if `controller` is None."""
    body = pod_of(owner, slot)
    if reference.get("controller", True) is None:
        del body["metadata"]["ownerReferences"]
    else:
        body["metadata"]["ownerReferences"][0].update(reference)
    return body


@with_harness(ALONE)
async def test_the_owner_is_woken_by_its_group_or_every_workload_that_selects_an_orphan(
    harness: ControllerHarness,
) -> None:
    woken: list[str] = []

    async def work(_: Context, key: Key) -> Action:
        woken.append(key.name)
        return Action.await_change()

    async def woken_by(body: dict[str, Any]) -> list[str]:
        await harness.cluster.authority.create(POD, body)
        await asyncio.sleep(2)
        names = sorted(set(woken))
        woken.clear()
        return names

    one = await harness.create("one")
    await harness.create("two")
    harness.open(work, watches=(WatchSpec(kind=POD, keys_of=wake_claimants(REPLICA_SET)),))
    await until(lambda: set(woken) == {"one", "two"})
    woken.clear()
    assert await woken_by(pod_named(one, 0)) == ["one"]
    assert await woken_by(pod_named(one, 1, apiVersion="apps/v1beta2")) == ["one"], (
        "the group identifies the owner, any version"
    )
    assert await woken_by(pod_named(one, 2, apiVersion="apps.example.com/v1")) == []
    assert await woken_by(pod_named(one, 3, kind="Deployment")) == []
    assert await woken_by(pod_named(one, 4, controller=None)) == ["one"], "it is selected, and has no controller"
