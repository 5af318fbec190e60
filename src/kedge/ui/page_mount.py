"""The page of a running cluster, as its API server has it below `/ui/`: sessions of users with their own rights."""

from __future__ import annotations

from kedge.api.access import Caller
from kedge.env import Env
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.ui.page_handler import LOGIN_PATH, PageHandler, PageSource
from kedge.ui.page_sessions import PageSessions

COOKIE = "kedge-ui"


class PageMount:
    """Implements `server.http.page_hook.MountedPage`."""

    def __init__(self, source: PageSource[Caller], env: Env) -> None:
        self._sessions: PageSessions[Caller] = PageSessions(env)
        self._handler = PageHandler(source, self._sessions, cookie=COOKIE, secure=True)

    def new_link(self, caller: Caller) -> str:
        return f"{LOGIN_PATH.decode()}?token={self._sessions.new_link(caller)}"

    def caller_of(self, request: HttpRequest) -> Caller | None:
        return self._handler.user_of(request)

    async def answer(self, request: HttpRequest, exchange: Exchange) -> None:
        await self._handler.answer(request, exchange)
