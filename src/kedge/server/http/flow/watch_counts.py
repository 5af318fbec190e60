"""How many watches each user has open. They hold no seat, since an idle watch costs memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kedge.env import Env
from kedge.errors import TooManyRequests


class WatchCounts:
    """The open watches of one server, by user."""

    def __init__(self, env: Env) -> None:
        self._limits = env.limits
        self._of_user: dict[str, int] = {}
        self._count = 0
        self._refused = env.metrics.counter(
            "kedge_http_watches_refused_total", "Watches refused because too many were open", ("of",)
        )
        env.metrics.saturation("http watches", lambda: self._count / self._limits.http_watches_max)

    @contextmanager
    def watching(self, user: str) -> Iterator[None]:
        """Count a watch for as long as it is open.

        Raises:
            TooManyRequests: the user, or all users together, have as many as they may.
        """
        own = self._of_user.get(user, 0)
        if own >= self._limits.http_user_watches_max:
            self._refused.labels("user").inc()
            raise TooManyRequests(f"{user} has {own} open watches already: close some, or share one between readers")
        if self._count >= self._limits.http_watches_max:
            self._refused.labels("server").inc()
            raise TooManyRequests(f"{self._count} watches are open on this server already: try another, or later")
        self._of_user[user] = own + 1
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            left = self._of_user[user] - 1
            if left:
                self._of_user[user] = left
            else:
                del self._of_user[user]
