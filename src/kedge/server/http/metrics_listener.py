"""`/metrics` of a process that has no API server: plain HTTP and no other page.

It asks for no identity, so it listens on an address of the machine itself unless the operator chooses another.
"""

from __future__ import annotations

from kedge.caches import show_caches
from kedge.env import Env
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.plain_listener import PlainListener
from kedge.server.http.status import status_body


class MetricsListener:
    """Serves the metrics of `env`. `start` and `stop` it once."""

    def __init__(self, env: Env) -> None:
        self._metrics = env.metrics
        listener = PlainListener(self, env, serves="metrics", option="--metrics-listen")
        self.start, self.stop = listener.start, listener.stop

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        if request.path != b"/metrics" or request.method not in ("GET", "HEAD"):
            exchange.respond(404, status_body(404, "NotFound", "this address has GET /metrics and nothing else"))
            return True
        show_caches(self._metrics)
        shown, content_type = self._metrics.page(request.headers.get(b"accept", b"").decode("latin-1"))
        exchange.respond(200, shown, content_type=content_type.encode())
        return True

    async def __call__(self, request: HttpRequest, exchange: Exchange) -> None:
        self.answer_nowait(request, exchange)
