"""The direct transport: a component and the service in one process, with nothing between them.

A request is carried out or raises; its outcome is never unknown unless the store's was. Cancelling a call does
not undo the service's work: the caller must read, as after a timeout.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from kedge.api.access import AUTHENTICATED, Caller
from kedge.api.kinds import Registry
from kedge.api.request_access import attributes_of_request
from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent, named
from kedge.errors import OperatingError
from kedge.server.audit import READ_VERBS, AuditedCall, Auditor, done_code
from kedge.server.service import Service


class DirectTransport:
    """Implements `client.contract.Transport` on a `Service`."""

    repeats_safely = True
    one_history = True

    def __init__(
        self,
        service: Service,
        *,
        caller: str = "",
        groups: tuple[str, ...] = (),
        authorized: bool = False,
        auditor: Auditor | None = None,
    ) -> None:
        """`caller` and its groups are stored beside every version that is written through it: no server has
        authenticated the component. With `authorized` its requests need the rights of that caller, or of the user that
        it acts as; the service must follow the roles by then. With `auditor` its requests are in the audit log, as
        those over HTTP are."""
        self._service = service
        self._caller = caller
        self._groups = groups
        self._authorized = authorized
        self._auditor = auditor
        self._identity = Caller(caller, (*groups, AUTHENTICATED))

    @property
    def kinds(self) -> Registry:
        return self._service.kinds

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        sent = named(request, self._caller, self._groups) if self._caller else request
        if self._auditor is None or not self._auditor.may_log(request):
            return self._send(sent)
        return self._send_audited(sent, self._auditor)

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        if self._auditor is None or not self._auditor.reads:
            return self._open(request)
        return self._open_audited(request, self._auditor)

    # -- authorization -----------------------------------------------------------------------------

    def _send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        return self._send_checked(request) if self._authorized else self._service.send(request)

    def _open(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        return self._open_checked(request) if self._authorized else self._service.open_watch(request)

    async def _send_checked(self, request: Request[Reply]) -> Reply:
        await self._check(request)
        return await self._service.send(request)

    async def _open_checked(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        await self._check(request)
        return await self._service.open_watch(request)

    async def _check(self, request: Request[Any]) -> None:
        acting = request.options.acting_as
        caller = Caller(acting, (AUTHENTICATED,)) if acting else self._identity
        wanted = attributes_of_request(request, self._service.kinds)
        access = self._service.access
        if not access.allows_nowait(caller, wanted):
            await access.check(caller, wanted)

    # -- audit -------------------------------------------------------------------------------------

    async def _send_audited(self, request: Request[Reply], auditor: Auditor) -> Reply:
        call = auditor.direct_call(request, self._identity, self.kinds)
        try:
            if request.verb not in READ_VERBS:
                auditor.check_room(call)
            call.reply = reply = await self._send(request)
            call.code = done_code(request)
            return reply
        except OperatingError as error:
            call.error = error
            raise
        finally:
            auditor.completed(call)

    async def _open_audited(self, request: OpenWatch, auditor: Auditor) -> AsyncGenerator[WatchEvent, None]:
        call = auditor.direct_call(request, self._identity, self.kinds)
        try:
            events = await self._open(request)
        except OperatingError as error:
            call.error = error
            auditor.completed(call)
            raise
        call.code = done_code(request)
        auditor.started(call)
        return _AuditedWatch(events, call, auditor)


class _AuditedWatch(AsyncGenerator[WatchEvent, None]):
    """A watch with an entry at its end. No generator function: one that is closed before its first event never runs."""

    def __init__(self, events: AsyncGenerator[WatchEvent, None], call: AuditedCall, auditor: Auditor) -> None:
        self._events = events
        self._call = call
        self._auditor = auditor
        self._ended = False

    async def asend(self, value: None) -> WatchEvent:
        try:
            return await self._events.asend(value)
        except BaseException:
            self._end()
            raise

    async def athrow(self, *error: Any) -> WatchEvent:
        try:
            return await self._events.athrow(*error)
        except BaseException:
            self._end()
            raise

    async def aclose(self) -> None:
        try:
            await self._events.aclose()
        finally:
            self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._auditor.completed(self._call)
