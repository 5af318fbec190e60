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
from kedge.server.service import Service


class DirectTransport:
    """Implements `client.contract.Transport` on a `Service`."""

    repeats_safely = True
    one_history = True

    def __init__(
        self, service: Service, *, caller: str = "", groups: tuple[str, ...] = (), authorized: bool = False
    ) -> None:
        """`caller` and its groups are stored beside every version that is written through it: no server has
        authenticated the component. With `authorized` its requests need the rights of that caller, or of the user that
        it acts as; the service must follow the roles by then."""
        self._service = service
        self._caller = caller
        self._groups = groups
        self._authorized = authorized

    @property
    def kinds(self) -> Registry:
        return self._service.kinds

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        sent = named(request, self._caller, self._groups) if self._caller else request
        return self._send_checked(sent) if self._authorized else self._service.send(sent)

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        return self._open_checked(request) if self._authorized else self._service.open_watch(request)

    async def _send_checked(self, request: Request[Reply]) -> Reply:
        await self._check(request)
        return await self._service.send(request)

    async def _open_checked(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        await self._check(request)
        return await self._service.open_watch(request)

    async def _check(self, request: Request[Any]) -> None:
        acting = request.options.acting_as
        caller = Caller(acting, (AUTHENTICATED,)) if acting else Caller(self._caller, (*self._groups, AUTHENTICATED))
        wanted = attributes_of_request(request, self._service.kinds)
        access = self._service.access
        if not access.allows_nowait(caller, wanted):
            await access.check(caller, wanted)
