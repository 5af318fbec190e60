"""A circuit breaker: rejects requests to a dependency that keeps failing, and lets one probe it now and then."""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import HeldOff, Lagged, OutcomeUnknown, TooManyRequests, Unavailable


class BreakerState(Enum):
    CLOSED = "closed"
    """Requests go through."""
    OPEN = "open"
    """Requests fail at once, until a time."""
    PROBING = "probing"
    """One request is in flight to find out whether the dependency is back; the rest still fail at once."""


class Breaker:
    """Opens after consecutive failures; a success, or any reply that shows the server alive, closes it."""

    def __init__(self, env: Env, dependency: str) -> None:
        self._env = env
        self._dependency = dependency
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._opens = 0
        self._open_until_s = 0.0
        self._backoff = Backoff(env.limits.breaker_open_s, 16 * env.limits.breaker_open_s)
        self._gauge = env.metrics.gauge(
            "kedge_client_breaker_open", "1 while the breaker rejects requests", ("dependency",)
        ).labels(dependency)

    @property
    def state(self) -> BreakerState:
        return self._state

    def admit(self) -> bool:
        """Admit a request: true if it is the probe. Report its end with `ended`.

        Raises:
            HeldOff: the breaker is open; the request must not be sent.
        """
        if self._state is BreakerState.CLOSED:
            return False
        held_s = self.held_s()
        if held_s > 0:
            raise HeldOff(
                f"{self._dependency} failed {self._failures} times in a row; requests are held off"
                f" for another {held_s:.1f} s"
            )
        self._state = BreakerState.PROBING
        return True

    def held_s(self) -> float:
        """For how long no request will be admitted, as far as is known; 0 if one would be now.

        While a probe is in flight that depends on its reply: the first hold time is the estimate.
        """
        match self._state:
            case BreakerState.CLOSED:
                return 0.0
            case BreakerState.OPEN:
                return max(0.0, self._open_until_s - self._env.monotonic())
            case BreakerState.PROBING:
                return self._env.limits.breaker_open_s
        assert_never(self._state)

    def ended(self, error: BaseException | None, *, probe: bool) -> None:
        """An admitted request has ended."""
        if error is None:
            if self._failures or self._state is not BreakerState.CLOSED:
                self._succeeded()
        elif isinstance(error, Unavailable | OutcomeUnknown):
            self._failed(probe=probe)
        elif isinstance(error, Exception) and not isinstance(error, TooManyRequests | Lagged):
            self._succeeded()  # an error reply shows that the server is alive
        elif probe and self._state is BreakerState.PROBING:
            # Alive but loaded is neither a failure nor a success. A cancelled probe shows nothing.
            self._state = BreakerState.OPEN

    def _failed(self, *, probe: bool) -> None:
        if not probe and self._state is not BreakerState.CLOSED:
            return  # sent before the breaker opened: requests that fail together count as one failure
        self._failures += 1
        if probe or self._failures >= self._env.limits.breaker_failures_max:
            self._opens += 1
            self._open_until_s = self._env.monotonic() + self._backoff.pause_s(self._opens, self._env.random)
            self._state = BreakerState.OPEN
            self._gauge.set(1)

    def _succeeded(self) -> None:
        self._state = BreakerState.CLOSED
        self._failures = self._opens = 0
        self._gauge.set(0)
