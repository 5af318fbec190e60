"""Where a page of the cluster joins the API server: below `/ui/`, for users that it recognises by a cookie of its own.

The layer of the page is above this one, so it is passed in. A request for its data is in the flow of its user, as any
other; its files and its login are open, since they have nothing of the cluster.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from kedge.api.access import Caller
from kedge.errors import MethodNotAllowed
from kedge.server.http.exchange import Exchange, HttpRequest

PAGE_PREFIX: Final = b"/ui/"
LINK_PATH: Final = "/ui/link"
"""A POST by an authenticated user returns the path of a link that works once."""
_encode = msgspec.json.Encoder().encode


class MountedPage(Protocol):
    def new_link(self, caller: Caller) -> str:
        """The path of a link for this user. It works once."""

    def caller_of(self, request: HttpRequest) -> Caller | None:
        """The user behind the cookie of a request; None without a session."""

    async def answer(self, request: HttpRequest, exchange: Exchange) -> None: ...


def answer_link(page: MountedPage, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
    if request.method != "POST":
        raise MethodNotAllowed("a link is made with POST")
    exchange.respond(201, _encode({"path": page.new_link(caller)}))
