"""Observations of one process are recorded as made; a confirmed end of a pod counts for one node incarnation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kit.controllers import POD, ControllerHarness, pod_of, until, with_harness
from tests.kit.safeguards import replaced
from tests.objects import ALLOCATION, NODE, node

from kedge import Action, Context, WatchSpec
from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions
from kedge.errors import Conflict, ReplayDiverged
from kedge.keys import Key

LEDGER = Key(ALLOCATION.key_kind, "", "node-a")


class ChangingObservation:
    """An observation that is different each time."""

    def __init__(self) -> None:
        self.observed: dict[str, int] = {"times": 0}

    def listen(self) -> dict[str, int]:
        self.observed["times"] += 1
        return self.observed


def unrecorded(_: Context, __: str, measure: Any) -> Any:
    return measure()


@with_harness()
async def test_a_recheck_uses_the_recorded_measurement_and_makes_no_new_one(harness: ControllerHarness) -> None:
    observation = ChangingObservation()

    async def work(ctx: Context, key: Key) -> Action:
        ctx.get(key)
        observed = ctx.measured("observations", observation.listen)
        return Action.requeue(delay_s=1.0 + observed["times"], reason=f"observed {observed['times']} times")

    await harness.create()
    harness.open(work)
    await until(lambda: len(harness.decisions()) == 3)
    assert await harness.recheck(work) == 3  # from the record, although the observation has changed since
    assert observation.observed["times"] == 3


@with_harness()
async def test_a_measurement_that_is_not_recorded_is_found(harness: ControllerHarness) -> None:
    observation = ChangingObservation()

    async def work(ctx: Context, key: Key) -> Action:
        ctx.get(key)
        return Action.requeue(delay_s=1.0 + ctx.measured("observations", observation.listen)["times"])

    async def asks_another(ctx: Context, key: Key) -> Action:
        ctx.get(key)
        return Action.requeue(delay_s=1.0 + ctx.measured("what is seen", observation.listen)["times"])

    await harness.create()
    with replaced(Context, "measured", unrecorded):
        harness.open(work)
        await until(harness.decisions)
    with pytest.raises(ReplayDiverged):
        await harness.recheck(work)
    await until(lambda: len(harness.decisions()) >= 2)
    with pytest.raises(ReplayDiverged):
        await harness.recheck(asks_another)


async def leave_a_claim(harness: ControllerHarness) -> Object:
    """A force-deleted pod: its claim stays until its end is confirmed."""
    service = harness.cluster.authority
    owner = await harness.create()
    home = (await service.create(NODE, node())).object
    gone = (await service.create(POD, pod_of(owner, 0))).object
    await service.bind(Binding(pod=gone.key, pod_uid=gone.uid, node="node-a", node_uid=home.uid))
    await service.delete(gone.key, DeleteOptions(grace_s=0))
    return gone


async def claims(harness: ControllerHarness) -> set[str]:
    return set((await harness.cluster.authority.get(LEDGER)).view.status.entries)


@with_harness()
async def test_a_claim_is_freed_by_a_decision_whose_id_is_recorded_with_it(harness: ControllerHarness) -> None:
    gone = await leave_a_claim(harness)
    assert await claims(harness) == {gone.uid}

    async def work(ctx: Context, _: Key) -> Action:
        ledger = ctx.get(LEDGER)
        assert ledger is not None
        if ledger.view.status.entries:
            await ctx.confirm_ended(ledger, gone.uid)
        return Action.await_change()

    harness.open(work, owns=(POD,), watches=(WatchSpec(kind=ALLOCATION),))
    await until(harness.decisions)
    assert await claims(harness) == set()
    (first, *_) = harness.decisions()
    assert [(call.verb, call.outcome) for call in first.calls] == [("confirm ended", "done")]
    assert (await harness.cluster.authority.get(LEDGER)).origin.decision == first.id
    await harness.recheck(work)


@with_harness()
async def test_a_confirmation_for_one_node_incarnation_does_not_apply_to_the_next(harness: ControllerHarness) -> None:
    """1. A ledger is read. 2. Its node is replaced by one of the same name. 3. The confirmation is sent."""
    gone = await leave_a_claim(harness)
    refused: list[Conflict] = []

    async def work(ctx: Context, _: Key) -> Action:
        ledger = ctx.get(LEDGER)
        assert ledger is not None
        if not refused:
            await harness.cluster.authority.delete(Key("Node", "", "node-a"))
            await harness.cluster.authority.create(NODE, node())
            with pytest.raises(Conflict) as found:
                await ctx.confirm_ended(ledger, gone.uid)
            refused.append(found.value)
        return Action.await_change()

    harness.open(work, owns=(POD,), watches=(WatchSpec(kind=ALLOCATION),))
    await until(lambda: refused)
    assert "another incarnation" in str(refused[0])


@with_harness()
async def test_a_confirmation_for_a_pod_that_exists_frees_nothing(harness: ControllerHarness) -> None:
    service = harness.cluster.authority
    owner = await harness.create()
    await service.create(NODE, node())
    lives = (await service.create(POD, pod_of(owner, 0))).object
    await service.bind(Binding(pod=lives.key, pod_uid=lives.uid, node="node-a"))

    async def work(ctx: Context, _: Key) -> Action:
        ledger = ctx.get(LEDGER)
        assert ledger is not None
        await ctx.confirm_ended(ledger, lives.uid)
        return Action.await_change()

    harness.open(work, owns=(POD,), watches=(WatchSpec(kind=ALLOCATION),))
    await until(harness.decisions)
    await asyncio.sleep(1)
    assert harness.decisions()[0].result == "failed"
    assert await claims(harness) == {lives.uid}
