"""All connections of one server: their limits, their deadlines, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kedge.env import Env
from kedge.metrics import Counter, Histogram
from kedge.server.http.connection import HttpConnection
from kedge.server.http.exchange import Handler
from kedge.server.http.peers import Peers
from kedge.slo import API_AVAILABILITY, SloEvents

_SERVER_FAULT = 500
"""Codes from here on are faults of the server."""


class Connections:
    """The connections of one server."""

    def __init__(self, handler: Handler, env: Env, expire: Callable[[], None] = lambda: None) -> None:
        """`expire` is called once a second: it ends the waits of requests."""
        self.handler = handler
        self._expire = expire
        self.env = env
        self.limits = env.limits
        self.open: set[HttpConnection] = set()
        self.peers = Peers(env.limits)
        self.draining = False
        """Whether the server stops: requests under way finish, and later ones are refused."""
        self._waits_for_idle = True
        self._changed = asyncio.Event()
        metrics = env.metrics
        self.refused = metrics.counter(
            "kedge_http_connections_refused_total", "Connections closed at once, because too many were open", ()
        )
        self.stalled = metrics.counter(
            "kedge_http_stalled_total", "Connections cut off because the client did not read its replies", ()
        )
        self._series: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.requests = metrics.counter("kedge_http_requests_total", "Requests answered", ("method", "code"))
        self._request_s = metrics.histogram(
            "kedge_http_request_seconds", "Time from a request to its whole reply; streams are left out", ("method",)
        )
        self.availability = SloEvents(env, API_AVAILABILITY, env.limits.slo_api_good_share)
        self.unreadable = metrics.counter("kedge_http_unreadable_total", "Requests that could not be parsed", ("code",))
        metrics.gauge("kedge_http_connections", "Open connections", ()).set_function(lambda: len(self.open))
        env.metrics.saturation("http connections", lambda: len(self.open) / self.limits.http_connections_max)

    def count(self, method: str, code: int, now_s: float) -> Histogram:
        """Count a request that is answered. Returns the times of those with a whole reply."""
        found = self._series.get((method, code))
        if found is None:
            found = self.requests.labels(method, str(code)), self._request_s.labels(method)
            self._series[method, code] = found
        answered, times = found
        answered.inc()
        self.availability.count(now_s, good=code < _SERVER_FAULT)
        return times

    def protocol(self) -> HttpConnection:
        """A factory for `loop.create_server`."""
        return HttpConnection(self)

    async def run_deadlines(self) -> None:
        """Close connections that are idle or too slow, for ever. One sweep a second costs less than a timer each."""
        while True:
            await asyncio.sleep(1.0)
            self._expire()
            now = self.env.monotonic()
            for connection in [each for each in self.open if each.deadline_s < now]:
                connection.expire()

    async def drain(self) -> None:
        """Wait until no request is under way, one half received included. The caller bounds the wait.

        Requests that arrive meanwhile are answered, with a refusal. A client whose connection is idle may send one
        for `http_stopping_s`.
        """
        timer = asyncio.get_running_loop().call_later(self.limits.http_stopping_s, self._give_up_idle)
        try:
            while any(each.busy or (each.idle and self._waits_for_idle) for each in self.open):
                self._changed.clear()
                await self._changed.wait()
        finally:
            timer.cancel()

    def _give_up_idle(self) -> None:
        self._waits_for_idle = False
        self._changed.set()

    async def close(self) -> None:
        """Close every connection once its replies are sent. The caller bounds the wait."""
        for connection in tuple(self.open):
            connection.close()
        while self.open:
            self._changed.clear()
            await self._changed.wait()

    def remove(self, connection: HttpConnection) -> None:
        self.open.discard(connection)
        self.peers.remove(connection.address, connection)
        self._changed.set()

    def abort(self) -> None:
        for connection in tuple(self.open):
            connection.abort()
