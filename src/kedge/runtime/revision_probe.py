"""The current revision of the store, read once for all the watchers of a process.

A revision is of the whole store, so one read serves every kind, if the server declares that its kinds share one
history. `watcher` calls it; the cache decides what a revision proves.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kedge.api.kinds import Kind
from kedge.api.requests import ListOptions
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import NO_REVISION, Revision


class ProbedRevision(NamedTuple):
    """The store was at `revision` or past it at `asked_s` of this process's monotonic clock."""

    revision: Revision
    asked_s: float


class RevisionProbe:
    """One read for many watchers. Made once per process, by its `CacheSet`."""

    def __init__(self, client: Client, env: Env, kind: Kind | None = None) -> None:
        """`kind` is the one to list where all kinds share one history; else that of the watcher: an agent may list
        few kinds as a whole."""
        self._client = client
        self._env = env
        self._kind = kind
        self._turn = asyncio.Lock()
        self._last = ProbedRevision(NO_REVISION, float("-inf"))

    async def read(self, kind: Kind, *, namespace: str = "", since_s: float) -> ProbedRevision:
        """A revision that was requested at `since_s` or later, by this caller or by another.

        Raises:
            OperatingError: it cannot be read now. Nothing is known.
        """
        if not self._client.one_history:
            return await self._read(kind, namespace)
        async with self._turn:
            if self._last.asked_s < since_s:
                self._last = await self._read(self._kind or kind, "" if self._kind else namespace)
            return self._last

    def known(self, *, since_s: float) -> ProbedRevision | None:
        """The last revision read, if it was requested at `since_s` or later; else None."""
        return self._last if self._client.one_history and self._last.asked_s >= since_s else None

    def next_s(self, every_s: float) -> float:
        """How long to wait before the next read, so that watchers with the same period share one."""
        wait_s = self._last.asked_s + every_s - self._env.monotonic()
        return wait_s if wait_s > every_s / 2 else every_s

    async def _read(self, kind: Kind, namespace: str) -> ProbedRevision:
        asked_s = self._env.monotonic()
        listing = await self._client.list(kind, ListOptions(namespace=namespace, limit=1))
        return ProbedRevision(listing.revision, asked_s)
