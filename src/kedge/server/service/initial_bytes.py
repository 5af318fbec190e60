"""The bound on the bytes that the initial events of all watches of one service hold; `initial_events` reserves them."""

from __future__ import annotations

from kedge.env import Env
from kedge.errors import TooManyRequests

_RETRY_AFTER_S = 2.0


class InitialBytes:
    """The bytes that the initial events of all watches of one service hold."""

    def __init__(self, env: Env) -> None:
        limits, metrics = env.limits, env.metrics
        self._bytes_max = limits.watch_initial_bytes_max
        self.page_bytes = limits.watch_initial_page_bytes
        self.held = 0
        self._refused = metrics.counter(
            "kedge_service_initial_events_refused_total", "Watches refused because unread initial events fill the bound"
        )
        metrics.gauge(
            "kedge_service_initial_events_bytes", "Bytes reserved for initial events that watches have not read"
        ).set_function(lambda: self.held)
        metrics.saturation("initial events", lambda: self.held / self._bytes_max)

    def reserve_page(self) -> int:
        """Reserve a page for a new watch; returns its bytes."""
        if self.held and self.held + self.page_bytes > self._bytes_max:
            self._refused.inc()
            raise TooManyRequests(
                f"watches hold {self.held} bytes of initial events that their clients have not read:"
                " list and watch from the version of the list, or try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.held += self.page_bytes
        return self.page_bytes
