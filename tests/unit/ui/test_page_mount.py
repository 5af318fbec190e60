"""The page of a running cluster on its API server: links for authenticated users, and a cookie for the page alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.api_server import exchange, local_api

from kedge.api.access import AUTHENTICATED, Caller
from kedge.env import system_env
from kedge.server.http.access import Authenticator
from kedge.server.http.exchange import HttpRequest
from kedge.ui.page_mount import PageMount


class ByHeader(Authenticator):
    """Takes the name of the user from a header: for tests of what comes after authentication."""

    def caller(self, request: HttpRequest) -> Caller | None:
        name = request.headers.get(b"x-user")
        return None if name is None else Caller(name.decode(), (AUTHENTICATED,))


class Names:
    """A source whose documents have the name of the user."""

    async def document(self, user: Caller, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        return {"user": user.user, "document": name, "parameters": dict(parameters)}

    async def act(self, user: Caller, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        return {"user": user.user, "action": name, "parameters": dict(parameters)}


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    async with local_api(authenticator=ByHeader()) as (server, port):
        server.handler.page = PageMount(Names(), system_env())
        yield port


async def ask(port: int, method: str, path: str, *headers: str) -> tuple[int, str, str]:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", "Content-Length: 0", *headers, "", ""]
    found = (await exchange(port, "\r\n".join(lines).encode())).decode()
    head, _, body = found.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


async def logged_in(port: int, user: str) -> str:
    code, _, body = await ask(port, "POST", "/ui/link", f"X-User: {user}")
    assert code == 201
    code, head, _ = await ask(port, "GET", json.loads(body)["path"])
    assert code == 303
    cookie = next(line for line in head.splitlines() if line.startswith("Set-Cookie: "))
    assert cookie.endswith("; Path=/ui/; HttpOnly; SameSite=Strict; Secure")
    return cookie.removeprefix("Set-Cookie: ").partition(";")[0]


def test_a_link_is_for_an_authenticated_user_and_its_session_has_that_user() -> None:
    async def run() -> None:
        async with served() as port:
            assert (await ask(port, "POST", "/ui/link"))[0] == 401
            assert (await ask(port, "GET", "/ui/link", "X-User: ada"))[0] == 405
            cookie = await logged_in(port, "ada")
            code, _, body = await ask(port, "GET", "/ui/data/place?t=1", f"Cookie: {cookie}", "X-Kedge-Page: 1")
            assert (code, json.loads(body)) == (200, {"user": "ada", "document": "place", "parameters": {"t": "1"}})
            assert (await ask(port, "GET", "/ui/data/place", "X-Kedge-Page: 1"))[0] == 401
            assert (await ask(port, "GET", "/ui/data/place", f"Cookie: {cookie}"))[0] == 403
            assert (await ask(port, "GET", "/ui/", f"Cookie: {cookie}"))[0] == 200

    asyncio.run(run())


def test_the_cookie_of_the_page_is_no_identity_for_the_api_and_makes_no_links() -> None:
    """A site that could send it would otherwise act as the user."""

    async def run() -> None:
        async with served() as port:
            cookie = f"Cookie: {await logged_in(port, 'ada')}"
            for path in ("/api/v1/pods", "/metrics", "/kedge/backup", "/uix"):
                assert (await ask(port, "GET", path, cookie))[0] == 401, path
            assert (await ask(port, "POST", "/ui/link", cookie))[0] == 401

    asyncio.run(run())


def test_an_authenticated_caller_without_a_session_gets_no_data_of_the_page() -> None:
    async def run() -> None:
        async with served() as port:
            assert (await ask(port, "GET", "/ui/data/place", "X-User: ada", "X-Kedge-Page: 1"))[0] == 401

    asyncio.run(run())


def test_a_server_without_a_page_has_no_link() -> None:
    async def run() -> None:
        async with local_api() as (_, port):
            assert (await ask(port, "POST", "/ui/link"))[0] == 404

    asyncio.run(run())
