"""A store that makes another write just before a commit, for tests of races between a verb's reads and its commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.objects import World, make_env, make_world

from kedge.keys import NO_ORIGIN, Fence, Origin, Revision
from kedge.server.service import AdmissionChain
from kedge.store import Check, Write
from kedge.store.memory import MemoryStore


class RacingStore(MemoryStore):
    """Makes another write just before a commit."""

    interfere: Callable[[], Awaitable[Any]] | None = None

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        interfere, self.interfere = self.interfere, None
        if interfere is not None:
            await interfere()
        return await super().commit(checks, writes, fence=fence, origin=origin)


async def racing_world(admission: AdmissionChain | None = None) -> tuple[World, RacingStore]:
    store = RacingStore(make_env(seed=2))
    return await make_world(store=store, admission=admission), store


def another_server(world: World) -> World:
    """A second API server on the same store. The locks of contended keys are each server's own."""
    return World(world.store, world.env, world.clock)
