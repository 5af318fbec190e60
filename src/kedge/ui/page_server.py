"""The page of one recording, on an address of this machine: `kedge ui FILE` runs it.

The HTTP is that of `server.http`. A request must name the server by its own address, so that no name of another site
can be made to lead here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kedge.api.kinds import KINDS
from kedge.env import Env
from kedge.errors import Forbidden, NotFound, OperatingError
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.plain_listener import PlainListener
from kedge.server.http.status import error_body, status_body
from kedge.ui.documents import Documents
from kedge.ui.page_files import SAFETY_HEADERS
from kedge.ui.page_handler import LOGIN_PATH, PREFIX, Action, PageHandler
from kedge.ui.page_sessions import PageSessions

HOST: Final = "127.0.0.1"
ONLY_USER: Final = "user"


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """One recording for every user."""

    documents: Documents
    actions: Mapping[str, Action] = field(default_factory=dict)

    async def document(self, user: str, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        del user
        return self.documents.document(name, parameters)

    async def act(self, user: str, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        del user
        action = self.actions.get(name)
        if action is None:
            raise NotFound(f"there is no action {name}: use one of {', '.join(self.actions)}")
        return await action(parameters)


class PageServer:
    """Serves one source. `start` and `stop` it once."""

    def __init__(self, source: RecordingSource, env: Env) -> None:
        self._source = source
        self._sessions: PageSessions[str] = PageSessions(env)
        self._listener = PlainListener(self, env, serves="the page", option="--port")
        self._handler: PageHandler[str] | None = None
        self._names: frozenset[bytes] = frozenset()
        self.address = ""

    async def start(self, port: int = 0) -> str:
        """Listen. Returns a link that works once.

        Raises:
            Unavailable: the port is in use. Choose another.
        """
        port = await self._listener.start(HOST, port)
        self._names = frozenset((f"{HOST}:{port}".encode(), f"localhost:{port}".encode()))
        # Browsers send a cookie to every port of a host, so two pages need two names.
        self._handler = PageHandler(self._source, self._sessions, cookie=f"kedge-ui-{port}", secure=False)
        self.address = f"http://{HOST}:{port}"
        return self.new_link()

    def new_link(self) -> str:
        return f"{self.address}{LOGIN_PATH.decode()}?token={self._sessions.new_link(ONLY_USER)}"

    async def stop(self) -> None:
        await self._listener.stop()

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        del request, exchange
        return False

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        try:
            if request.headers.get(b"host", b"") not in self._names:
                raise Forbidden(f"this server is {self.address}: use that address")
            if request.path in (b"/", b"/ui"):
                headers = [*SAFETY_HEADERS, (b"Location", PREFIX)]
                exchange.respond(303, b"", content_type=b"text/plain", headers=headers)
            elif not request.path.startswith(PREFIX) or self._handler is None:
                exchange.respond(404, status_body(404, "NotFound", "this server has the page below /ui/ alone"))
            else:
                await self._handler.answer(request, exchange)
        except OperatingError as error:
            code, body = error_body(error, KINDS)
            exchange.respond(code, body, headers=list(SAFETY_HEADERS))
