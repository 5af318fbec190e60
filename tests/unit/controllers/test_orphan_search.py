"""The search for orphans: the same objects as in one step, with other work in between when it takes long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.kit.large_world import stored_pod
from tests.objects import POD, asynchronous, make_env

from kedge.api.objects import Object
from kedge.api.selectors import LabelSelector, labels_selector
from kedge.api.wellknown import HOLD_PREFIX
from kedge.controllers.shared.holds import split_held
from kedge.controllers.shared.orphan_search import OrphanSearch
from kedge.controllers.shared.ownership import to_adopt
from kedge.env import Env


def orphans_of(env: Env) -> tuple[Object, ...]:
    """1,000 pods; every tenth has a hold."""
    until = (env.now() + timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    found = []
    for number in range(1_000):
        each = stored_pod(number)
        value = each.value
        if number % 10 == 0:
            hold = f'"annotations":{{"{HOLD_PREFIX}replicaset":"owner=ada until={until} reason=test"}},"labels"'
            value = value.replace(b'"labels"', hold.encode(), 1)
        found.append(Object(POD, each.key, value, revision=number + 1))
    return tuple(found)


class OneRead:
    """A context whose index has these objects."""

    def __init__(self, objects: tuple[Object, ...]) -> None:
        self._objects = objects

    def by_index(self, *_: Any) -> tuple[Object, ...]:
        return self._objects


async def search(
    env: Env, objects: tuple[Object, ...], selector: LabelSelector, most: int | None = None
) -> tuple[tuple[list[Object], list[Any]], int]:
    """The result of a search, and how often other work ran meanwhile."""
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    ctx: Any = OneRead(objects)
    found = await OrphanSearch(env, POD, "replicaset").find(ctx, "n0", selector, env.now(), most=most)
    task.cancel()
    return found, others


def slow_env() -> Env:
    """Each look at the clock is 10 ms after the one before."""
    env, ticks = make_env(), iter(range(1_000_000))
    return replace(env, monotonic=lambda: next(ticks) * 0.01)


@asynchronous
async def test_a_long_search_lets_other_work_run_and_finds_the_same() -> None:
    env = make_env()
    objects = orphans_of(env)
    for selector in (LabelSelector(), labels_selector({"app": "a1"}), labels_selector({"app": "other"})):
        expected = split_held(to_adopt(objects, selector), "replicaset", env.now())
        found, others = await search(slow_env(), objects, selector)
        assert found == expected
        assert others >= 4
    assert len(split_held(objects, "replicaset", env.now())[1]) == 100


@asynchronous
async def test_a_search_in_which_no_time_passes_is_one_step() -> None:
    """As in a simulation, whose traces must not depend on it."""
    env = make_env()
    _, others = await search(env, orphans_of(env), LabelSelector())
    assert others == 0


@asynchronous
async def test_a_search_ends_with_enough_to_adopt() -> None:
    env = make_env()
    objects = orphans_of(env)
    (adopt, _), _ = await search(env, objects, LabelSelector(), most=50)
    assert 50 <= len(adopt) <= 250
    assert adopt[:50] == to_adopt([each for each in objects if b"annotations" not in each.value], LabelSelector())[:50]
