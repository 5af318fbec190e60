"""An OTLP/HTTP endpoint: one request with spans, over the connections that every HTTP client of kedge uses."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import unquote, urlsplit

import click

from kedge.client.http.connection import ConnectionBroken, ConnectionPool, RequestNotSent
from kedge.client.http.kubeconfig import ServerAddress
from kedge.errors import OperatingError, TooManyRequests, Unavailable

TRACES_PATH = "/v1/traces"
_PASSING = frozenset({502, 503, 504})
"""Codes after which OTLP has the same request sent again."""


class OtlpEndpoint:
    """One endpoint. `send` is one request, with an error that states whether to send it again."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises `UsageError` if the URL is none of HTTP."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.UsageError(f"--otlp-endpoint must be an http or https address, such as http://host:4318: {url}")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls is not None else 80)
        self.url = f"{url.rstrip('/')}{TRACES_PATH}"
        self._target = f"{parts.path.rstrip('/')}{TRACES_PATH}"
        self._pool = ConnectionPool(ServerAddress(parts.hostname, port, tls), idle_max=1)
        self._headers = [(b"Content-Type", b"application/x-protobuf")]
        self._headers += [(name.encode(), value.encode()) for name, value in headers.items()]

    async def send(self, body: bytes) -> None:
        """Raises `Unavailable` or `TooManyRequests` if it may be taken later, else `OperatingError`."""
        head = self._pool.head("POST", self._target, self._headers, len(body))
        try:
            reply, answer = await self._pool.request(head, body)
        except (RequestNotSent, ConnectionBroken) as error:
            raise Unavailable(f"{self.url}: {error}") from error
        if reply.code < 300:
            return
        text = f"{self.url} answered {reply.code}: {answer[:200].decode('latin-1')}"
        after_s = 1.0
        with suppress(ValueError):  # a date instead of seconds: the exporter's own pause is as good
            after_s = float(reply.headers.get(b"retry-after", b"1"))
        if reply.code == 429 or (reply.code in _PASSING and b"retry-after" in reply.headers):
            raise TooManyRequests(text, retry_after_s=after_s)
        raise Unavailable(text) if reply.code in _PASSING else OperatingError(text)

    async def close(self) -> None:
        await self._pool.close()


def parse_headers(text: str) -> dict[str, str]:
    """Headers as OpenTelemetry writes them: `name=value,name=value`, with values in percent encoding."""
    pairs = (each.partition("=") for each in text.split(",") if "=" in each)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
