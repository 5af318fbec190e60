"""One transport over several API servers of one store: it uses one, and the next one after a failure.

It repeats nothing: the failed request gets its error, and `Client` decides about a retry, which then goes to the next
server. Servers on one store have one history, so a watch resumes on another server where it broke.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from kedge.api.kinds import Registry
from kedge.api.requests import OpenWatch, Reply, Request, WatchEvent
from kedge.client.http.kubeconfig import ServerAddress
from kedge.client.http.rest import RestClient
from kedge.client.http.transport import HttpTransport
from kedge.env import Env
from kedge.errors import OutcomeUnknown, Terminal, Unavailable

_LOG = logging.getLogger(__name__)


class FailoverTransport:
    """Implements `client.contract.Transport` on several servers."""

    one_history = True

    def __init__(self, addresses: Sequence[ServerAddress], env: Env) -> None:
        """The first server is drawn, so that components spread over them."""
        self._env = env
        self._addresses = tuple(addresses)
        self._transports = [HttpTransport(each) for each in addresses]
        self._replaced: list[HttpTransport] = []
        """Transports to the addresses before these: their requests and watches go on."""
        self._current = env.random.randrange(len(self._transports))
        self._kubeconfigs = env.metrics.counter("kedge_client_kubeconfigs_total", "Kubeconfigs read after a change")
        self._switches = env.metrics.counter("kedge_client_failovers_total", "Changes to another API server")

    @property
    def kinds(self) -> Registry:
        return self._transports[0].kinds

    @property
    def repeats_safely(self) -> bool:
        return self._transports[0].repeats_safely

    @property
    def server(self) -> ServerAddress:
        """The one in use."""
        return self._addresses[self._current]

    def rest_clients(self) -> list[RestClient]:
        """Plain calls of each server over the connections of this transport, the server in use first."""
        return [each.rest for each in (*self._transports[self._current :], *self._transports[: self._current])]

    async def use(self, addresses: Sequence[ServerAddress]) -> None:
        """Send the next requests to these servers, with their identity. Requests and watches under way go on."""
        self._kubeconfigs.inc()
        ended, self._replaced = self._replaced, self._transports
        self._addresses = tuple(addresses)
        self._transports = [HttpTransport(each) for each in addresses]
        self._current = self._env.random.randrange(len(self._transports))
        for each in ended:
            await each.close()

    async def send(self, request: Request[Reply]) -> Reply:
        used, began_s = self._transports[self._current], self._env.monotonic()
        try:
            return await used.send(request)
        except (Unavailable, OutcomeUnknown) as error:
            self._leave(used, str(error))
            raise
        except asyncio.CancelledError:
            # Cancelled by its deadline: a server that is paused or cut off closes no connection.
            if self._env.monotonic() - began_s >= self._env.limits.client_failover_s:
                self._leave(used, "no answer")
            raise

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        used = self._transports[self._current]
        try:
            events = await used.open_watch(request)
        except Unavailable as error:
            self._leave(used, str(error))
            raise
        return self._followed(events, used)

    async def close(self) -> None:
        for each in (*self._transports, *self._replaced):
            await each.close()

    async def _followed(
        self, events: AsyncGenerator[WatchEvent, None], used: HttpTransport
    ) -> AsyncGenerator[WatchEvent, None]:
        try:
            async for event in events:
                yield event
        except Unavailable as error:
            self._leave(used, str(error))
            raise
        finally:
            await events.aclose()

    def _leave(self, used: HttpTransport, why: str) -> None:
        """Use the next server, unless another request has changed over already."""
        if used is self._transports[self._current] and len(self._transports) > 1:
            left = self.server.url
            self._current = (self._current + 1) % len(self._transports)
            self._switches.inc()
            _LOG.info("%s failed (%s): the next request goes to %s", left, why, self.server.url)


def with_servers(address: ServerAddress, urls: Sequence[str]) -> list[ServerAddress]:
    """The identity and authority of `address` at each of these servers; `address` itself if there are none.

    Raises:
        Terminal: one is not an https URL.
    """
    found: list[ServerAddress] = []
    for url in urls:
        host, port = parse_server(url)
        if address.tls is None:
            raise Terminal("--server needs a kubeconfig with certificates: its server is an http address")
        found.append(replace(address, host=host, port=port))
    return found or [address]


def parse_server(url: str) -> tuple[str, int]:
    """Host and port of an API server.

    Raises:
        Terminal: it is not an https URL.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 443
    except ValueError:
        port = 0
    if parts.scheme != "https" or not parts.hostname or not port or parts.path.strip("/"):
        raise Terminal(f"--server {url} is not an address such as https://server-1.example.com:6443")
    return parts.hostname, port
