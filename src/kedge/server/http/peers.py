"""Connections by the address of their peer: how many each address has, and which one gives way when all are taken.

TLS handshakes under way count like connections. It does no I/O.
"""

from __future__ import annotations

from typing import Protocol

from kedge.limits import Limits


class Evictable(Protocol):
    """A connection, or a handshake."""

    @property
    def dispensable(self) -> bool:
        """Whether no request is lost when it is closed."""

    def abort(self) -> None: ...


class Peers:
    """All connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of: dict[str, dict[Evictable, None]] = {}
        self.count = 0

    def has_room(self, address: str) -> bool:
        """Whether one more connection of an address may be opened.

        When all are taken, the address with the most gives up its oldest idle one to an address that has fewer.
        """
        own = len(self._of.get(address, ()))
        if own >= self._limits.http_peer_connections_max:
            return False
        if self.count < self._limits.http_connections_max:
            return True
        largest = max(self._of.values(), key=len)
        if len(largest) <= own + 1:
            return False
        victim = next((each for each in largest if each.dispensable), None)
        if victim is None:
            return False
        victim.abort()
        return True

    def add(self, address: str, connection: Evictable) -> None:
        self._of.setdefault(address, {})[connection] = None
        self.count += 1

    def remove(self, address: str, connection: Evictable) -> None:
        """Forget a connection; nothing happens if it is not known."""
        found = self._of.get(address)
        if found is None or connection not in found:
            return
        del found[connection]
        self.count -= 1
        if not found:
            del self._of[address]


def address_of(peername: object) -> str:
    """The address in what a socket calls its peer; empty for a connection that has none, as in a simulation."""
    return str(peername[0]) if isinstance(peername, tuple) and peername else ""
