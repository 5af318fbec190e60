"""The service: every verb of the API as a method, with no transport around it.

Transports (direct now, HTTP later) call this and nothing below it. It is the only part that sees a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kedge.api.kinds import KINDS, Kind, Registry
from kedge.api.objects import Object
from kedge.api.requests import (
    Binding,
    DeleteOptions,
    GangChunk,
    ListOptions,
    ObjectList,
    PatchType,
    WatchEvent,
    WatchOptions,
    WriteOptions,
    Written,
)
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.server.service import binding, deletion, eviction, gang_chunks, operations, reads, scale, watches, writes
from kedge.server.service.admission import AdmissionChain
from kedge.server.service.core import Core
from kedge.store import Store

_NO_OPTIONS = WriteOptions()
_DELETE = DeleteOptions()


class Service:
    """One API server's worth of meaning. Several may stand on one store."""

    def __init__(
        self, store: Store, env: Env, *, kinds: Registry = KINDS, admission: AdmissionChain | None = None
    ) -> None:
        self._core = Core(store, env, kinds, admission or AdmissionChain())

    @property
    def kinds(self) -> Registry:
        return self._core.kinds

    # -- reads -------------------------------------------------------------------------------------

    async def get(self, key: Key, *, resource_version: str = "") -> Object:
        return await reads.get(self._core, key, resource_version)

    async def list(self, kind: Kind, options: ListOptions | None = None) -> ObjectList:
        return await reads.list_objects(self._core, kind, options or ListOptions())

    async def watch(self, kind: Kind, options: WatchOptions | None = None) -> AsyncGenerator[WatchEvent, None]:
        return await watches.watch(self._core, kind, options or WatchOptions())

    async def watch_batches(self, kind: Kind, options: WatchOptions | None = None) -> watches.EventStream:
        """As `watch`, with all that is to be said at one moment together: for transports that send it as one piece."""
        return await watches.watch_batches(self._core, kind, options or WatchOptions())

    async def get_scale(self, key: Key) -> dict[str, Any]:
        return scale.scale_of(await self.get(key))

    # -- writes ------------------------------------------------------------------------------------

    def create(
        self,
        kind: Kind,
        body: bytes | Mapping[str, Any],
        *,
        namespace: str = "",
        options: WriteOptions = _NO_OPTIONS,
    ) -> Coroutine[Any, Any, Written]:
        return writes.create(self._core, kind, body, namespace, options)

    async def update(
        self,
        key: Key,
        body: bytes | Mapping[str, Any],
        *,
        subresource: str = "",
        options: WriteOptions = _NO_OPTIONS,
    ) -> Written:
        if subresource == "scale":
            return await scale.update_scale(self._core, key, body, options)
        return await writes.update(self._core, key, body, subresource, options)

    async def patch(
        self,
        key: Key,
        body: Any,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        options: WriteOptions = _NO_OPTIONS,
    ) -> Written:
        if subresource == "scale":
            return await scale.patch_scale(self._core, key, body, patch_type, options)
        return await writes.patch(self._core, key, body, patch_type, subresource, options)

    async def delete(self, key: Key, options: DeleteOptions = _DELETE) -> Written:
        writes.check_open_to_callers(self._core.kind_of(key))
        return await deletion.delete(self._core, key, options)

    async def delete_collection(
        self, kind: Kind, selection: ListOptions | None = None, options: DeleteOptions = _DELETE
    ) -> Sequence[Written]:
        """Delete each object that the selection finds. What vanishes meanwhile is as deleted as can be."""
        writes.check_open_to_callers(kind)
        return await deletion.delete_collection(self._core, kind, selection or ListOptions(), options)

    def bind(self, request: Binding, *, options: WriteOptions = _NO_OPTIONS) -> Coroutine[Any, Any, Written]:
        return binding.bind(self._core, request, options)

    async def reserve(self, chunk: GangChunk, *, options: WriteOptions = _NO_OPTIONS) -> Written:
        """Reserve places for some members of a gang; answers with the gang's record."""
        return await gang_chunks.reserve(self._core, chunk, options)

    async def evict(self, key: Key, options: DeleteOptions = _DELETE) -> Written:
        return await eviction.evict(self._core, key, options)

    async def confirm_ended(
        self, *, node: str, node_uid: str, pod_uid: str, options: WriteOptions = _NO_OPTIONS
    ) -> Written:
        return await binding.confirm_ended(self._core, node, node_uid, pod_uid, options)

    # -- upkeep ------------------------------------------------------------------------------------

    async def run_upkeep(self) -> None:
        """Forget old operation ids, for ever. The composition root spawns it."""
        while True:
            await asyncio.sleep(self._core.env.limits.operation_window_s / 10)
            with suppress(OperatingError):  # what was not swept now is swept next time
                await operations.sweep(self._core)
