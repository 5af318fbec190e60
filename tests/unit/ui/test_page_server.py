"""The server of the page: links that work once, a cookie that nothing else can use, and strict headers."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from kedge.env import system_env
from kedge.errors import Unauthorized
from kedge.observe.readers.recording import Recording
from kedge.ui import Documents, PageServer, RecordingSource
from kedge.ui.page_sessions import LINK_S_MAX, SESSION_S_MAX, SESSIONS_MAX, PageSessions

PAGE = {"X-Kedge-Page": "1"}


class Reply(NamedTuple):
    code: int
    headers: dict[str, str]
    body: bytes


class Visitor:
    """A client of one page server, by its link."""

    def __init__(self, link: str) -> None:
        self.host, _, rest = link.removeprefix("http://").partition("/")
        self.login = f"/{rest}"

    async def ask(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: str = ""
    ) -> Reply:
        return await asyncio.to_thread(self._ask, path, method, headers or {}, body)

    def _ask(self, path: str, method: str, headers: Mapping[str, str], body: str) -> Reply:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.request(method, path, body=body or None, headers=dict(headers))
            found = connection.getresponse()
            return Reply(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    async def cookie(self) -> dict[str, str]:
        found = await self.ask(self.login)
        assert found.code == 303
        return {"Cookie": found.headers["set-cookie"].partition(";")[0]}


async def noted(parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"asked": dict(parameters)}


@asynccontextmanager
async def visited() -> AsyncIterator[Visitor]:
    server = PageServer(RecordingSource(Documents(Recording(), "empty"), {"note": noted}), system_env())
    try:
        yield Visitor(await server.start())
    finally:
        await server.stop()


def test_a_link_works_once_and_its_cookie_is_for_this_site_alone() -> None:
    async def run() -> None:
        async with visited() as visitor:
            first = await visitor.ask(visitor.login)
            assert first.code == 303
            assert first.headers["location"] == "/ui/"
            flags = {each.strip() for each in first.headers["set-cookie"].split(";")[1:]}
            assert flags == {"Path=/ui/", "HttpOnly", "SameSite=Strict"}
            assert (await visitor.ask(visitor.login)).code == 401
            assert (await visitor.ask("/ui/login?token=")).code == 401

    asyncio.run(run())


def test_nothing_of_the_recording_is_shown_without_a_session() -> None:
    async def run() -> None:
        async with visited() as visitor:
            assert (await visitor.ask("/ui/")).code == 401
            assert (await visitor.ask("/ui/data/history", headers=PAGE)).code == 401
            wrong = {**PAGE, "Cookie": f"kedge-ui-{visitor.host.partition(':')[2]}=x"}
            assert (await visitor.ask("/ui/data/history", headers=wrong)).code == 401
            cookie = await visitor.cookie()
            assert (await visitor.ask("/ui/", headers=cookie)).code == 200
            found = await visitor.ask("/ui/data/history", headers={**PAGE, **cookie})
            assert json.loads(found.body)["title"] == "empty"

    asyncio.run(run())


def test_another_site_cannot_make_the_browser_ask_for_data_or_run_an_action() -> None:
    """Such a request may carry the cookie where a browser does not know SameSite, but never the header."""

    async def run() -> None:
        async with visited() as visitor:
            cookie = await visitor.cookie()
            assert (await visitor.ask("/ui/data/history", headers=cookie)).code == 403
            assert (await visitor.ask("/ui/actions/note", method="POST", headers=cookie)).code == 403
            assert (await visitor.ask("/ui/actions/note", headers={**PAGE, **cookie})).code == 405
            done = await visitor.ask("/ui/actions/note", method="POST", headers={**PAGE, **cookie}, body='{"a":"b"}')
            assert json.loads(done.body) == {"asked": {"a": "b"}}
            bad = await visitor.ask("/ui/actions/note", method="POST", headers={**PAGE, **cookie}, body='{"a":1}')
            assert bad.code == 400
            assert (await visitor.ask("/ui/actions/x", method="POST", headers={**PAGE, **cookie})).code == 404

    asyncio.run(run())


def test_a_name_of_another_site_that_leads_here_is_refused() -> None:
    async def run() -> None:
        async with visited() as visitor:
            cookie = await visitor.cookie()
            found = await visitor.ask("/ui/data/history", headers={**PAGE, **cookie, "Host": "evil.example"})
            assert found.code == 403

    asyncio.run(run())


def test_every_reply_has_the_safety_headers() -> None:
    async def run() -> None:
        async with visited() as visitor:
            cookie = await visitor.cookie()
            for path, headers in (
                ("/ui/", cookie),
                ("/ui/", {}),
                ("/ui/main.js", {}),
                ("/ui/data/history", {**PAGE, **cookie}),
                ("/ui/data/none", {**PAGE, **cookie}),
                ("/ui/none", cookie),
            ):
                found = await visitor.ask(path, headers=headers)
                policy = found.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe-inline" not in policy
                assert found.headers["x-content-type-options"] == "nosniff", path
                assert found.headers["referrer-policy"] == "no-referrer"

    asyncio.run(run())


def test_only_files_of_the_page_are_served() -> None:
    async def run() -> None:
        async with visited() as visitor:
            cookie = await visitor.cookie()
            for path in ("/ui/../__init__.py", "/ui/%2e%2e/documents.py", "/ui/static/main.js", "/etc/passwd"):
                assert (await visitor.ask(path, headers=cookie)).code == 404
            assert (await visitor.ask("/ui/main.js", method="POST", headers=cookie)).code == 405

    asyncio.run(run())


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_links_and_sessions_end_and_are_bounded() -> None:
    clock = Clock()
    sessions: PageSessions[str] = PageSessions(replace(system_env(), monotonic=clock.monotonic))
    link = sessions.new_link("ada")
    clock.now_s = LINK_S_MAX + 1
    with pytest.raises(Unauthorized, match="has ended"):
        sessions.open_link(link)
    cookie = sessions.open_link(sessions.new_link("ada"))
    assert sessions.user_of(cookie) == "ada"
    clock.now_s += SESSION_S_MAX + 1
    assert sessions.user_of(cookie) is None
    first = sessions.new_link("ada")
    for _ in range(SESSIONS_MAX):
        sessions.new_link("ada")
    with pytest.raises(Unauthorized):
        sessions.open_link(first)
