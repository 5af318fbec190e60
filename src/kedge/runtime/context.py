"""What a reconcile may touch: reads and writes through one object, so that a decision can be recorded.

This is the first, thin form: reads go to the authority. Caches, floors and the record of every read and write
come with the watcher and the queue.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, ListOptions, WriteOptions, Written
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import Fence, Key, Origin
from kedge.limits import Limits


class Context:
    """One decision: its reads, its writes, its time and its chance."""

    def __init__(self, client: Client, env: Env, *, decision: str, fence: Fence | None = None) -> None:
        self._client = client
        self._env = env
        self._fence = fence
        self.decision = decision
        """The id that every version written by this decision carries beside it."""

    @property
    def limits(self) -> Limits:
        return self._env.limits

    @property
    def random(self) -> random.Random:
        return self._env.random

    def now(self) -> datetime:
        return self._env.now()

    # -- reads -------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Object | None:
        return await self._client.find(key)

    async def list(self, kind: Kind, *, namespace: str = "", label_selector: str = "") -> Sequence[Object]:
        options = ListOptions(namespace=namespace, label_selector=label_selector)
        return (await self._client.list(kind, options)).objects

    async def owned(self, kind: Kind, owner: Object) -> Sequence[Object]:
        """Objects of `kind` in the owner's namespace that it controls."""
        found = await self.list(kind, namespace=owner.key.namespace)
        return [
            each for each in found if any(r.controller and r.uid == owner.uid for r in each.metadata.owner_references)
        ]

    # -- writes ------------------------------------------------------------------------------------

    async def ensure(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Written:
        return await self._client.ensure(kind, body, namespace=namespace, options=self._options())

    async def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "") -> Written:
        return await self._client.create(kind, body, namespace=namespace, options=self._options())

    async def patch(self, key: Key, body: Mapping[str, Any], *, subresource: str = "") -> Written:
        return await self._client.patch(key, body, subresource=subresource, options=self._options())

    async def delete(self, key: Key, *, uid: str, revision: int = 0) -> Written:
        """Delete just this incarnation, and if a revision is given just this version of it."""
        options = DeleteOptions(uid=uid, revision=revision, fence=self._fence, origin=Origin(decision=self.decision))
        return await self._client.delete(key, options)

    def _options(self) -> WriteOptions:
        return WriteOptions(fence=self._fence, origin=Origin(decision=self.decision))
