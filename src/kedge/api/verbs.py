"""Typed methods for requests: each builds one and sends it.

`Client` adds retries and bounds below them; `Service` carries the request out. Both share these signatures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import (
    DELETE,
    GET,
    LIST,
    WATCH,
    WRITE,
    Bind,
    Binding,
    Body,
    BoundObject,
    ConfirmEnded,
    Create,
    Delete,
    DeleteCollection,
    DeleteOptions,
    Evict,
    GangChunk,
    Get,
    GetOptions,
    GetScale,
    IssuedToken,
    List,
    ListOptions,
    ObjectList,
    OpenWatch,
    Patch,
    PatchType,
    Reply,
    Request,
    RequestToken,
    Reserve,
    Update,
    WatchEvent,
    WatchOptions,
    WriteOptions,
    Written,
)
from kedge.keys import Key

_T = TypeVar("_T")
_Awaited = Coroutine[Any, Any, _T]


class Verbs(ABC):
    """The API as methods, over `send` and `open_watch`."""

    @abstractmethod
    def send(self, request: Request[Reply]) -> _Awaited[Reply]:
        """Carry out one request."""

    @abstractmethod
    def open_watch(self, request: OpenWatch) -> _Awaited[AsyncGenerator[WatchEvent, None]]:
        """Open one stream of events. Close the generator to stop."""

    # -- reads -------------------------------------------------------------------------------------

    def get(self, key: Key, *, resource_version: str = "") -> _Awaited[Object]:
        return self.send(Get(key, GetOptions(resource_version=resource_version) if resource_version else GET))

    def list(self, kind: Kind, options: ListOptions | None = None) -> _Awaited[ObjectList]:
        return self.send(List(kind, options or LIST))

    def watch(self, kind: Kind, options: WatchOptions | None = None) -> _Awaited[AsyncGenerator[WatchEvent, None]]:
        return self.open_watch(OpenWatch(kind, options or WATCH))

    def get_scale(self, key: Key) -> _Awaited[Mapping[str, Any]]:
        return self.send(GetScale(key))

    # -- writes ------------------------------------------------------------------------------------

    def create(
        self, kind: Kind, body: Body, *, namespace: str = "", options: WriteOptions = WRITE
    ) -> _Awaited[Written]:
        return self.send(Create(kind, body, namespace, options))

    def update(
        self, key: Key, body: Body, *, subresource: str = "", options: WriteOptions = WRITE
    ) -> _Awaited[Written]:
        return self.send(Update(key, body, subresource, options))

    def patch(
        self,
        key: Key,
        body: Any,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        options: WriteOptions = WRITE,
    ) -> _Awaited[Written]:
        return self.send(Patch(key, body, patch_type, subresource, options))

    def delete(self, key: Key, options: DeleteOptions = DELETE) -> _Awaited[Written]:
        return self.send(Delete(key, options))

    def delete_collection(
        self, kind: Kind, selection: ListOptions | None = None, options: DeleteOptions = DELETE
    ) -> _Awaited[Sequence[Written]]:
        return self.send(DeleteCollection(kind, selection or LIST, options))

    def bind(self, binding: Binding, *, options: WriteOptions = WRITE) -> _Awaited[Written]:
        return self.send(Bind(binding, options))

    def reserve(self, chunk: GangChunk, *, options: WriteOptions = WRITE) -> _Awaited[Written]:
        return self.send(Reserve(chunk, options))

    def evict(self, key: Key, options: DeleteOptions = DELETE) -> _Awaited[Written]:
        return self.send(Evict(key, options))

    def confirm_ended(
        self, *, node: str, node_uid: str, pod_uid: str, options: WriteOptions = WRITE
    ) -> _Awaited[Written]:
        return self.send(ConfirmEnded(node, node_uid, pod_uid, options))

    def request_token(
        self, account: Key, *, audiences: Sequence[str] = (), expiration_s: int = 3600, bound: BoundObject | None = None
    ) -> _Awaited[IssuedToken]:
        return self.send(RequestToken(key=account, audiences=tuple(audiences), expiration_s=expiration_s, bound=bound))
