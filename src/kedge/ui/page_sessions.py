"""Logins of the page: a link that works once becomes a cookie that scripts cannot read and other sites cannot send.

A token is compared in constant time and never stored: only its hash is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kedge.env import Env
from kedge.errors import Unauthorized

LINK_S_MAX: Final = 300.0
"""A link that is not opened ends after so long."""
SESSION_S_MAX: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1_000
"""Links and sessions; the oldest end when there are more."""
_TOKEN_BYTES: Final = 32
_W = TypeVar("_W")


@dataclass(slots=True)
class PageSessions(Generic[_W]):
    """Links and sessions of one server, each for one user."""

    env: Env
    _links: dict[bytes, tuple[float, _W]] = field(default_factory=dict)
    _sessions: dict[bytes, tuple[float, _W]] = field(default_factory=dict)

    def new_link(self, user: _W) -> str:
        """The token of a link."""
        return self._add(self._links, user, LINK_S_MAX)

    def open_link(self, token: str) -> str:
        """Use a link up. Returns the value of the cookie.

        Raises:
            Unauthorized: it was used before, has ended, or never was one.
        """
        found = self._links.pop(_hash(token), None)
        if found is None or found[0] < self.env.monotonic():
            raise Unauthorized("this link was used before or has ended: run `kedge ui` again for a new one")
        return self._add(self._sessions, found[1], SESSION_S_MAX)

    def user_of(self, cookie: str) -> _W | None:
        """The user behind a cookie; None if it is none of a session."""
        name = _hash(cookie)
        found = self._sessions.get(name)
        if found is None:
            return None
        if found[0] < self.env.monotonic():
            del self._sessions[name]
            return None
        return found[1]

    def _add(self, kept: dict[bytes, tuple[float, _W]], user: _W, lasts_s: float) -> str:
        token = self.env.secret_bytes(_TOKEN_BYTES).hex()
        while len(kept) >= SESSIONS_MAX:
            del kept[next(iter(kept))]
        kept[_hash(token)] = (self.env.monotonic() + lasts_s, user)
        return token


def _hash(token: str) -> bytes:
    """Tokens are looked up by hash, so that the time of a lookup depends on no token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
