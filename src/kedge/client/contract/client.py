"""The client that every component uses: a transport with bounds, a breaker, retries, and honesty about outcomes.

A write whose outcome is unknown is first looked for by reading; only then, and only under the same operation id,
is it sent again, so a late first attempt and its repeat can never both take effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from kedge.api.codec import parse_object
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
from kedge.api.wellknown import RESERVATION_KIND
from kedge.client.contract.breaker import Breaker
from kedge.client.contract.retry import NOT_CARRIED_OUT, Backoff, retry_reads
from kedge.client.contract.slots import Slots
from kedge.client.contract.transport import Transport
from kedge.env import Env
from kedge.errors import AlreadyExists, BadRequest, NotFound, OutcomeUnknown
from kedge.keys import Key

_T = TypeVar("_T")
_O = TypeVar("_O", bound=WriteOptions)
_WRITE = WriteOptions()
_DELETE = DeleteOptions()


class Client:
    """Verbs as a component uses them. One client a component, so that its bounds are its own."""

    def __init__(self, transport: Transport, env: Env, *, component: str) -> None:
        self._transport = transport
        self._env = env
        self._component = component
        self.breaker = Breaker(env, f"api of {component}")
        self._slots = Slots(env.limits.client_in_flight_max)
        env.metrics.gauge("kedge_client_in_flight", "Requests out", ("component",)).labels(component).set_function(
            lambda: self._slots.taken
        )
        self._attempts = env.metrics.counter(
            "kedge_client_attempts_total", "Requests sent, repeats included", ("component",)
        ).labels(component)
        self._request_s = env.metrics.histogram(
            "kedge_client_request_seconds", "Time a request was out", ("component",)
        ).labels(component)
        self._unknown = env.metrics.counter(
            "kedge_client_outcomes_unknown_total", "Writes whose outcome had to be read", ("component",)
        ).labels(component)

    @property
    def kinds(self) -> Registry:
        return self._transport.kinds

    @property
    def one_history(self) -> bool:
        """Whether revisions of all kinds are of one sequence."""
        return self._transport.one_history

    # -- reads -------------------------------------------------------------------------------------

    async def get(self, key: Key, *, resource_version: str = "") -> Object:
        return await retry_reads(
            self._env, lambda: self._send(lambda: self._transport.get(key, resource_version=resource_version))
        )

    async def find(self, key: Key) -> Object | None:
        """As `get`, for callers to whom absence is an answer."""
        try:
            return await self.get(key)
        except NotFound:
            return None

    async def list(self, kind: Kind, options: ListOptions | None = None) -> ObjectList:
        asked = options or ListOptions()
        return await retry_reads(self._env, lambda: self._send(lambda: self._transport.list(kind, asked)))

    async def watch(self, kind: Kind, options: WatchOptions | None = None) -> AsyncGenerator[WatchEvent, None]:
        """One stream, not retried: `runtime.watcher` decides how to go on when it ends."""
        return await self._send(lambda: self._transport.watch(kind, options or WatchOptions()))

    async def get_scale(self, key: Key) -> Mapping[str, Any]:
        """The replica count of a workload, alone."""
        return await retry_reads(self._env, lambda: self._send(lambda: self._transport.get_scale(key)))

    # -- writes ------------------------------------------------------------------------------------

    async def create(
        self, kind: Kind, body: bytes | Mapping[str, Any], *, namespace: str = "", options: WriteOptions = _WRITE
    ) -> Written:
        known = self._identified(options)
        key = _key_of(kind, body, namespace)
        return await self._write(
            key, known, lambda: self._transport.create(kind, body, namespace=namespace, options=known)
        )

    async def update(
        self, key: Key, body: bytes | Mapping[str, Any], *, subresource: str = "", options: WriteOptions = _WRITE
    ) -> Written:
        known = self._identified(options)
        return await self._write(
            key, known, lambda: self._transport.update(key, body, subresource=subresource, options=known)
        )

    async def patch(
        self,
        key: Key,
        body: Any,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
        options: WriteOptions = _WRITE,
    ) -> Written:
        known = self._identified(options)
        return await self._write(
            key,
            known,
            lambda: self._transport.patch(key, body, patch_type=patch_type, subresource=subresource, options=known),
        )

    async def delete(self, key: Key, options: DeleteOptions = _DELETE) -> Written:
        known = self._identified(options)
        return await self._write(key, known, lambda: self._transport.delete(key, known))

    async def delete_collection(
        self, kind: Kind, selection: ListOptions | None = None, options: DeleteOptions = _DELETE
    ) -> Sequence[Written]:
        """Delete what the selection finds. Sent once: a repeat would find, and delete, what came since.

        Raises:
            OutcomeUnknown: some or all may be gone. List, and decide again.
        """
        known, chosen = self._identified(options), selection or ListOptions()
        return await self._send(lambda: self._transport.delete_collection(kind, chosen, known))

    def bind(self, request: Binding, *, options: WriteOptions = _WRITE) -> Coroutine[Any, Any, Written]:
        known = self._identified(options)
        return self._write(request.pod, known, lambda: self._transport.bind(request, options=known))

    async def reserve(self, chunk: GangChunk, *, options: WriteOptions = _WRITE) -> Written:
        """Reserve places for some members of a gang in one commit; answers with the gang's record."""
        known = self._identified(options)
        record = Key(RESERVATION_KIND, chunk.namespace, chunk.gang)
        return await self._write(record, known, lambda: self._transport.reserve(chunk, options=known))

    async def evict(self, key: Key, options: DeleteOptions = _DELETE) -> Written:
        known = self._identified(options)
        return await self._write(key, known, lambda: self._transport.evict(key, known))

    async def confirm_ended(self, *, node: str, node_uid: str, pod_uid: str, options: WriteOptions = _WRITE) -> Written:
        known = self._identified(options)
        return await self._write(
            None,
            known,
            lambda: self._transport.confirm_ended(node=node, node_uid=node_uid, pod_uid=pod_uid, options=known),
        )

    async def ensure(
        self, kind: Kind, body: bytes | Mapping[str, Any], *, namespace: str = "", options: WriteOptions = _WRITE
    ) -> Written:
        """Create the object, or confirm that it is there and is ours. Safe to repeat, also after an unknown outcome.

        Raises:
            AlreadyExists: something of another owner has the name: choose another, or give up the intent. Or ours is
                being deleted: wait until it is gone.
        """
        key = _key_of(kind, body, namespace)
        if key is None:
            raise BadRequest(f"a {kind.kind} with a generated name cannot be ensured: give it a name of its own")
        try:
            return await self.create(kind, body, namespace=namespace, options=options)
        except AlreadyExists:
            found = await self.find(key)
            if found is None:
                raise  # it went meanwhile: the caller decides again
        if _owners(parse_object(body)) != tuple(ref.uid for ref in found.metadata.owner_references if ref.controller):
            raise AlreadyExists(f"{key} exists and belongs to another owner (uid {found.uid})", key=key)
        if found.metadata.deletion_timestamp is not None:
            raise AlreadyExists(f"{key} is still there, but is being deleted (uid {found.uid})", key=key)
        return Written(found)

    # -- how a request goes out --------------------------------------------------------------------

    async def _send(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """One request: within the bound on those in flight, and past the breaker."""
        slots = self._slots
        if not slots.take():
            await slots.wait()
        try:
            probe = self.breaker.admit()
            self._attempts.inc()
            began_s = self._env.monotonic()
            try:
                answer = await request()
            except BaseException as error:
                self.breaker.ended(error, probe=probe)
                raise
            else:
                self.breaker.ended(None, probe=probe)
                return answer
            finally:
                self._request_s.observe(self._env.monotonic() - began_s)
        finally:
            slots.give_back()

    async def _write(
        self, key: Key | None, options: WriteOptions, request: Callable[[], Awaitable[Written]]
    ) -> Written:
        began_s = self._env.monotonic()
        backoff: Backoff | None = None
        unknown = False
        while True:
            try:
                return await self._send(request)
            except NOT_CARRIED_OUT as error:
                backoff = backoff or Backoff(self._env, began_s)
                # This attempt had no effect, but an earlier one may have had: that stays unknown.
                await backoff.pause(_still_unknown(key, error) if unknown else error)
            except OutcomeUnknown as error:
                unknown = True
                backoff = backoff or Backoff(self._env, began_s)
                self._unknown.inc()
                found = await self._look_for(key, options)
                if found is not None:
                    return found
                if not self._transport.repeats_safely:
                    raise
                await backoff.pause(error)

    async def _look_for(self, key: Key | None, options: WriteOptions) -> Written | None:
        """Read whether a write of ours took effect. Not finding it proves nothing: it may still be on its way."""
        if key is None:
            return None
        try:
            found = await self.find(key)
        except (*NOT_CARRIED_OUT, OutcomeUnknown):
            return None
        if found is not None and found.origin.operation == options.origin.operation:
            return Written(found)
        return None

    def _identified(self, options: _O) -> _O:
        """The options with an operation id: one intent, one id, however often it is sent."""
        if options.origin.operation:
            return options
        origin = options.origin._replace(operation=self._env.new_uid())
        return msgspec.structs.replace(options, origin=origin)


def _still_unknown(key: Key | None, error: Exception) -> OutcomeUnknown:
    unknown = OutcomeUnknown(
        f"a write of {key or 'an object'} may have been made, and cannot be confirmed now", key=key
    )
    unknown.__cause__ = error
    return unknown


def _key_of(kind: Kind, body: bytes | Mapping[str, Any], namespace: str) -> Key | None:
    """The key a create will write; None if the server draws the name."""
    metadata = parse_object(body).get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        return None
    return Key(
        kind.key_kind, (namespace or str(metadata.get("namespace") or "")) if kind.namespaced else "", metadata["name"]
    )


def _owners(document: Mapping[str, Any]) -> tuple[str, ...]:
    references = document.get("metadata", {}).get("ownerReferences")
    if not isinstance(references, list):
        return ()
    return tuple(str(ref.get("uid")) for ref in references if isinstance(ref, Mapping) and ref.get("controller"))
