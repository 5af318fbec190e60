"""What a transport must do: carry one request, once, and tell the truth about its outcome.

Transports never retry. A request that was certainly not carried out is `Unavailable`; one that may have been is
`OutcomeUnknown`. Everything else (retries, breaker, bounds) is `Client`'s, so every transport gets it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

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


class Transport(Protocol):
    """The verbs of the API. `server.service.Service` has the same ones, and says what they mean."""

    @property
    def kinds(self) -> Registry: ...

    @property
    def repeats_safely(self) -> bool:
        """Whether the far side knows operation ids, so that a repeated write gets its first outcome."""

    @property
    def one_history(self) -> bool:
        """Whether revisions of all kinds are of one sequence, as kedge's are: then any of them speaks for all."""

    async def get(self, key: Key, *, resource_version: str = "") -> Object: ...

    async def list(self, kind: Kind, options: ListOptions) -> ObjectList: ...

    async def watch(self, kind: Kind, options: WatchOptions) -> AsyncGenerator[WatchEvent, None]: ...

    async def create(
        self, kind: Kind, body: bytes | Mapping[str, Any], *, namespace: str, options: WriteOptions
    ) -> Written: ...

    async def update(
        self, key: Key, body: bytes | Mapping[str, Any], *, subresource: str, options: WriteOptions
    ) -> Written: ...

    async def patch(
        self, key: Key, body: Any, *, patch_type: PatchType, subresource: str, options: WriteOptions
    ) -> Written: ...

    async def delete(self, key: Key, options: DeleteOptions) -> Written: ...

    async def delete_collection(
        self, kind: Kind, selection: ListOptions, options: DeleteOptions
    ) -> Sequence[Written]: ...

    async def get_scale(self, key: Key) -> Mapping[str, Any]: ...

    async def bind(self, request: Binding, *, options: WriteOptions) -> Written: ...

    async def reserve(self, chunk: GangChunk, *, options: WriteOptions) -> Written: ...

    async def evict(self, key: Key, options: DeleteOptions) -> Written: ...

    async def confirm_ended(self, *, node: str, node_uid: str, pod_uid: str, options: WriteOptions) -> Written: ...
