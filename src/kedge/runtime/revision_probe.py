"""How far the store is, by its own word: asked once for all the watchers of a process that want to know.

A revision is of the whole store, so the answer to one speaks for every kind, if the server says that its revisions are
of one sequence. `watcher` asks; what an answer proves is its business, and the cache's.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kedge.api.kinds import Kind
from kedge.api.requests import ListOptions
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import NO_REVISION, Revision


class Answer(NamedTuple):
    """The store was at `revision`, or past it, at `asked_s` of this process's clock."""

    revision: Revision
    asked_s: float


class RevisionProbe:
    """One answer for many. Made once a process, by its `CacheSet`."""

    def __init__(self, client: Client, env: Env) -> None:
        self._client = client
        self._env = env
        self._turn = asyncio.Lock()
        self._last = Answer(NO_REVISION, float("-inf"))

    async def ask(self, kind: Kind, *, namespace: str = "", since_s: float) -> Answer:
        """An answer to a question that was put at `since_s` or later, by this caller or by another.

        Raises:
            OperatingError: it cannot be asked now. Nothing is known.
        """
        if not self._client.one_history:
            return await self._ask(kind, namespace)
        async with self._turn:
            if self._last.asked_s < since_s:
                self._last = await self._ask(kind, namespace)
            return self._last

    def known(self, *, since_s: float) -> Answer | None:
        """As `ask`, if that needs no question; None if it does."""
        return self._last if self._client.one_history and self._last.asked_s >= since_s else None

    def next_s(self, every_s: float) -> float:
        """How long to wait before it is asked again, so that all who ask every so often ask together."""
        wait_s = self._last.asked_s + every_s - self._env.monotonic()
        return wait_s if wait_s > every_s / 2 else every_s

    async def _ask(self, kind: Kind, namespace: str) -> Answer:
        asked_s = self._env.monotonic()
        listing = await self._client.list(kind, ListOptions(namespace=namespace, limit=1))
        return Answer(listing.revision, asked_s)
