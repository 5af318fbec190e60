"""The transport contract: carry one request, once, and report its outcome truthfully.

Transports never retry. A request that was certainly not carried out is `Unavailable`; one that may have been is
`OutcomeUnknown`. Retries, breaker and bounds are `Client`'s, so every transport gets them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Protocol

from kedge.api.kinds import Registry
from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent


class Transport(Protocol):
    """A way to a service. `kedge.api.requests` defines the requests."""

    @property
    def kinds(self) -> Registry: ...

    @property
    def repeats_safely(self) -> bool:
        """Whether the server knows operation ids, so that a repeat gets the first outcome, and checks fences."""

    @property
    def one_history(self) -> bool:
        """Whether revisions of all kinds are of one sequence, as kedge's are: then a revision compares with any."""

    def send(self, request: Request[Reply]) -> Coroutine[Any, Any, Reply]: ...

    def open_watch(self, request: OpenWatch) -> Coroutine[Any, Any, AsyncGenerator[WatchEvent, None]]: ...


class WrappedTransport:
    """The part of a transport around another one that is the same in all: the other one's properties."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def kinds(self) -> Registry:
        return self._transport.kinds

    @property
    def repeats_safely(self) -> bool:
        return self._transport.repeats_safely

    @property
    def one_history(self) -> bool:
        return self._transport.one_history
