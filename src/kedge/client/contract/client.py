"""The client that every component uses: a transport with bounds, a breaker, retries, and honest outcomes.

After a write of unknown outcome it first reads. Only then, and only under the same operation id, is the write sent
again, so a late first attempt and its repeat can never both take effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from kedge.api.codec import parse_object
from kedge.api.kinds import Kind, Registry
from kedge.api.objects import Object
from kedge.api.request_text import check_request_text
from kedge.api.requests import (
    WRITE,
    Body,
    Create,
    OpenWatch,
    Reply,
    Request,
    WatchEvent,
    WriteOptions,
    Written,
)
from kedge.api.verbs import Verbs
from kedge.client.contract.breaker import Breaker
from kedge.client.contract.retry import NOT_CARRIED_OUT, Retries
from kedge.client.contract.slots import Slots
from kedge.client.contract.transport import Transport
from kedge.env import Env
from kedge.errors import AlreadyExists, BadRequest, NotFound, OutcomeUnknown
from kedge.keys import Key

_R = TypeVar("_R", bound=Request[Any])


class Client(Verbs):
    """The API as a component uses it. One client a component, so that its bounds are its own."""

    def __init__(self, transport: Transport, env: Env, *, component: str) -> None:
        self._transport = transport
        self._env = env
        self._component = component
        self.breaker = Breaker(env, f"api of {component}")
        self._slots = Slots(env.limits.client_in_flight_max)
        env.metrics.gauge("kedge_client_in_flight", "Requests in flight", ("component",)).labels(
            component
        ).set_function(lambda: self._slots.taken)
        self._attempts = env.metrics.counter(
            "kedge_client_attempts_total", "Requests sent, repeats included", ("component",)
        ).labels(component)
        self._request_s = env.metrics.histogram(
            "kedge_client_request_seconds", "Duration of a request", ("component",)
        ).labels(component)
        self._errors = env.metrics.counter(
            "kedge_client_errors_total", "Requests that failed, by error, such as conflicts", ("component", "error")
        )
        env.metrics.saturation(f"requests of {component}", lambda: self._slots.taken / env.limits.client_in_flight_max)
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

    @property
    def fenced(self) -> bool:
        """Whether the server checks fences. A server without operation ids has none."""
        return self._transport.repeats_safely

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        """Carry out a request, with the retries that are safe for it.

        Raises:
            OutcomeUnknown: the write may have been made, and no read showed it. Read, and decide again.
        """
        if request.reads:
            return self._read(request)
        return self._write_once(request) if request.once else self._write(request)

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        """One stream, not retried: `runtime.watcher` decides how to go on when it ends."""
        return await self._attempt(self._transport.open_watch, request)

    async def find(self, key: Key) -> Object | None:
        """As `get`, with None for an object that does not exist."""
        try:
            return await self.get(key)
        except NotFound:
            return None

    async def ensure(self, kind: Kind, body: Body, *, namespace: str = "", options: WriteOptions = WRITE) -> Written:
        """Create the object, or confirm that it is there and is ours. Safe to repeat, also after an unknown outcome.

        Raises:
            AlreadyExists: an object of another owner has the name: choose another, or give up the intent. Or ours is
                being deleted: wait until it is gone.
        """
        request = Create(kind, body, namespace, options)
        key = request.written_key
        if key is None:
            raise BadRequest(f"a {kind.kind} with a generated name cannot be ensured: give it a name of its own")
        try:
            return await self.send(request)
        except AlreadyExists:
            found = await self.find(key)
            if found is None:
                raise  # deleted meanwhile: the caller decides again
        if _owners(parse_object(body)) != tuple(ref.uid for ref in found.metadata.owner_references if ref.controller):
            raise AlreadyExists(f"{key} exists and has another owner (uid {found.uid}): use another name", key=key)
        if found.metadata.deletion_timestamp is not None:
            raise AlreadyExists(f"{key} is being deleted (uid {found.uid}): try again once it is gone", key=key)
        return Written(found)

    # -- attempts ----------------------------------------------------------------------------------

    async def _attempt(self, carry: Callable[[_R], Coroutine[Any, Any, Reply]], request: _R) -> Reply:
        """Send a request once: within the bound on requests in flight, and past the breaker."""
        check_request_text(request, self._env.limits)
        slots = self._slots
        if not slots.take():
            await slots.wait()
        try:
            probe = self.breaker.admit()
            self._attempts.inc()
            began_s = self._env.monotonic()
            try:
                reply = await carry(request)
            except BaseException as error:
                self.breaker.ended(error, probe=probe)
                self._errors.labels(self._component, type(error).__name__).inc()
                raise
            else:
                self.breaker.ended(None, probe=probe)
                return reply
            finally:
                self._request_s.observe(self._env.monotonic() - began_s)
        finally:
            slots.release()

    async def _read(self, request: Request[Reply]) -> Reply:
        """A read has no effect, so even one of unknown outcome is repeated."""
        began_s = self._env.monotonic()
        retries: Retries | None = None
        while True:
            try:
                return await self._attempt(self._transport.send, request)
            except (*NOT_CARRIED_OUT, OutcomeUnknown) as error:
                retries = retries or Retries(self._env, began_s)
                await retries.pause(error)

    async def _write_once(self, request: Request[Reply]) -> Reply:
        return await self._attempt(self._transport.send, self._identified(request))

    async def _write(self, request: Request[Reply]) -> Reply:
        request = self._identified(request)
        began_s = self._env.monotonic()
        retries: Retries | None = None
        unanswered_s: float | None = None
        while True:
            sent_s = self._env.monotonic()
            try:
                reply = await self._attempt(self._transport.send, request)
                return reply if unanswered_s is None else _after_loss(reply, unanswered_s)
            except NOT_CARRIED_OUT as error:
                retries = retries or Retries(self._env, began_s)
                # This attempt had no effect, but an earlier one may have had: that stays unknown.
                await retries.pause(error if unanswered_s is None else _still_unknown(request, error))
            except OutcomeUnknown as error:
                if unanswered_s is None:
                    unanswered_s = self._env.monotonic() - sent_s
                retries = retries or Retries(self._env, began_s)
                self._unknown.inc()
                found = await self._find_effect(request)
                if found is not None:
                    return _after_loss(found, unanswered_s)
                if not self._transport.repeats_safely:
                    raise
                await retries.pause(error)

    async def _find_effect(self, request: Request[Reply]) -> Reply | None:
        """Read whether a write took effect. None proves nothing: the write may still be on its way."""
        key = request.written_key
        if key is None:
            return None
        try:
            found = await self.find(key)
        except (*NOT_CARRIED_OUT, OutcomeUnknown):
            return None
        if found is not None and found.origin.operation == request.options.origin.operation:
            return Written(found)  # type: ignore[return-value]  # the reply of every write that names its object
        return None

    def _identified(self, request: _R) -> _R:
        """The request with an operation id: one intent, one id, however often it is sent."""
        options = request.options
        if options.origin.operation:
            return request
        origin = options.origin._replace(operation=self._env.new_uid())
        replace = msgspec.structs.replace
        return replace(request, options=replace(options, origin=origin))


def _after_loss(reply: Reply, unanswered_s: float) -> Reply:
    """The reply, with the time that an earlier attempt had none."""
    return msgspec.structs.replace(reply, unanswered_s=unanswered_s) if isinstance(reply, Written) else reply


def _still_unknown(request: Request[Any], error: Exception) -> OutcomeUnknown:
    key = request.written_key
    unknown = OutcomeUnknown(
        f"a write of {key or 'an object'} may have been made, and cannot be confirmed now", key=key
    )
    unknown.__cause__ = error
    return unknown


def _owners(document: Mapping[str, Any]) -> tuple[str, ...]:
    references = document.get("metadata", {}).get("ownerReferences")
    if not isinstance(references, list):
        return ()
    return tuple(str(ref.get("uid")) for ref in references if isinstance(ref, Mapping) and ref.get("controller"))
