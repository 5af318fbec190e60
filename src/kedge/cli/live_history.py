"""Records the history of a running cluster over its API: the state at one revision, then every commit after it.

One watch for each kind; a commit is complete when every watch has passed its revision. A broken watch resumes where it
broke, so a history has no gaps: if the server no longer has what is missing, recording fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from kedge.api.kinds import KINDS, Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, ListOptions, WatchOptions
from kedge.api.wellknown import EVENT_KIND
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import Compacted, OperatingError, Unavailable
from kedge.keys import Key, Revision
from kedge.observe.records import CommitRecord, StoreState

_RETRY_S = 0.2
RECORDED = tuple(kind for kind in KINDS if kind.key_kind != EVENT_KIND)


class HistoryRecorder:
    """Start it before the first commit that matters; `stop` returns everything up to then."""

    def __init__(self, client: Client, env: Env, kinds: Sequence[Kind] = RECORDED) -> None:
        self._client = client
        self._env = env
        self._kinds = kinds
        self._reached: dict[str, Revision] = {}
        """By kind: its watch has delivered every event up to there, and resumes there."""
        self._pending: dict[Revision, tuple[datetime, dict[Key, Object | None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.commits: list[CommitRecord] = []

    async def start(self) -> StoreState:
        """List everything at one revision, and begin to follow."""
        first = await self._client.list(self._kinds[0], ListOptions())
        revision = first.revision
        at_once = ListOptions(resource_version=str(revision), resource_version_match="Exact")
        objects: list[Object] = []
        for kind in self._kinds:
            objects.extend((await self._client.list(kind, at_once)).objects)
        self._reached = dict.fromkeys((kind.key_kind for kind in self._kinds), revision)
        self._tasks = [self._env.spawn(self._follow(kind), name=f"record {kind.kind}") for kind in self._kinds]
        return StoreState(revision, self._env.now(), tuple(objects))

    async def stop(self, *, within_s: float = 30.0) -> list[CommitRecord]:
        """Wait until every commit made so far is recorded.

        Raises:
            Unavailable: that took too long.
            Compacted: the server had dropped history that was not received yet.
        """
        try:
            await self.catch_up(within_s=within_s)
        finally:
            await self.abandon()
        return self.commits

    async def abandon(self) -> None:
        """End without waiting for commits that are on the way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def catch_up(self, *, within_s: float = 30.0) -> None:
        """Wait until every commit made before this call is received; `stop` raises the same errors."""
        newest: Revision | None = None
        try:
            async with asyncio.timeout(within_s):
                while newest is None or min(self._reached.values()) < newest:
                    for task in self._tasks:
                        if task.done():
                            task.result()
                    if newest is None:
                        with suppress(OperatingError):  # the server may just start again
                            newest = (await self._client.list(self._kinds[0], ListOptions(limit=1))).revision
                    await asyncio.sleep(0.05)
        except TimeoutError:
            late = min(self._reached, key=lambda kind: self._reached[kind])
            wanted = f"not {newest}" if newest is not None else "and the server does not answer"
            raise Unavailable(f"{late} is recorded up to {self._reached[late]}, {wanted}: try again") from None

    def so_far(self) -> list[CommitRecord]:
        """Every commit received so far. The newest may lack objects whose watches are behind."""
        return [*self.commits, *(_commit(revision, *self._pending[revision]) for revision in sorted(self._pending))]

    def failed(self) -> bool:
        """Whether a watch has ended: the history has a gap from there on."""
        return any(task.done() for task in self._tasks)

    async def _follow(self, kind: Kind) -> None:
        while True:
            options = WatchOptions(resource_version=str(self._reached[kind.key_kind]), allow_bookmarks=True)
            try:
                events = await self._client.watch(kind, options)
                try:
                    async for event in events:
                        passed = event.revision
                        if event.object is not None:
                            deleted = event.type is EventType.DELETED
                            self._take(event.revision, event.object.key, None if deleted else event.object)
                            passed -= 1  # more events of this commit may follow, until a bookmark
                        self._reached[kind.key_kind] = max(self._reached[kind.key_kind], passed)
                        self._flush()
                finally:
                    with suppress(OperatingError):
                        await events.aclose()
            except Compacted:
                raise
            except (OperatingError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_S)

    def _take(self, revision: Revision, key: Key, version: Object | None) -> None:
        _, changes = self._pending.setdefault(revision, (self._env.now(), {}))
        changes[key] = version

    def _flush(self) -> None:
        """Append the commits that every watch has passed."""
        passed = min(self._reached.values())
        for revision in sorted(each for each in self._pending if each <= passed):
            self.commits.append(_commit(revision, *self._pending.pop(revision)))


def _commit(revision: Revision, at: datetime, changes: Mapping[Key, Object | None]) -> CommitRecord:
    written = tuple(each for each in changes.values() if each is not None)
    deleted = tuple(key for key, each in changes.items() if each is None)
    return CommitRecord(revision, at, written, deleted)
