"""The direct transport: a component and the service in one process, with nothing between them.

A request is carried out or raises; its outcome is never unknown unless the store's was. Cancelling a call does
not undo what the service did: whoever cancels must read, as after a timeout.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from kedge.api.kinds import Kind, Registry
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
from kedge.keys import Key
from kedge.server.service import Service


class DirectTransport:
    """Implements `client.contract.Transport` on a `Service`."""

    repeats_safely = True
    one_history = True

    def __init__(self, service: Service, *, caller: str = "") -> None:
        self._service = service
        self._caller = caller

    @property
    def kinds(self) -> Registry:
        return self._service.kinds

    async def get(self, key: Key, *, resource_version: str = "") -> Object:
        return await self._service.get(key, resource_version=resource_version)

    async def list(self, kind: Kind, options: ListOptions) -> ObjectList:
        return await self._service.list(kind, options)

    async def watch(self, kind: Kind, options: WatchOptions) -> AsyncGenerator[WatchEvent, None]:
        return await self._service.watch(kind, options)

    async def create(
        self, kind: Kind, body: bytes | Mapping[str, Any], *, namespace: str, options: WriteOptions
    ) -> Written:
        return await self._service.create(kind, body, namespace=namespace, options=options)

    async def update(
        self, key: Key, body: bytes | Mapping[str, Any], *, subresource: str, options: WriteOptions
    ) -> Written:
        return await self._service.update(key, body, subresource=subresource, options=options)

    async def patch(
        self, key: Key, body: Any, *, patch_type: PatchType, subresource: str, options: WriteOptions
    ) -> Written:
        return await self._service.patch(key, body, patch_type=patch_type, subresource=subresource, options=options)

    async def delete(self, key: Key, options: DeleteOptions) -> Written:
        return await self._service.delete(key, options)

    async def delete_collection(self, kind: Kind, selection: ListOptions, options: DeleteOptions) -> Sequence[Written]:
        return await self._service.delete_collection(kind, selection, options)

    async def get_scale(self, key: Key) -> Mapping[str, Any]:
        return await self._service.get_scale(key)

    async def bind(self, request: Binding, *, options: WriteOptions) -> Written:
        return await self._service.bind(request, options=options)

    async def reserve(self, chunk: GangChunk, *, options: WriteOptions) -> Written:
        return await self._service.reserve(chunk, options=options)

    async def evict(self, key: Key, options: DeleteOptions) -> Written:
        return await self._service.evict(key, options)

    async def confirm_ended(self, *, node: str, node_uid: str, pod_uid: str, options: WriteOptions) -> Written:
        return await self._service.confirm_ended(node=node, node_uid=node_uid, pod_uid=pod_uid, options=options)
