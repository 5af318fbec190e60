"""The safety net below every controller: an object on hold is not changed, whatever the plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.controllers import ControllerHarness, until, with_harness

from kedge import Action, Context
from kedge.api.holds import Hold
from kedge.api.objects import Object
from kedge.errors import NotFound
from kedge.keys import Key

WEB = Key("ReplicaSet.apps", "default", "web")
MARK = {"metadata": {"labels": {"seen": "yes"}}}
HOLD_S = 60.0

Write = Callable[[Context, Object], Awaitable[Any]]


async def hold(harness: ControllerHarness, controller: str) -> None:
    name, text = Hold(controller, "ada", "a leak", harness.env.now() + timedelta(seconds=HOLD_S)).annotation()
    await harness.cluster.authority.patch(WEB, {"metadata": {"annotations": {name: text}}})


async def state(harness: ControllerHarness) -> str:
    try:
        found = await harness.get()
    except NotFound:
        return "gone"
    return "marked" if "seen" in found.metadata.labels else "as it was"


def patch(ctx: Context, found: Object) -> Awaitable[Any]:
    return ctx.patch(found, MARK)


def patch_any_version(ctx: Context, found: Object) -> Awaitable[Any]:
    return ctx.patch(found, MARK, any_version=True)


def delete(ctx: Context, found: Object) -> Awaitable[Any]:
    return ctx.delete(found)


def works_by(write: Write) -> Callable[[Context, Key], Awaitable[Action]]:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None and "seen" not in found.metadata.labels:
            await write(ctx, found)
        return Action.await_change()

    return work


@pytest.mark.parametrize("write", [patch, patch_any_version, delete])
@pytest.mark.parametrize("name", ["marker", "all"])
def test_an_object_on_hold_is_changed_only_after_the_hold_has_ended(write: Write, name: str) -> None:
    @with_harness()
    async def story(harness: ControllerHarness) -> None:
        await harness.create()
        await hold(harness, name)
        ends_s = harness.sim.now_s + HOLD_S
        controller = harness.open(works_by(write), name="marker")
        await until(lambda: (report := controller.explain(WEB)) is not None and report.failures > 0)
        report = controller.explain(WEB)
        assert report is not None
        assert "ada holds" in str(report.last_error)
        assert "a leak" in str(report.last_error)
        while harness.sim.now_s < ends_s - 2:
            assert await state(harness) == "as it was"
            await until(lambda began_s=harness.sim.now_s: harness.sim.now_s > began_s + 1)  # type: ignore[misc]
        changed = "gone" if write is delete else "marked"
        while await state(harness) != changed:
            assert harness.sim.now_s < ends_s + 600, "it is held for ever"
            await until(lambda began_s=harness.sim.now_s: harness.sim.now_s > began_s + 1)  # type: ignore[misc]
        assert harness.sim.now_s >= ends_s - 2
        assert await harness.recheck(works_by(write)) > 1

    story()


@with_harness()
async def test_a_hold_on_another_controller_has_no_effect(harness: ControllerHarness) -> None:
    await harness.create()
    await hold(harness, "garbage")
    harness.open(works_by(patch), name="marker")
    began_s = harness.sim.now_s
    while await state(harness) != "marked":
        assert harness.sim.now_s < began_s + HOLD_S / 2
        await until(lambda from_s=harness.sim.now_s: harness.sim.now_s > from_s + 0.5)  # type: ignore[misc]


@with_harness()
async def test_the_status_of_an_object_on_hold_may_still_be_written(harness: ControllerHarness) -> None:
    async def work(ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None:
            await ctx.write_status(found, {"conditions": [{"type": "Seen", "status": "True", "reason": "Looked"}]})
        return Action.await_change()

    await harness.create()
    await hold(harness, "marker")
    harness.open(work, name="marker")
    began_s = harness.sim.now_s
    while not (await harness.get()).view.status.conditions:
        assert harness.sim.now_s < began_s + HOLD_S / 2
        await until(lambda from_s=harness.sim.now_s: harness.sim.now_s > from_s + 0.5)  # type: ignore[misc]
