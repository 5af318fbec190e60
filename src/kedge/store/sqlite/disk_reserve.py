"""Room on the disk that a store keeps for the day on which the disk is full: a file beside it, given up in two halves.

The first half is for a running store: updates and deletions still commit, which is how an operator makes room. The
second one is for opening, which writes too. New objects are rejected until there is room again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from kedge.env import Env

_TRY_S: Final = 1.0
"""How often room is looked for while the reserve is not whole."""


def reserve_path(path: Path) -> Path:
    return path.with_name(path.name + "-reserve")


def release_reserve(path: Path) -> bool:
    """Give up everything, so that the store at `path` can be opened; False if there is nothing to give up."""
    with suppress(OSError):
        reserve_path(path).unlink()
        return True
    return False


class DiskReserve:
    """The reserve of an open store."""

    def __init__(self, env: Env, path: Path, spare_bytes: Callable[[], int]) -> None:
        self._env = env
        self._path = reserve_path(path)
        self._bytes = env.limits.store_reserve_bytes
        self._spare_bytes = spare_bytes
        """Room inside the database itself, of deleted rows."""
        self._tried_s = env.monotonic()
        self._roomy = True
        env.metrics.gauge(
            "kedge_store_reserve_bytes", "Bytes on the disk that the store holds in reserve"
        ).set_function(self._size)
        self._take()

    def is_tight(self) -> bool:
        """Whether the store must not grow: the disk was full, and no room has been found since."""
        if self._roomy:
            return False
        if (now_s := self._env.monotonic()) - self._tried_s >= _TRY_S:
            self._tried_s = now_s
            self._take()
            self._roomy = self._size() >= self._bytes or self._spare_bytes() >= self._bytes
        return not self._roomy

    def give_up(self) -> bool:
        """The disk is full: give up what a running store may; False if that is gone already."""
        self._roomy, self._tried_s = False, -inf
        if self._size() <= self._bytes // 2:
            return False
        try:
            os.truncate(self._path, self._bytes // 2)
        except OSError:
            return False
        return True

    def _take(self) -> None:
        """Make the file whole if the disk has twice as much room as that takes."""
        missing = self._bytes - self._size()
        with suppress(OSError):
            disk = os.statvfs(self._path.parent)
            if missing <= 0 or disk.f_bavail * disk.f_frsize < 2 * missing:
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._bytes)
            finally:
                os.close(descriptor)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
