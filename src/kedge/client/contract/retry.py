"""Retries with shape: bounded, backed off with jitter, under a deadline, and only where repeating is safe.

What may be repeated is decided by the error alone. A write of unknown outcome never is, here: `Client` reads first.
"""

from __future__ import annotations

import asyncio

from kedge.env import Env
from kedge.errors import OperatingError, TooManyRequests, Unavailable

NOT_CARRIED_OUT = (Unavailable, TooManyRequests)
"""Errors that say the request had no effect, and that another time it may have."""


class Backoff:
    """The pauses of one intent: each up to twice the last, jittered so that many do not line up.

    Made when the first attempt has failed; `began_s` is when the intent began.
    """

    def __init__(self, env: Env, began_s: float) -> None:
        self._env = env
        self._next_s = env.limits.client_backoff_s
        self._deadline_s = began_s + env.limits.client_deadline_s
        self._attempts_left = env.limits.client_attempts_max - 1

    async def pause(self, error: OperatingError) -> None:
        """Wait before the next attempt.

        Raises:
            OperatingError: `error` itself, if there is no attempt or no time left.
        """
        pause_s = self._next_s * self._env.random.uniform(0.5, 1.5)
        if isinstance(error, TooManyRequests):
            pause_s = max(pause_s, error.retry_after_s)
        self._next_s = min(self._next_s * 2, self._env.limits.client_backoff_s_max)
        if self._attempts_left <= 0 or self._env.monotonic() + pause_s >= self._deadline_s:
            raise error
        self._attempts_left -= 1
        await asyncio.sleep(pause_s)
