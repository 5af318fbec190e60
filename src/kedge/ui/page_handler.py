"""The page over HTTP: its files, its documents and its actions, below `/ui/`. `page_server` and the API server use it.

It knows no recording: `PageSource` has the documents of a user. Actions run decisions again and change nothing, yet
they are POST requests with a header of the page's own, which no other site can send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from kedge.errors import BadRequest, Forbidden, MethodNotAllowed, NotFound, Unauthorized
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.parameters import parse_query
from kedge.server.http.reply_head import Header
from kedge.ui.page_files import INDEX, SAFETY_HEADERS, read_files
from kedge.ui.page_sessions import PageSessions

PREFIX: Final = b"/ui/"
LOGIN_PATH: Final = b"/ui/login"
DATA_PREFIX: Final = b"/ui/data/"
ACTION_PREFIX: Final = b"/ui/actions/"
PAGE_HEADER: Final = b"x-kedge-page"
"""A request for data has it: a site that is not the page cannot add a header to a request without being asked first."""
_LOGGED_OUT: Final = b"open the page with the link that `kedge ui` prints: it works once\n"
_encode = msgspec.json.Encoder(enc_hook=str).encode
_W = TypeVar("_W")
_W_in = TypeVar("_W_in", contravariant=True)
Action = Callable[[Mapping[str, str]], Awaitable[dict[str, Any]]]


class PageSource(Protocol[_W_in]):
    """The documents and actions that a user may have."""

    async def document(self, user: _W_in, name: str, parameters: Mapping[str, str]) -> dict[str, Any]: ...

    async def act(self, user: _W_in, name: str, parameters: Mapping[str, str]) -> dict[str, Any]: ...


class PageHandler(Generic[_W]):
    """Answers every request below `/ui/`."""

    def __init__(self, source: PageSource[_W], sessions: PageSessions[_W], *, cookie: str, secure: bool) -> None:
        """`secure` is for a server with TLS: the cookie then never leaves it."""
        self._source = source
        self._sessions = sessions
        self._cookie = cookie
        self._secure = secure
        self._files = read_files()

    async def answer(self, request: HttpRequest, exchange: Exchange) -> None:
        """Raises:
        Unauthorized, Forbidden, NotFound, BadRequest, MethodNotAllowed: the caller makes a `Status` of it.
        """
        path = request.path
        if path == LOGIN_PATH:
            self._login(request, exchange)
            return
        user = self.user_of(request)
        if path.startswith((DATA_PREFIX, ACTION_PREFIX)):
            await self._answer_data(request, exchange, user)
        else:
            self._answer_file(request, exchange, known=user is not None)

    def _login(self, request: HttpRequest, exchange: Exchange) -> None:
        """Exchange the token of a link for a cookie. The page has no token in its address afterwards."""
        if request.method != "GET":
            raise MethodNotAllowed("a link is opened with GET")
        cookie = self._sessions.open_link(parse_query(request.query).get("token", ""))
        secure = "; Secure" if self._secure else ""
        value = f"{self._cookie}={cookie}; Path=/ui/; HttpOnly; SameSite=Strict{secure}"
        headers: list[Header] = [*SAFETY_HEADERS, (b"Set-Cookie", value.encode()), (b"Location", PREFIX)]
        exchange.respond(303, b"", content_type=b"text/plain; charset=utf-8", headers=headers)

    def user_of(self, request: HttpRequest) -> _W | None:
        """The user of the session that a request belongs to; None without one."""
        return self._sessions.user_of(self._cookie_of(request))

    def _cookie_of(self, request: HttpRequest) -> str:
        for part in request.headers.get(b"cookie", b"").decode("latin-1").replace(",", ";").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie:
                return value
        return ""

    def _answer_file(self, request: HttpRequest, exchange: Exchange, *, known: bool) -> None:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("the files of the page can only be read: use GET")
        name = request.path.removeprefix(PREFIX).decode("latin-1") or INDEX
        found = self._files.get(name)
        if found is None:
            raise NotFound("the page has no such file")
        kind, content = found
        if not known and name == INDEX:
            exchange.respond(401, _LOGGED_OUT, content_type=b"text/plain; charset=utf-8", headers=list(SAFETY_HEADERS))
        else:
            exchange.respond(200, content, content_type=kind, headers=list(SAFETY_HEADERS))

    async def _answer_data(self, request: HttpRequest, exchange: Exchange, user: _W | None) -> None:
        if user is None:
            raise Unauthorized("the session of the page has ended: run `kedge ui` again")
        if PAGE_HEADER not in request.headers:
            raise Forbidden("only the page itself may ask for its data: the header X-Kedge-Page is missing")
        if request.path.startswith(ACTION_PREFIX):
            if request.method != "POST":
                raise MethodNotAllowed("an action is run with POST")
            name = request.path.removeprefix(ACTION_PREFIX).decode("latin-1")
            made = await self._source.act(user, name, _body(request))
        else:
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed("a document can only be read: use GET")
            name = request.path.removeprefix(DATA_PREFIX).decode("latin-1")
            made = await self._source.document(user, name, parse_query(request.query))
        exchange.respond(200, _encode(made), headers=list(SAFETY_HEADERS))


def _body(request: HttpRequest) -> dict[str, str]:
    try:
        found: dict[str, str] = msgspec.json.decode(request.body or b"{}", type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the parameters of an action are a JSON object of texts: {error}") from error
    return found
