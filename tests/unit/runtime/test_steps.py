"""Long work is cut into steps: workers, handlers and cycles let other tasks run, and no simulation notices."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tests.objects import CONFIG_MAP, NAMESPACE, asynchronous

from kedge import Action, Context, ControllerSpec
from kedge.api.requests import Create
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.keys import Key
from kedge.runtime.cache import CacheChange, CacheSet, ChangeType
from kedge.runtime.cache.subscribers import Subscribers
from kedge.runtime.controller import Controller, ControllerRuntime
from kedge.runtime.steps import StepBudget, Waits
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

STOPPED = 1_000.0


def env_with(monotonic: Callable[[], float]) -> Env:
    return dataclasses.replace(system_env(), monotonic=monotonic)


def ticking() -> Callable[[], float]:
    """A clock on which each look takes a millisecond."""
    ticks = count()
    return lambda: STOPPED + next(ticks) / 1000


def changes(number: int) -> list[CacheChange]:
    return [CacheChange(ChangeType.DELETED, Key("ConfigMap", "a", f"m{n}"), None, None, n) for n in range(number)]


# -- whether a coroutine waited ------------------------------------------------------------------------


@asynchronous
async def test_a_coroutine_that_waited_is_distinguished_from_one_that_did_not() -> None:
    async def quick() -> int:
        return 7

    async def slow() -> int:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return 8

    runs = Waits(quick()), Waits(slow())
    assert [await runs[0], await runs[1]] == [7, 8]
    assert [each.waited for each in runs] == [False, True]


@asynchronous
async def test_errors_and_cancellations_reach_the_coroutine() -> None:
    seen: list[str] = []

    async def cleans_up() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
        await asyncio.sleep(0)
        raise ValueError("a bug")

    async def run() -> None:
        await Waits(cleans_up())

    task = asyncio.ensure_future(run())
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="a bug"):
        await task
    assert seen == ["cancelled"] * 2


# -- handlers --------------------------------------------------------------------------------------


@asynchronous
async def test_handlers_of_a_long_list_are_called_in_steps_and_in_order() -> None:
    seen: list[tuple[str, str]] = []
    errors: list[tuple[Exception, str]] = []
    subscribers = Subscribers(lambda *each: errors.append(each), env_with(ticking()), "ConfigMap")
    for name in ("first", "second"):
        subscribers.add(lambda each, name=name: seen.append((name, each.key.name)), name, ())  # type: ignore[misc]
    subscribers.notify(changes(5_000))
    assert subscribers.notifying
    assert 0 < len(seen) < 1_000, "one step does a part"
    subscribers.notify(changes(1))
    await subscribers.wait_notified()
    long = [(name, f"m{n}") for name in ("first", "second") for n in range(5_000)]
    assert seen == [*long, ("first", "m0"), ("second", "m0")], "what came later is notified later"
    assert not subscribers.notifying
    assert not errors


@asynchronous
async def test_handlers_of_a_long_list_are_called_in_one_step_if_no_time_passes() -> None:
    """In a simulation no time passes within a step: a trace does not depend on the speed of the machine."""
    seen: list[str] = []
    subscribers = Subscribers(lambda *_: None, env_with(lambda: STOPPED), "ConfigMap")
    subscribers.add(lambda each: seen.append(each.key.name), "one", ())
    subscribers.notify(changes(5_000))
    assert not subscribers.notifying
    assert len(seen) == 5_000


@asynchronous
async def test_a_subscription_that_was_closed_is_not_notified_any_more() -> None:
    seen: list[str] = []
    subscribers = Subscribers(lambda *_: None, env_with(ticking()), "ConfigMap")
    subscription = subscribers.add(lambda each: seen.append(each.key.name), "one", ())
    subscribers.notify(changes(5_000))
    called = len(seen)
    subscription.close()
    await subscribers.wait_notified()
    assert len(seen) == called < 5_000


async def world_of(objects: int, env: Env) -> Client:
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    namespace: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
    await client.send(Create(NAMESPACE, namespace))
    for n in range(objects):
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"m{n:04}"}}
        await client.send(Create(CONFIG_MAP, body, namespace="a"))
    return client


@asynchronous
async def test_no_event_overtakes_the_handlers_of_a_list() -> None:
    env = env_with(ticking())
    client = await world_of(500, env)
    caches = CacheSet(client, env)
    cache = caches.cache(CONFIG_MAP)
    seen: list[str] = []
    lagged = []

    def handler(change: CacheChange) -> None:
        lagged.append(cache.notifying)
        seen.append(change.key.name)

    cache.subscribe(handler, name="one")
    await cache.wait_synced(within_s=30)
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}}
    await client.send(Create(CONFIG_MAP, body, namespace="a"))
    async with asyncio.timeout(30):
        while "later" not in seen:  # noqa: ASYNC110  each step is looked at
            await asyncio.sleep(0)
    assert any(lagged), "the list took more than one step"
    assert seen == [*(f"m{n:04}" for n in range(500)), "later"]
    await caches.stop()


# -- workers ---------------------------------------------------------------------------------------


async def longest_run_of_keys(env: Env, keys: int) -> int:
    """How many keys a worker reconciles between two steps of another task."""
    client = await world_of(keys, env)
    caches = CacheSet(client, env)
    runs = longest = 0

    class Counts:
        async def reconcile(self, _: Context, __: Key) -> Action:
            nonlocal runs
            runs += 1
            return Action.await_change()

    controller = Controller(
        ControllerSpec(kind=CONFIG_MAP, workers=1), Counts(), ControllerRuntime(client, env, caches)
    )
    task = asyncio.ensure_future(controller.run())
    async with asyncio.timeout(30):
        while runs < keys:
            before = runs
            await asyncio.sleep(0)
            longest = max(longest, runs - before)
    await controller.stop()
    await task
    await caches.stop()
    return longest


@asynchronous
async def test_a_worker_lets_other_tasks_run_between_ready_keys() -> None:
    assert await longest_run_of_keys(env_with(ticking()), 300) < 30


@asynchronous
async def test_a_worker_runs_ready_keys_in_one_step_if_no_time_passes() -> None:
    assert await longest_run_of_keys(env_with(lambda: STOPPED), 300) == 300


def test_a_step_that_was_cut_is_counted() -> None:
    env = env_with(ticking())
    step = StepBudget(env, "work")
    step.begin()
    cut = [step.used_up() for _ in range(20)]
    assert not cut[0]
    assert cut[-1]
    assert f'kedge_runtime_steps_cut_total{{of="work"}} {sum(cut)}.0' in env.metrics.page("")[0].decode()
