"""The direct transport: a component and the service in one process, with nothing between them.

A request is carried out or raises; its outcome is never unknown unless the store's was. Cancelling a call does
not undo what the service did: whoever cancels must read, as after a timeout.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

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

_T = TypeVar("_T")
_Coming = Coroutine[Any, Any, _T]


class DirectTransport:
    """Implements `client.contract.Transport` on a `Service`. Each verb hands on the service's own coroutine."""

    repeats_safely = True
    one_history = True

    def __init__(self, service: Service, *, caller: str = "") -> None:
        self._service = service
        self._caller = caller

    @property
    def kinds(self) -> Registry:
        return self._service.kinds

    def get(self, key: Key, *, resource_version: str = "") -> _Coming[Object]:
        return self._service.get(key, resource_version=resource_version)

    def list(self, kind: Kind, options: ListOptions) -> _Coming[ObjectList]:
        return self._service.list(kind, options)

    def watch(self, kind: Kind, options: WatchOptions) -> _Coming[AsyncGenerator[WatchEvent, None]]:
        return self._service.watch(kind, options)

    def create(
        self, kind: Kind, body: bytes | Mapping[str, Any], *, namespace: str, options: WriteOptions
    ) -> _Coming[Written]:
        return self._service.create(kind, body, namespace=namespace, options=options)

    def update(
        self, key: Key, body: bytes | Mapping[str, Any], *, subresource: str, options: WriteOptions
    ) -> _Coming[Written]:
        return self._service.update(key, body, subresource=subresource, options=options)

    def patch(
        self, key: Key, body: Any, *, patch_type: PatchType, subresource: str, options: WriteOptions
    ) -> _Coming[Written]:
        return self._service.patch(key, body, patch_type=patch_type, subresource=subresource, options=options)

    def delete(self, key: Key, options: DeleteOptions) -> _Coming[Written]:
        return self._service.delete(key, options)

    def delete_collection(
        self, kind: Kind, selection: ListOptions, options: DeleteOptions
    ) -> _Coming[Sequence[Written]]:
        return self._service.delete_collection(kind, selection, options)

    def get_scale(self, key: Key) -> _Coming[Mapping[str, Any]]:
        return self._service.get_scale(key)

    def bind(self, request: Binding, *, options: WriteOptions) -> _Coming[Written]:
        return self._service.bind(request, options=options)

    def reserve(self, chunk: GangChunk, *, options: WriteOptions) -> _Coming[Written]:
        return self._service.reserve(chunk, options=options)

    def evict(self, key: Key, options: DeleteOptions) -> _Coming[Written]:
        return self._service.evict(key, options)

    def confirm_ended(self, *, node: str, node_uid: str, pod_uid: str, options: WriteOptions) -> _Coming[Written]:
        return self._service.confirm_ended(node=node, node_uid=node_uid, pod_uid=pod_uid, options=options)
