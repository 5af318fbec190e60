"""One connection to the keeper, at the keeper's end, and the clock of its deadlines. Standard library only."""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from kedge.agent.process.keeper_bounds import LINE_BYTES_MAX, UNSENT_BYTES_MAX, UNSENT_BYTES_PAUSE, UNSENT_S_MAX
else:  # run as a program, without the package
    sys.path.insert(0, str(Path(__file__).parent))
    from keeper_bounds import LINE_BYTES_MAX, UNSENT_BYTES_MAX, UNSENT_BYTES_PAUSE, UNSENT_S_MAX

NO_OPERATION = "the keeper has no operation"
"""The beginning of a refusal. Agents of later versions recognise an older keeper by these words."""


def clock_s() -> float:
    """The clock of deadlines. Shared by all processes of the machine; runs on while it sleeps; never jumps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class KeeperClient:
    """One connection: lines in, lines out. Never waits: replies that do not fit are kept, up to a limit."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.broken = False
        """Gone, or not to be trusted. The keeper disconnects it at the end of its turn."""
        self.unsent = bytearray()
        self._received = b""
        self._progress_s = clock_s()

    def lines(self) -> list[bytes]:
        """Whole lines that have arrived."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.broken = not data or len(self._received) > LINE_BYTES_MAX
        *whole, self._received = (self._received + data).split(b"\n")
        return whole

    def send(self, message: dict[str, Any]) -> None:
        if not self.unsent:
            self._progress_s = clock_s()
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        self.broken = self.broken or len(self.unsent) > UNSENT_BYTES_MAX

    def flush(self) -> None:
        try:
            sent = self.connection.send(self.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.broken, self.unsent = True, bytearray()
            return
        del self.unsent[:sent]
        self._progress_s = clock_s()

    def is_over(self, now_s: float) -> bool:
        return self.broken or (bool(self.unsent) and now_s >= self._progress_s + UNSENT_S_MAX)

    @property
    def events(self) -> int:
        """The events to wait for."""
        reading = selectors.EVENT_READ if len(self.unsent) < UNSENT_BYTES_PAUSE else 0
        return reading | (selectors.EVENT_WRITE if self.unsent else 0)
