"""Bounds of retries: backed off with jitter, under a deadline, and only after errors that allow a repeat.

The error alone decides. A write of unknown outcome is not repeated here: `Client` reads first.
"""

from __future__ import annotations

import asyncio

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import OperatingError, TooManyRequests, Unavailable

NOT_CARRIED_OUT = (Unavailable, TooManyRequests)
"""Errors after which the request had no effect, and a repeat may succeed."""


class Retries:
    """The further attempts of one intent: bounded in number and by a deadline, with backoff between them.

    Made when the first attempt has failed; `began_s` is when the intent began.
    """

    def __init__(self, env: Env, began_s: float) -> None:
        self._env = env
        self._backoff = Backoff(env.limits.client_backoff_s, env.limits.client_backoff_s_max)
        self._failures = 0
        self._deadline_s = began_s + env.limits.client_deadline_s
        self._attempts_left = env.limits.client_attempts_max - 1

    async def pause(self, error: OperatingError) -> None:
        """Wait before the next attempt.

        Raises:
            OperatingError: `error` itself, if there is no attempt or no time left.
        """
        self._failures += 1
        pause_s = self._backoff.pause_s(self._failures, self._env.random)
        if isinstance(error, TooManyRequests):
            pause_s = max(pause_s, error.retry_after_s)
        if self._attempts_left <= 0 or self._env.monotonic() + pause_s >= self._deadline_s:
            raise error
        self._attempts_left -= 1
        await asyncio.sleep(pause_s)
