"""The direct transport: a component and the service in one process, with nothing between them.

A request is carried out or raises; its outcome is never unknown unless the store's was. Cancelling a call does
not undo the service's work: the caller must read, as after a timeout.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from kedge.api.kinds import Registry
from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent, named
from kedge.server.service import Service


class DirectTransport:
    """Implements `client.contract.Transport` on a `Service`."""

    repeats_safely = True
    one_history = True

    def __init__(self, service: Service, *, caller: str = "", groups: tuple[str, ...] = ()) -> None:
        """`caller` and its groups are stored beside every version that is written through it: no server has
        authenticated the component."""
        self._service = service
        self._caller = caller
        self._groups = groups

    @property
    def kinds(self) -> Registry:
        return self._service.kinds

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]:
        return self._service.send(named(request, self._caller, self._groups) if self._caller else request)

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]:
        return self._service.open_watch(request)
