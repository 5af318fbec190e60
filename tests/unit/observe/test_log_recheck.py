"""A decision read from the log, whose process is gone, can be run again."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

import pytest
from tests.kit.controllers import (
    POD,
    REPLICA_SET,
    ControllerHarness,
    FunctionReconciler,
    Work,
    pod_of,
    until,
    with_harness,
)
from tests.kit.records import make_env

from kedge import Action, Context
from kedge.errors import Compacted, ReplayDiverged
from kedge.keys import Key
from kedge.observe import Decision, DecisionLog, read_decisions
from kedge.runtime import RecordedEvidence, recheck


async def work(ctx: Context, key: Key) -> Action:
    """Reads, draws, and writes bodies that are not made of plain lists and dicts."""
    found = ctx.get(key)
    if found is None:
        return Action.await_change()
    pods = ctx.owned(POD, found)
    everything = ctx.list(REPLICA_SET)
    if not pods:
        await ctx.ensure(POD, pod_of(found, ctx.random.randrange(10)))
        return Action.await_change()
    if "seen" not in found.metadata.annotations:
        seen = f"{len(everything)} at {ctx.now()}"
        patch = {"metadata": {"annotations": {"seen": seen}, "finalizers": ()}, "spec": {"share": Decimal("0.5")}}
        await ctx.patch(found, patch)
    return Action.await_change()


def decided() -> list[Decision]:
    found: list[Decision] = []

    @with_harness()
    async def program(harness: ControllerHarness) -> None:
        await harness.create("web")
        await harness.create("db")
        harness.open(work, owns=[POD])
        await until(lambda: sum(call.verb == "patch" for each in harness.decisions() for call in each.calls) >= 2)
        await asyncio.sleep(1)
        found.extend(harness.decisions())

    program()
    return found


async def recheck_all(decisions: list[Decision], does: Work) -> None:
    for each in decisions:
        await recheck(each, FunctionReconciler(does), RecordedEvidence(), make_env())


def logged(directory: Path, decisions: list[Decision], *, record_bytes_max: int = 1 << 20) -> list[Decision]:
    log = DecisionLog(directory, make_env(decision_log_record_bytes_max=record_bytes_max))
    for each in decisions:
        log.append(each)
    log.close()
    return list(read_decisions(directory))


def test_a_logged_decision_can_be_run_again_from_the_log_alone(tmp_path: Path) -> None:
    found = logged(tmp_path, decided())
    assert {call.verb for each in found for call in each.calls} == {"ensure", "patch"}
    asyncio.run(recheck_all(found, work))


def test_a_reconciler_that_decides_differently_now_raises_replay_diverged(tmp_path: Path) -> None:
    async def changed(ctx: Context, key: Key) -> Action:
        ctx.get(key)
        return Action.requeue(delay_s=5)

    with pytest.raises(ReplayDiverged):
        asyncio.run(recheck_all(logged(tmp_path, decided()), changed))


def test_a_record_without_its_objects_cannot_be_rechecked(tmp_path: Path) -> None:
    found = logged(tmp_path, decided(), record_bytes_max=1_400)
    stripped = [each for each in found if each.objects_dropped]
    assert stripped
    with pytest.raises(Compacted):
        asyncio.run(recheck_all(stripped, work))
