"""A controller: something wakes a key, and `reconcile` brings that object nearer to what it should be.

This is the first, thin form: one worker, woken by its own kind and by what it owns. It lists, watches, and lists
again when the watch ends. Queues with priorities, caches and leases build on this seam.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, WatchOptions
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.runtime.action import Action
from kedge.runtime.context import Context


class Reconciler(Protocol):
    async def reconcile(self, ctx: Context, key: Key) -> Action:
        """Look at the object behind `key` as it is now, and take one bounded step."""


class Controller:
    """Runs one reconciler over one kind, and over the kinds it owns."""

    def __init__(
        self, reconciler: Reconciler, client: Client, env: Env, *, kind: Kind, owns: tuple[Kind, ...] = ()
    ) -> None:
        self._reconciler = reconciler
        self._client = client
        self._env = env
        self._kind = kind
        self._owns = owns
        self._due: dict[Key, None] = {}  # each key once, in the order of waking
        self._woken = asyncio.Event()
        self.failures: dict[Key, OperatingError] = {}
        """The last error of each key that has not succeeded since."""

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in (self._kind, *self._owns):
                tasks.create_task(self._follow(kind), name=f"watch {kind.key_kind}")
            tasks.create_task(self._work(), name=f"reconcile {self._kind.key_kind}")

    def wake(self, key: Key) -> None:
        self._due[key] = None
        self._woken.set()

    async def _follow(self, kind: Kind) -> None:
        while True:
            try:
                stream = await self._client.watch(kind, WatchOptions())
                async for event in stream:
                    if event.type is not EventType.BOOKMARK and event.object is not None:
                        self._wake_for(event.object)
            except OperatingError:
                pass  # a watch that ended changes nothing but the age of what is known: begin again
            await asyncio.sleep(self._env.limits.client_backoff_s * self._env.random.uniform(0.5, 1.5))

    def _wake_for(self, found: Object) -> None:
        if found.key.kind == self._kind.key_kind:
            self.wake(found.key)
            return
        for owner in found.metadata.owner_references:
            if owner.controller and owner.kind == self._kind.kind:
                self.wake(Key(self._kind.key_kind, found.key.namespace, owner.name))

    async def _work(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                await self._reconcile(key)

    async def _reconcile(self, key: Key) -> None:
        ctx = Context(self._client, self._env, decision=self._env.new_uid())
        try:
            action = await self._reconciler.reconcile(ctx, key)
        except OperatingError as error:
            self.failures[key] = error
            action = Action.requeue(delay_s=self._env.limits.client_backoff_s_max)
        else:
            self.failures.pop(key, None)
        if action.delay_s is not None:
            asyncio.get_running_loop().call_later(action.delay_s, self.wake, key)
