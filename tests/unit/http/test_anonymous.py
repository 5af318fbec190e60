"""Callers without an identity: health and version are open, and nothing else is."""

from __future__ import annotations

import pytest
from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop

from kedge.server.http.access import OPEN_PATHS, Authenticator

CLOSED = (
    "GET /", "GET /api", "GET /api/", "GET /apis", "GET /apis/apps", "GET /api/v1", "GET /apis/apps/v1", "GET /metrics",
    "GET /openapi/v2", "GET /openapi/v3", "GET /openapi/v3/api/v1", "GET /kedge/backup", "POST /kedge/batch",
    "GET /api/v1/pods", "GET /api/v1/pods?watch=1", "GET /api/v1/namespaces/default", "GET /api/v1/nodes/a",
    "GET /api/v1/namespaces/default/secrets/s", "POST /api/v1/namespaces", "DELETE /api/v1/namespaces/default",
    "GET /api/v1/namespaces/default/pods/p/log", "GET /apis/metrics.k8s.io/v1beta1/pods",
    "POST /apis/authentication.k8s.io/v1/selfsubjectreviews", "POST /apis/authentication.k8s.io/v1/tokenreviews",
    "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "GET /nothing",
    # Paths that only resemble open ones.
    "GET //livez", "GET /livezz", "GET /version/x", "GET /%6civez", "GET /api/v1/../../livez", "GET /livez;x",
    "GET /api/v1/configmaps/%ff",
)  # fmt: skip


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]).encode()


@pytest.mark.parametrize("path", [*sorted(each.decode() for each in OPEN_PATHS), "/livez/ping", "/readyz?verbose"])
def test_an_open_path_needs_no_identity(path: str) -> None:
    @on_loop
    async def check() -> None:
        async with local_api(authenticator=Authenticator()) as (_, port):
            assert (await exchange(port, head(f"GET {path}"), end=False)).startswith(b"HTTP/1.1 200")

    check()


@pytest.mark.parametrize(
    "headers", [(), ("Authorization: Bearer x",), ("Authorization: Basic YTpi",), ("Impersonate-User: a",)]
)
def test_every_other_path_is_unauthorized(headers: tuple[str, ...]) -> None:
    @on_loop
    async def check() -> None:
        async with local_api(authenticator=Authenticator()) as (_, port):
            for line in CLOSED:
                reply = await exchange(port, head(line, *headers), end=False)
                assert reply.startswith(b"HTTP/1.1 401"), f"{line}: {reply[:200]!r}"
                assert b"WWW-Authenticate: Bearer" in reply
                assert b'"reason":"Unauthorized"' in reply

    check()
