"""Plain calls of a server with Kubernetes' conventions: JSON in and out, also for kinds that kedge does not know.

The command line uses it. Components use `HttpTransport`, which has typed requests, operation ids and fences.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from kedge.client.http.connection import ClientConnection, ConnectionBroken, ConnectionPool, HttpReply, RequestNotSent
from kedge.client.http.kubeconfig import ServerAddress
from kedge.errors import KedgeError, OperatingError, OutcomeUnknown, Unavailable, from_status

JSON = "application/json"
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class RestClient:
    """One server. Each call is sent once: the person or script that runs the command decides about a repeat."""

    def __init__(
        self, address: ServerAddress, *, on_warning: Callable[[str], None], pool: ConnectionPool | None = None
    ) -> None:
        """`pool` are connections to that address that another client has too; without it this one has its own."""
        self._pool = ConnectionPool(address) if pool is None else pool
        self._on_warning = on_warning

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        data: bytes = b"",
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Send a request with a body as JSON, or with `data` as it is, and return the decoded reply.

        Raises:
            OperatingError: the server refused it.
            Unavailable: it was not carried out.
            OutcomeUnknown: it may have been carried out. Read before anything else.
        """
        answer = await self.read(
            method,
            path,
            query=query,
            data=data if body is None else msgspec.json.encode(body),
            content_type=content_type,
            accept=accept,
        )
        return msgspec.json.decode(answer) if answer else None

    async def read(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        data: bytes = b"",
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Send a request and return the reply as it is. Raises the errors of `call`."""
        headers = [(b"Accept", accept.encode())]
        if data:
            headers.append((b"Content-Type", content_type.encode()))
        head = self._pool.head(method, _target(path, query), headers, len(data))
        try:
            reply, answer = await self._pool.request(head, data)
        except RequestNotSent as error:
            raise Unavailable(str(error)) from error
        except ConnectionBroken as error:
            unknown = f"{method} {path} was sent and its reply was lost: look whether it was carried out"
            raise (Unavailable(str(error)) if method == "GET" else OutcomeUnknown(unknown)) from error
        for each in _WARNING.findall(reply.headers.get(b"warning", b"").decode("latin-1")):
            self._on_warning(each)
        if reply.code >= 400:
            raise _failure(reply, answer)
        return answer

    async def lines(
        self, path: str, *, query: Mapping[str, str] | None = None, accept: str = JSON
    ) -> AsyncIterator[bytes]:
        """A stream, line by line, until the server ends it."""
        head = self._pool.head("GET", _target(path, query), [(b"Accept", accept.encode())], 0)
        connection: ClientConnection | None = None
        try:
            connection = await self._pool.take()
            reply = await connection.exchange(head, b"")
            if reply.code >= 400:
                raise _failure(reply, await connection.read(reply))
            async for line in connection.read_lines(reply):
                if line:
                    yield line
        except (RequestNotSent, ConnectionBroken) as error:
            raise Unavailable(str(error)) from error
        finally:
            if connection is not None:
                connection.abort()

    async def close(self) -> None:
        await self._pool.close()


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _failure(reply: HttpReply, body: bytes) -> KedgeError:
    try:
        status = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        status = None
    if not isinstance(status, Mapping):
        return OperatingError(f"the server answered {reply.code}: {body[:200].decode('latin-1')}")
    return from_status({"code": reply.code, **status})
